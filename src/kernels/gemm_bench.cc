// GEMM and attention beside the rate at which the same core does the same instruction in registers (fp32 FMA,
// or that of the way of bf16 dots), probed between the repetitions: on a shared machine only the ratio means
// something. Shapes: squares, and every matrix product of the 61M model at 2048 tokens.
//   kernels_bench [isa] [seconds a shape] [way]: all ways of bf16 dots and fp16_64, or f32 and that way only

#include <fmt/core.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/attention.h"
#include "kernels/fma_probe.h"
#include "kernels/gemm.h"

namespace lignum::kernels {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Worker 0 is the caller.
class Pool final : public Parallel {
 public:
  explicit Pool(int threads) {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
  }
  ~Pool() override {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : workers_) t.join();
  }
  int threads() const override { return static_cast<int>(workers_.size()) + 1; }
  void run(int64_t tasks, FunctionRef<void(int64_t, int)> fn) override {
    {
      const std::scoped_lock lock(mutex_);
      fn_ = &fn;
      tasks_ = tasks;
      next_ = 0;
      busy_ = static_cast<int>(workers_.size());
      ++round_;
    }
    wake_.notify_all();
    drain(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void drain(int thread) {
    for (;;) {
      const int64_t task = next_.fetch_add(1);
      if (task >= tasks_) return;
      (*fn_)(task, thread);
    }
  }
  void work(int thread) {
    int64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) return;
        seen = round_;
      }
      drain(thread);
      const std::scoped_lock lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  FunctionRef<void(int64_t, int)>* fn_ = nullptr;
  std::atomic<int64_t> next_ = 0;
  int64_t tasks_ = 0, round_ = 0;
  int busy_ = 0;
  bool stop_ = false;
};

// Independent chains in registers; returns floating-point operations.
[[gnu::target("avx512f,avx512bf16"), gnu::noinline]] double probe_vdpbf16ps() {
  __m512 s[16];
  for (auto& x : s) x = _mm512_set1_ps(1.0f);
  __m512i a = _mm512_set1_epi32(0x3f803f80), b = _mm512_set1_epi32(0x3a003a00);
  for (int64_t i = 0; i < kProbeSteps / 4; ++i) {
#pragma GCC unroll 16
    for (auto& x : s)
      x = _mm512_dpbf16_ps(x, __builtin_bit_cast(__m512bh, a), __builtin_bit_cast(__m512bh, b));
    asm volatile("" : "+x"(a), "+x"(b));
  }
  for (auto& x : s) asm volatile("" : "+x"(x));
  return static_cast<double>(kProbeSteps) / 4 * 16.0 * 16 * 4;
}
// Tiles of ones: zeros would not heat the core as data does.
[[gnu::target("avx512f,amx-tile,amx-bf16"), gnu::noinline]] double probe_amx() {
  alignas(64) uint8_t config[64] = {1};
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = 64;
    config[48 + i] = 16;
  }
  alignas(64) uint16_t ones[512];
  for (uint16_t& x : ones) x = 0x3f80;
  asm volatile("" ::"r"(config), "r"(ones) : "memory");  // g++ 12 does not know that the two below read these
  _tile_loadconfig(config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
  for (int64_t i = 0; i < kProbeSteps / 16; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return static_cast<double>(kProbeSteps) / 16 * 4.0 * 16 * 16 * 32 * 2;
}

[[gnu::target("avx512f,avx512fp16"), gnu::noinline]] double probe_fp16() {
  __m512h s[16];
  for (auto& x : s) x = _mm512_castsi512_ph(_mm512_set1_epi16(0x3c00));
  __m512h a = s[0], b = _mm512_castsi512_ph(_mm512_set1_epi16(0x1400));
  for (int64_t i = 0; i < kProbeSteps / 4; ++i) {
#pragma GCC unroll 16
    for (auto& x : s) x = _mm512_fmadd_ph(a, b, x);
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (auto& x : s) asm volatile("" : "+v"(x));
  return static_cast<double>(kProbeSteps) / 4 * 16.0 * 32 * 2;
}

double probe(Choice choice, Parallel& pool) {
  const bool fp16 = choice.fp8_accumulation == Fp8Accumulation::fp16_64;
  if (choice.bf16_dot == Bf16Dot::fma && !fp16) return probe_fma(choice.isa, pool);
  const double begin = now();
  std::vector<double> flops(pool.threads());
  pool.run(pool.threads(), [&](int64_t t, int) {
    flops[t] = fp16 ? probe_fp16() : choice.bf16_dot == Bf16Dot::amx ? probe_amx() : probe_vdpbf16ps();
  });
  double sum = 0;
  for (double f : flops) sum += f;
  return sum / (now() - begin);
}

struct Shape {
  int64_t m, n, k;
  const char* layout;  // "NN", "NT": B stored [n, k], "TN": A stored [k, m]
  const char* what;
};

const Shape kShapes[] = {
    {1024, 1024, 1024, "NN", "square"},     {2048, 2048, 2048, "NN", "square"},
    {2048, 2048, 2048, "NT", "square"},     {2048, 576, 576, "NT", "q, o"},
    {2048, 192, 576, "NT", "k, v"},         {2048, 1536, 576, "NT", "gate, up"},
    {2048, 576, 1536, "NT", "down"},        {2048, 576, 576, "NN", "dgrad"},
    {2048, 1536, 576, "NN", "dgrad"},       {2048, 576, 1536, "NN", "dgrad"},
    {576, 1536, 2048, "TN", "wgrad"},       {576, 576, 2048, "TN", "wgrad"},
    {2048, 32000, 576, "NT", "head"},       {2048, 576, 32000, "NN", "head dgrad"},
    {32000, 576, 2048, "TN", "head wgrad"},
};

void fill(DType dtype, std::vector<char>& buffer) {
  const int64_t n = static_cast<int64_t>(buffer.size()) / dtype_size(dtype);
  uint32_t x = 12345;
  for (int64_t i = 0; i < n; ++i) {
    x = x * 1664525u + 1013904223u;
    const float value = static_cast<float>(x >> 8) * 0x1p-23f - 1.0f;
    store_from_double(dtype, buffer.data(), i, value);
  }
}

struct Rate {
  double gflops = 0, roof = 0;
};

// Best of the repetitions, roofline probed between them.
Rate measure(Choice choice, Parallel& pool, double seconds, double flops, FunctionRef<void()> fn) {
  Rate best;
  fn();
  const double end = now() + seconds;
  do {
    best.roof = std::max(best.roof, probe(choice, pool) * 1e-9);
    const double begin = now();
    fn();
    best.gflops = std::max(best.gflops, flops / (now() - begin) * 1e-9);
  } while (now() < end);
  return best;
}

std::string label(Choice choice, DType dtype) {
  if (dtype == DType::f32) return "f32";
  if (is_float8(dtype)) return fmt::format("fp8 {}", fp8_accumulation_name(choice.fp8_accumulation));
  return fmt::format("bf16 {}", bf16_dot_name(choice.bf16_dot));
}

void bench_gemm(Choice choice, const Shape& shape, DType dtype, Pool* const (&pools)[2], double seconds) {
  Gemm g{.m = shape.m, .n = shape.n, .k = shape.k};
  g.trans_a = shape.layout[0] == 'T';
  g.trans_b = shape.layout[1] == 'T';
  g.a = g.b = dtype;
  g.c = is_float8(dtype) ? DType::bf16 : dtype;
  g.lda = g.trans_a ? g.m : g.k;
  g.ldb = g.trans_b ? g.k : g.n;
  g.ldc = g.n;
  std::vector<char> a(g.m * g.k * dtype_size(dtype)), b(g.n * g.k * dtype_size(dtype)),
      c(g.m * g.n * dtype_size(g.c));
  fill(dtype, a);
  fill(dtype, b);
  const int64_t bytes = gemm_workspace(g, 2);
  void* workspace = std::aligned_alloc(64, static_cast<size_t>(bytes));
  std::memset(workspace, 0, static_cast<size_t>(bytes));
  fmt::print("{:5} x {:5} x {:5} {} {:14} {:11}", g.m, g.n, g.k, shape.layout, label(choice, dtype),
             shape.what);
  for (Pool* pool : pools) {
    const double flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
    const Rate r = measure(choice, *pool, seconds, flops,
                           [&] { gemm(choice, g, a.data(), b.data(), c.data(), workspace, *pool); });
    fmt::print("  {}t {:6.1f} of {:6.1f} = {:5.1f} %", pool->threads(), r.gflops, r.roof,
               100 * r.gflops / r.roof);
  }
  fmt::print("\n");
  std::free(workspace);
}

// Multiply-adds of the products that are needed: 2 forward, 5 backward; half the square if causal.
void bench_attention(Choice choice, const Attention& x, Pool* const (&pools)[2], double seconds) {
  const int64_t queries = x.batch * x.queries * x.heads * x.dim, keys = x.batch * x.keys * x.kv_heads * x.dim;
  const int64_t size = dtype_size(x.dtype);
  std::vector<char> q(queries * size), out(queries * size), dout(queries * size), dq(queries * size);
  std::vector<char> k(keys * size), v(keys * size), dk(keys * size), dv(keys * size);
  std::vector<float> lse(x.batch * x.heads * x.queries);
  for (auto* buffer : {&q, &dout, &k, &v}) fill(x.dtype, *buffer);
  const int64_t bytes = std::max(attention_workspace(x, 2), attention_grad_workspace(x, 2));
  void* workspace = std::aligned_alloc(64, static_cast<size_t>(bytes));
  std::memset(workspace, 0, static_cast<size_t>(bytes));
  const double product =
      2.0 * static_cast<double>(queries) * static_cast<double>(x.keys) * (x.causal ? 0.5 : 1.0);
  for (bool backward : {false, true}) {
    fmt::print("attention B{} S{:4} H{}/{} D{} {:14} {:8}", x.batch, x.queries, x.heads, x.kv_heads, x.dim,
               label(choice, x.dtype), backward ? "backward" : "forward");
    for (Pool* pool : pools) {
      const Rate r = measure(choice, *pool, seconds, product * (backward ? 5 : 2), [&] {
        if (backward) {
          attention_grad(choice, x, dout.data(), q.data(), k.data(), v.data(), out.data(), lse.data(),
                         dq.data(), dk.data(), dv.data(), workspace, *pool);
        } else {
          attention(choice, x, q.data(), k.data(), v.data(), out.data(), lse.data(), workspace, *pool);
        }
      });
      fmt::print("  {}t {:6.1f} of {:6.1f} = {:5.1f} %", pool->threads(), r.gflops, r.roof,
                 100 * r.gflops / r.roof);
    }
    fmt::print("\n");
  }
  std::free(workspace);
}

}  // namespace

int main_of(int argc, char** argv) {
  std::optional<Isa> wanted;
  if (argc > 1) {
    wanted = isa_from_name(argv[1]);
    if (!wanted || *wanted == Isa::scalar) {
      fmt::print(stderr, "isa {}: avx512 and avx2 are allowed\n", argv[1]);
      return 2;
    }
  }
  const Result<Choice> choice = choose(wanted);
  if (!choice.ok()) {
    fmt::print(stderr, "{}\n", choice.status().message());
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 0.5;
  Pool one(1), two(2);
  Pool* const pools[] = {&one, &two};
  std::vector<std::pair<Choice, DType>> kinds = {{*choice, DType::f32}};
  for (const Bf16Dot dot : available_bf16_dots(choice->isa)) {
    if (argc > 3 && bf16_dot_name(dot) != argv[3]) continue;
    kinds.emplace_back(Choice{choice->isa, dot}, DType::bf16);
  }
  constexpr auto kSums = Fp8Accumulation::fp16_64;
  if (fp8_accumulation_refusal(kSums, choice->isa) == nullptr &&
      (argc <= 3 || argv[3] == std::string("fp16_64")))
    kinds.emplace_back(Choice{choice->isa, Bf16Dot::fma, kSums}, DType::f8e4m3fn);
  fmt::print("isa {}, GFLOP/s of the instruction's rate in registers\n", isa_name(choice->isa));
  for (const Shape& shape : kShapes) {
    for (const auto& [kind, dtype] : kinds) bench_gemm(kind, shape, dtype, pools, seconds);
  }
  for (int64_t seq : {256, 2048}) {
    Attention x{.batch = 2048 / seq,
                .queries = seq,
                .keys = seq,
                .heads = 9,
                .kv_heads = 3,
                .dim = 64,
                .scale = 0.125f};
    for (const auto& [kind, dtype] : kinds) {
      if (is_float8(dtype)) continue;
      x.dtype = dtype;
      bench_attention(kind, x, pools, seconds);
    }
  }
  return 0;
}

}  // namespace lignum::kernels

int main(int argc, char** argv) { return lignum::kernels::main_of(argc, argv); }
