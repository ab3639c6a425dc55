// host_program.cpp: builds and runs the straight-line program; int64 checked, floats as Python's.
#include "host_program.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "errors.h"

namespace opkiln::core {
namespace {

struct OpRow {
  std::string_view name;
  int operands;  // registers read
  HostType in;   // their type
  HostType result;
};

constexpr HostType kInt = HostType::kInt, kUns = HostType::kUnsigned, kFlt = HostType::kFloat;

// In the order of HostOp.
constexpr std::array<OpRow, 33> kOps = {{
    {"extent", 0, kInt, kInt},     {"arg_i", 0, kInt, kInt},    {"arg_u", 0, kInt, kUns},
    {"arg_f", 0, kInt, kFlt},      {"const_i", 0, kInt, kInt},  {"const_f", 0, kInt, kFlt},
    {"add_i", 2, kInt, kInt},      {"sub_i", 2, kInt, kInt},    {"mul_i", 2, kInt, kInt},
    {"floordiv_i", 2, kInt, kInt}, {"mod_i", 2, kInt, kInt},    {"pow_i", 2, kInt, kInt},
    {"neg_i", 1, kInt, kInt},      {"abs_i", 1, kInt, kInt},    {"max_i", 2, kInt, kInt},
    {"min_i", 2, kInt, kInt},      {"add_f", 2, kFlt, kFlt},    {"sub_f", 2, kFlt, kFlt},
    {"mul_f", 2, kFlt, kFlt},      {"div_f", 2, kFlt, kFlt},    {"floordiv_f", 2, kFlt, kFlt},
    {"mod_f", 2, kFlt, kFlt},      {"pow_f", 2, kFlt, kFlt},    {"neg_f", 1, kFlt, kFlt},
    {"abs_f", 1, kFlt, kFlt},      {"max_f", 2, kFlt, kFlt},    {"min_f", 2, kFlt, kFlt},
    {"i2f", 1, kInt, kFlt},        {"u2f", 1, kUns, kFlt},      {"bcast", 2, kInt, kInt},
    {"same", 2, kInt, kInt},       {"nonempty", 2, kInt, kInt}, {"index", 2, kInt, kInt},
}};
static_assert(static_cast<int>(HostOp::kIndex) + 1 == kOps.size());

const OpRow& row(HostOp op) { return kOps[static_cast<std::size_t>(op)]; }

[[noreturn]] void fail(HostErrorKind kind, int reg, std::int64_t a, std::int64_t b) {
  throw HostError(kind, reg, a, b);
}

std::int64_t floor_div(std::int64_t a, std::int64_t b, int reg) {
  if (b == 0) fail(HostErrorKind::kZeroDivision, reg, a, b);
  if (b == -1) {
    std::int64_t negated;
    if (__builtin_sub_overflow(std::int64_t{0}, a, &negated))
      fail(HostErrorKind::kOverflow, reg, a, b);
    return negated;
  }
  const std::int64_t q = a / b;
  return (a % b != 0 && (a % b < 0) != (b < 0)) ? q - 1 : q;
}

std::int64_t floor_mod(std::int64_t a, std::int64_t b, int reg) {
  if (b == 0) fail(HostErrorKind::kZeroDivision, reg, a, b);
  if (b == -1) return 0;
  const std::int64_t r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}

std::int64_t power(std::int64_t base, std::int64_t exponent, int reg) {
  if (exponent < 0) fail(HostErrorKind::kNegativePower, reg, base, exponent);
  std::int64_t result = 1, square = base;
  for (std::int64_t left = exponent; left != 0;) {
    if ((left & 1) && __builtin_mul_overflow(result, square, &result))
      fail(HostErrorKind::kOverflow, reg, base, exponent);
    left >>= 1;
    if (left != 0 && __builtin_mul_overflow(square, square, &square))
      fail(HostErrorKind::kOverflow, reg, base, exponent);
  }
  return result;
}

std::int64_t checked(HostOp op, std::int64_t a, std::int64_t b, int reg) {
  std::int64_t result = 0;
  bool bad = false;
  switch (op) {
    case HostOp::kAddI:
      bad = __builtin_add_overflow(a, b, &result);
      break;
    case HostOp::kSubI:
      bad = __builtin_sub_overflow(a, b, &result);
      break;
    case HostOp::kMulI:
      bad = __builtin_mul_overflow(a, b, &result);
      break;
    case HostOp::kFloorDivI:
      return floor_div(a, b, reg);
    case HostOp::kModI:
      return floor_mod(a, b, reg);
    case HostOp::kPowI:
      return power(a, b, reg);
    case HostOp::kNegI:
      bad = __builtin_sub_overflow(std::int64_t{0}, a, &result);
      break;
    case HostOp::kAbsI:
      if (a >= 0) return a;
      bad = __builtin_sub_overflow(std::int64_t{0}, a, &result);
      break;
    case HostOp::kMaxI:
      return a > b ? a : b;
    case HostOp::kMinI:
      return a < b ? a : b;
    case HostOp::kBcast:
      if (a == b || b == 1) return a;
      if (a == 1) return b;
      fail(HostErrorKind::kBroadcast, reg, a, b);
    case HostOp::kSame:
      if (a != b) fail(HostErrorKind::kSame, reg, a, b);
      return a;
    case HostOp::kNonEmpty:
      if (a == 0 && b != 0) fail(HostErrorKind::kEmptyReduction, reg, a, b);
      return a;
    case HostOp::kIndex:
      if (a < -b || a >= b) fail(HostErrorKind::kIndex, reg, a, b);
      return a < 0 ? a + b : a;
    default:
      break;
  }
  if (bad) fail(HostErrorKind::kOverflow, reg, a, b);
  return result;
}

/// CPython's float_divmod.
void float_divmod(double a, double b, double* quotient, double* remainder) {
  double mod = std::fmod(a, b);
  double div = (a - mod) / b;
  if (mod != 0.0) {
    if ((b < 0) != (mod < 0)) {
      mod += b;
      div -= 1.0;
    }
  } else {
    mod = std::copysign(0.0, b);
  }
  double floored;
  if (div != 0.0) {
    floored = std::floor(div);
    if (div - floored > 0.5) floored += 1.0;
  } else {
    floored = std::copysign(0.0, a / b);
  }
  *quotient = floored;
  *remainder = mod;
}

double float_power(double a, double b, int reg) {
  if (a == 0.0 && b < 0.0) fail(HostErrorKind::kZeroDivision, reg, 0, 0);
  if (std::isfinite(a) && std::isfinite(b) && a < 0.0 && b != std::floor(b))
    fail(HostErrorKind::kDomain, reg, 0, 0);
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
    fail(HostErrorKind::kOverflow, reg, 0, 0);
  return result;
}

double floating(HostOp op, double a, double b, int reg) {
  double quotient, remainder;
  switch (op) {
    case HostOp::kAddF:
      return a + b;
    case HostOp::kSubF:
      return a - b;
    case HostOp::kMulF:
      return a * b;
    case HostOp::kDivF:
    case HostOp::kFloorDivF:
    case HostOp::kModF:
      if (b == 0.0) fail(HostErrorKind::kZeroDivision, reg, 0, 0);
      if (op == HostOp::kDivF) return a / b;
      float_divmod(a, b, &quotient, &remainder);
      return op == HostOp::kModF ? remainder : quotient;
    case HostOp::kPowF:
      return float_power(a, b, reg);
    case HostOp::kNegF:
      return -a;
    case HostOp::kAbsF:
      return std::fabs(a);
    case HostOp::kMaxF:
      return a >= b || std::isnan(a) ? a : b;
    case HostOp::kMinF:
      return a <= b || std::isnan(a) ? a : b;
    default:
      return 0.0;
  }
}

}  // namespace

HostOp host_op_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kOps.size(); ++i)
    if (kOps[i].name == name) return static_cast<HostOp>(i);
  throw PlanError("unknown host op '" + std::string(name) + "'");
}

ScalarMode scalar_mode_from_name(std::string_view name) {
  if (name == "check") return ScalarMode::kCheck;
  if (name == "saturate") return ScalarMode::kSaturate;
  if (name == "wrap") return ScalarMode::kWrap;
  throw PlanError("unknown scalar mode '" + std::string(name) + "'");
}

int HostProgram::add(HostOp op, int a, int b, std::int64_t ival, double fval) {
  const OpRow& spec = row(op);
  const int here = static_cast<int>(code_.size());
  const bool weak = op == HostOp::kArgI || op == HostOp::kArgU || op == HostOp::kArgF;
  bool per_call = weak;
  const int reads[2] = {a, b};
  for (int i = 0; i < spec.operands; ++i) {
    if (reads[i] < 0 || reads[i] >= here)
      throw PlanError("host op " + std::string(spec.name) + ": no register " +
                      std::to_string(reads[i]));
    const HostInstr& source = at(reads[i]);
    // An unsigned value (2^63 or more) is accepted by integer ops: they overflow when they run.
    const bool fits = source.type == spec.in || (spec.in == kInt && source.type == kUns);
    if (!fits)
      throw PlanError("host op " + std::string(spec.name) + ": wrong type of register " +
                      std::to_string(reads[i]));
    per_call = per_call || source.per_call;
  }
  if ((weak || op == HostOp::kExtent) && a < 0)
    throw PlanError(std::string(spec.name) + ": index below zero");
  code_.push_back({op, spec.result, per_call, a, b, ival, fval});
  if (per_call) per_call_.push_back(here);
  if (weak && static_cast<std::size_t>(a) + 1 > weak_count_)
    weak_count_ = static_cast<std::size_t>(a) + 1;
  return here;
}

void HostProgram::step(int reg, HostValue* regs, const std::int64_t* const* shapes,
                       const HostValue* weak) const {
  const HostInstr& in = at(reg);
  HostValue& out = regs[reg];
  switch (in.op) {
    case HostOp::kExtent:
      out.i = shapes[in.a][in.ival];
      return;
    case HostOp::kArgI:
    case HostOp::kArgU:
    case HostOp::kArgF:
      out = weak[in.a];
      return;
    case HostOp::kConstI:
      out.i = in.ival;
      return;
    case HostOp::kConstF:
      out.f = in.fval;
      return;
    case HostOp::kU2F:
      out.f = static_cast<double>(regs[in.a].u);
      return;
    default:
      break;
  }
  const OpRow& spec = row(in.op);
  const bool two = spec.operands == 2;
  if (spec.in == kFlt) {
    out.f = floating(in.op, regs[in.a].f, two ? regs[in.b].f : 0.0, reg);
    return;
  }
  const std::int64_t a = regs[in.a].i, b = two ? regs[in.b].i : 0;
  if (in.op == HostOp::kI2F) {
    out.f = at(in.a).type == kUns ? static_cast<double>(regs[in.a].u) : static_cast<double>(a);
    return;
  }
  if (at(in.a).type == kUns) throw HostError(HostErrorKind::kOverflow, reg, a, b, true);
  if (two && at(in.b).type == kUns) throw HostError(HostErrorKind::kOverflow, reg, a, b);
  out.i = checked(in.op, a, b, reg);
}

void HostProgram::run_fixed(HostValue* regs, const std::int64_t* const* shapes) const {
  for (std::size_t reg = 0; reg < code_.size(); ++reg)
    if (!code_[reg].per_call) step(static_cast<int>(reg), regs, shapes, nullptr);
}

void HostProgram::run_call(HostValue* regs, const HostValue* weak) const {
  for (const int reg : per_call_) {
    const HostInstr& in = code_[static_cast<std::size_t>(reg)];
    if (in.op >= HostOp::kArgI && in.op <= HostOp::kArgF)
      regs[reg] = weak[in.a];
    else
      step(reg, regs, nullptr, weak);
  }
}

std::uint64_t scalar_slot_general(HostValue value, HostType type, DType dtype, ScalarMode mode,
                                  int reg) {
  std::uint64_t slot = 0;
  if (is_float(dtype)) {
    // An int goes through double first, as NumPy's conversion of a Python int does.
    const double wide = type == kFlt   ? value.f
                        : type == kUns ? static_cast<double>(value.u)
                                       : static_cast<double>(value.i);
    if (dtype == DType::kF64) {
      std::memcpy(&slot, &wide, sizeof wide);
    } else {
      const auto narrow = static_cast<float>(wide);
      std::memcpy(&slot, &narrow, sizeof narrow);
    }
    return slot;
  }
  if (dtype == DType::kBool) return type == kFlt ? value.f != 0.0 : value.i != 0;
  const int bits = static_cast<int>(8 * itemsize(dtype));
  __int128 wide = type == kUns ? static_cast<__int128>(value.u) : static_cast<__int128>(value.i);
  const bool uns = is_unsigned(dtype);
  const __int128 one = 1;
  const __int128 lo = uns ? 0 : -(one << (bits - 1));
  const __int128 hi = uns ? (one << bits) - 1 : (one << (bits - 1)) - 1;
  if (wide < lo || wide > hi) {
    if (mode == ScalarMode::kCheck)
      throw HostError(HostErrorKind::kRange, reg, value.i, static_cast<int>(dtype), type == kUns);
    if (mode == ScalarMode::kSaturate) wide = wide < lo ? lo : hi;
  }
  slot = static_cast<std::uint64_t>(wide);
  return bits == 64 ? slot : slot & ((std::uint64_t{1} << bits) - 1);
}

}  // namespace opkiln::core
