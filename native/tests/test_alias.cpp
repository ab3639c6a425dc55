// test_alias.cpp: byte ranges, overlap and internal overlap against a byte-by-byte count; out=
// safety.
#include <algorithm>
#include <map>

#include "core/alias.h"
#include "support.h"

namespace opkiln::test {
namespace {

std::map<const char*, int> touched(const ArrayView& v) {
  std::map<const char*, int> bytes;
  const std::vector<std::int64_t> shape(v.shape, v.shape + v.ndim);
  for_each(shape, [&](const std::vector<std::int64_t>& at) {
    for (std::int64_t b = 0; b < itemsize(v.dtype); ++b) ++bytes[element(v, at) + b];
  });
  return bytes;
}

TEST(alias_ranges_fuzz) {
  Rng rng(5);
  std::vector<char> memory(100000);
  for (int i = 0; i < 3000; ++i) {
    std::int64_t shape[2][3], strides[2][3];
    ArrayView v[2];
    for (int k = 0; k < 2; ++k) {
      for (int axis = 0; axis < 3; ++axis) {
        shape[k][axis] = pick(rng, 0, 19) == 0 ? 0 : pick(rng, 1, 4);
        strides[k][axis] = pick(rng, -12, 12);
      }
      v[k] = {memory.data() + 50000 + pick(rng, -40, 40),
              pick(rng, 0, 1) ? DType::kI16 : DType::kI32, pick(rng, 0, 3), shape[k], strides[k]};
    }
    const auto a = touched(v[0]), b = touched(v[1]);
    const ByteRange range = byte_range(v[0]);
    if (a.empty()) {
      CHECK(range.empty());
    } else {
      CHECK(a.begin()->first == v[0].data + range.lo &&
            a.rbegin()->first == v[0].data + range.hi - 1);
    }
    const bool ranges_meet = !a.empty() && !b.empty() && a.begin()->first <= b.rbegin()->first &&
                             b.begin()->first <= a.rbegin()->first;
    CHECK(may_overlap(v[0], v[1]) == ranges_meet);
    const bool twice =
        std::any_of(a.begin(), a.end(), [](const auto& entry) { return entry.second > 1; });
    CHECK(has_internal_overlap(v[0]) == twice);
  }
}

TEST(alias_large_views) {
  std::int64_t shape[2] = {1000, 1000}, c[2] = {4000, 4}, sliding[2] = {4, 4}, zero[2] = {0, 4},
               f[2] = {-4, 4000};
  CHECK(!has_internal_overlap({nullptr, DType::kF32, 2, shape, c}));
  CHECK(!has_internal_overlap({nullptr, DType::kF32, 2, shape, f}));
  CHECK(has_internal_overlap({nullptr, DType::kF32, 2, shape, sliding}));
  CHECK(has_internal_overlap({nullptr, DType::kF32, 2, shape, zero}));
}

/// out = 3 a + 5 b over one axis; `reduce` adds a second kernel, so that nothing may be in place.
Ref<Plan> two_inputs(bool second_kernel) {
  auto plan = make_ref<Plan>();
  const int a = plan->buffer(BufferKind::kArg, DType::kI32, {}, 1);
  const int b = plan->buffer(BufferKind::kArg, DType::kI32, {}, 1);
  const int n = plan->host(HostOp::kExtent, a, -1, 0);
  const int out = plan->buffer(BufferKind::kOut, DType::kI32, {n});
  KernelSpec kernel;
  kernel.extents = {n};
  kernel.operands = {{a, {0}, false}, {b, {0}, false}, {out, {0}, true}};
  plan->kernel(kernel);
  if (second_kernel) plan->kernel(kernel);
  plan->output_buffer(out);
  plan->finish();
  for (int k = 0; k <= (second_kernel ? 1 : 0); ++k) add_linear(*plan, k, DType::kI32);
  CHECK(plan->inplace_ok(out, a) == !second_kernel);
  CHECK(!plan->inplace_ok(a, out));
  return plan;
}

TEST(alias_given_outputs) {
  std::vector<std::int32_t> memory(64);
  const auto at = [&](int i) { return reinterpret_cast<char*>(memory.data() + i); };
  std::int64_t ten[1] = {10}, one[1] = {1}, step[1] = {4}, wide[1] = {8};
  const auto safe = [&](const Ref<Plan>& plan, const ArrayView& a, const ArrayView& b,
                        const ArrayView& out) {
    const ArrayView args[2] = {a, b};
    Instantiated made = instantiate(plan, args, nullptr, &out);
    made.executor->args()[0] = a.data;
    made.executor->args()[1] = b.data;
    made.executor->outs()[0] = out.data;
    return made.executor->outs_are_safe();
  };
  const auto view = [&](int first, std::int64_t* shape, std::int64_t* strides) {
    return ArrayView{at(first), DType::kI32, 1, shape, strides};
  };
  const auto single = two_inputs(false), twice = two_inputs(true);
  CHECK(safe(single, view(0, ten, step), view(10, ten, step), view(20, ten, step)));
  CHECK(safe(single, view(0, ten, step), view(10, ten, step), view(0, ten, step)));   // exact alias
  CHECK(safe(single, view(0, ten, step), view(0, ten, step), view(0, ten, step)));    // of both
  CHECK(!safe(single, view(0, ten, step), view(10, ten, step), view(1, ten, step)));  // shifted
  CHECK(!safe(single, view(0, ten, step), view(10, ten, step), view(19, ten, step)));
  CHECK(
      !safe(single, view(0, ten, step), view(30, ten, step), view(0, ten, wide)));  // other strides
  CHECK(!safe(single, view(0, ten, step), view(5, one, step),
              view(0, ten, step)));  // b is broadcast from out
  CHECK(!safe(twice, view(0, ten, step), view(10, ten, step),
              view(0, ten, step)));  // read again later
}

}  // namespace
}  // namespace opkiln::test
