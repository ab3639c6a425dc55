// nest.cpp: NumPy's axis order, merging of axes, choice of rows and columns, packing of reductions.
#include "nest.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>

#include "blas.h"

namespace opkiln::core {
namespace {

// A packed tile of a reduction holds as many rows as fit here, and at least one.
constexpr std::int64_t kTileBytes = 256 * 1024;
// A line of a tile of an elementwise kernel has at most so many bytes: what else its loop streams
// needs room in the nearest cache too. Where an operand lies across the rows, a tile has so many
// rows (a cache line or two of that operand), and elements in all.
constexpr std::int64_t kLineBytes = 4096, kAcrossRows = 16, kAcrossElements = 2048;
// A row of fewer bytes costs more to begin than to compute.
constexpr std::int64_t kShortLine = 256;
// A fold takes steps of as many columns. Rows a good deal shorter than that leave lanes idle; with
// many of them it shows.
constexpr std::int64_t kAccumulators = 32, kShortRow = 24, kManyRows = 64;

std::int64_t magnitude(std::int64_t stride) { return stride < 0 ? -stride : stride; }

/// An axis after merging: its extent and every operand's stride.
struct Axis {
  std::int64_t extent;
  std::vector<std::int64_t> strides;
};

/// Axes `order` (outermost first) without those of extent 1.
std::vector<Axis> collect(const std::vector<int>& order, const std::vector<std::int64_t>& extents,
                          const std::vector<NestOperand>& operands) {
  std::vector<Axis> axes;
  for (const int axis : order) {
    const auto at = static_cast<std::size_t>(axis);
    if (extents[at] == 1) continue;
    Axis made{extents[at], {}};
    made.strides.reserve(operands.size());
    for (const NestOperand& op : operands) made.strides.push_back(op.strides[at]);
    axes.push_back(std::move(made));
  }
  return axes;
}

bool merges(const Axis& outer, const Axis& inner, std::size_t operand) {
  std::int64_t span = 0;
  return !__builtin_mul_overflow(inner.strides[operand], inner.extent, &span) &&
         outer.strides[operand] == span;
}

/// Joins neighbours wherever every operand steps through both as through one.
void merge(std::vector<Axis>* axes) {
  for (std::size_t i = axes->size(); i-- > 1;) {
    Axis& outer = (*axes)[i - 1];
    const Axis& inner = (*axes)[i];
    bool all = true;
    for (std::size_t j = 0; j < inner.strides.size() && all; ++j) all = merges(outer, inner, j);
    if (!all) continue;
    outer.extent *= inner.extent;
    outer.strides = inner.strides;
    axes->erase(axes->begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void take_rows_and_outer(std::vector<Axis> axes, std::size_t nops, NestLayout* nest) {
  nest->row_strides.assign(nops, 0);
  if (!axes.empty()) {
    nest->rows = axes.back().extent;
    nest->row_strides = axes.back().strides;
    axes.pop_back();
  }
  for (Axis& axis : axes) {
    nest->outer_extents.push_back(axis.extent);
    nest->outer_strides.push_back(std::move(axis.strides));
  }
}

/// The reduced axes as one column axis. They keep their logical order, so that every layout adds
/// in the same order. Two axes become runs of columns if blocks of the fold need not straddle
/// steps of accumulators; an operand whose strides fit neither way is packed.
void take_columns(std::vector<Axis> axes, const std::vector<NestOperand>& operands,
                  NestLayout* nest) {
  const std::size_t nops = operands.size();
  nest->cols = 1;
  for (const Axis& axis : axes) nest->cols *= axis.extent;
  nest->run = std::max<std::int64_t>(nest->cols, 1);
  if (axes.empty() || nest->cols == 0) return;
  merge(&axes);
  if (axes.size() == 1 || (axes.size() == 2 && axes.back().extent % kAccumulators == 0)) {
    nest->run = axes.back().extent;
    nest->col_strides = axes.back().strides;
    if (axes.size() == 2) nest->run_strides = axes.front().strides;
    return;
  }
  std::int64_t row_bytes = 0;
  for (std::size_t j = 0; j < nops; ++j) {
    bool one = true;
    for (std::size_t i = 0; i + 1 < axes.size() && one; ++i) one = merges(axes[i], axes[i + 1], j);
    if (one) {
      nest->col_strides[j] = axes.back().strides[j];
      continue;
    }
    NestPack pack;
    pack.operand = static_cast<int>(j);
    pack.write = operands[j].write;
    pack.row_stride = nest->row_strides[j];
    for (const Axis& axis : axes) {
      pack.col_extents.push_back(axis.extent);
      pack.col_strides.push_back(axis.strides[j]);
    }
    nest->packs.push_back(std::move(pack));
    const std::int64_t item = itemsize(operands[j].dtype);
    nest->col_strides[j] = item;
    nest->row_strides[j] = item * nest->cols;
    row_bytes += nest->row_strides[j];
  }
  if (!nest->packs.empty())
    nest->tile_rows = std::clamp<std::int64_t>(kTileBytes / row_bytes, 1, nest->rows);
}

/// Whether the elementwise kernel can walk the operand itself: dense, or one element in all lanes.
bool walks(std::int64_t stride, const NestOperand& op) {
  return stride == itemsize(op.dtype) || (stride == 0 && !op.write);
}

/// Chooses what an elementwise kernel has packed, and the shape of its tiles.
void take_tiles(const std::vector<NestOperand>& operands, NestLayout* nest) {
  std::int64_t widest = 0, bytes = 0;
  for (const NestOperand& op : operands) widest = std::max(widest, itemsize(op.dtype));
  nest->flat = nest->rows > 1 && nest->cols * widest < kShortLine;
  bool across = false;
  for (std::size_t j = 0; j < operands.size(); ++j) {
    const std::int64_t row = nest->row_strides[j], col = nest->col_strides[j];
    if (walks(col, operands[j]) && (!nest->flat || row == col * nest->cols)) continue;
    NestPack pack;
    pack.operand = static_cast<int>(j);
    pack.write = operands[j].write;
    pack.col_extents = {nest->cols};
    pack.col_strides = {col};
    pack.row_stride = row;
    nest->packs.push_back(std::move(pack));
    bytes += itemsize(operands[j].dtype);
    across = across || (row != 0 && magnitude(row) < magnitude(col));
  }
  if (nest->packs.empty()) return;
  const std::int64_t most = std::clamp<std::int64_t>(
      kNearBytes / bytes / 64 * 64, 64, across ? kAcrossElements : kLineBytes / widest);
  nest->tile_rows = nest->flat ? std::clamp<std::int64_t>(most / nest->cols, 1, nest->rows)
                    : across   ? std::min(nest->rows, kAcrossRows)
                               : 1;
  nest->tile_cols = nest->flat ? nest->cols : std::min(nest->cols, most / nest->tile_rows);
  for (NestPack& pack : nest->packs) {
    const auto j = static_cast<std::size_t>(pack.operand);
    const std::int64_t item = itemsize(operands[j].dtype);
    nest->col_strides[j] = item;
    nest->row_strides[j] = item * nest->tile_cols;
    pack.offset = nest->tile_bytes;
    nest->tile_bytes += (nest->tile_rows * nest->row_strides[j] + 63) / 64 * 64;
  }
}

/// Whether it is what a kernel keeps of one row for a later loop: all rows write it.
bool is_scratch(std::int64_t row_stride, const NestOperand& op) {
  return op.write && row_stride == 0;
}

enum class Across { kNo, kClose, kShort };

/// Whether the kernel's vectors go across rows: where rows lie closer together than columns
/// (reductions of leading axes), and where rows are too short to fill vectors.
Across across_rows(const NestLayout& nest, const std::vector<NestOperand>& operands) {
  if (nest.elementwise || !nest.launch || nest.rows < 2) return Across::kNo;
  if (!nest.one_panel()) return Across::kNo;
  int closer = 0;
  bool held = false;
  for (std::size_t j = 0; j < operands.size(); ++j) {
    const std::int64_t row = magnitude(nest.row_strides[j]), col = magnitude(nest.col_strides[j]);
    held = held || is_scratch(row, operands[j]);
    if (row != 0 && col != 0) closer += (row < col) - (col < row);
  }
  // What a panel of long rows keeps for a later loop would not stay in the caches.
  if (closer > 0) return held ? Across::kNo : Across::kClose;
  return nest.cols < kShortRow && nest.rows >= kManyRows ? Across::kShort : Across::kNo;
}

std::string row_letters(const NestLayout& nest, const std::vector<NestOperand>& operands) {
  std::string letters = "r";
  for (std::size_t j = 0; j < operands.size(); ++j)
    letters += is_scratch(nest.row_strides[j], operands[j])
                   ? 'H'
                   : column_letter(nest.row_strides[j], operands[j].dtype, operands[j].write);
  return letters;
}

std::string column_letters(const NestLayout& nest, const std::vector<NestOperand>& operands) {
  std::string letters;
  if (nest.elementwise) return std::string(operands.size(), 'C');
  for (std::size_t j = 0; j < operands.size(); ++j) {
    const NestOperand& op = operands[j];
    if (op.column_broadcast)
      letters += op.write ? 'G' : 'Z';
    else if (nest.cols <= 1)
      letters += op.column_broadcast && !op.write ? 'Z' : 'C';
    else
      letters += column_letter(nest.col_strides[j], op.dtype, op.write);
  }
  return letters;
}

}  // namespace

char column_letter(std::int64_t col_stride, DType dtype, bool write) noexcept {
  if (col_stride == itemsize(dtype)) return 'C';
  return col_stride == 0 && !write ? 'Z' : 'G';
}

std::vector<int> sort_axes(const std::vector<int>& axes, const std::vector<NestOperand>& operands) {
  // npyiter_find_best_axis_ordering: a stable insertion sort, innermost first.
  std::vector<int> perm(axes.rbegin(), axes.rend());
  for (std::size_t i = 1; i < perm.size(); ++i) {
    const int moving = perm[i];
    std::size_t place = i;
    for (std::size_t j = i; j-- > 0;) {
      bool ambiguous = true, swap = false;
      for (const NestOperand& op : operands) {
        if (!op.known) continue;
        const std::int64_t s0 = op.strides[static_cast<std::size_t>(moving)];
        const std::int64_t s1 = op.strides[static_cast<std::size_t>(perm[j])];
        if (s0 == 0 || s1 == 0) continue;
        if (magnitude(s1) <= magnitude(s0))
          swap = false;  // in conflicts between operands C order wins
        else if (ambiguous)
          swap = true;
        ambiguous = false;
      }
      if (ambiguous) continue;
      if (!swap) break;
      place = j;
    }
    perm.erase(perm.begin() + static_cast<std::ptrdiff_t>(i));
    perm.insert(perm.begin() + static_cast<std::ptrdiff_t>(place), moving);
  }
  return {perm.rbegin(), perm.rend()};
}

std::int64_t dense_strides(DType dtype, const std::vector<std::int64_t>& shape,
                           const std::vector<int>& order, std::int64_t* strides) {
  std::int64_t step = itemsize(dtype);
  bool empty = false;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto axis = static_cast<std::size_t>(order[i]);
    strides[axis] = step;
    empty = empty || shape[axis] == 0;
    if (shape[axis] > 1 && __builtin_mul_overflow(step, shape[axis], &step)) throw std::bad_alloc();
  }
  return empty ? 0 : step;
}

NestLayout build_nest(const std::vector<std::int64_t>& extents, std::uint32_t reduce_mask,
                      const std::vector<NestOperand>& operands) {
  NestLayout nest;
  nest.elementwise = reduce_mask == 0;
  nest.col_strides.assign(operands.size(), 0);
  std::int64_t total = 1;  // with stride 0 it may exceed what any memory holds
  for (const std::int64_t extent : extents)
    if (extent > 1 && __builtin_mul_overflow(total, extent, &total)) throw std::bad_alloc();
  std::vector<int> kept, reduced;
  for (int axis = 0; axis < static_cast<int>(extents.size()); ++axis)
    (reduce_mask >> axis & 1 ? reduced : kept).push_back(axis);
  for (const int axis : kept)
    nest.launch = nest.launch && extents[static_cast<std::size_t>(axis)] != 0;

  std::vector<Axis> axes = collect(sort_axes(kept, operands), extents, operands);
  if (nest.launch) merge(&axes);
  if (nest.elementwise) {
    for (std::size_t j = 0; j < operands.size(); ++j)
      nest.col_strides[j] = itemsize(operands[j].dtype);
    if (!axes.empty()) {
      nest.cols = axes.back().extent;
      nest.col_strides = axes.back().strides;
      axes.pop_back();
    }
    take_rows_and_outer(std::move(axes), operands.size(), &nest);
    if (nest.launch) take_tiles(operands, &nest);
  } else {
    nest.run_strides.assign(operands.size(), 0);
    take_rows_and_outer(std::move(axes), operands.size(), &nest);
    if (nest.launch) take_columns(collect(reduced, extents, operands), operands, &nest);
  }
  nest.elements = nest.rows * nest.cols;
  for (const std::int64_t extent : nest.outer_extents) nest.elements *= extent;
  if (!nest.launch) nest.elements = 0;
  const Across across = across_rows(nest, operands);
  nest.column_class =
      across == Across::kNo ? column_letters(nest, operands) : row_letters(nest, operands);
  if (across == Across::kShort) nest.long_class = column_letters(nest, operands);
  return nest;
}

namespace {

/// Whether places of a product that share an operand are so many more rows (axis 0) or columns
/// (axis 1) of the other one.
bool widens(const NestLayout& nest, std::size_t axis) {
  const std::size_t other = axis, shared = 1 - axis, out = 2;
  if (nest.rows == 1 || nest.row_strides[shared] != 0) return false;
  const std::int64_t extent = nest.run_strides[axis];
  const auto goes_on = [&](std::size_t j) {
    std::int64_t span = 0;
    return extent == 1 || (!__builtin_mul_overflow(nest.col_strides[3 * j + axis], extent, &span) &&
                           nest.row_strides[j] == span);
  };
  return goes_on(other) && goes_on(out);
}

/// Fewer and larger matrices, where the layout has them.
void widen(NestLayout* nest) {
  for (bool again = true; again;) {
    again = false;
    for (std::size_t axis = 0; axis < 2 && !again; ++axis) {
      if (!widens(*nest, axis)) continue;
      if (nest->run_strides[axis] == 1)
        for (std::size_t j = 0; j < 3; ++j) nest->col_strides[3 * j + axis] = nest->row_strides[j];
      nest->run_strides[axis] *= nest->rows;
      std::vector<Axis> left;
      for (std::size_t i = 0; i < nest->outer_extents.size(); ++i)
        left.push_back({nest->outer_extents[i], nest->outer_strides[i]});
      nest->outer_extents.clear(), nest->outer_strides.clear();
      nest->rows = 1;
      take_rows_and_outer(std::move(left), nest->row_strides.size(), nest);
      again = true;
    }
  }
}

}  // namespace

NestLayout build_product(const std::vector<std::int64_t>& extents,
                         const std::vector<NestOperand>& operands) {
  NestLayout nest;
  nest.elementwise = false;
  const std::size_t batch = extents.size() - 3;
  std::int64_t total = 1;  // with stride 0 it may exceed what any memory holds
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] > 1 && __builtin_mul_overflow(total, extents[i], &total)) throw std::bad_alloc();
    nest.launch = nest.launch && (extents[i] != 0 || i + 1 == extents.size());
  }
  std::vector<int> before(batch);
  std::iota(before.begin(), before.end(), 0);
  std::vector<Axis> axes = collect(sort_axes(before, operands), extents, operands);
  if (nest.launch) merge(&axes);
  take_rows_and_outer(std::move(axes), operands.size(), &nest);
  for (const NestOperand& op : operands)
    nest.col_strides.insert(nest.col_strides.end(), op.strides.end() - 3, op.strides.end());
  nest.run_strides.assign(extents.end() - 3, extents.end());
  if (nest.launch) widen(&nest);
  nest.elements = nest.launch ? total : 0;
  nest.column_class = std::string(operands.size(), 'C');
  const Gemm gemm = find_gemm(operands[0].dtype, nest.run_strides.data(), nest.col_strides.data());
  nest.library = gemm.fn;
  nest.scratch = gemm.scratch;
  return nest;
}

}  // namespace opkiln::core
