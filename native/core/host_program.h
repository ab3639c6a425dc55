// host_program.h: small straight-line program over sizes and weak scalars: extents, guards, scalar
// slots.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "dtype.h"

namespace opkiln::core {

enum class HostOp : std::uint8_t {
  kExtent,
  kArgI,
  kArgU,
  kArgF,
  kConstI,
  kConstF,
  kAddI,
  kSubI,
  kMulI,
  kFloorDivI,
  kModI,
  kPowI,
  kNegI,
  kAbsI,
  kMaxI,
  kMinI,
  kAddF,
  kSubF,
  kMulF,
  kDivF,
  kFloorDivF,
  kModF,
  kPowF,
  kNegF,
  kAbsF,
  kMaxF,
  kMinF,
  kI2F,
  kU2F,
  kBcast,
  kSame,
  kNonEmpty,
  kIndex,
};

/// "extent", "arg_i", "add_i", ...; throws PlanError for an unknown name.
HostOp host_op_from_name(std::string_view name);

enum class HostType : std::uint8_t { kInt, kUnsigned, kFloat };

union HostValue {
  std::int64_t i;
  std::uint64_t u;
  double f;
};

struct HostInstr {
  HostOp op;
  HostType type;
  bool per_call;  // depends on a weak scalar
  std::int32_t a, b;
  std::int64_t ival;
  double fval;
};

enum class ScalarMode : std::uint8_t { kCheck, kSaturate, kWrap };
ScalarMode scalar_mode_from_name(std::string_view name);  // "check" | "saturate" | "wrap"

class HostProgram {
 public:
  /// Appends an instruction and returns its register.
  int add(HostOp op, int a = -1, int b = -1, std::int64_t ival = 0, double fval = 0.0);

  std::size_t size() const noexcept { return code_.size(); }
  const HostInstr& at(int reg) const { return code_.at(static_cast<std::size_t>(reg)); }
  bool has_per_call() const noexcept { return !per_call_.empty(); }
  std::size_t weak_count() const noexcept { return weak_count_; }

  /// Registers that hold for the whole life of an executor. `shapes` is indexed by buffer.
  void run_fixed(HostValue* regs, const std::int64_t* const* shapes) const;
  /// Registers that depend on weak scalars. Throws HostError.
  void run_call(HostValue* regs, const HostValue* weak) const;

 private:
  void step(int reg, HostValue* regs, const std::int64_t* const* shapes,
            const HostValue* weak) const;

  std::vector<HostInstr> code_;
  std::vector<std::int32_t> per_call_;
  std::size_t weak_count_ = 0;
};

/// scalar_slot() of everything but the common float and signed cases.
std::uint64_t scalar_slot_general(HostValue value, HostType type, DType dtype, ScalarMode mode,
                                  int reg);

/// A register's value as the 8 bytes of a kernel's scalar slot. Throws HostError (range).
inline std::uint64_t scalar_slot(HostValue value, HostType type, DType dtype, ScalarMode mode,
                                 int reg) {
  if (is_float(dtype) && type != HostType::kUnsigned) {
    // An int goes through double first, as NumPy's conversion of a Python int does.
    const double wide = type == HostType::kFloat ? value.f : static_cast<double>(value.i);
    if (dtype == DType::kF64) return std::bit_cast<std::uint64_t>(wide);
    return std::bit_cast<std::uint32_t>(static_cast<float>(wide));
  }
  if (type == HostType::kInt &&
      (dtype == DType::kI64 ||
       (dtype == DType::kI32 && value.i == static_cast<std::int32_t>(value.i))))
    return dtype == DType::kI64 ? value.u : static_cast<std::uint32_t>(value.i);
  return scalar_slot_general(value, type, dtype, mode, reg);
}

}  // namespace opkiln::core
