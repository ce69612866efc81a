#include "comm/engine.h"

namespace lignum::comm {

Result<std::unique_ptr<CommEngine>> CommEngine::create(Transport& transport, const EngineOptions& options) {
  std::unique_ptr<CommEngine> engine(new CommEngine(transport, options));
  LIGNUM_RETURN_IF_ERROR(engine->queue_.start(options.cores));
  return engine;
}

}  // namespace lignum::comm
