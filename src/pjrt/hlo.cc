#include "pjrt/hlo.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/wire.h"

namespace lignum::pjrt {
namespace {

// Field numbers, by message.
namespace module_with_config {
constexpr int kHloModule = 1;
}
namespace module {
constexpr int kName = 1, kComputations = 3, kEntryComputationId = 6, kSchedule = 7;
}
namespace schedule {
constexpr int kSequences = 1;       // map: computation id -> sequence
constexpr int kInstructionIds = 1;  // of a sequence
}  // namespace schedule
namespace computation_field {
constexpr int kName = 1, kInstructions = 2, kId = 5, kRootId = 6, kIsFusion = 7, kExecutionThread = 8;
}
namespace instruction_field {
constexpr int kName = 1, kOpcode = 2, kShape = 3, kParameterNumber = 9, kFusionKind = 11, kTupleIndex = 13,
              kCustomCallTarget = 28, kId = 35, kOperandIds = 36, kCalledComputationIds = 38,
              kBackendConfig = 43, kFrontendAttributes = 68, kAsyncExecutionThread = 79;
}
namespace shape_field {
constexpr int kElementType = 2, kDimensions = 3, kTupleShapes = 4;
}
namespace frontend_attributes {
constexpr int kMap = 1;
}
namespace map_entry {
constexpr int kKey = 1, kValue = 2;
}

// A tuple of tuples of ... as deep as this is no program's: the input is malformed.
constexpr int kMaxShapeDepth = 32;

// XLA's PrimitiveType; "" are numbers that it does not use.
constexpr std::array<std::string_view, 34> kPrimitiveTypes = {
    "invalid", "pred",   "s8",       "s16", "s32",   "s64",           "u8",         "u16",        "u32",
    "u64",     "f16",    "f32",      "f64", "tuple", "opaque",        "c64",        "bf16",       "token",
    "c128",    "f8e5m2", "f8e4m3fn", "s4",  "u4",    "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s2",
    "u2",      "f8e4m3", "f8e3m4",   "s1",  "u1",    "f4e2m1fn",      "f8e8m0fnu"};

Result<HloShape> decode_shape(std::string_view message, int depth) {
  if (depth > kMaxShapeDepth) return check_failed("HLO shape: tuples nested deeper than {}", kMaxShapeDepth);
  HloShape shape;
  wire::Reader reader(message);
  for (wire::Field f; reader.next(f);) {
    switch (f.number) {
      case shape_field::kElementType:
        shape.dtype = f.value < kPrimitiveTypes.size() ? std::string(kPrimitiveTypes[f.value])
                                                       : fmt::format("type{}", f.value);
        break;
      case shape_field::kDimensions:
        LIGNUM_RETURN_IF_ERROR(wire::append_integers(f, shape.dims));
        break;
      case shape_field::kTupleShapes: {
        LIGNUM_ASSIGN_OR_RETURN(HloShape element, decode_shape(f.bytes, depth + 1));
        shape.tuple.push_back(std::move(element));
        break;
      }
      default:
        break;
    }
  }
  LIGNUM_RETURN_IF_ERROR(reader.status());
  return shape;
}

// Calls each(key field, value field) for one entry of a protobuf map.
template <class Each>
Status decode_map_entry(std::string_view message, Each&& each) {
  wire::Field key;
  wire::Field value;
  wire::Reader reader(message);
  for (wire::Field f; reader.next(f);) {
    if (f.number == map_entry::kKey) key = f;
    if (f.number == map_entry::kValue) value = f;
  }
  LIGNUM_RETURN_IF_ERROR(reader.status());
  return each(key, value);
}

Status decode_frontend_attributes(std::string_view message, std::map<std::string, std::string>& out) {
  wire::Reader reader(message);
  for (wire::Field f; reader.next(f);) {
    if (f.number != frontend_attributes::kMap) continue;
    LIGNUM_RETURN_IF_ERROR(decode_map_entry(f.bytes, [&](const wire::Field& key, const wire::Field& value) {
      out[std::string(key.bytes)] = std::string(value.bytes);
      return Status();
    }));
  }
  return reader.status();
}

// libtpu writes window_config.estimated_cycles, as a string (protobuf's JSON of int64); the largest int64 is
// its "unknown".
std::optional<int64_t> estimated_cycles_of(const std::string& backend_config) {
  if (backend_config.find("estimated_cycles") == std::string::npos) return std::nullopt;
  const auto json = parse_json(backend_config, "backend_config");
  if (!json.ok() || !json->is_object()) return std::nullopt;
  const auto window = json->find("window_config");
  if (window == json->end() || !window->is_object()) return std::nullopt;
  const auto cycles = window->find("estimated_cycles");
  if (cycles == window->end()) return std::nullopt;
  int64_t value = 0;
  if (cycles->is_number_integer()) {
    value = cycles->get<int64_t>();
  } else if (cycles->is_string()) {
    const std::string text = cycles->get<std::string>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (value == std::numeric_limits<int64_t>::max()) return std::nullopt;
  return value;
}

Result<HloInstruction> decode_instruction(std::string_view message) {
  HloInstruction out;
  int64_t parameter_number = 0;  // protobuf leaves out zeros: presence follows from the opcode
  int64_t tuple_index = 0;
  wire::Reader reader(message);
  for (wire::Field f; reader.next(f);) {
    switch (f.number) {
      case instruction_field::kName:
        out.name = f.bytes;
        break;
      case instruction_field::kOpcode:
        out.opcode = f.bytes;
        break;
      case instruction_field::kShape: {
        LIGNUM_ASSIGN_OR_RETURN(out.shape, decode_shape(f.bytes, 0));
        break;
      }
      case instruction_field::kParameterNumber:
        parameter_number = f.integer();
        break;
      case instruction_field::kFusionKind:
        out.fusion_kind = f.bytes;
        break;
      case instruction_field::kTupleIndex:
        tuple_index = f.integer();
        break;
      case instruction_field::kCustomCallTarget:
        out.custom_call_target = f.bytes;
        break;
      case instruction_field::kId:
        out.id = f.integer();
        break;
      case instruction_field::kOperandIds:
        LIGNUM_RETURN_IF_ERROR(wire::append_integers(f, out.operands));
        break;
      case instruction_field::kCalledComputationIds:
        LIGNUM_RETURN_IF_ERROR(wire::append_integers(f, out.called));
        break;
      case instruction_field::kBackendConfig:
        out.backend_config = f.bytes;
        break;
      case instruction_field::kFrontendAttributes:
        LIGNUM_RETURN_IF_ERROR(decode_frontend_attributes(f.bytes, out.frontend_attributes));
        break;
      case instruction_field::kAsyncExecutionThread:
        out.async_thread = f.bytes;
        break;
      default:
        break;
    }
  }
  LIGNUM_RETURN_IF_ERROR(reader.status());
  if (out.opcode == "parameter") out.parameter_number = parameter_number;
  if (out.opcode == "get-tuple-element") out.tuple_index = tuple_index;
  out.estimated_cycles = estimated_cycles_of(out.backend_config);
  return out;
}

Result<HloComputation> decode_computation(std::string_view message) {
  HloComputation out;
  wire::Reader reader(message);
  for (wire::Field f; reader.next(f);) {
    switch (f.number) {
      case computation_field::kName:
        out.name = f.bytes;
        break;
      case computation_field::kInstructions: {
        LIGNUM_ASSIGN_OR_RETURN(HloInstruction instruction, decode_instruction(f.bytes));
        out.instructions.push_back(std::move(instruction));
        break;
      }
      case computation_field::kId:
        out.id = f.integer();
        break;
      case computation_field::kRootId:
        out.root_id = f.integer();
        break;
      case computation_field::kIsFusion:
        out.is_fusion = f.value != 0;
        break;
      case computation_field::kExecutionThread:
        out.thread = f.bytes;
        break;
      default:
        break;
    }
  }
  LIGNUM_RETURN_IF_ERROR(reader.status());
  return out;
}

using Sequences = std::unordered_map<int64_t, std::vector<int64_t>>;

Status decode_schedule(std::string_view message, Sequences& out) {
  wire::Reader reader(message);
  for (wire::Field f; reader.next(f);) {
    if (f.number != schedule::kSequences) continue;
    LIGNUM_RETURN_IF_ERROR(
        decode_map_entry(f.bytes, [&](const wire::Field& key, const wire::Field& value) -> Status {
          std::vector<int64_t>& ids = out[key.integer()];
          wire::Reader sequence(value.bytes);
          for (wire::Field g; sequence.next(g);) {
            if (g.number == schedule::kInstructionIds) LIGNUM_RETURN_IF_ERROR(wire::append_integers(g, ids));
          }
          return sequence.status();
        }));
  }
  return reader.status();
}

Status apply_schedule(HloComputation& computation, const std::vector<int64_t>& order) {
  std::unordered_map<int64_t, size_t> position;
  for (size_t i = 0; i < order.size(); ++i) position.emplace(order[i], i);
  const bool complete = position.size() == order.size() && order.size() == computation.instructions.size();
  if (!complete || !std::all_of(computation.instructions.begin(), computation.instructions.end(),
                                [&](const HloInstruction& i) { return position.contains(i.id); })) {
    return check_failed("HLO computation {}: its schedule is not an order of its {} instructions",
                        computation.name, computation.instructions.size());
  }
  std::sort(
      computation.instructions.begin(), computation.instructions.end(),
      [&](const HloInstruction& a, const HloInstruction& b) { return position[a.id] < position[b.id]; });
  computation.scheduled = true;
  return {};
}

}  // namespace

std::string HloShape::to_string() const {
  if (dtype != "tuple") {
    return dtype == "token" ? dtype : fmt::format("{}[{}]", dtype, fmt::join(dims, ","));
  }
  std::string out = "(";
  for (const HloShape& element : tuple) out += (out.size() > 1 ? ", " : "") + element.to_string();
  return out + ")";
}

Result<HloProgram> HloProgram::decode(std::string_view hlo_module_with_config) {
  std::string_view module_bytes;
  wire::Reader outer(hlo_module_with_config);
  for (wire::Field f; outer.next(f);) {
    if (f.number == module_with_config::kHloModule) module_bytes = f.bytes;
  }
  LIGNUM_RETURN_IF_ERROR(outer.status());
  if (module_bytes.empty()) return check_failed("no HLO module in {} bytes", hlo_module_with_config.size());

  HloProgram out;
  Sequences sequences;
  wire::Reader reader(module_bytes);
  for (wire::Field f; reader.next(f);) {
    switch (f.number) {
      case module::kName:
        out.name_ = f.bytes;
        break;
      case module::kComputations: {
        LIGNUM_ASSIGN_OR_RETURN(HloComputation computation, decode_computation(f.bytes));
        if (!out.index_.emplace(computation.id, out.computations_.size()).second) {
          return check_failed("HLO module {}: two computations with id {}", out.name_, computation.id);
        }
        out.computations_.push_back(std::move(computation));
        break;
      }
      case module::kEntryComputationId:
        out.entry_id_ = f.integer();
        break;
      case module::kSchedule:
        LIGNUM_RETURN_IF_ERROR(decode_schedule(f.bytes, sequences));
        break;
      default:
        break;
    }
  }
  LIGNUM_RETURN_IF_ERROR(reader.status());
  for (HloComputation& computation : out.computations_) {
    const auto it = sequences.find(computation.id);
    if (it != sequences.end()) LIGNUM_RETURN_IF_ERROR(apply_schedule(computation, it->second));
  }
  if (out.computation(out.entry_id_) == nullptr)
    return check_failed("HLO module {}: its entry is absent", out.name_);
  LIGNUM_RETURN_IF_ERROR(out.check_and_count());
  return out;
}

const HloComputation* HloProgram::computation(int64_t id) const {
  const auto it = index_.find(id);
  return it == index_.end() ? nullptr : &computations_[it->second];
}

const HloComputation* HloProgram::computation(std::string_view name) const {
  const auto it = std::find_if(computations_.begin(), computations_.end(),
                               [&](const HloComputation& c) { return c.name == name; });
  return it == computations_.end() ? nullptr : &*it;
}

}  // namespace lignum::pjrt
