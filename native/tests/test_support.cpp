// test_support.cpp: the kernels and plans that support.h declares.
#include <algorithm>
#include <array>
#include <utility>

#include "support.h"

namespace opkiln::test {
namespace {

constexpr char kLetters[] = "CZG";

/// The stride that the class promises; 'G' alone may look at the argument.
template <class T, int kLetter>
std::int64_t step(const std::int64_t* strides, int operand) {
  if constexpr (kLetter == 0) return sizeof(T);
  if constexpr (kLetter == 1) return 0;
  return strides[operand];
}

/// Elementwise: what is read is dense or broadcast, what is written dense.
template <class T>
std::uint64_t linear(const KernelArgs* a, std::int64_t begin, std::int64_t end) {
  for (int j = 0; j < 3; ++j) CHECK(a->col[j] == sizeof(T) || (j < 2 && a->col[j] == 0));
  for (std::int64_t r = begin; r < end; ++r) {
    const char *x = a->ptr[0] + r * a->row[0], *y = a->ptr[1] + r * a->row[1];
    char* out = a->ptr[2] + r * a->row[2];
    for (std::int64_t c = 0; c < a->cols; ++c)
      store<T>(out + c * static_cast<std::int64_t>(sizeof(T)),
               static_cast<T>(3 * static_cast<std::uint64_t>(load<T>(x + c * a->col[0])) +
                              5 * static_cast<std::uint64_t>(load<T>(y + c * a->col[1]))));
  }
  return 0;
}

/// The letters speak of the columns, or with `kRows` of the rows; the others may be anything.
template <class T, int kX, int kOut, int kFull, bool kRows>
std::uint64_t fold(const KernelArgs* a, std::int64_t begin, std::int64_t end) {
  if (a == nullptr) return 0;  // asked for its scratch
  const auto [x_row, r_row, full_row] =
      kRows
          ? std::array{step<T, kX>(a->row, 0), step<T, kOut>(a->row, 1), step<T, kFull>(a->row, 2)}
          : std::array{a->row[0], a->row[1], a->row[2]};
  const std::int64_t x_step = kRows ? a->col[0] : step<T, kX>(a->col, 0);
  const std::int64_t full_step = kRows ? a->col[2] : step<T, kFull>(a->col, 2);
  const auto place = [a](int operand, std::int64_t c, std::int64_t by) {
    return c / a->run * a->far[operand] + c % a->run * by;
  };
  for (std::int64_t r = begin; r < end; ++r) {
    const char* x = a->ptr[0] + r * x_row;
    char* full = a->ptr[2] + r * full_row;
    std::uint64_t sum = 1;
    for (std::int64_t c = 0; c < a->cols; ++c)
      sum = sum * 31 + static_cast<std::uint64_t>(load<T>(x + place(0, c, x_step)));
    store<T>(a->ptr[1] + r * r_row, static_cast<T>(sum % 10007));
    for (std::int64_t c = 0; c < a->cols; ++c)
      store<T>(full + place(2, c, full_step),
               static_cast<T>(2 * load<T>(x + place(0, c, x_step)) + static_cast<T>(sum % 10007)));
  }
  return 0;
}

using Fn = std::uint64_t (*)(const KernelArgs*, std::int64_t, std::int64_t);

template <class T, int... kIds>
void register_fold(Plan& plan, int kernel, std::integer_sequence<int, kIds...>) {
  const Fn columns[] = {&fold<T, kIds / 9, kIds / 3 % 3, kIds % 3, false>...};
  const Fn rows[] = {&fold<T, kIds / 9, kIds / 3 % 3, kIds % 3, true>...};
  for (int id = 0; id < 27; ++id) {
    const std::string letters = {kLetters[id / 9], kLetters[id / 3 % 3], kLetters[id % 3]};
    plan.add_variant(kernel, letters, reinterpret_cast<void*>(columns[id]));
    plan.add_variant(kernel, "r" + letters, reinterpret_cast<void*>(rows[id]));
  }
}

std::uint64_t probe(const KernelArgs*, std::int64_t, std::int64_t) {
  if (probe_launches++ == probe_throw_at) throw KernelFailure{};
  return 0;
}

}  // namespace

thread_local int probe_launches = 0;
thread_local int probe_throw_at = -1;

void add_linear(Plan& plan, int kernel, DType dtype) {
  const Fn fn = dtype == DType::kI8    ? &linear<std::int8_t>
                : dtype == DType::kI16 ? &linear<std::int16_t>
                : dtype == DType::kI32 ? &linear<std::int32_t>
                                       : &linear<std::int64_t>;
  plan.add_variant(kernel, "CCC", reinterpret_cast<void*>(fn));
}

void add_fold_variants(Plan& plan, int kernel, DType dtype) {
  const auto all = std::make_integer_sequence<int, 27>{};
  if (dtype == DType::kI16) return register_fold<std::int16_t>(plan, kernel, all);
  if (dtype == DType::kI32) return register_fold<std::int32_t>(plan, kernel, all);
  register_fold<std::int64_t>(plan, kernel, all);
}

Strided dense(DType dtype, std::vector<std::int64_t> shape) {
  Strided made;
  made.dtype = dtype;
  made.strides.assign(shape.size(), 0);
  std::int64_t stride = itemsize(dtype);
  for (std::size_t i = shape.size(); i-- > 0;) {
    made.strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  made.shape = std::move(shape);
  made.bytes.assign(static_cast<std::size_t>(stride), 0);
  return made;
}

Strided random_layout(Rng& rng, DType dtype, std::vector<std::int64_t> shape, bool allow_zero) {
  Strided made;
  made.dtype = dtype;
  made.strides.assign(shape.size(), 0);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < shape.size(); ++i) order.push_back(i);
  const int style = pick(rng, 0, 3);
  if (style == 0) std::reverse(order.begin(), order.end());  // C
  if (style >= 2) std::shuffle(order.begin(), order.end(), rng);
  std::int64_t stride = itemsize(dtype);
  for (const std::size_t axis : order) {
    if (style == 3 && allow_zero && pick(rng, 0, 4) == 0) continue;
    if (style == 3 && shape.size() < 10 && pick(rng, 0, 3) == 0) stride *= pick(rng, 1, 3);
    made.strides[axis] = stride;
    stride *= std::max<std::int64_t>(shape[axis], 1);
    if (style == 3 && pick(rng, 0, 2) == 0) {
      made.origin += (std::max<std::int64_t>(shape[axis], 1) - 1) * made.strides[axis];
      made.strides[axis] = -made.strides[axis];
    }
  }
  made.shape = std::move(shape);
  made.bytes.assign(static_cast<std::size_t>(stride + itemsize(dtype)), 0);
  return made;
}

void fill(Rng& rng, Strided* array) {
  // Small values at every item position: sums stay exact in every dtype.
  for (std::size_t i = 0; i < array->bytes.size();
       i += static_cast<std::size_t>(itemsize(array->dtype)))
    array->bytes[i] = static_cast<char>(pick(rng, 0, 15));
}

ProbePlan::ProbePlan(int kernels, std::int64_t extent) : plan(make_ref<Plan>()), shape{extent} {
  const int arg = plan->buffer(BufferKind::kArg, DType::kF32, {}, 1);
  const int n = plan->host(HostOp::kExtent, arg, -1, 0);
  const int out = plan->buffer(BufferKind::kOut, DType::kF32, {n});
  for (int k = 0; k < kernels; ++k) {
    KernelSpec spec;
    spec.extents = {n};
    spec.operands = {{arg, {0}, false}, {out, {0}, true}};
    plan->kernel(spec);
  }
  plan->output_buffer(out);
  plan->finish();
  for (int k = 0; k < kernels; ++k) plan->add_variant(k, "CC", reinterpret_cast<void*>(&probe));
}

KeyBuilder& ProbePlan::key(KeyBuilder& builder, std::uint64_t salt) const {
  builder.array(DType::kF32, 1, shape, strides, true);
  builder.word(salt);
  return builder;
}

std::unique_ptr<Executor> ProbePlan::build(Stream& stream) {
  ArrayView view;
  view.data = reinterpret_cast<char*>(data.data());
  view.ndim = 1;
  view.shape = shape;
  view.strides = strides;
  Instantiated made = instantiate(plan, &view, nullptr, nullptr, stream);
  return std::move(made.executor);
}

void ProbePlan::bind(Executor& executor) {
  executor.args()[0] = reinterpret_cast<char*>(data.data());
  executor.outs()[0] = reinterpret_cast<char*>(data.data());
}

}  // namespace opkiln::test
