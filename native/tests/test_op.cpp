// test_op.cpp: calls of custom ops: copies of strided operands, workspace, errors, in plans too.
#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "core/errors.h"
#include "core/op.h"
#include "support.h"

namespace opkiln::test {
namespace {

/// Writes input + scalar, by way of the workspace where there is one; a scalar of 13 is refused.
std::int32_t add(ok_call* call) {
  const double k = call->scalars[0].value.f;
  if (k == 13) return ok_fail(call, "thirteen");
  if (k == 14) throw std::bad_alloc();
  const ok_tensor &x = call->inputs[0], &y = call->outputs[0];
  auto* room = static_cast<double*>(call->workspace);
  const std::int64_t n = ok_numel(&x);
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = static_cast<const double*>(x.data)[i] + k;
    if (room != nullptr) room[i] = value;
    static_cast<double*>(y.data)[i] = room != nullptr ? room[i] : value;
  }
  return 0;
}

int asked = 0;

std::int32_t want(ok_call* call) {
  ++asked;
  CHECK(call->inputs[0].data == nullptr);
  call->workspace_size = static_cast<std::uint64_t>(ok_numel(&call->inputs[0])) * sizeof(double);
  return 0;
}

std::shared_ptr<OpSpec> spec_of(ok_function workspace = nullptr) {
  const ok_op descriptor = {OK_OP_HEAD, add, workspace, nullptr};
  auto spec = std::make_shared<OpSpec>();
  spec->op = read_op(&descriptor);
  spec->given = {true, false};  // an optional one is left out
  spec->scalars = {{OK_SCALAR_FLOAT, ""}};
  return spec;
}

OpCall::Operand operand(std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
  OpCall::Operand made;
  made.dtype = op_dtype(DType::kF64);
  made.shape = std::move(shape);
  made.strides = std::move(strides);
  return made;
}

/// Strides in bytes of C order, with the last axis outermost where `turned`, and gaps of `step`.
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape, bool turned,
                                     std::int64_t step) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t bytes = 8 * step;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::size_t axis = turned ? i : shape.size() - 1 - i;
    strides[axis] = bytes;
    bytes *= shape[axis];
  }
  return strides;
}

/// Element number `n`, counted in C order.
std::int64_t place(const OpCall::Operand& o, std::int64_t n) {
  std::int64_t at = 0;
  for (std::size_t i = o.shape.size(); i-- > 0; n /= o.shape[i])
    at += n % o.shape[i] * o.strides[i];
  return at;
}

}  // namespace

TEST(op_copies_what_is_not_in_c_order) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {}, {5}, {3, 4}, {2, 3, 4}, {2, 1, 3, 2, 2}};
  for (const auto& shape : shapes)
    for (int in = 0; in < 4; ++in)
      for (int out = 0; out < 4; ++out) {
        const auto x = operand(shape, strides_of(shape, in & 1, 1 + in / 2));
        const auto y = operand(shape, strides_of(shape, out & 1, 1 + out / 2));
        OpCall call(spec_of(), {x, y});
        std::vector<double> from(256), to(256, -1);
        std::iota(from.begin(), from.end(), 0);
        std::vector<char> scratch(static_cast<std::size_t>(call.scratch()));
        char* const data[] = {reinterpret_cast<char*>(from.data()),
                              reinterpret_cast<char*>(to.data())};
        const double k = 1000;
        std::uint64_t slot;
        std::memcpy(&slot, &k, 8);
        call.run(data, &slot, scratch.data());
        std::int64_t count = 1;
        for (const std::int64_t n : shape) count *= n;
        for (std::int64_t n = 0; n < count; ++n)
          CHECK(to[place(y, n) / 8] == from[place(x, n) / 8] + k);
        CHECK(std::count(to.begin(), to.end(), -1) == 256 - count);
      }
}

TEST(op_workspace_is_asked_for_once_per_scalars) {
  OpCall call(spec_of(want), {operand({4}, {8}), operand({4}, {8})});
  std::vector<double> from = {1, 2, 3, 4}, to(4);
  char* const data[] = {reinterpret_cast<char*>(from.data()), reinterpret_cast<char*>(to.data())};
  asked = 0;
  for (const double k : {1.0, 1.0, 2.0}) {
    std::uint64_t slot;
    std::memcpy(&slot, &k, 8);
    call.run(data, &slot, nullptr);
    CHECK(to[3] == 4 + k);
  }
  CHECK(asked == 2);
}

TEST(op_errors_are_thrown_with_the_ops_words) {
  OpCall call(spec_of(), {operand({1}, {8}), operand({1}, {8})});
  double from = 1, to = 0;
  char* const data[] = {reinterpret_cast<char*>(&from), reinterpret_cast<char*>(&to)};
  for (const auto& [k, text] : {std::pair{13.0, "thirteen"}, std::pair{14.0, "bad_alloc"}}) {
    std::uint64_t slot;
    std::memcpy(&slot, &k, 8);
    try {
      call.run(data, &slot, nullptr);
      CHECK(false);
    } catch (const OpError& e) {
      CHECK(std::string(e.what()).find(text) != std::string::npos);
    }
  }
}

TEST(op_descriptors_of_other_versions_are_refused) {
  const ok_op good = {OK_OP_HEAD, add, nullptr, nullptr};
  const auto refused = [&](void (*change)(ok_op*)) {
    ok_op op = good;
    change(&op);
    CHECK_THROWS(AbiError, read_op(&op));
  };
  refused([](ok_op* op) { op->magic = 0; });
  refused([](ok_op* op) { op->abi = OK_OP_ABI + 1; });
  refused([](ok_op* op) { op->size = sizeof(ok_op) + 8; });
  refused([](ok_op* op) { op->size = 8; });
  refused([](ok_op* op) { op->call_size = sizeof(ok_call) + 8; });
  refused([](ok_op* op) { op->tensor_size = 8; });
  refused([](ok_op* op) { op->scalar_size = 8; });
  refused([](ok_op* op) { op->run = nullptr; });
  ok_op older = good;  // that knew nothing but run()
  older.size = offsetof(ok_op, workspace);
  older.call_size -= 16;
  CHECK(read_op(&older).run == add && read_op(&older).workspace == nullptr);
}

TEST(op_is_a_step_of_a_plan) {
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, DType::kF64, {}, 2);
  const int rows = plan->host(HostOp::kExtent, x, -1, 0);
  const int cols = plan->host(HostOp::kExtent, x, -1, 1);
  const int y = plan->buffer(BufferKind::kOut, DType::kF64, {rows, cols});
  const int k = plan->host(HostOp::kArgF, 0);
  KernelSpec kernel;
  kernel.extents = {rows, cols, rows, cols};
  kernel.operands = {{x, {0, 1}, false}, {y, {2, 3}, true}};
  kernel.ranks = {2, 2};
  kernel.scalars = {plan->scalar(k, DType::kF64, ScalarMode::kCheck)};
  kernel.op = spec_of(want);
  KernelSpec wrong = kernel;
  wrong.ranks = {2, 1};
  CHECK_THROWS(PlanError, plan->kernel(wrong));
  plan->kernel(kernel);
  plan->output_buffer(y);
  plan->finish();
  std::vector<double> from = {1, 2, 3, 4, 5, 6}, to(6);
  const std::int64_t shape[] = {2, 3}, turned[] = {8, 16};
  ArrayView view{reinterpret_cast<char*>(from.data()), DType::kF64, 2, shape, turned};
  Instantiated made = instantiate(plan, &view, nullptr);
  CHECK(made.missing.empty());
  Executor& executor = *made.executor;
  executor.args()[0] = view.data;
  executor.outs()[0] = reinterpret_cast<char*>(to.data());
  HostValue weak;
  weak.f = 0.5;
  executor.run(&weak);
  CHECK(to[1] == 3.5 && to[5] == 6.5);
  weak.f = 13;
  try {
    executor.run(&weak);
    CHECK(false);
  } catch (const OpError& e) {
    CHECK(e.kernel == 0);
  }
}

}  // namespace opkiln::test
