#include <algorithm>
#include <numeric>

#include "kernels/rows_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer, testing::expect_same_bits, testing::kEdges;

using Dims = std::vector<int64_t>;

int64_t product(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Row-major index <-> one index a dim.
Dims unravel(int64_t index, const Dims& shape) {
  Dims at(shape.size());
  for (size_t k = shape.size(); k-- > 0;) {
    at[k] = index % shape[k];
    index /= shape[k];
  }
  return at;
}
int64_t ravel(const Dims& at, const Dims& shape) {
  int64_t index = 0;
  for (size_t k = 0; k < shape.size(); ++k) index = index * shape[k] + at[k];
  return index;
}

// Distinct elements of any dtype: the bits count up.
void fill_counting(Buffer& b) {
  const int64_t size = dtype_size(b.type());
  for (int64_t i = 0; i < b.bytes(); ++i) {
    b.as<uint8_t>()[i] = static_cast<uint8_t>(i % size == 0 ? i / size : i / size >> 8);
  }
}

TEST(Transpose, EveryPermutation) {
  TestThreads threads(2);
  for (const Dims& shape : {Dims{}, Dims{5}, Dims{37, 70}, Dims{3, 1, 41}, Dims{2, 3, 4, 5}, Dims{33, 2, 35},
                            Dims{2, 3, 1, 2, 3, 2}, Dims{4, 0, 3}}) {
    std::vector<int> perm(shape.size());
    std::iota(perm.begin(), perm.end(), 0);
    const int64_t n = product(shape);
    do {
      Dims out_shape;
      for (int k : perm) out_shape.push_back(shape[static_cast<size_t>(k)]);
      for (DType type : {DType::pred, DType::bf16, DType::f32, DType::i64}) {
        Buffer in(type, n, 1), out(type, n, 1);
        fill_counting(in);
        transpose(type, shape, perm, in.data(), out.data(), threads);
        const auto size = static_cast<size_t>(dtype_size(type));
        for (int64_t i = 0; i < n; ++i) {
          const Dims at = unravel(i, out_shape);
          Dims from(shape.size());
          for (size_t k = 0; k < perm.size(); ++k) from[static_cast<size_t>(perm[k])] = at[k];
          ASSERT_EQ(std::memcmp(out.as<char>() + static_cast<size_t>(i) * size,
                                in.as<char>() + static_cast<size_t>(ravel(from, shape)) * size, size),
                    0)
              << dtype_name(type) << " " << i;
        }
      }
    } while (std::next_permutation(perm.begin(), perm.end()));
  }
}

TEST(Broadcast, RepeatsAlongNewAndUnitDims) {
  TestThreads threads(2);
  struct Case {
    Dims in;
    std::vector<int> dims;
    Dims out;
  };
  for (const Case& c :
       {Case{{}, {}, {3, 37}}, Case{{37}, {1}, {5, 37}}, Case{{5}, {0}, {5, 37}},
        Case{{2, 1, 4}, {0, 1, 3}, {2, 3, 5, 4}}, Case{{3, 4}, {1, 0}, {4, 3}}, Case{{7}, {0}, {7}},
        Case{{2, 3}, {1, 4}, {3, 2, 1, 2, 3, 2}}, Case{{4}, {1}, {0, 4}}}) {
    for (DType type : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
      Buffer in(type, product(c.in), 1), out(type, product(c.out), 1);
      fill_counting(in);
      broadcast(type, c.in, c.dims, c.out, in.data(), out.data(), threads);
      const auto size = static_cast<size_t>(dtype_size(type));
      for (int64_t i = 0; i < out.size(); ++i) {
        const Dims at = unravel(i, c.out);
        Dims from(c.in.size());
        for (size_t k = 0; k < c.in.size(); ++k)
          from[k] = c.in[k] == 1 ? 0 : at[static_cast<size_t>(c.dims[k])];
        ASSERT_EQ(std::memcmp(out.as<char>() + static_cast<size_t>(i) * size,
                              in.as<char>() + static_cast<size_t>(ravel(from, c.in)) * size, size),
                  0)
            << dtype_name(type) << " " << i;
      }
    }
  }
}

// The order is part of the contract: f32 in blocks of kReduceBlock terms, double over blocks.
TEST(Reduce, EverySubsetOfDimsInTheStatedOrder) {
  TestThreads threads(2);
  const RowKernels& k = row_kernels({best_isa()});
  for (const Dims& shape : {Dims{}, Dims{211}, Dims{130, 70}, Dims{3, 1, 41}, Dims{5, 16, 9, 4},
                            Dims{2, 3, 1, 2, 3, 2}, Dims{3, 0}}) {
    for (uint32_t dims = 0; dims < 1u << shape.size(); ++dims) {
      Dims kept, reduced;
      for (size_t d = 0; d < shape.size(); ++d) ((dims >> d & 1u) != 0 ? reduced : kept).push_back(shape[d]);
      for (DType type : {DType::f32, DType::bf16, DType::i32}) {
        Buffer in(type, product(shape), 1), sum(type, product(kept), 1), max(type, product(kept), 1);
        in.normal("in", type == DType::i32 ? 1000.0 : 1.0);
        k.reduce(Reduction::sum, type, shape, dims, in.data(), sum.data(), threads);
        k.reduce(Reduction::max, type, shape, dims, in.data(), max.data(), threads);
        Buffer expected(type, 1);
        for (int64_t o = 0; o < product(kept); ++o) {
          const Dims out_at = unravel(o, kept);
          double total = 0, largest = type == DType::i32 ? -2147483648.0 : -static_cast<double>(INFINITY);
          float partial = 0;
          for (int64_t r = 0; r < product(reduced); ++r) {
            const Dims reduced_at = unravel(r, reduced);
            Dims at;
            size_t next_kept = 0, next_reduced = 0;
            for (size_t d = 0; d < shape.size(); ++d) {
              at.push_back((dims >> d & 1u) != 0 ? reduced_at[next_reduced++] : out_at[next_kept++]);
            }
            const double x = in.get(ravel(at, shape));
            largest = std::max(largest, x);
            partial += static_cast<float>(x);
            if ((r + 1) % kReduceBlock == 0 || r + 1 == product(reduced)) {
              total += static_cast<double>(partial);
              partial = 0;
            }
          }
          expected.set(0, type == DType::i32 ? total : static_cast<double>(static_cast<float>(total)));
          ASSERT_EQ(sum.get(o), expected.get(0)) << dtype_name(type) << " dims " << dims << " output " << o;
          ASSERT_EQ(max.get(o), largest) << dtype_name(type) << " dims " << dims << " output " << o;
        }
      }
    }
  }
}

TEST(Reduce, KeepsNan) {
  Serial serial;
  for (DType type : kEdges) {
    Buffer in(type, int64_t{3} * 100), out(type, 3);
    in.normal("in");
    in.set(100 + 50, NAN);
    for (Reduction reduction : {Reduction::sum, Reduction::max}) {
      row_kernels({best_isa()}).reduce(reduction, type, Dims{3, 100}, 0b10, in.data(), out.data(), serial);
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(std::isnan(out.get(i)), i == 1);
    }
  }
}

TEST(Reduce, SameBits) {
  for (uint32_t dims : {0b01u, 0b10u, 0b11u}) {
    expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
      Buffer in(DType::bf16, int64_t{211} * 137, offset), out(DType::bf16, 211, offset);
      in.normal("in");
      k.reduce(Reduction::sum, DType::bf16, Dims{211, 137}, dims, in.data(), out.data(), parallel);
      std::string bits;
      out.append_to(bits);
      return bits;
    });
  }
}

TEST(IotaAndFill, CountAndRepeat) {
  TestThreads threads(2);
  const Dims shape = {3, 41, 307};
  for (DType type : {DType::i32, DType::f32, DType::bf16}) {
    for (int dim = 0; dim < 3; ++dim) {
      Buffer out(type, product(shape), 1), expected(type, 1);
      kernels::iota(type, shape, dim, out.data(), threads);
      for (int64_t i = 0; i < out.size(); ++i) {
        expected.set(0, static_cast<double>(unravel(i, shape)[static_cast<size_t>(dim)]));
        ASSERT_EQ(out.get(i), expected.get(0));
      }
    }
  }
  for (DType type : {DType::pred, DType::bf16, DType::f32, DType::i64, DType::f8e4m3fn}) {
    for (int64_t n : {0, 1, 37, 40000}) {
      Buffer out(type, n, 1);
      fill(type, n, 1.0, out.data(), threads);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out.get(i), 1.0);
    }
  }
}

}  // namespace
}  // namespace lignum::kernels
