// The C ABI of a kernel: what a generated or hand-written kernel receives and returns.
// Emitted text declares the same struct itself; this file serves kernels written by hand.
#pragma once
#include <cstdint>

// Names are plain C: a kernel and its caller may come from different compilers.
struct ok_args {
  char* const* ptr;    // one per operand: first element of this tile
  const int64_t* row;  // byte stride per operand along the row axis (0 = broadcast)
  // Byte stride per operand along the column axis. Of elementwise kernels the item size, or 0 for
  // what is read and broadcast: the caller packs all else.
  const int64_t* col;
  const uint64_t* scalar;  // one 8-byte slot per scalar, value in the low bytes (bool: 0 or 1)
  int64_t cols;            // extent of the column axis
  // Of reductions: columns lie in runs of `run`, a multiple of 32 or all of them.
  int64_t run;
  const int64_t* far;  // byte stride per operand from run to run
  char* scratch;       // of reductions: as many bytes as the kernel asked for, aligned to 64
  // Of products, whose operands are a, b and out: rows are places of the axes before the matrices,
  // `far` has the extents m, n and k, `col` per operand the byte strides along them.
};

// Fault bits a kernel returns.
enum ok_fault_bit : uint64_t {
  OK_FAULT_ZERO_DIVISION = 1,   // integer division by zero: NumPy's value is written, flag only
  OK_FAULT_NEGATIVE_POWER = 2,  // integer to a negative power: the caller raises ValueError
  OK_FAULT_OVERFLOW = 4,        // integer division overflow (MIN // -1): flag only
  OK_FAULT_INVALID_CHOICE = 8,  // an index that names no choice: the caller raises ValueError
};

// Processes rows [row_begin, row_end) of `cols` columns each. Reentrant, allocates nothing. The
// kernel of a reduction is first asked, with a null pointer for its arguments, how many bytes of
// scratch it wants: callers may have small stacks.
extern "C" typedef uint64_t (*ok_kernel)(const ok_args*, int64_t row_begin, int64_t row_end);
