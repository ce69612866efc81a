// elementwise {fn}: one function at every element; all inputs have the same dims and, but for select's
// predicate, the same dtype. bf16 is computed in f32 and rounded once.
//   unary     neg abs (f32, bf16, i32), exp log sqrt rsqrt logistic tanh sin cos (f32, bf16)
//   binary    add sub mul div max min (f32, bf16, i32; i32 wraps, x / 0 = -1)
//   compare   eq ne lt le gt ge -> pred (f32, bf16, i32)
//   select    (pred, a, b): a where the predicate holds, else b
#include <array>
#include <cmath>

#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

using kernels::Elementwise;

enum class Family : uint8_t { unary, transcendental, binary, compare, select };
struct Function {
  std::string_view name;
  Elementwise kernel;
  Family family;
  std::string_view stablehlo;  // the op, or the direction of a compare
};
constexpr std::array<Function, 23> kFunctions = {{
    {"neg", Elementwise::neg, Family::unary, "negate"},
    {"abs", Elementwise::abs, Family::unary, "abs"},
    {"exp", Elementwise::exp, Family::transcendental, "exponential"},
    {"log", Elementwise::log, Family::transcendental, "log"},
    {"sqrt", Elementwise::sqrt, Family::transcendental, "sqrt"},
    {"rsqrt", Elementwise::rsqrt, Family::transcendental, "rsqrt"},
    {"logistic", Elementwise::logistic, Family::transcendental, "logistic"},
    {"tanh", Elementwise::tanh, Family::transcendental, "tanh"},
    {"sin", Elementwise::sin, Family::transcendental, "sine"},
    {"cos", Elementwise::cos, Family::transcendental, "cosine"},
    {"add", Elementwise::add, Family::binary, "add"},
    {"sub", Elementwise::sub, Family::binary, "subtract"},
    {"mul", Elementwise::mul, Family::binary, "multiply"},
    {"div", Elementwise::div, Family::binary, "divide"},
    {"max", Elementwise::max, Family::binary, "maximum"},
    {"min", Elementwise::min, Family::binary, "minimum"},
    {"eq", Elementwise::eq, Family::compare, "EQ"},
    {"ne", Elementwise::ne, Family::compare, "NE"},
    {"lt", Elementwise::lt, Family::compare, "LT"},
    {"le", Elementwise::le, Family::compare, "LE"},
    {"gt", Elementwise::gt, Family::compare, "GT"},
    {"ge", Elementwise::ge, Family::compare, "GE"},
    {"select", Elementwise::select, Family::select, "select"},
}};

const Function* find_function(std::string_view name) {
  for (const Function& f : kFunctions)
    if (f.name == name) return &f;
  return nullptr;
}
const Function& function_of(const Site& s) {
  const Function* f = find_function(s.attrs.get<std::string>("fn"));
  LIGNUM_CHECK(f != nullptr, "fn {}", s.attrs.get<std::string>("fn"));
  return *f;
}

// XLA's integers: wrap on overflow, x / 0 = -1.
double wrap(int64_t v) { return static_cast<int32_t>(static_cast<uint32_t>(v)); }

double evaluate(Elementwise fn, bool integer, double a, double b, double c) {
  const auto ia = static_cast<int64_t>(integer ? a : 0), ib = static_cast<int64_t>(integer ? b : 0);
  switch (fn) {
    case Elementwise::neg:
      return integer ? wrap(-ia) : -a;
    case Elementwise::abs:
      return integer ? wrap(std::abs(ia)) : std::fabs(a);
    case Elementwise::exp:
      return std::exp(a);
    case Elementwise::log:
      return std::log(a);
    case Elementwise::sqrt:
      return std::sqrt(a);
    case Elementwise::rsqrt:
      return 1 / std::sqrt(a);
    case Elementwise::logistic:
      return 1 / (1 + std::exp(-a));
    case Elementwise::tanh:
      return std::tanh(a);
    case Elementwise::sin:
      return std::sin(a);
    case Elementwise::cos:
      return std::cos(a);
    case Elementwise::add:
      return integer ? wrap(ia + ib) : a + b;
    case Elementwise::sub:
      return integer ? wrap(ia - ib) : a - b;
    case Elementwise::mul:
      return integer ? wrap(ia * ib) : a * b;
    case Elementwise::div:
      if (integer) return ib == 0 ? -1 : wrap(ia / ib);
      return a / b;
    case Elementwise::max:
      return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
    case Elementwise::min:
      return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
    case Elementwise::eq:
      return a == b;
    case Elementwise::ne:
      return a != b;
    case Elementwise::lt:
      return a < b;
    case Elementwise::le:
      return a <= b;
    case Elementwise::gt:
      return a > b;
    case Elementwise::ge:
      return a >= b;
    case Elementwise::select:
      return a != 0 ? b : c;
  }
  LIGNUM_CHECK(false, "fn {}", static_cast<int>(fn));
}

struct ElementwiseOp {
  static constexpr std::string_view kName = "elementwise";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_ASSIGN_OR_RETURN(const std::string name, string_attr(attrs, "fn"));
    const Function* f = find_function(name);
    if (f == nullptr) {
      std::string allowed;
      for (const Function& known : kFunctions)
        allowed += (allowed.empty() ? "" : " ") + std::string(known.name);
      return user_error("attribute fn=\"{}\": no such function; allowed: {}", name, allowed);
    }
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, static_cast<size_t>(kernels::elementwise_inputs(f->kernel))));
    for (size_t i = 1; i < in.size(); ++i) LIGNUM_RETURN_IF_ERROR(expect_same_dims(in[0], in[i]));
    const bool is_select = f->family == Family::select;
    if (is_select) LIGNUM_RETURN_IF_ERROR(expect_dtype(in[0], "the predicate", {DType::pred}));
    const Type& first = in[is_select ? 1 : 0];
    if (f->family == Family::transcendental) {
      LIGNUM_RETURN_IF_ERROR(expect_dtype(first, name, {DType::f32, DType::bf16}));
    } else {
      LIGNUM_RETURN_IF_ERROR(expect_dtype(first, name, {DType::f32, DType::bf16, DType::i32}));
    }
    if (first.dtype != in.back().dtype)
      return user_error("{} takes one dtype, not {} and {}: convert one", name, dtype_name(first.dtype),
                        dtype_name(in.back().dtype));
    std::vector<std::string> names = first.names;
    if (names.empty()) names = in.back().names;
    return one_type(f->family == Family::compare ? DType::pred : first.dtype, first.dims, std::move(names));
  }

  static Gradients grad(const GradCall& c) {
    const Function& f = function_of(c.site);
    Gradients none(c.inputs.size());
    if (!dtype_is_float(c.site.out[0].dtype)) return none;
    Builder& b = c.build;
    const Type& type = c.site.out[0];
    const Value dy = c.cotangent(0), y = c.outputs[0], x = c.inputs[0];
    const auto number = [&](double v) { return b.constant(type.dtype, type.dims, v); };
    const auto unary = [&](std::string_view fn, Value v) { return b.elementwise(fn, {v}); };
    const auto op = [&](std::string_view fn, Value p, Value q) { return b.elementwise(fn, {p, q}); };
    const auto select = [&](Value p, Value yes, Value no) { return b.elementwise("select", {p, yes, no}); };
    switch (f.kernel) {
      case Elementwise::neg:
        return {unary("neg", dy)};
      case Elementwise::abs:
        return {
            select(op("gt", x, number(0)), dy, select(op("lt", x, number(0)), unary("neg", dy), number(0)))};
      case Elementwise::exp:
        return {op("mul", dy, y)};
      case Elementwise::log:
        return {op("div", dy, x)};
      case Elementwise::sqrt:
        return {op("div", op("mul", dy, number(0.5)), y)};
      case Elementwise::rsqrt:
        return {op("mul", op("mul", dy, number(-0.5)), op("mul", y, op("mul", y, y)))};
      case Elementwise::logistic:
        return {op("mul", dy, op("mul", y, op("sub", number(1), y)))};
      case Elementwise::tanh:
        return {op("mul", dy, op("sub", number(1), op("mul", y, y)))};
      case Elementwise::sin:
        return {op("mul", dy, unary("cos", x))};
      case Elementwise::cos:
        return {op("mul", unary("neg", dy), unary("sin", x))};
      case Elementwise::add:
        return {dy, dy};
      case Elementwise::sub:
        return {dy, unary("neg", dy)};
      case Elementwise::mul:
        return {op("mul", dy, c.inputs[1]), op("mul", dy, x)};
      case Elementwise::div:
        return {op("div", dy, c.inputs[1]), op("div", op("mul", unary("neg", dy), y), c.inputs[1])};
      case Elementwise::max:
      case Elementwise::min: {  // a tie goes to the first
        const Value first = op(f.kernel == Elementwise::max ? "ge" : "le", x, c.inputs[1]);
        return {select(first, dy, number(0)), select(first, number(0), dy)};
      }
      case Elementwise::select:
        return {std::nullopt, select(x, dy, number(0)), select(x, number(0), dy)};
      default:
        return none;
    }
  }

  static ShardRule partition(const Site& s) {
    const Elementwise fn = function_of(s).kernel;
    ShardRule rule;
    rule.in.assign(s.in.size(), factors(s.out[0].rank()));
    rule.out = {factors(s.out[0].rank())};
    rule.linear = fn == Elementwise::add || fn == Elementwise::sub || fn == Elementwise::neg;
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s);
    if (function_of(s).family == Family::transcendental) {
      c.work = Work::transcendental;
      c.transcendentals = static_cast<double>(s.out[0].elements());
      c.flops = 0;
    }
    return c;
  }

  static constexpr Primitive decompose{"one function at every element is as simple as it gets"};

  static void reference(const RefCall& c) {
    const Function& f = function_of(c.site);
    const bool integer = c.site.in.back().dtype == DType::i32;
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const auto at = [&](size_t input) { return c.in.size() > input ? c.in[input]->data[i] : 0.0; };
      c.out[0].data[i] = evaluate(f.kernel, integer, at(0), at(1), at(2));
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const auto at = [&](size_t i) { return c.in.size() > i ? c.in[i] : nullptr; };
    kernels::row_kernels(c.choice).elementwise(function_of(c.site).kernel, c.site.in.back().dtype,
                                               c.site.out[0].elements(), at(0), at(1), at(2), c.out[0],
                                               c.parallel);
    return {};
  }

  static Buffers buffers(const Site& s) {
    Buffers b;
    for (size_t i = 0; i < s.in.size(); ++i)
      if (s.in[i].dtype == s.out[0].dtype) b.in_place.emplace_back(0, static_cast<int>(i));
    return b;
  }

  static std::vector<std::string> emit(const EmitCall& c) {
    const Function& f = function_of(c.site);
    const std::string result = c.out.fresh();
    const std::string type = mlir_type(c.site.out[0]);
    std::string operands;
    for (const std::string& name : c.in) operands += (operands.empty() ? "" : ", ") + name;
    if (f.family == Family::compare) {
      c.out.line(fmt::format("{} = stablehlo.compare {}, {}, {} : {} -> {}", result, f.stablehlo, operands,
                             c.site.in[0].dtype == DType::i32 ? "SIGNED" : "FLOAT", mlir_types(c.site.in),
                             type));
    } else if (f.family == Family::select) {
      c.out.line(
          fmt::format("{} = stablehlo.select {} : {}, {}", result, operands, mlir_type(c.site.in[0]), type));
    } else {
      c.out.line(fmt::format("{} = stablehlo.{} {} : {}", result, f.stablehlo, operands, type));
    }
    return {result};
  }

  static std::vector<Case> cases() {
    std::vector<Case> cases;
    const auto add = [&](const Function& f, std::string name, DType dtype, Dims dims) {
      // log, sqrt and rsqrt live on the positive axis; div keeps away from 0.
      const bool positive = f.kernel == Elementwise::log || f.kernel == Elementwise::sqrt ||
                            f.kernel == Elementwise::rsqrt || f.kernel == Elementwise::div;
      CaseInput input{Type{dtype, dims, {}}, positive ? Fill::positive : Fill::normal, 1};
      if (dtype == DType::i32) input = {Type{dtype, dims, {}}, Fill::token, 9};
      Case c;
      c.name = fmt::format("{}_{}", f.name, name);
      c.attrs.set("fn", std::string(f.name));
      c.in.assign(static_cast<size_t>(kernels::elementwise_inputs(f.kernel)), input);
      if (f.family == Family::select) c.in[0] = {Type{DType::pred, dims, {}}, Fill::predicate, 1};
      cases.push_back(std::move(c));
    };
    for (const Function& f : kFunctions) {
      add(f, "odd", DType::f32, {3, 37});
      add(f, "bf16", DType::bf16, {2, 4, 18});
      if (f.family != Family::transcendental) add(f, "i32", DType::i32, {5, 7});
    }
    add(*find_function("add"), "scalar", DType::f32, {});
    add(*find_function("add"), "empty", DType::f32, {3, 0});
    add(*find_function("mul"), "long", DType::f32, {70001});
    for (const auto& [fn, dtype] : {std::pair{"add", DType::f32},
                                    {"add", DType::bf16},
                                    {"exp", DType::f32},
                                    {"logistic", DType::bf16}}) {
      add(*find_function(fn), fmt::format("bench_{}", dtype_name(dtype)), dtype, {1024, 1536});
      cases.back().bench = true;
    }
    return cases;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(elementwise, ElementwiseOp)

}  // namespace lignum::ops
