#include "ops/fusion.h"

namespace lignum::ops {
namespace {

// A convert that widens bf16 is exact, and these consumers widen what they load by themselves.
std::optional<Attrs> reads_narrow(const Site& convert, const Site& consumer) {
  if (convert.in[0].dtype != DType::bf16 || convert.out[0].dtype != DType::f32) return std::nullopt;
  return consumer.attrs;
}

std::optional<Attrs> sum_reads_narrow(const Site& convert, const Site& put_row) {
  return put_row.attrs.get_or<bool>("add", false) ? reads_narrow(convert, put_row) : std::nullopt;
}

std::optional<Attrs> adds(const Site& producer, const Site& elementwise) {
  if (elementwise.attrs.get<std::string>("fn") != "add") return std::nullopt;
  return producer.attrs;
}

constexpr Fusion kFusions[] = {
    {"convert", "sum_squares", 0, "sum_squares", false, reads_narrow},
    {"convert", "adamw_update", 3, "adamw_update", false, reads_narrow},
    {"convert", "put_row", 1, "put_row", false, sum_reads_narrow},
    {"embed_grad", "elementwise", 1, "embed_grad_add", true, adds},
};

}  // namespace

std::span<const Fusion> fusions() { return kFusions; }

const Fusion* find_fusion(std::string_view producer, std::string_view consumer, size_t input) {
  for (const Fusion& f : kFusions)
    if (f.producer == producer && f.consumer == consumer && f.input == input) return &f;
  return nullptr;
}

}  // namespace lignum::ops
