// nest.h: from extents and strides to a loop nest: axis order, merged axes, rows, columns, class.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#include "dtype.h"
#include "op.h"

namespace opkiln::core {

// Tiles of elementwise kernels stay in the nearest cache, and on the stack unless there are very
// many operands.
constexpr std::int64_t kNearBytes = 16 * 1024;

/// One operand over the logical axes of a kernel.
struct NestOperand {
  DType dtype = DType::kF32;
  bool write = false;
  bool known = true;  // strides are fixed (argument, capture, given output, earlier result)
  bool column_broadcast = false;      // by construction the same along every column axis
  std::vector<std::int64_t> strides;  // bytes per logical axis; 0 = broadcast; unset when unknown
};

/// Copies an operand that does not fit the kernel's loops into (or out of) dense rows.
struct NestPack {
  int operand = 0;
  bool write = false;
  std::vector<std::int64_t> col_extents;  // axes of the columns, outermost first
  std::vector<std::int64_t> col_strides;  // of the real operand
  std::int64_t row_stride = 0;            // of the real operand
  std::int64_t offset = 0;                // of the copy: into the tile, of reductions the workspace
};

struct NestLayout {
  bool launch = true;  // false: nothing to do
  bool elementwise = true;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::vector<std::int64_t> row_strides;  // per operand; of the packed copy where packed
  std::vector<std::int64_t> col_strides;
  // Columns may come in runs that lie apart: two reduced axes that no single stride steps through.
  std::int64_t run = 1;                     // columns in a run; all of them where there is one run
  std::vector<std::int64_t> run_strides;    // of reductions: from run to run, per operand
  std::vector<std::int64_t> outer_extents;  // outermost first
  std::vector<std::vector<std::int64_t>> outer_strides;  // [axis][operand]
  std::vector<NestPack> packs;
  // Packed operands go through tiles of so many rows and columns; 0 without packs.
  std::int64_t tile_rows = 0;
  std::int64_t tile_cols = 0;   // of elementwise kernels
  std::int64_t tile_bytes = 0;  // of all copies; of elementwise kernels
  bool flat = false;            // rows are short: a tile of whole rows is one row to the kernel
  std::string column_class;     // the class to compile when no existing variant fits
  std::string long_class;       // that of longer rows, where these go across for being short; or ""
  std::int64_t elements = 0;
  std::int64_t scratch = 0;         // bytes that the kernel asks for
  std::int64_t scratch_offset = 0;  // into the workspace
  KernelFn library = nullptr;       // of products: what serves them in place of a kernel
  std::shared_ptr<OpCall> op;       // what runs in place of a kernel

  /// Whether a kernel that goes across rows may have these columns: its levels of blocks
  /// (include/opkiln/nest.h) serve no more.
  bool one_panel() const noexcept { return cols >= 1 && cols <= std::int64_t{1} << 30; }
};

/// Axes from outermost to innermost as NumPy's nditer orders them (K order), known operands only.
std::vector<int> sort_axes(const std::vector<int>& axes, const std::vector<NestOperand>& operands);

/// Dense positive strides for a buffer whose axes are nested in `order` (outermost first). Returns
/// its size in bytes; throws std::bad_alloc when that does not fit an int64.
std::int64_t dense_strides(DType dtype, const std::vector<std::int64_t>& shape,
                           const std::vector<int>& order, std::int64_t* strides);

/// Every operand must be known by now.
NestLayout build_nest(const std::vector<std::int64_t>& extents, std::uint32_t reduce_mask,
                      const std::vector<NestOperand>& operands);

/// The layout of a product of matrices: strides and extents as KernelArgs describes them.
NestLayout build_product(const std::vector<std::int64_t>& extents,
                         const std::vector<NestOperand>& operands);

/// 'C', 'Z' or 'G'. Written operands are never 'Z'. A class string has one letter per operand; with
/// a leading 'r' the letters speak of the row strides: vectors go across rows; 'H' is scratch, of
/// which the kernel holds a panel. Elementwise kernels have one class, all 'C': what they read may
/// be broadcast, what is strided is packed.
char column_letter(std::int64_t col_stride, DType dtype, bool write) noexcept;

}  // namespace opkiln::core
