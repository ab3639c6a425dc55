// Emitted CUDA text as C++: one warp at a time, its 32 threads as fibers that meet at each shuffle.
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
extern "C" double fmod(double, double);
extern "C" float fmodf(float, float);
struct shim_dim {
  unsigned x;
};
static shim_dim threadIdx, blockIdx, blockDim, gridDim;
static ucontext_t shim_start, shim_fiber[32];
static jmp_buf shim_scheduler, shim_resume[32];  // unlike contexts, they cost no system call
static char shim_stack[32][1 << 16];
static void (*shim_kernel)();
static enum { fresh, waiting, done } shim_state[32];
static unsigned long long shim_value[32];
static float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
static void atomicOr(unsigned long long* word, unsigned long long bits) { *word |= bits; }
// Until every thread of the warp has come here.
static void __syncwarp() {
  const unsigned lane = threadIdx.x % 32;
  if (!_setjmp(shim_resume[lane])) _longjmp(shim_scheduler, 1);
}
template <class T>
static T shim_exchange(T value, unsigned from) {
  shim_value[threadIdx.x % 32] = value;
  __syncwarp();
  const T got = (T)shim_value[from % 32];
  __syncwarp();
  return got;
}
template <class T>
static T __shfl_sync(unsigned, T value, int from) {
  return shim_exchange(value, from);
}
template <class T>
static T __shfl_down_sync(unsigned, T value, int by) {
  const unsigned lane = threadIdx.x % 32;
  return shim_exchange(value, lane + by < 32 ? lane + by : lane);
}
static void shim_thread() {
  shim_kernel();
  shim_state[threadIdx.x % 32] = done;
  _longjmp(shim_scheduler, 1);
}
static __attribute__((noinline)) void shim_run(unsigned lane) {
  if (_setjmp(shim_scheduler)) return;
  if (shim_state[lane] == waiting) _longjmp(shim_resume[lane], 1);
  shim_state[lane] = waiting;
  getcontext(&shim_fiber[lane]);
  shim_fiber[lane].uc_stack = {shim_stack[lane], 0, sizeof shim_stack[lane]};
  makecontext(&shim_fiber[lane], shim_thread, 0);
  swapcontext(&shim_start, &shim_fiber[lane]);
}
static void shim_warp(unsigned first) {
  for (unsigned lane = 0; lane < 32; ++lane) shim_state[lane] = fresh;
  for (bool any = true; any;) {
    any = false;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (shim_state[lane] == done) continue;
      any = true;
      threadIdx.x = first + lane;
      shim_run(lane);
    }
  }
}
// A grid, warp by warp; of kernels that exchange nothing, thread by thread.
static void shim_launch(unsigned blocks, unsigned threads, bool warps, void (*kernel)()) {
  gridDim.x = blocks, blockDim.x = threads, shim_kernel = kernel;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x += warps ? 32 : 1) {
      const unsigned first = threadIdx.x;
      if (warps)
        shim_warp(first);
      else
        kernel();
      threadIdx.x = first;
    }
}
