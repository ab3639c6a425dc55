// test_host.cpp: the host program's arithmetic and guards, scalar slots, and what a plan refuses.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/errors.h"
#include "core/host_program.h"
#include "support.h"

namespace opkiln::test {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

struct Result {
  bool failed = false;
  HostErrorKind kind = HostErrorKind::kOverflow;
  HostValue value{};
};

template <class Build>
Result run(Build&& build, std::vector<HostValue> weak = {}) {
  HostProgram program;
  build(program);
  std::vector<HostValue> regs(program.size());
  Result result;
  try {
    program.run_fixed(regs.data(), nullptr);
    if (program.has_per_call()) program.run_call(regs.data(), weak.data());
    result.value = regs.back();
  } catch (const HostError& e) {
    result.failed = true;
    result.kind = e.kind;
    CHECK(e.reg == static_cast<int>(program.size()) - 1);
  }
  return result;
}

Result ints(HostOp op, std::int64_t a, std::int64_t b) {
  return run([&](HostProgram& p) {
    p.add(op, p.add(HostOp::kConstI, -1, -1, a), p.add(HostOp::kConstI, -1, -1, b));
  });
}
Result floats(HostOp op, double a, double b) {
  return run([&](HostProgram& p) {
    p.add(op, p.add(HostOp::kConstF, -1, -1, 0, a), p.add(HostOp::kConstF, -1, -1, 0, b));
  });
}
bool gives(const Result& r, std::int64_t value) { return !r.failed && r.value.i == value; }
bool gives_f(const Result& r, double value) {
  return !r.failed && std::memcmp(&r.value.f, &value, sizeof value) == 0;
}
bool fails(const Result& r, HostErrorKind kind) { return r.failed && r.kind == kind; }

TEST(host_index) {
  CHECK(gives(ints(HostOp::kIndex, 4, 5), 4));
  CHECK(gives(ints(HostOp::kIndex, -5, 5), 0));
  CHECK(fails(ints(HostOp::kIndex, 5, 5), HostErrorKind::kIndex));
  CHECK(fails(ints(HostOp::kIndex, -6, 5), HostErrorKind::kIndex));
  CHECK(fails(ints(HostOp::kIndex, 0, 0), HostErrorKind::kIndex));
}

TEST(host_integers) {
  CHECK(gives(ints(HostOp::kAddI, kMax, -1), kMax - 1));
  CHECK(fails(ints(HostOp::kAddI, kMax, 1), HostErrorKind::kOverflow));
  CHECK(fails(ints(HostOp::kSubI, kMin, 1), HostErrorKind::kOverflow));
  CHECK(fails(ints(HostOp::kMulI, kMax / 2, 3), HostErrorKind::kOverflow));
  CHECK(gives(ints(HostOp::kFloorDivI, -7, 2), -4));
  CHECK(gives(ints(HostOp::kFloorDivI, 7, -2), -4));
  CHECK(gives(ints(HostOp::kFloorDivI, -8, 2), -4));
  CHECK(gives(ints(HostOp::kModI, -7, 2), 1));
  CHECK(gives(ints(HostOp::kModI, 7, -2), -1));
  CHECK(gives(ints(HostOp::kModI, kMin, -1), 0));
  CHECK(fails(ints(HostOp::kFloorDivI, kMin, -1), HostErrorKind::kOverflow));
  CHECK(fails(ints(HostOp::kFloorDivI, 1, 0), HostErrorKind::kZeroDivision));
  CHECK(fails(ints(HostOp::kModI, 1, 0), HostErrorKind::kZeroDivision));
  CHECK(gives(ints(HostOp::kPowI, -3, 3), -27));
  CHECK(gives(ints(HostOp::kPowI, 0, 0), 1));
  CHECK(gives(ints(HostOp::kPowI, -2, 63), kMin));
  CHECK(gives(ints(HostOp::kPowI, 3037000499, 2), 3037000499 * std::int64_t{3037000499}));
  CHECK(gives(ints(HostOp::kPowI, 1, kMax), 1));
  CHECK(fails(ints(HostOp::kPowI, 2, 63), HostErrorKind::kOverflow));
  CHECK(fails(ints(HostOp::kPowI, 10, 40), HostErrorKind::kOverflow));
  CHECK(fails(ints(HostOp::kPowI, 2, -1), HostErrorKind::kNegativePower));
  CHECK(gives(ints(HostOp::kMaxI, -5, 3), 3) && gives(ints(HostOp::kMinI, -5, 3), -5));
  for (const HostOp op : {HostOp::kNegI, HostOp::kAbsI}) {
    CHECK(fails(run([&](HostProgram& p) { p.add(op, p.add(HostOp::kConstI, -1, -1, kMin)); }),
                HostErrorKind::kOverflow));
    CHECK(gives(run([&](HostProgram& p) { p.add(op, p.add(HostOp::kConstI, -1, -1, -9)); }), 9));
  }
}

TEST(host_floats_as_python) {
  CHECK(gives_f(floats(HostOp::kFloorDivF, 7.5, -2.0), -4.0));
  CHECK(gives_f(floats(HostOp::kModF, 7.5, -2.0), -0.5));
  CHECK(gives_f(floats(HostOp::kModF, -0.0, 3.0), 0.0));
  CHECK(gives_f(floats(HostOp::kModF, 4.0, -2.0), -0.0));
  CHECK(gives_f(floats(HostOp::kFloorDivF, 1.0, 0.1), 9.0));
  CHECK(fails(floats(HostOp::kDivF, 1.0, 0.0), HostErrorKind::kZeroDivision));
  CHECK(fails(floats(HostOp::kModF, 1.0, -0.0), HostErrorKind::kZeroDivision));
  CHECK(fails(floats(HostOp::kPowF, 0.0, -1.0), HostErrorKind::kZeroDivision));
  CHECK(fails(floats(HostOp::kPowF, -8.0, 0.5), HostErrorKind::kDomain));
  CHECK(fails(floats(HostOp::kPowF, 10.0, 400.0), HostErrorKind::kOverflow));
  CHECK(gives_f(floats(HostOp::kPowF, -8.0, 3.0), -512.0));
  CHECK(gives_f(floats(HostOp::kMulF, 1e200, 1e200), HUGE_VAL));
  CHECK(std::isnan(floats(HostOp::kMaxF, NAN, 1.0).value.f) &&
        std::isnan(floats(HostOp::kMinF, 1.0, NAN).value.f));
}

TEST(host_guards) {
  CHECK(gives(ints(HostOp::kBcast, 1, 7), 7) && gives(ints(HostOp::kBcast, 7, 1), 7));
  CHECK(gives(ints(HostOp::kBcast, 0, 1), 0) && gives(ints(HostOp::kBcast, 1, 0), 0));
  CHECK(fails(ints(HostOp::kBcast, 0, 2), HostErrorKind::kBroadcast));
  CHECK(fails(ints(HostOp::kBcast, 3, 2), HostErrorKind::kBroadcast));
  CHECK(gives(ints(HostOp::kSame, 3, 3), 3) &&
        fails(ints(HostOp::kSame, 1, 3), HostErrorKind::kSame));
  CHECK(fails(ints(HostOp::kNonEmpty, 0, 2), HostErrorKind::kEmptyReduction));
  CHECK(gives(ints(HostOp::kNonEmpty, 0, 0), 0) && gives(ints(HostOp::kNonEmpty, 5, 2), 5));
}

TEST(host_weak_values) {
  HostValue big;
  big.u = ~std::uint64_t{0};
  const auto to_float = [](HostProgram& p) { p.add(HostOp::kU2F, p.add(HostOp::kArgU, 0)); };
  CHECK(gives_f(run(to_float, {big}), 18446744073709551616.0));
  const auto plus = [](HostProgram& p) {
    const int u = p.add(HostOp::kArgU, 0);
    p.add(HostOp::kAddI, u, p.add(HostOp::kConstI, -1, -1, 1));
  };
  CHECK(fails(run(plus, {big}), HostErrorKind::kOverflow));
  HostProgram program;
  CHECK_THROWS(PlanError, program.add(HostOp::kAddI, 0, 0));
  const int f = program.add(HostOp::kArgF, 1);
  CHECK_THROWS(PlanError, program.add(HostOp::kAddI, f, f));
  CHECK_THROWS(PlanError, host_op_from_name("add"));
  CHECK(host_op_from_name("nonempty") == HostOp::kNonEmpty &&
        host_op_from_name("i2f") == HostOp::kI2F);
}

std::uint64_t slot_of(std::int64_t value, DType dtype, ScalarMode mode = ScalarMode::kCheck) {
  HostValue v;
  v.i = value;
  return scalar_slot(v, HostType::kInt, dtype, mode, 0);
}

TEST(host_scalar_slots) {
  CHECK(slot_of(255, DType::kU8) == 255 && slot_of(-1, DType::kI8) == 0xff);
  CHECK(slot_of(-128, DType::kI8) == 0x80 && slot_of(kMin, DType::kI64) == std::uint64_t{1} << 63);
  for (const auto& [value, dtype] : {std::pair{std::int64_t{300}, DType::kU8},
                                     {std::int64_t{-1}, DType::kU64},
                                     {std::int64_t{-129}, DType::kI8},
                                     {kMax, DType::kI32}})
    CHECK_THROWS(HostError, slot_of(value, dtype));
  CHECK(slot_of(300, DType::kU8, ScalarMode::kSaturate) == 255);
  CHECK(slot_of(-5, DType::kU8, ScalarMode::kSaturate) == 0);
  CHECK(slot_of(kMin, DType::kI8, ScalarMode::kSaturate) == 0x80);
  CHECK(slot_of(300, DType::kU8, ScalarMode::kWrap) == 44);
  CHECK(slot_of(7, DType::kBool) == 1 && slot_of(0, DType::kBool) == 0);
  HostValue v;
  v.u = ~std::uint64_t{0};
  CHECK(scalar_slot(v, HostType::kUnsigned, DType::kU64, ScalarMode::kCheck, 0) == v.u);
  CHECK_THROWS(HostError, scalar_slot(v, HostType::kUnsigned, DType::kI64, ScalarMode::kCheck, 0));
  v.f = 1e40;
  const std::uint64_t slot = scalar_slot(v, HostType::kFloat, DType::kF32, ScalarMode::kCheck, 0);
  CHECK(slot == 0x7f800000);
  // Through double: the nearest float32 of the nearest float64.
  const auto narrow = static_cast<float>(
      static_cast<double>((std::int64_t{1} << 60) + (std::int64_t{1} << 36) + 1));
  std::uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  CHECK(slot_of((std::int64_t{1} << 60) + (std::int64_t{1} << 36) + 1, DType::kF32) == bits);
}

std::uint64_t scaled(const KernelArgs* a, std::int64_t begin, std::int64_t end) {
  std::int64_t factor, shift;
  std::memcpy(&factor, &a->scalar[0], 8);
  std::memcpy(&shift, &a->scalar[1], 8);
  for (std::int64_t r = begin; r < end; ++r)
    for (std::int64_t c = 0; c < a->cols; ++c)
      store(a->ptr[1] + r * a->row[1] + c * a->col[1],
            factor * load<std::int64_t>(a->ptr[0] + r * a->row[0] + c * a->col[0]) + shift);
  return kFaultDivideByZero;
}

TEST(host_part_of_each_call) {
  // out = x * (w0 // w1) + len(x), with the scalars listed out of order; also a host output.
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, DType::kI64, {}, 1);
  const int n = plan->host(HostOp::kExtent, x, -1, 0);
  const int w0 = plan->host(HostOp::kArgI, 0), w1 = plan->host(HostOp::kArgI, 1);
  const int ratio = plan->host(HostOp::kFloorDivI, w0, w1);
  const int out = plan->buffer(BufferKind::kOut, DType::kI64, {n});
  const int length_slot = plan->scalar(n, DType::kI64, ScalarMode::kCheck);
  const int ratio_slot = plan->scalar(ratio, DType::kI64, ScalarMode::kCheck);
  CHECK_THROWS(PlanError, plan->buffer(BufferKind::kOut, DType::kI64, {ratio}));
  KernelSpec kernel;
  kernel.extents = {n};
  kernel.operands = {{x, {0}, false}, {out, {0}, true}};
  kernel.scalars = {ratio_slot, length_slot};
  kernel.ns_per_element = 2;
  plan->kernel(kernel);
  plan->output_buffer(out);
  plan->output_host(ratio);
  plan->finish();
  plan->add_variant(0, "CC", reinterpret_cast<void*>(&scaled));
  std::vector<std::int64_t> in = {1, 2, 3}, result(3);
  std::int64_t shape[1] = {3}, strides[1] = {8};
  const ArrayView args[1] = {{reinterpret_cast<char*>(in.data()), DType::kI64, 1, shape, strides}};
  Instantiated made = instantiate(plan, args, nullptr);
  Executor& ex = *made.executor;
  CHECK(ex.estimated_ns() == 6);
  ex.args()[0] = args[0].data;
  ex.outs()[0] = reinterpret_cast<char*>(result.data());
  HostValue weak[2];
  for (std::int64_t k = 1; k < 5; ++k) {
    weak[0].i = 10 * k;
    weak[1].i = k;
    weak[0].i += k;
    CHECK(ex.run(weak) == kFaultDivideByZero);
    CHECK(result[2] == 3 * 11 + 3 && ex.reg(ratio).i == 11);
  }
  result[0] = -1;
  weak[1].i = 0;
  CHECK_THROWS(HostError, ex.run(weak));
  CHECK(result[0] == -1 && ex.phase() != Executor::Phase::kDevice);  // before any kernel
}

TEST(plan_refuses_what_makes_no_sense) {
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, DType::kF32, {}, 2);
  const int n = plan->host(HostOp::kExtent, x, -1, 1);
  CHECK_THROWS(PlanError, plan->host(HostOp::kExtent, x, -1, 2));
  CHECK_THROWS(PlanError, plan->buffer(BufferKind::kArg, DType::kF32, {n}, 1));
  const int out = plan->buffer(BufferKind::kOut, DType::kF32, {n}),
            temp = plan->buffer(BufferKind::kTemp, DType::kF32, {n});
  CHECK_THROWS(PlanError, plan->output_buffer(x));
  CHECK_THROWS(PlanError, plan->pin(out, 0, 3));
  const auto kernel = [&](std::vector<OperandSpec> operands, std::uint32_t mask = 0) {
    KernelSpec spec;
    spec.extents = {n};
    spec.reduce_mask = mask;
    spec.operands = std::move(operands);
    return plan->kernel(spec);
  };
  CHECK_THROWS(PlanError, kernel({}));
  CHECK_THROWS(PlanError, kernel({{x, {0, 1}, false}}));
  CHECK_THROWS(PlanError, kernel({{x, {2}, false}}));
  CHECK_THROWS(PlanError, kernel({{x, {0}, true}}));
  CHECK_THROWS(PlanError, kernel({{9, {0}, false}}));
  CHECK_THROWS(PlanError, kernel({{x, {0}, false}}, 2));
  CHECK_THROWS(PlanError,
               plan->scalar(plan->host(HostOp::kConstF), DType::kI8, ScalarMode::kCheck));
  kernel({{temp, {0}, false}, {out, {0}, true}});
  plan->output_buffer(out);
  CHECK_THROWS(PlanError, plan->output_buffer(out));
  CHECK_THROWS(PlanError, plan->add_variant(0, "CC", &failures));  // not finished
  CHECK_THROWS(PlanError, plan->finish());                         // reads temp, which nobody wrote
  plan->pin(x, 0, 3);
  const std::int64_t three[2] = {3, 5}, four[2] = {4, 5};
  const ArrayView yes = {nullptr, DType::kF32, 2, three, three},
                  no = {nullptr, DType::kF32, 2, four, four};
  CHECK(plan->pins_hold(&yes) && !plan->pins_hold(&no));
}

TEST(plan_variants_keep_their_library_alive) {
  ProbePlan probe;
  bool gone = false;
  {
    std::shared_ptr<void> library(nullptr, [&gone](void*) { gone = true; });
    probe.plan->add_variant(0, "GG", &failures, library);
  }
  CHECK_THROWS(PlanError, probe.plan->add_variant(0, "CCC", &failures));
  CHECK_THROWS(PlanError, probe.plan->add_variant(0, "CX", &failures));
  auto executor = probe.build();
  probe.plan = Ref<Plan>();
  CHECK(!gone);
  executor.reset();
  CHECK(gone);
}

TEST(plan_fallback_knows_layouts_only) {
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, DType::kF32, {}, 2);
  const int rows = plan->host(HostOp::kExtent, x, -1, 0),
            cols = plan->host(HostOp::kExtent, x, -1, 1);
  const int out = plan->buffer(BufferKind::kOut, DType::kF32, {rows, cols});
  KernelSpec kernel;
  kernel.extents = {rows, cols};
  kernel.operands = {{x, {0, 1}, false}, {out, {0, 1}, true}};
  plan->kernel(kernel);
  plan->output_buffer(out);
  plan->finish();
  Strided fortran = dense(DType::kF32, {3, 4});
  fortran.strides = {4, 12};
  const ArrayView args[1] = {fortran.view()};
  CHECK(instantiate(plan, args, nullptr).missing.size() == 1);
  plan->set_fallback();
  const Instantiated made = instantiate(plan, args, nullptr);
  CHECK(made.executor && made.executor->is_fallback() && !made.executor->launches());
  const OutSpec& spec = made.executor->out(0);
  CHECK(spec.strides[0] == 4 && spec.strides[1] == 12 && !spec.c_order && spec.nbytes == 48);
}

}  // namespace
}  // namespace opkiln::test
