// test_view.cpp: starts and steps of operands, regions that are written, reshaped views and their
// copies, against a naive evaluator.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "core/errors.h"
#include "core/reshape.h"
#include "support.h"

namespace opkiln::test {
namespace {

using Shape = std::vector<std::int64_t>;

int constant(Plan& plan, std::int64_t value) { return plan.host(HostOp::kConstI, -1, -1, value); }

/// A slice or a place of each axis of a buffer, over some iteration space.
struct Map {
  std::vector<Along> axes;
  std::vector<int> follows;
  Shape starts, steps;

  std::int64_t at(std::size_t axis, const Shape& index) const {
    const int from = follows[axis];
    return starts[axis] + (from < 0 ? 0 : steps[axis] * index[static_cast<std::size_t>(from)]);
  }
};

/// `space` gets an axis per slice. Starts are registers of the call (`weak`) or constants.
Map random_map(Rng& rng, Plan& plan, const Shape& shape, Shape* space,
               std::vector<HostValue>* weak) {
  Map map;
  for (const std::int64_t extent : shape) {
    const bool place = pick(rng, 0, 3) == 0;
    const std::int64_t count = place ? 1 : pick(rng, 1, static_cast<int>(extent));
    std::int64_t step = count > 1 ? pick(rng, 1, static_cast<int>((extent - 1) / (count - 1))) : 3;
    std::int64_t start =
        pick(rng, 0, static_cast<int>(extent - 1 - (count - 1) * (count > 1 ? step : 0)));
    if (count > 1 && pick(rng, 0, 1) == 0) {
      start += step * (count - 1);
      step = -step;
    }
    int reg = constant(plan, start);
    if (pick(rng, 0, 1) == 0) {
      reg = plan.host(HostOp::kArgI, static_cast<int>(weak->size()));
      HostValue value;
      value.i = start;
      weak->push_back(value);
    }
    map.follows.push_back(place ? -1 : static_cast<int>(space->size()));
    map.axes.emplace_back(map.follows.back(), place ? -1 : constant(plan, step), reg);
    map.starts.push_back(start);
    map.steps.push_back(step);
    if (!place) space->push_back(count);
  }
  return map;
}

char* element_of(const ArrayView& view, const Map& map, const Shape& index) {
  char* p = view.data;
  for (int axis = 0; axis < view.ndim; ++axis)
    p += view.strides[axis] * map.at(static_cast<std::size_t>(axis), index);
  return p;
}

Shape random_extents(Rng& rng, int most) {
  Shape shape(static_cast<std::size_t>(pick(rng, 0, most)));
  for (std::int64_t& extent : shape) extent = pick(rng, 1, 5);
  return shape;
}

/// y = 3 x[slices] + 5 x[slices], then out[slices] = 8 y over zeros of another kernel.
TEST(view_slices) {
  Rng rng(11);
  for (int round = 0; round < 1500; ++round) {
    auto plan = make_ref<Plan>();
    const Shape shape = random_extents(rng, 4);
    Strided in = random_layout(rng, DType::kI32, shape, true);
    fill(rng, &in);
    std::vector<HostValue> weak;
    Shape space;
    const int x = plan->buffer(BufferKind::kArg, DType::kI32, {}, static_cast<int>(shape.size()));
    const Map map = random_map(rng, *plan, shape, &space, &weak);
    Shape out_shape;
    std::vector<int> extents, out_extents;
    for (const std::int64_t extent : space) extents.push_back(constant(*plan, extent));
    Map region;
    for (std::size_t i = 0; i < space.size(); ++i) {
      const std::int64_t step = pick(rng, 1, 3), start = pick(rng, 0, 2);
      region.follows.push_back(static_cast<int>(i));
      region.axes.emplace_back(static_cast<int>(i), constant(*plan, step), constant(*plan, start));
      region.starts.push_back(start);
      region.steps.push_back(step);
      out_shape.push_back(start + step * (space[i] - 1) + 1 + pick(rng, 0, 1));
      out_extents.push_back(constant(*plan, out_shape.back()));
    }
    const int out = plan->buffer(BufferKind::kOut, DType::kI32, out_extents);
    std::vector<Along> whole;
    for (std::size_t i = 0; i < space.size(); ++i) whole.emplace_back(static_cast<int>(i));
    KernelSpec cover, part;
    cover.extents = out_extents;  // all of `out` is 8 x[0, 0...]: the part comes after it
    std::vector<Along> first(shape.size());
    cover.operands = {{x, first, false}, {x, first, false}, {out, whole, true}};
    part.extents = extents;
    part.operands = {{x, map.axes, false}, {x, map.axes, false}, {out, region.axes, true}};
    plan->kernel(cover);
    plan->kernel(part);
    plan->output_buffer(out);
    plan->finish();
    for (int k = 0; k < 2; ++k) add_linear(*plan, k, DType::kI32);
    CHECK(!plan->inplace_ok(out, x));

    const ArrayView args[1] = {in.view()};
    auto ex = instantiate(plan, args, nullptr).executor;
    if (!CHECK(ex != nullptr)) return;
    const OutSpec& spec = ex->out(0);
    std::vector<char> bytes(static_cast<std::size_t>(spec.nbytes));
    ex->args()[0] = args[0].data;
    ex->outs()[0] = bytes.data();
    const ArrayView result = {bytes.data(), DType::kI32, spec.ndim, spec.shape, spec.strides};
    for (int again = 0; again < 2; ++again) {
      std::fill(bytes.begin(), bytes.end(), 0x55);
      ex->run(weak.data());
      Strided want = dense(DType::kI32, out_shape);
      for_each(out_shape, [&](const Shape& at) {
        store<std::int32_t>(element(want.view(), at), 8 * load<std::int32_t>(args[0].data));
      });
      for_each(space, [&](const Shape& at) {
        const auto value = load<std::int32_t>(element_of(args[0], map, at));
        store<std::int32_t>(element_of(want.view(), region, at), 8 * value);
      });
      bool same = true;
      for_each(out_shape, [&](const Shape& at) {
        same = same && load<std::int32_t>(element(result, at)) ==
                           load<std::int32_t>(element(want.view(), at));
      });
      CHECK(same);
    }
  }
}

Shape factorised(Rng& rng, std::int64_t size) {
  Shape shape;
  for (int i = pick(rng, 0, 4); i > 0; --i) {
    std::int64_t extent = pick(rng, 1, 6);
    while (size % extent != 0) --extent;
    shape.insert(shape.begin() + pick(rng, 0, static_cast<int>(shape.size())), extent);
    size /= extent;
  }
  shape.insert(shape.begin() + pick(rng, 0, static_cast<int>(shape.size())), size);
  return shape;
}

/// The copy multiplies by 8, so that the result tells whether it was made.
TEST(view_reshapes) {
  Rng rng(12);
  int copied = 0, viewed = 0;
  for (int round = 0; round < 1500; ++round) {
    auto plan = make_ref<Plan>();
    Shape shape = random_extents(rng, 4);
    if (!shape.empty() && pick(rng, 0, 9) == 0) shape[0] = 0;
    Strided in = random_layout(rng, DType::kI32, shape, true);
    fill(rng, &in);
    std::vector<HostValue> weak;
    Shape space;
    const int x = plan->buffer(BufferKind::kArg, DType::kI32, {}, static_cast<int>(shape.size()));
    Map map;
    if (std::find(shape.begin(), shape.end(), 0) == shape.end())
      map = random_map(rng, *plan, shape, &space, &weak);
    else
      for (std::size_t i = 0; i < shape.size(); ++i) {
        map.axes.emplace_back(static_cast<int>(i));
        map.follows.push_back(static_cast<int>(i));
        space.push_back(shape[i]);
      }
    const std::int64_t size =
        std::accumulate(space.begin(), space.end(), std::int64_t{1}, std::multiplies<>());
    const Shape target = factorised(rng, size);
    const auto regs = [&](const Shape& extents) {
      std::vector<int> made;
      for (const std::int64_t extent : extents) made.push_back(constant(*plan, extent));
      return made;
    };
    const auto whole = [](const Shape& extents) {
      std::vector<Along> axes;
      for (std::size_t i = 0; i < extents.size(); ++i) axes.emplace_back(static_cast<int>(i));
      return axes;
    };
    const std::vector<int> from = regs(space), to = regs(target);
    const int copy = plan->buffer(BufferKind::kTemp, DType::kI32, from, -1, true);
    const int view = plan->view(DType::kI32, to, {x, map.axes, from, copy});
    const int out = plan->buffer(BufferKind::kOut, DType::kI32, to);
    KernelSpec first, second;
    first.extents = from;
    first.operands = {{x, map.axes, false}, {x, map.axes, false}, {copy, whole(space), true}};
    first.view = view;
    second.extents = to;
    second.operands = {
        {view, whole(target), false}, {view, whole(target), false}, {out, whole(target), true}};
    CHECK_THROWS(PlanError, plan->kernel([&] {
      KernelSpec wrong = second;
      wrong.view = view;
      return wrong;
    }()));
    plan->kernel(first);
    plan->kernel(second);
    plan->output_buffer(out);
    plan->finish();
    for (int k = 0; k < 2; ++k) add_linear(*plan, k, DType::kI32);
    const ArrayView args[1] = {in.view()};
    auto ex = instantiate(plan, args, nullptr).executor;
    if (!CHECK(ex != nullptr)) return;
    Shape strides, found(target.size());
    for (std::size_t i = 0; i < space.size(); ++i)
      for (std::size_t axis = 0; axis < shape.size(); ++axis)
        if (map.follows[axis] == static_cast<int>(i))
          strides.push_back(in.strides[axis] * (map.steps.empty() ? 1 : map.steps[axis]));
    const bool fits = reshaped_strides(DType::kI32, space, strides, target, found.data());
    CHECK(ex->nest_count() == (size == 0 ? 0u : fits ? 1u : 2u));
    CHECK((ex->workspace_bytes() != 0) == !fits);
    (fits ? viewed : copied) += 1;
    const OutSpec& spec = ex->out(0);
    std::vector<char> bytes(static_cast<std::size_t>(spec.nbytes));
    ex->args()[0] = args[0].data;
    ex->outs()[0] = bytes.data();
    ex->run(weak.data());
    ex->drop_workspace();
    ex->run(weak.data());
    const ArrayView result = {bytes.data(), DType::kI32, spec.ndim, spec.shape, spec.strides};
    std::vector<std::int32_t> want, got;
    if (size != 0) {
      for_each(space, [&](const Shape& at) {
        want.push_back(load<std::int32_t>(element_of(args[0], map, at)) * (fits ? 8 : 64));
      });
      for_each(target,
               [&](const Shape& at) { got.push_back(load<std::int32_t>(element(result, at))); });
    }
    CHECK(want == got);
  }
  CHECK(copied > 150 && viewed > 300);
}

/// out = 3 a[1 + i] + 5 b[i]: operands in the order of the executor's pointers, one call, but
/// moved.
TEST(view_moved_operands_are_not_in_place) {
  for (const bool by_step : {false, true}) {
    auto plan = make_ref<Plan>();
    const int a = plan->buffer(BufferKind::kArg, DType::kI32, {}, 1);
    const int b = plan->buffer(BufferKind::kArg, DType::kI32, {}, 1);
    const int n = plan->host(HostOp::kExtent, b, -1, 0), one = constant(*plan, 1);
    const int out = plan->buffer(BufferKind::kOut, DType::kI32, {n});
    KernelSpec kernel;
    kernel.extents = {n};
    kernel.operands = {
        {a, {{0, one, by_step ? -1 : one}}, false}, {b, {0}, false}, {out, {0}, true}};
    plan->kernel(kernel);
    plan->output_buffer(out);
    plan->finish();
    add_linear(*plan, 0, DType::kI32);
    CHECK(!plan->inplace_ok(out, a) && plan->inplace_ok(out, b));
    std::int32_t x[5] = {1, 2, 3, 4, 5}, y[4] = {10, 20, 30, 40}, z[4];
    const std::int64_t five[1] = {5}, four[1] = {4}, step[1] = {4};
    const ArrayView args[2] = {{reinterpret_cast<char*>(x), DType::kI32, 1, five, step},
                               {reinterpret_cast<char*>(y), DType::kI32, 1, four, step}};
    auto ex = instantiate(plan, args, nullptr).executor;
    ex->args()[0] = args[0].data;
    ex->args()[1] = args[1].data;
    ex->outs()[0] = reinterpret_cast<char*>(z);
    ex->run();
    for (int i = 0; i < 4; ++i) CHECK(z[i] == 3 * x[i + !by_step] + 5 * y[i]);
  }
}

/// What a view reads stays where it is until the view is read.
TEST(view_keeps_its_memory) {
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, DType::kI32, {}, 1);
  const int n = plan->host(HostOp::kExtent, x, -1, 0);
  const int first = plan->buffer(BufferKind::kTemp, DType::kI32, {n}, -1, true);
  const int second = plan->buffer(BufferKind::kTemp, DType::kI32, {n});
  const int view = plan->view(DType::kI32, {n}, {first, {0}, {n}, -1});
  const int out = plan->buffer(BufferKind::kOut, DType::kI32, {n});
  std::vector<int> made;
  for (const auto& [a, b, to] : {std::array{x, x, first}, {x, x, second}, {view, second, out}}) {
    KernelSpec spec;
    spec.extents = {n};
    spec.operands = {{a, {0}, false}, {b, {0}, false}, {to, {0}, true}};
    made.push_back(plan->kernel(spec));
  }
  plan->output_buffer(out);
  plan->finish();
  for (const int k : made) add_linear(*plan, k, DType::kI32);
  std::int32_t data[3] = {1, -2, 3}, result[3];
  const std::int64_t three[1] = {3}, step[1] = {4};
  const ArrayView args[1] = {{reinterpret_cast<char*>(data), DType::kI32, 1, three, step}};
  auto ex = instantiate(plan, args, nullptr).executor;
  CHECK(ex->workspace_bytes() == 128);
  ex->args()[0] = args[0].data;
  ex->outs()[0] = reinterpret_cast<char*>(result);
  ex->run();
  for (int i = 0; i < 3; ++i) CHECK(result[i] == 64 * data[i]);
}

TEST(view_refuses) {
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, DType::kF32, {}, 1);
  const int n = plan->host(HostOp::kExtent, x, -1, 0), weak = plan->host(HostOp::kArgI, 0),
            number = plan->host(HostOp::kConstF);
  const int out = plan->buffer(BufferKind::kOut, DType::kF32, {n}),
            temp = plan->buffer(BufferKind::kTemp, DType::kF32, {n}),
            wide = plan->buffer(BufferKind::kTemp, DType::kF64, {n}, -1, true);
  const auto kernel = [&](std::vector<Along> axes, int write) {
    KernelSpec spec;
    spec.extents = {n};
    spec.operands = {{x, std::move(axes), false}, {write, {0}, true}};
    return plan->kernel(spec);
  };
  CHECK_THROWS(PlanError, kernel({{0, weak, -1}}, out));    // a step of the call
  CHECK_THROWS(PlanError, kernel({{0, -1, number}}, out));  // a start that is no integer
  CHECK_THROWS(PlanError, kernel({{0, -1, 99}}, out));
  CHECK_THROWS(PlanError, plan->view(DType::kF32, {n}, {x, {0}, {n}, temp}));  // in any order
  CHECK_THROWS(PlanError, plan->view(DType::kF32, {n}, {x, {0}, {n}, wide}));
  CHECK_THROWS(PlanError, plan->view(DType::kF64, {n}, {x, {0}, {n}, wide}));
  CHECK_THROWS(PlanError, plan->buffer(BufferKind::kView, DType::kF32, {n}));
  const int view = plan->view(DType::kF32, {n}, {out, {0}, {n}, -1});
  CHECK_THROWS(PlanError, kernel({0}, view));  // writes to a view
  KernelSpec reads;
  reads.extents = {n};
  reads.operands = {{view, {0}, false}, {temp, {0}, true}};
  plan->kernel(reads);
  CHECK_THROWS(PlanError, plan->finish());  // of what nobody wrote
}

}  // namespace
}  // namespace opkiln::test
