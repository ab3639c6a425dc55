// A decaying sum along the last axis, y[t] = k * y[t - 1] + x[t], and its gradient: a recurrence,
// which NumPy cannot write as an expression over whole arrays.
#include <opkiln/op.hpp>

namespace {

template <class T, bool kBackwards>
void scan(const opkiln::Call& call) {
  const auto x = call.input<T>(0);
  const auto y = call.output<T>(0);
  const T k = static_cast<T>(call.real(0));
  const std::int64_t n = x.shape(x.rank() - 1), rows = x.size() / n;
  for (std::int64_t row = 0; row < rows; ++row) {
    T sum = 0;
    for (std::int64_t t = 0; t < n; ++t) {
      const std::int64_t at = row * n + (kBackwards ? n - 1 - t : t);
      sum = k * sum + x[at];
      y[at] = sum;
    }
  }
}

template <bool kBackwards>
void decay(opkiln::Call call) {
  const ok_tensor& x = call.any_input(0);
  if (x.ndim == 0) throw opkiln::Error("expected an axis to sum along");
  if (ok_is(&x, OK_FLOAT, 64))
    scan<double, kBackwards>(call);
  else
    scan<float, kBackwards>(call);  // which refuses any other type
}

}  // namespace

OK_CPP_OP(decay_cpu, decay<false>);
OK_CPP_OP(decay_grad_cpu, decay<true>);
