// blas.cpp: strides of matrices in, calls of cblas_?gemm out.
#include "blas.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <complex>
#include <type_traits>
#include <utility>

#include "tile.h"

namespace opkiln::core {
namespace {

constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;  // of cblas.h

/// What was found for one dtype.
struct Found {
  std::atomic<void*> gemm{nullptr};
  std::atomic<bool> wide{false};
  std::atomic<std::int64_t> least{0};
};
Found g_found[kMostDTypes];

/// A matrix of rows x cols, its strides in bytes.
struct Matrix {
  char* data;
  std::int64_t rows, cols, row, col;

  Matrix turned() const { return {data, cols, rows, col, row}; }
};

/// How a BLAS is told of a matrix; `ld` is 0 where it cannot be.
struct Told {
  int trans = kAsIs;
  std::int64_t ld = 0;
};

Told tell_rows(const Matrix& x, std::int64_t item) {
  if (x.cols != 1 && x.col != item) return {};
  if (x.rows == 1) return {kAsIs, std::max<std::int64_t>(x.cols, 1)};
  const bool apart = x.row % item == 0 && x.row / item >= x.cols;
  return {kAsIs, apart ? x.row / item : 0};
}

Told tell(const Matrix& x, std::int64_t item) {
  const Told rows = tell_rows(x, item);
  if (rows.ld != 0) return rows;
  return {kTransposed, tell_rows(x.turned(), item).ld};
}

std::int64_t bytes_of(const Matrix& x, std::int64_t item) {
  return (x.rows * x.cols * item + 63) / 64 * 64;
}

Matrix dense(const Matrix& x, char* data, std::int64_t item) {
  return {data, x.rows, x.cols, x.cols * item, item};
}

void copy(const Matrix& to, const Matrix& from, std::int64_t item) {
  copy_lines(static_cast<std::size_t>(item), {to.data, to.row, to.col},
             {from.data, from.row, from.col}, from.rows, from.cols);
}

/// The three matrices of a product at its first place, and what must be copied for a BLAS.
struct Product {
  Matrix a, b, out;
  bool turned, packs_a, packs_b, packs_out;

  Product(const std::int64_t* extents, const std::int64_t* s, std::int64_t item)
      : a{nullptr, extents[0], extents[2], s[0], s[2]},
        b{nullptr, extents[2], extents[1], s[5], s[4]},
        out{nullptr, extents[0], extents[1], s[6], s[7]} {
    turned = tell_rows(out, item).ld == 0 && tell_rows(out.turned(), item).ld != 0;
    if (turned) {  // the transposed of a product is that of its factors, the other way round
      std::swap(a, b);
      a = a.turned(), b = b.turned(), out = out.turned();
    }
    packs_a = tell(a, item).ld == 0;
    packs_b = tell(b, item).ld == 0;
    packs_out = tell_rows(out, item).ld == 0;
  }

  std::int64_t scratch(std::int64_t item) const {
    return (packs_a ? bytes_of(a, item) : 0) + (packs_b ? bytes_of(b, item) : 0) +
           (packs_out ? bytes_of(out, item) : 0);
  }
};

template <class T, class Int>
void call(void* gemm, const Matrix& a, const Matrix& b, const Matrix& out) {
  constexpr auto item = static_cast<std::int64_t>(sizeof(T));
  const Told left = tell(a, item), right = tell(b, item);
  const auto m = static_cast<Int>(out.rows), n = static_cast<Int>(out.cols),
             k = static_cast<Int>(a.cols), lda = static_cast<Int>(left.ld),
             ldb = static_cast<Int>(right.ld), ldc = static_cast<Int>(tell_rows(out, item).ld);
  const T one = 1, zero = 0;  // with a factor of 0 the old values of `out` are not read
  if constexpr (std::is_floating_point_v<T>) {
    using Fn = void (*)(int, int, int, Int, Int, Int, T, const void*, Int, const void*, Int, T,
                        void*, Int);
    reinterpret_cast<Fn>(gemm)(kRowMajor, left.trans, right.trans, m, n, k, one, a.data, lda,
                               b.data, ldb, zero, out.data, ldc);
  } else {
    using Fn = void (*)(int, int, int, Int, Int, Int, const void*, const void*, Int, const void*,
                        Int, const void*, void*, Int);
    reinterpret_cast<Fn>(gemm)(kRowMajor, left.trans, right.trans, m, n, k, &one, a.data, lda,
                               b.data, ldb, &zero, out.data, ldc);
  }
}

template <class T, DType kDType>
std::uint64_t run(const KernelArgs* args, std::int64_t begin, std::int64_t end) {
  constexpr auto item = static_cast<std::int64_t>(sizeof(T));
  const Found& found = g_found[static_cast<int>(kDType)];
  void* const gemm = found.gemm.load(std::memory_order_acquire);
  const Product whole(args->far, args->col, item);
  for (std::int64_t place = begin; place < end; ++place) {
    const auto at = [&](int operand) { return args->ptr[operand] + place * args->row[operand]; };
    Matrix a = whole.a, b = whole.b, out = whole.out;
    a.data = at(whole.turned ? 1 : 0), b.data = at(whole.turned ? 0 : 1), out.data = at(2);
    char* scratch = args->scratch;
    const auto packed = [&](const Matrix& x) {
      const Matrix copied = dense(x, scratch, item);
      copy(copied, x, item);
      scratch += bytes_of(x, item);
      return copied;
    };
    if (whole.packs_a) a = packed(a);
    if (whole.packs_b) b = packed(b);
    const Matrix made = whole.packs_out ? dense(out, scratch, item) : out;
    if (found.wide.load(std::memory_order_relaxed))
      call<T, std::int64_t>(gemm, a, b, made);
    else
      call<T, int>(gemm, a, b, made);
    if (whole.packs_out) copy(out, made, item);
  }
  return 0;
}

KernelFn served(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return run<float, DType::kF32>;
    case DType::kF64:
      return run<double, DType::kF64>;
    case DType::kC64:
      return run<std::complex<float>, DType::kC64>;
    case DType::kC128:
      return run<std::complex<double>, DType::kC128>;
    default:
      return nullptr;
  }
}

}  // namespace

void set_gemm(DType dtype, void* gemm, bool wide, std::int64_t least) {
  Found& found = g_found[static_cast<int>(dtype)];
  found.wide.store(wide, std::memory_order_relaxed);
  found.least.store(least, std::memory_order_relaxed);
  found.gemm.store(gemm, std::memory_order_release);
}

Gemm find_gemm(DType dtype, const std::int64_t* extents, const std::int64_t* strides) {
  const Found& found = g_found[static_cast<int>(dtype)];
  const KernelFn fn = served(dtype);
  if (fn == nullptr || found.gemm.load(std::memory_order_acquire) == nullptr) return {};
  // Sizes alone decide, so that no layout changes the choice, and with it bits.
  const std::int64_t m = extents[0], n = extents[1], k = extents[2];
  std::int64_t work = 0;
  const bool huge = __builtin_mul_overflow(m, n, &work) || __builtin_mul_overflow(work, k, &work);
  if (k == 0 || (!huge && work < found.least.load(std::memory_order_relaxed))) return {};
  const std::int64_t item = itemsize(dtype);
  const Product product(extents, strides, item);
  if (!found.wide.load(std::memory_order_relaxed)) {
    const std::int64_t most = std::max({m, n, k, tell(product.a, item).ld, tell(product.b, item).ld,
                                        tell_rows(product.out, item).ld});
    if (most > INT_MAX) return {};
  }
  return {fn, product.scratch(item)};
}

}  // namespace opkiln::core
