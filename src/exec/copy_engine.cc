#include "exec/copy_engine.h"

namespace lignum::exec {

Result<std::unique_ptr<CopyEngine>> CopyEngine::create(std::unique_ptr<HostMemory> memory,
                                                       const comm::EngineOptions& options) {
  std::unique_ptr<CopyEngine> engine(new CopyEngine(std::move(memory), options));
  LIGNUM_RETURN_IF_ERROR(engine->queue_.start(options.cores));
  return engine;
}

}  // namespace lignum::exec
