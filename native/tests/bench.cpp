// bench.cpp: nanoseconds of the warm call and of its parts, three 1-d float32 arrays, no Python.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "core/executor.h"
#include "core/table.h"

using namespace opkiln::core;

namespace {

extern "C" std::uint64_t bench_kernel(const KernelArgs* a, std::int64_t, std::int64_t) {
  asm volatile("" ::"r"(a->ptr[3]) : "memory");
  return 0;
}

template <class F>
double best_ns(F&& body) {
  double best = 1e9;
  for (int repeat = 0; repeat < 300; ++repeat) {
    constexpr int kCalls = 2000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) body();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / kCalls);
  }
  return best;
}

}  // namespace

int main() {
  auto plan = make_ref<Plan>();
  std::vector<int> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(plan->buffer(BufferKind::kArg, DType::kF32, {}, 1));
  const int n = plan->host(HostOp::kExtent, 0, -1, 0);
  const int out = plan->buffer(BufferKind::kOut, DType::kF32, {n});
  KernelSpec kernel;
  kernel.extents = {n};
  for (const int b : inputs) kernel.operands.push_back({b, {0}, false});
  kernel.operands.push_back({out, {0}, true});
  plan->kernel(kernel);
  plan->output_buffer(out);
  plan->finish();
  plan->add_variant(0, "CCCC", reinterpret_cast<void*>(&bench_kernel));

  auto function = make_ref<FunctionState>();
  std::vector<float> data(64);
  volatile std::int64_t shape_source = 16;
  std::int64_t shape[1] = {shape_source}, strides[1] = {4};
  ArrayView views[3];
  for (int i = 0; i < 3; ++i)
    views[i] = {reinterpret_cast<char*>(data.data() + 16 * i), DType::kF32, 1, shape, strides};
  const auto build = [&] { return instantiate(plan, views, nullptr).executor; };
  const auto make_key = [&](KeyBuilder& key) {
    asm volatile("" ::: "memory");
    for (const ArrayView& v : views) key.array(v.dtype, v.ndim, v.shape, v.strides, true);
  };
  // Fill the table with other keys, so that the look-up is not trivially cached.
  for (std::int64_t i = 1; i < 200; ++i) {
    shape[0] = i;
    KeyBuilder key(function->id());
    make_key(key);
    ThreadTable::current().acquire(key.view(), *function, build).cancel();
  }
  shape[0] = 16;

  const double key_ns = best_ns([&] {
    KeyBuilder key(function->id());
    make_key(key);
    const KeyView view = key.view();
    asm volatile("" ::"r"(view.hash), "r"(view.words) : "memory");
  });
  KeyBuilder fixed(function->id());
  make_key(fixed);
  const KeyView fixed_view = fixed.view();
  const double find_ns = best_ns([&] {
    asm volatile("" ::: "memory");
    Pool* pool = ThreadTable::current().find(fixed_view);
    asm volatile("" ::"r"(pool) : "memory");
  });
  ThreadTable& table = ThreadTable::current();
  Pool* pool = table.find(fixed_view);
  const double lease_ns = best_ns([&] {
    Lease lease = pool->acquire(table.limits().pool, build);
    asm volatile("" ::: "memory");
    lease.release();
  });
  Lease held = pool->acquire(table.limits().pool, build);
  const double run_ns = best_ns([&] {
    char** args = held->args();
    for (int i = 0; i < 3; ++i) args[i] = views[i].data;
    held->outs()[0] = views[0].data;
    held->run();
  });
  held.release();
  const double call_ns = best_ns([&] {
    KeyBuilder key(function->id());
    make_key(key);
    Lease lease = ThreadTable::current().acquire(key.view(), *function, build);
    char** args = lease->args();
    for (int i = 0; i < 3; ++i) args[i] = views[i].data;
    lease->outs()[0] = views[0].data;
    lease->run();
    lease.release();
  });
  // The same plan with a weak scalar: one slot filled per call.
  auto weak_plan = make_ref<Plan>();
  const int x = weak_plan->buffer(BufferKind::kArg, DType::kF32, {}, 1);
  const int m = weak_plan->host(HostOp::kExtent, x, -1, 0);
  const int y = weak_plan->buffer(BufferKind::kOut, DType::kF32, {m});
  KernelSpec scaled;
  scaled.extents = {m};
  scaled.operands = {{x, {0}, false}, {x, {0}, false}, {x, {0}, false}, {y, {0}, true}};
  scaled.scalars = {
      weak_plan->scalar(weak_plan->host(HostOp::kArgF, 0), DType::kF32, ScalarMode::kCheck)};
  weak_plan->kernel(scaled);
  weak_plan->output_buffer(y);
  weak_plan->finish();
  weak_plan->add_variant(0, "CCCC", reinterpret_cast<void*>(&bench_kernel));
  const auto weak_executor = instantiate(weak_plan, views, nullptr).executor;
  HostValue weak;
  weak.f = 2.0;
  const double weak_ns = best_ns([&] {
    asm volatile("" ::: "memory");
    weak_executor->prepare(&weak);
  });
  const double make_ns = best_ns([&] { build(); });
  std::printf("key %.1f  find %.1f  lease+release %.1f  pointers+run %.1f  whole call %.1f ns\n",
              key_ns, find_ns, lease_ns, run_ns, call_ns);
  std::printf("weak scalar %.1f ns; ", weak_ns);
  std::printf("new executor of a known class %.0f ns, %zu bytes\n", make_ns, build()->bytes());
  return 0;
}
