// support.h: hand-written kernels, random strided arrays and small plans shared by the tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/executor.h"
#include "core/pool.h"
#include "core/table.h"

namespace opkiln::test {

using namespace opkiln::core;
using Rng = std::mt19937_64;

inline int pick(Rng& rng, int lo, int hi) {
  return static_cast<int>(
      lo + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(hi - lo + 1)));
}

template <class T>
T load(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <class T>
void store(char* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

/// Memory with a layout of its own; the view's data pointer may lie in the middle.
struct Strided {
  DType dtype = DType::kI32;
  std::vector<std::int64_t> shape, strides;
  std::vector<char> bytes;
  std::int64_t origin = 0;

  ArrayView view() {
    ArrayView v;
    v.data = bytes.data() + origin;
    v.dtype = dtype;
    v.ndim = static_cast<int>(shape.size());
    v.shape = shape.data();
    v.strides = strides.data();
    return v;
  }
};

/// C order.
Strided dense(DType dtype, std::vector<std::int64_t> shape);
/// Permuted axes, gaps, negative strides and (for inputs) zero strides; filled with small integers.
Strided random_layout(Rng& rng, DType dtype, std::vector<std::int64_t> shape, bool allow_zero);
void fill(Rng& rng, Strided* array);

/// Calls body(index) for every index of the shape in C order.
template <class Body>
void for_each(const std::vector<std::int64_t>& shape, Body&& body) {
  std::vector<std::int64_t> index(shape.size(), 0);
  for (const std::int64_t extent : shape)
    if (extent == 0) return;
  for (;;) {
    body(index);
    std::size_t axis = shape.size();
    while (axis-- > 0) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
    if (axis == static_cast<std::size_t>(-1)) return;
  }
}

/// Address of an element; the index is aligned to the right and broadcast as NumPy does.
inline char* element(const ArrayView& v, const std::vector<std::int64_t>& index) {
  char* p = v.data;
  for (int axis = 0; axis < v.ndim; ++axis) {
    const auto at =
        static_cast<std::size_t>(axis) + index.size() - static_cast<std::size_t>(v.ndim);
    if (v.shape[axis] != 1) p += index[at] * v.strides[axis];
  }
  return p;
}

/// Registers out = 3 a + 5 b (elementwise).
void add_linear(Plan& plan, int kernel, DType dtype);
/// Registers r = fold of (r * 31 + x), full = 2 x + r for operands (x, r, full); order matters.
void add_fold_variants(Plan& plan, int kernel, DType dtype);

/// Registers whatever instantiate() asks for with the given kernel body.
template <class Ask>
std::unique_ptr<Executor> make(const Ref<Plan>& plan, const ArrayView* args, const ArrayView* outs,
                               Ask&& ask, Stream& stream = inline_cpu_stream()) {
  Instantiated made = instantiate(plan, args, nullptr, outs, stream);
  if (!made.executor) {
    for (const Missing& m : made.missing) ask(m);
    made = instantiate(plan, args, nullptr, outs, stream);
  }
  CHECK(made.executor != nullptr);
  return std::move(made.executor);
}

/// A plan of `kernels` one-operand kernels over a rank-1 argument; counts launches, may throw.
struct ProbePlan {
  Ref<Plan> plan;
  Ref<FunctionState> function = make_ref<FunctionState>();
  std::int64_t shape[1];
  std::int64_t strides[1] = {4};
  std::vector<float> data = std::vector<float>(64);

  explicit ProbePlan(int kernels = 1, std::int64_t extent = 4);
  KeyBuilder& key(KeyBuilder& builder, std::uint64_t salt = 0) const;
  std::unique_ptr<Executor> build(Stream& stream = inline_cpu_stream());
  void bind(Executor& executor);
};
/// Launches of probe kernels on this thread, and the launch that throws (-1: none).
extern thread_local int probe_launches;
extern thread_local int probe_throw_at;

struct KernelFailure {};

/// Calls of operator new so far; always 0 under a sanitizer, which has its own.
long allocation_count();

}  // namespace opkiln::test
