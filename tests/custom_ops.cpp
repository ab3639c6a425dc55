// The ops of tests/test_custom_op.py: one library for all of them.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "opkiln/op.hpp"

namespace {

using opkiln::Call;

// T29: l + r, and s more below 0, else s less.
template <class T>
void smooth(Call call) {
  const auto l = call.input<T>(0), r = call.input<T>(1);
  const auto out = call.output<T>(0);
  const T s = static_cast<T>(call.real(0));
  for (std::int64_t i = 0; i < out.size(); ++i) {
    const T sum = l[i] + r[i];
    out[i] = sum < 0 ? sum + s : sum - s;
  }
}

void smooth_any(Call call) {
  if (call.any_input(0).dtype.bits == 32)
    smooth<float>(call);
  else
    smooth<double>(call);
}

void both(Call call) {
  const auto grad = call.input<float>(0);
  for (int k = 0; k < 2; ++k) {
    const auto out = call.output<float>(k);
    for (std::int64_t i = 0; i < out.size(); ++i) out[i] = grad[i];
  }
}

void square(Call call) {
  const auto x = call.input<double>(0);
  const auto y = call.output<double>(0);
  for (std::int64_t i = 0; i < x.size(); ++i) y[i] = x[i] * x[i];
}

void square_grad(Call call) {
  const auto x = call.input<double>(0), grad = call.input<double>(1);
  const auto out = call.output<double>(0);
  for (std::int64_t i = 0; i < x.size(); ++i) out[i] = 2 * x[i] * grad[i];
}

// Bytes as they are, of any type.
void copied(Call call) {
  const ok_tensor& x = call.any_input(0);
  const auto bytes = static_cast<std::size_t>(ok_numel(&x) * (x.dtype.bits / 8));
  std::memcpy(call.any_output(0).data, x.data, bytes);
}

// x plus bias, if there is one.
void biased(Call call) {
  const auto x = call.input<float>(0);
  const auto y = call.output<float>(0);
  const float bias = call.given(1) ? call.input<float>(1)[0] : 0.0F;
  for (std::int64_t i = 0; i < x.size(); ++i) y[i] = x[i] + bias;
}

// All kinds of scalars, in one number.
void scalars(Call call) {
  const double sign = std::string(call.text(3)) == "minus" ? -1 : 1;
  const double k = call.real(0) + static_cast<double>(call.integer(1)) + (call.flag(2) ? 100 : 0);
  const auto x = call.input<double>(0);
  const auto y = call.output<double>(0);
  for (std::int64_t i = 0; i < x.size(); ++i) y[i] = x[i] + sign * k;
}

// Strides as they are: writes the sum of each row, then the stride that it saw along columns.
void strided(Call call) {
  const auto x = call.input<double>(0);
  const auto sums = call.output<double>(0);
  const auto seen = call.output<std::int64_t>(1);
  for (std::int64_t i = 0; i < x.shape(0); ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < x.shape(1); ++j)
      sum += x.data()[i * x.stride(0) + j * x.stride(1)];
    sums.data()[i * sums.stride(0)] = sum;
  }
  seen.data()[0] = x.stride(1);
}

// Needs memory of its own: sorts nothing, but reverses by way of it.
void reversed_workspace(Call call) {
  call.want_workspace(static_cast<std::uint64_t>(ok_numel(&call.any_input(0))) * sizeof(float));
}

void reversed(Call call) {
  const auto x = call.input<float>(0);
  const auto y = call.output<float>(0);
  float* room = call.workspace<float>();
  if (reinterpret_cast<std::uintptr_t>(room) % 64 != 0)
    throw opkiln::Error("workspace not aligned");
  for (std::int64_t i = 0; i < x.size(); ++i) room[x.size() - 1 - i] = x[i];
  for (std::int64_t i = 0; i < x.size(); ++i) y[i] = room[i];
}

// As many copies of the elements as `times` says, and infers so itself.
void tiled_shape(Call call) {
  ok_tensor& y = call.any_output(0);
  y.dtype = call.any_input(0).dtype;
  y.ndim = 2;
  y.shape[0] = call.integer(0);
  y.shape[1] = ok_numel(&call.any_input(0));
}

void tiled(Call call) {
  const auto x = call.input<float>(0);
  const auto y = call.output<float>(0);
  for (std::int64_t i = 0; i < y.size(); ++i) y[i] = x[i % x.size()];
}

void failing(Call call) {
  const auto x = call.input<double>(0);
  const auto y = call.output<double>(0);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    if (x[i] == 1) throw opkiln::Error("one is not allowed");
    if (x[i] == 2) throw std::bad_alloc();
    if (x[i] == 3) throw 3;
    y[i] = x[i];
  }
}

// Waits until another thread writes to the input; for so long only, lest it hang.
void waits(Call call) {
  const auto x = call.input<double>(0);
  const volatile double* first = x.data();
  for (int tries = 0; *first == 0; ++tries) {
    if (tries == 20000) throw opkiln::Error("nobody came");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  call.output<double>(0)[0] = *first;
}

std::int32_t returns(ok_call* call) {
  const double x = *static_cast<const double*>(call->inputs[0].data);
  if (x == 7) return 7;
  return x == 1 ? ok_fail(call, "returned \xff an error") : 0;
}

}  // namespace

OK_CPP_OP(t_smooth, smooth_any);
OK_CPP_OP(t_both, both);
OK_CPP_OP(t_square, square);
OK_CPP_OP(t_square_grad, square_grad);
OK_CPP_OP(t_copy, copied);
OK_CPP_OP(t_biased, biased);
OK_CPP_OP(t_scalars, scalars);
OK_CPP_OP(t_strided, strided);
OK_CPP_OP(t_reversed, reversed, reversed_workspace);
OK_CPP_OP(t_tiled, tiled, nullptr, tiled_shape);
OK_CPP_OP(t_failing, failing);
OK_CPP_OP(t_waits, waits);
OK_OP(t_returns, returns, nullptr, nullptr);

// Descriptors of libraries that this runtime must refuse, or take.
OK_OP_NAMED(t_later_abi) = {OK_OP_MAGIC,     OK_OP_ABI + 1,     sizeof(ok_op),
                            sizeof(ok_call), sizeof(ok_tensor), sizeof(ok_scalar),
                            returns,         nullptr,           nullptr};
OK_OP_NAMED(t_larger) = {OK_OP_MAGIC,
                         OK_OP_ABI,
                         sizeof(ok_op),
                         sizeof(ok_call) + 8,
                         sizeof(ok_tensor),
                         sizeof(ok_scalar),
                         returns,
                         nullptr,
                         nullptr};
OK_OP_NAMED(t_older) = {OK_OP_MAGIC,
                        OK_OP_ABI,
                        sizeof(ok_op) - 2 * sizeof(void*),
                        sizeof(ok_call) - 16,
                        sizeof(ok_tensor),
                        sizeof(ok_scalar),
                        returns,
                        nullptr,
                        nullptr};
OK_OP_NAMED(t_no_run) = {OK_OP_MAGIC,     OK_OP_ABI,         sizeof(ok_op),
                         sizeof(ok_call), sizeof(ok_tensor), sizeof(ok_scalar),
                         nullptr,         nullptr,           nullptr};
extern "C" OK_EXPORT int t_function() { return 42; }
