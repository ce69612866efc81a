#include "passes/packing.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lignum::passes {
namespace {

// The least distance from `low`'s place to `high`'s at which no byte of both lives at once. Of stacks that
// one loop reads (rows of r bytes) and writes (w bytes), iteration by iteration: reversed, when row i is
// written, rows 0..i of the other still live, so high + i w >= low + (i + 1) r for each i; forward it is the
// mirror image.
int64_t distance(const Allocation& low, const Allocation& high) {
  const auto loop = [](const RowLife& written, const RowLife& read, bool reversed) {
    return written.loop >= 0 && written.loop == read.loop && written.reversed == reversed;
  };
  const auto shifted = [](const RowLife& l, const RowLife& h) {
    // Rows of an odd number of bf16 would bring an f32 stack to an odd place.
    return aligned(l.row_bytes + (l.rows - 1) * std::max<int64_t>(0, l.row_bytes - h.row_bytes));
  };
  if (loop(high.written, low.read, true)) return shifted(low.read, high.written);
  if (loop(low.written, high.read, false)) return shifted(low.written, high.read);
  return low.bytes;
}

// Buffers that are placed as one: a stack that a loop writes, in the place of one that it reads.
struct Piece {
  Allocation* allocation;
  int64_t offset;  // from the unit's base
};
struct Unit {
  std::vector<Piece> pieces;
  int64_t bytes = 0;
  int64_t slots() const {
    int64_t n = 0;
    for (const Piece& p : pieces) n += p.allocation->last - p.allocation->first + 1;
    return n;
  }
};
// Each stack that is written, largest first, goes with the stack that then grows least.
std::vector<Unit> make_units(std::span<Allocation* const> allocations) {
  std::vector<Unit> units;
  std::vector<Allocation*> written;
  for (Allocation* a : allocations) {
    if (a->written.loop >= 0) {
      written.push_back(a);
    } else {
      units.push_back({{{a, 0}}, a->bytes});
    }
  }
  std::stable_sort(written.begin(), written.end(),
                   [](const Allocation* a, const Allocation* b) { return a->bytes > b->bytes; });
  for (Allocation* w : written) {
    Unit* best = nullptr;
    std::pair<int64_t, int64_t> least{w->bytes, 0};  // growth, bytes
    for (Unit& u : units) {
      const Allocation& read = *u.pieces[0].allocation;
      if (u.pieces.size() > 1 || read.read.loop != w->written.loop || !w->written.reversed) continue;
      const int64_t together = std::max(u.bytes, distance(read, *w) + w->bytes);
      if (const std::pair cost{together - u.bytes, u.bytes}; cost < least) {
        least = cost;
        best = &u;
      }
    }
    if (best == nullptr) {
      units.push_back({{{w, 0}}, w->bytes});
    } else {
      best->pieces.push_back({w, distance(*best->pieces[0].allocation, *w)});
      best->bytes += least.first;
    }
  }
  return units;
}

// Each unit in turn at the lowest offset where nothing that lives at the same time is; returns the size.
int64_t place(const std::vector<Unit>& units) {
  int64_t size = 0;
  std::vector<const Allocation*> placed;
  for (const Unit& u : units) {
    // Where the unit may not begin: above first and below second.
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const Piece& p : u.pieces) {
      const Allocation& mine = *p.allocation;
      for (const Allocation* other : placed)
        if (other->first <= mine.last && mine.first <= other->last)
          taken.emplace_back(other->base - distance(mine, *other) - p.offset,
                             other->base + distance(*other, mine) - p.offset);
    }
    std::sort(taken.begin(), taken.end());
    int64_t base = 0;
    for (const auto& [below, above] : taken) {
      if (base <= below) break;
      base = std::max(base, above);
    }
    for (const Piece& p : u.pieces) {
      p.allocation->base = base + p.offset;
      placed.push_back(p.allocation);
    }
    size = std::max(size, base + u.bytes);
  }
  return size;
}

}  // namespace

int64_t shared_bytes(const Allocation& a, const Allocation& b) {
  return std::max<int64_t>(0, std::min(a.base + a.bytes, b.base + b.bytes) - std::max(a.base, b.base));
}

int64_t pack(std::span<Allocation* const> allocations) {
  std::vector<Unit> by_bytes = make_units(allocations);
  std::stable_sort(by_bytes.begin(), by_bytes.end(),
                   [](const Unit& a, const Unit& b) { return a.bytes > b.bytes; });
  std::vector<Unit> by_area = by_bytes;
  std::stable_sort(by_area.begin(), by_area.end(),
                   [](const Unit& a, const Unit& b) { return a.bytes * a.slots() > b.bytes * b.slots(); });
  const int64_t area = place(by_area);
  const int64_t bytes = place(by_bytes);
  return area < bytes ? place(by_area) : bytes;
}

}  // namespace lignum::passes
