// Loops that throughput.py and reductions.py compare with: what one writes by hand, vectorised by
// the compiler, with libmvec's vector functions through simd declarations (no fast-math).
//
// Flags: g++ -O3 -march=native -fno-math-errno -ffp-contract=off -fopenmp-simd -shared -fPIC -lmvec
//
// Every function runs its loop `times` times inside, so that the time of a foreign call does not
// count against it.
#include <cstdint>

#define OK_SIMD __attribute__((const, simd("notinbranch")))

extern "C" {
OK_SIMD float tanhf(float) noexcept;
OK_SIMD float expf(float) noexcept;
float sqrtf(float) noexcept;
}

namespace {

__attribute__((noinline)) void multiply_add(const float* __restrict a, const float* __restrict b,
                                            const float* __restrict c, float* __restrict out,
                                            int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] * b[i] + c[i];
}

__attribute__((noinline)) void mixed(const float* __restrict x, const float* __restrict y,
                                     const float* __restrict z, float* __restrict out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = tanhf(x[i] * y[i] + z[i]) * expf(-x[i]) + sqrtf(y[i]);
  }
}

__attribute__((noinline)) float squared_distance(const float* __restrict x,
                                                 const float* __restrict y, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float d = x[i] - y[i];
    sum += d * d;
  }
  return sum;
}

__attribute__((noinline)) void softmax(const float* __restrict x, float* __restrict out,
                                       int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row, x += cols, out += cols) {
    float top = x[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < cols; ++i) top = x[i] > top ? x[i] : top;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) out[i] = expf(x[i] - top);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; ++i) sum += out[i];
    const float scale = 1 / sum;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) out[i] *= scale;
  }
}

__attribute__((noinline)) void layer_norm(const float* __restrict x, const float* __restrict gain,
                                          const float* __restrict bias, float* __restrict out,
                                          int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row, x += cols, out += cols) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(cols);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < cols; ++i) {
      const float d = x[i] - mean;
      squares += d * d;
    }
    const float scale = 1 / sqrtf(squares / static_cast<float>(cols) + 1e-5f);
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) out[i] = (x[i] - mean) * scale * gain[i] + bias[i];
  }
}

// Reads everything once, as fast as one thread can: enough sums in flight to hide the additions.
__attribute__((noinline)) float read_all(const float* x, int64_t n) {
  constexpr int kLanes = 128;
  float sums[kLanes] = {};
  for (int64_t i = 0; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

// Keeps the compiler from merging repetitions.
inline void touch(float* out) { asm volatile("" : : "r"(out) : "memory"); }

}  // namespace

extern "C" void ref_multiply_add(const float* a, const float* b, const float* c, float* out,
                                 int64_t n, int64_t times) {
  for (int64_t t = 0; t < times; ++t) {
    multiply_add(a, b, c, out, n);
    touch(out);
  }
}

extern "C" void ref_mixed(const float* x, const float* y, const float* z, float* out, int64_t n,
                          int64_t times) {
  for (int64_t t = 0; t < times; ++t) {
    mixed(x, y, z, out, n);
    touch(out);
  }
}

extern "C" void ref_squared_distance(const float* x, const float* y, float* out, int64_t n,
                                     int64_t times) {
  for (int64_t t = 0; t < times; ++t) {
    *out = squared_distance(x, y, n);
    touch(out);
  }
}

extern "C" void ref_softmax(const float* x, float* out, int64_t rows, int64_t cols, int64_t times) {
  for (int64_t t = 0; t < times; ++t) {
    softmax(x, out, rows, cols);
    touch(out);
  }
}

extern "C" void ref_layer_norm(const float* x, const float* gain, const float* bias, float* out,
                               int64_t rows, int64_t cols, int64_t times) {
  for (int64_t t = 0; t < times; ++t) {
    layer_norm(x, gain, bias, out, rows, cols);
    touch(out);
  }
}

extern "C" void ref_read_all(const float* x, float* out, int64_t n, int64_t times) {
  for (int64_t t = 0; t < times; ++t) {
    *out = read_all(x, n);
    touch(out);
  }
}
