// The ops of decay.cpp on a GPU: a thread for each row.
#include <opkiln/op.hpp>

namespace {

template <class T, bool kBackwards>
__global__ void scan(const T* x, T* y, std::int64_t rows, std::int64_t n, T k) {
  const std::int64_t row = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (row >= rows) return;
  T sum = 0;
  for (std::int64_t t = 0; t < n; ++t) {
    const std::int64_t at = row * n + (kBackwards ? n - 1 - t : t);
    sum = k * sum + x[at];
    y[at] = sum;
  }
}

template <class T, bool kBackwards>
void launch(const opkiln::Call& call) {
  const auto x = call.input<T>(0);
  const auto y = call.output<T>(0);
  const std::int64_t n = x.shape(x.rank() - 1), rows = x.size() / n;
  const int threads = 64;
  const auto blocks = static_cast<unsigned>((rows + threads - 1) / threads);
  const auto stream = static_cast<cudaStream_t>(call.stream());
  scan<T, kBackwards>
      <<<blocks, threads, 0, stream>>>(x.data(), y.data(), rows, n, static_cast<T>(call.real(0)));
  const cudaError_t error = cudaGetLastError();  // of the launch; nothing waits for the kernel
  if (error != cudaSuccess) throw opkiln::Error(cudaGetErrorString(error));
}

template <bool kBackwards>
void decay(opkiln::Call call) {
  const ok_tensor& x = call.any_input(0);
  if (x.ndim == 0) throw opkiln::Error("expected an axis to sum along");
  if (ok_is(&x, OK_FLOAT, 64))
    launch<double, kBackwards>(call);
  else
    launch<float, kBackwards>(call);  // which refuses any other type
}

}  // namespace

OK_CPP_OP(decay_cuda, decay<false>);
OK_CPP_OP(decay_grad_cuda, decay<true>);
