// Loops that throughput.py compares with: what one writes by hand, vectorised by the compiler, with
// libmvec's vector functions through simd declarations (no fast-math).
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
