// The plan's arena against the kernel's count of what a step touches, for a model large enough that pages are
// small beside it.
#include <gtest/gtest.h>

#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "train/parameters.h"

namespace lignum::train {
namespace {

struct Measured {
  int64_t planned = 0, resident = 0;
};

// Two steps of a model of 7 M parameters on each of `fsdp` ranks; rank 0's arena. (A plan's workspace is that
// of the hungriest ISA and way of bf16 dots: of a smaller model it may be 1 % that is not touched.)
Measured measure(int64_t fsdp, const std::string& remat, DType dtype) {
  plan::ProgramOptions o;
  o.model.vocab_size = 4000;
  o.model.hidden = 256;
  o.model.layers = 6;
  o.model.heads = o.model.kv_heads = 4;
  o.model.head_dim = 64;
  o.model.mlp = 768;
  o.mesh.axes = {{"data", 1}, {"fsdp", fsdp}};
  o.shape = {2 * fsdp, 256, dtype};
  o.remat = passes::remat_policy(remat).value();
  const Result<plan::Program> program = plan::make_program(o);
  EXPECT_TRUE(program.ok()) << program.status().message();
  Measured out{program->memory.arena_bytes, 0};
  comm::ThreadWorld world(static_cast<int>(fsdp));
  const Status status = world.run([&](comm::Transport& transport) -> Status {
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(1));
    exec::ExecutorOptions e;
    e.step = &program->scheduled;
    e.plan = &program->memory;
    e.mesh = &o.mesh;
    e.transport = fsdp > 1 ? &transport : nullptr;
    e.parallel = pool.get();
    e.choice = {kernels::best_isa()};
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(e));
    LIGNUM_RETURN_IF_ERROR(init_parameters(o.model, {*program, o.mesh, transport.rank()}, *executor, 1));
    // Token 0 everywhere, every label supervised: the arena reads as zero until it is written.
    auto* positions = reinterpret_cast<int32_t*>(executor->param("positions"));
    for (int32_t i = 0; i < 2 * 256; ++i) positions[i] = i % 256;
    for (int step = 0; step < 2; ++step) LIGNUM_RETURN_IF_ERROR(executor->step());
    if (transport.rank() != 0) return {};
    LIGNUM_ASSIGN_OR_RETURN(out.resident, executor->arena().resident_bytes());
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

TEST(Memory, ArenaIsWhatTheKernelCounts) {
  for (const int64_t fsdp : {1, 2})
    for (const char* remat : {"none", "minimal", "full"})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Measured m = measure(fsdp, remat, dtype);
        EXPECT_NEAR(static_cast<double>(m.resident), static_cast<double>(m.planned),
                    0.01 * static_cast<double>(m.planned))
            << "fsdp " << fsdp << " remat " << remat << " " << dtype_name(dtype);
      }
}

}  // namespace
}  // namespace lignum::train
