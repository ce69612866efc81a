// matmul: dot_general, contraction.h's attributes. f32, bf16 or 8-bit operands, fp32 accumulation, rounded
// once to `dtype` (default: a's).
#include "ops/matmul/contraction.h"

namespace lignum::ops {
namespace {

struct Matmul {
  static constexpr std::string_view kName = "matmul";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    return infer_contraction(in, attrs);
  }

  static Gradients grad(const GradCall& c) {
    const Value dy = c.cotangent(0);
    Gradients out;
    for (const int operand : {0, 1}) {
      const DType own = c.site.in[static_cast<size_t>(operand)].dtype;
      out.push_back(gradient_matmul(c.build, gradient_product(c.site, operand), dy,
                                    c.inputs[static_cast<size_t>(1 - operand)],
                                    is_float8(own) ? c.build.type(dy).dtype : own));
    }
    return out;
  }

  static ShardRule partition(const Site& s) { return contraction_rule(s); }

  static Cost cost(const Site& s) { return contraction_cost(s); }

  static constexpr Primitive decompose{"the one op that contracts"};

  static void reference(const RefCall& c) { contraction_reference(c, c.out[0].data); }

  static int64_t workspace(const Site& s, int threads) { return contraction_workspace(s, threads); }

  static Status cpu(const CpuCall& c) { return run_contraction(c, c.workspace); }

  static Buffers buffers(const Site&) { return {}; }

  // f32 operands ask for HIGHEST: f32 means f32 on every device (a TPU would make bf16 of them, a GPU TF32).
  // Operands of two dtypes meet in the wider one, which both are exact in; two 8-bit formats stay as they
  // are.
  static std::vector<std::string> emit(const EmitCall& c) {
    const Contraction g(c.site);
    Types types(c.site.in.begin(), c.site.in.end());
    std::vector<std::string> names(c.in.begin(), c.in.end());
    const DType wide_dtype =
        dtype_size(types[0].dtype) >= dtype_size(types[1].dtype) ? types[0].dtype : types[1].dtype;
    const bool f32 = wide_dtype == DType::f32;
    for (size_t i = 0; i < 2; ++i) {
      if (dtype_size(types[i].dtype) == dtype_size(wide_dtype)) continue;
      Type wide = types[i];
      wide.dtype = wide_dtype;
      std::string name = c.out.fresh();
      c.out.line(fmt::format("{} = stablehlo.convert {} : ({}) -> {}", name, names[i], mlir_type(types[i]),
                             mlir_type(wide)));
      names[i] = std::move(name);
      types[i] = std::move(wide);
    }
    const std::string result = c.out.fresh();
    const std::string batch = g.batch_a.empty() ? ""
                                                : fmt::format("batching_dims = {} x {}, ",
                                                              mlir_list(g.batch_a), mlir_list(g.batch_b));
    const char* precision = f32 ? "HIGHEST" : "DEFAULT";
    c.out.line(fmt::format(
        "{} = stablehlo.dot_general {}, {}, {}contracting_dims = {} x {}, precision = [{}, {}] : {} -> {}",
        result, names[0], names[1], batch, mlir_list(g.contract_a), mlir_list(g.contract_b), precision,
        precision, mlir_types(types), mlir_type(c.site.out[0])));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, Dims a, Dims b, Dims contract_a, Dims contract_b,
                         Dims batch_a = {}, Dims batch_b = {}, DType da = DType::f32, DType db = DType::f32,
                         std::string_view out = "") {
      Case c;
      c.name = std::move(name);
      c.in = {{Type{da, std::move(a), {}}}, {Type{db, std::move(b), {}}}};
      c.attrs = contraction_attrs(contract_a, contract_b, batch_a, batch_b);
      if (!out.empty()) c.attrs.set("dtype", std::string(out));
      return c;
    };
    std::vector<Case> cases = {
        make("linear", {2, 5, 37}, {19, 37}, {2}, {1}),
        make("input_gradient", {2, 5, 19}, {19, 37}, {2}, {0}),
        make("weight_gradient", {2, 5, 19}, {2, 5, 37}, {0, 1}, {0, 1}),
        make("both_transposed", {37, 7}, {19, 37}, {0}, {1}),
        make("one_row", {1, 64}, {33, 64}, {1}, {1}),
        make("one_column", {33, 64}, {1, 64}, {1}, {1}),
        make("outer_product", {9, 1}, {11, 1}, {1}, {1}),
        make("inner_product", {301}, {301}, {0}, {0}),
        make("many_blocks", {3, 613}, {613, 4}, {1}, {0}),
        make("batched", {2, 3, 5, 8}, {2, 3, 7, 8}, {3}, {3}, {0, 1}, {0, 1}),
        make("batched_inside", {5, 3, 8}, {7, 3, 8}, {2}, {2}, {1}, {1}),
        // Batch dims that no single stride walks, contracted dims in two orders: by way of copies.
        make("heads_inside", {2, 5, 3, 8}, {2, 7, 3, 8}, {3}, {3}, {0, 2}, {0, 2}),
        make("batch_swapped", {2, 3, 5, 4}, {3, 2, 4, 6}, {3}, {2}, {1, 0}, {0, 1}),
        make("contract_swapped", {6, 3, 5}, {5, 4, 3}, {1, 2}, {2, 0}),
        make("free_between", {3, 6, 5}, {3, 5, 4}, {0, 2}, {0, 1}),
        make("nothing_contracted", {3, 2}, {4}, {}, {}),
        make("empty_contract", {3, 0}, {4, 0}, {1}, {1}),
        make("empty_rows", {0, 5}, {4, 5}, {1}, {1}),
        make("bf16", {4, 3, 70}, {21, 70}, {2}, {1}, {}, {}, DType::bf16, DType::bf16),
        make("bf16_to_f32", {4, 70}, {21, 70}, {1}, {1}, {}, {}, DType::bf16, DType::bf16, "f32"),
        make("mixed", {4, 70}, {70, 21}, {1}, {0}, {}, {}, DType::f32, DType::bf16, "bf16"),
        make("float8", {2, 5, 70}, {21, 70}, {2}, {1}, {}, {}, DType::f8e4m3fn, DType::f8e4m3fn, "f32"),
        make("float8_gradient", {6, 5, 21}, {21, 70}, {2}, {0}, {}, {}, DType::f8e5m2, DType::f8e4m3fn,
             "bf16"),
        make("float8_bf16", {40, 6}, {40, 18}, {0}, {0}, {}, {}, DType::f8e5m2, DType::bf16, "bf16"),
        make("float8_f32", {4, 70}, {21, 70}, {1}, {1}, {}, {}, DType::f8e4m3fn, DType::f32, "f32"),
    };
    for (Case c :
         {make("bench_ffn", {1024, 576}, {1536, 576}, {1}, {1}),
          make("bench_ffn_bf16", {1024, 576}, {1536, 576}, {1}, {1}, {}, {}, DType::bf16, DType::bf16)}) {
      c.bench = true;
      cases.push_back(std::move(c));
    }
    return cases;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(matmul, Matmul)

}  // namespace lignum::ops
