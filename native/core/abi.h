// abi.h: how a compiled kernel is called; the same layout as `ok_args` in emitted text.
#pragma once

#include <cstddef>
#include <cstdint>

namespace opkiln::core {

struct KernelArgs {
  char* const* ptr;             // one per operand: first element of this tile
  const std::int64_t* row;      // byte stride per operand along the row axis (0 = broadcast)
  const std::int64_t* col;      // byte stride per operand along the column axis
  const std::uint64_t* scalar;  // one 8-byte slot per scalar parameter
  std::int64_t cols;            // extent of the column axis
  // Of reductions: columns lie in runs of `run`, a multiple of 32 or all of them; `far` has the
  // byte stride from run to run.
  std::int64_t run;
  const std::int64_t* far;
  char* scratch;  // of reductions: as many bytes as the kernel asked for, aligned to 64
  // Of products, whose operands are a, b and out: rows are places of the axes before the matrices,
  // `far` has the extents m, n and k, `col` per operand the byte strides along them.
};
static_assert(sizeof(KernelArgs) == 64 && offsetof(KernelArgs, scratch) == 56);

/// Runs rows [row_begin, row_end) and returns fault bits. That of a reduction says without
/// arguments how much scratch it asks for, of so many columns as `row_begin`.
using KernelFn = std::uint64_t (*)(const KernelArgs*, std::int64_t row_begin, std::int64_t row_end);

enum FaultBits : std::uint64_t {
  kFaultDivideByZero = 1,
  kFaultNegativePower = 2,
  kFaultDivideOverflow = 4,
  kFaultInvalidChoice = 8,
};

}  // namespace opkiln::core
