// executor.cpp: the parts of a call that are not the common case: scalars, workspace, outer axes,
// packing.
#include "executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "errors.h"
#include "nest.h"
#include "pool.h"
#include "threads.h"
#include "tile.h"

namespace opkiln::core {
namespace {

/// Pointers of one launch on the stack, or on the heap for very many operands.
class Pointers {
 public:
  explicit Pointers(std::size_t count) : data_(inline_) {
    if (count > kInline) {
      heap_.reset(new char*[count]);
      data_ = heap_.get();
    }
  }
  char** get() noexcept { return data_; }

 private:
  static constexpr std::size_t kInline = 64;
  char* inline_[kInline];  // left uninitialised on purpose
  std::unique_ptr<char*[]> heap_;
  char** data_;
};

/// Moves `rows` rows between the real operand and dense rows; `pack.write` says which way.
void move_tile(const Pack& pack, char* real, char* dense, std::int64_t rows, std::int64_t cols) {
  const std::size_t item = pack.item;
  const std::size_t last = pack.ncols_axes - 1;
  const std::int64_t line = pack.col_extents[last], step = pack.col_strides[last];
  const auto dense_step = static_cast<std::int64_t>(item);
  std::array<std::int64_t, 32> index{};
  for (std::int64_t row = 0; row < rows; ++row) {
    char* at = real + row * pack.row_stride;
    for (std::int64_t done = 0; done < cols; done += line) {
      if (pack.write)
        copy_lines(item, {at, 0, step}, {dense, 0, dense_step}, 1, line);
      else
        copy_lines(item, {dense, 0, dense_step}, {at, 0, step}, 1, line);
      dense += line * dense_step;
      for (std::size_t axis = last; axis-- > 0;) {
        at += pack.col_strides[axis];
        if (++index[axis] < pack.col_extents[axis]) break;
        at -= pack.col_strides[axis] * pack.col_extents[axis];
        index[axis] = 0;
      }
    }
  }
}

}  // namespace

Executor::~Executor() = default;

void Executor::AlignedFree::operator()(char* p) const noexcept {
  ::operator delete(p, std::align_val_t{64});
}

void Executor::fill_fixed_scalars() {
  const std::vector<ScalarSpec>& specs = plan_->scalars();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ScalarSpec& s = specs[i];
    if (s.per_call) continue;
    const HostType type = plan_->program().at(s.reg).type;
    scalars_[i] = scalar_slot(regs_[s.reg], type, s.dtype, s.mode, s.reg);
  }
  copy_scalars();
}

void Executor::copy_scalars() noexcept {
  for (std::uint32_t n = 0; n < nest_count_; ++n) {
    const Nest& nest = nests_[n];
    if (nest.scalar_slots == nullptr) continue;
    copies_scalars_ = true;
    for (std::uint32_t i = 0; i < nest.nscalars; ++i)
      nest.scalar_copy[i] = scalars_[nest.scalar_slots[i]];
  }
}

void Executor::prepare(const HostValue* weak) {
  if (!plan_->has_per_call()) return;
  plan_->program().run_call(regs_, weak);
  for (const CallScalar& s : plan_->call_scalars())
    scalars_[s.slot] = scalar_slot(regs_[s.reg], s.type, s.dtype, s.mode, s.reg);
  if (copies_scalars_) copy_scalars();
  if (moving_count_ != 0) move_starts();
}

void Executor::move_starts() noexcept {
  for (const MovingStart *m = moving_, *end = moving_ + moving_count_; m != end; ++m)
    *m->place = m->fixed;
  for (const MovingStart *m = moving_, *end = moving_ + moving_count_; m != end; ++m)
    *m->place += regs_[m->reg].i * m->bytes;
}

/// Where the operands of a nest begin.
void Executor::point(const Nest& nest, char** ptr, char* own) const noexcept {
  for (std::uint32_t j = 0; j < nest.nops; ++j) ptr[j] = base_[nest.slot[j]];
  if (own != nullptr)
    for (std::uint32_t i = 0; i < nest.nheld; ++i)
      ptr[nest.held[i].operand] = own + nest.held[i].own;
  if (nest.start == nullptr) return;
  for (std::uint32_t j = 0; j < nest.nops; ++j) ptr[j] += nest.start[j];
}

void Executor::setup(const HostValue* weak) {
  prepare(weak);
  if (workspace_size_ != 0 && !workspace_) allocate_workspace();
}

std::uint64_t Executor::run_all(const HostValue* weak) {
  set_up(weak);
  phase_ = Phase::kDevice;
  const std::uint64_t faults = run_nests();
  phase_ = Phase::kLaunched;
  return faults;
}

std::uint64_t Executor::run_nests() {
  std::uint64_t faults = 0;
  for (Nest *nest = nests_, *end = nests_ + nest_count_; nest != end; ++nest) {
    faults |= nest->simple ? nest->fn(&nest->args, 0, nest->rows) : run_nest(*nest);
  }
  if (packs_ != 0) count_packs(packs_);
  return faults;
}

/// All units, by several threads where that is faster.
std::uint64_t Executor::run_nest(const Nest& nest) const {
  if (!nest.split) return run_range(nest, 0, nest.units);
  struct Part {
    const Executor& executor;
    const Nest& nest;
  } const part{*this, nest};
  const auto run = [](const void* context, std::int64_t begin, std::int64_t end, char* own) {
    const auto* of = static_cast<const Part*>(context);
    return of->executor.run_range(of->nest, begin, end, own);
  };
  return run_split({nest.units, nest.grain, nest.estimated_ns, nest.own_bytes, run, &part});
}

std::uint64_t Executor::launch(std::exception_ptr& error) noexcept {
  try {
    return run_nests();
  } catch (...) {
    error = std::current_exception();
    failed_ = true;
    return 0;
  }
}

void Executor::count_packs(std::uint64_t count) const noexcept {
  if (function_) function_->stats.packs.fetch_add(count, std::memory_order_relaxed);
}

void Executor::allocate_workspace() {
  workspace_.reset(static_cast<char*>(::operator new(workspace_size_, std::align_val_t{64})));
  for (std::uint32_t i = temp_at_; i < slot_count_; ++i)
    base_[i] = workspace_.get() + temp_offsets_[i - temp_at_];
  for (std::uint32_t n = 0; n < nest_count_; ++n)
    if (nests_[n].scratch >= 0) nests_[n].args.scratch = workspace_.get() + nests_[n].scratch;
  settle();
  if (pool_ != nullptr) pool_->on_workspace(static_cast<std::int64_t>(workspace_size_), this);
}

/// What a run needs first, after the workspace came or went.
void Executor::settle() noexcept {
  needs_setup_ = plan_->has_per_call() || (workspace_size_ != 0 && !workspace_);
  one_call_ = !needs_setup_ && nest_count_ == 1 && nests_->simple;
}

void Executor::drop_workspace() noexcept {
  if (!workspace_) return;
  workspace_.reset();
  settle();
  for (std::uint32_t i = temp_at_; i < slot_count_; ++i) base_[i] = nullptr;
  for (std::uint32_t n = 0; n < nest_count_; ++n) nests_[n].args.scratch = nullptr;
  if (pool_ != nullptr) pool_->on_workspace(-static_cast<std::int64_t>(workspace_size_), this);
}

void Executor::clear_pointers() noexcept {
  for (std::uint32_t i = 0; i < capture_at_; ++i) base_[i] = nullptr;
  for (std::uint32_t i = out_at_; i < temp_at_; ++i) base_[i] = nullptr;
}

void Executor::run_op(const Nest& nest) const {
  Pointers pointers(nest.nops);
  point(nest, pointers.get(), nullptr);
  try {
    nest.op->run(pointers.get(), nest.args.scalar, nest.args.scratch);
  } catch (const OpError& e) {
    throw OpError(e.what(), nest.kernel);
  }
  if (nest.op->copies() != 0) count_packs(nest.op->copies());
}

std::uint64_t Executor::run_range(const Nest& nest, std::int64_t begin, std::int64_t end,
                                  char* own) const {
  if (begin >= end) return 0;
  if (nest.op != nullptr) {
    run_op(nest);
    return 0;
  }
  const std::uint32_t nops = nest.nops;
  Pointers tile(nops);
  char** ptr = tile.get();
  KernelArgs args = nest.args;
  args.ptr = ptr;
  if (own != nullptr) args.scratch = own;
  if (nest.single && begin == 0 && end == nest.units) {
    point(nest, ptr, own);
    return nest.fn(&args, 0, nest.rows);
  }
  // One pass of the loop per place of the outer axes.
  const std::int64_t per_outer = nest.units / nest.outer_count;
  std::uint64_t faults = 0;
  for (std::int64_t outer = begin / per_outer; begin < end; ++outer) {
    point(nest, ptr, own);
    std::int64_t place = outer;
    for (std::uint32_t axis = nest.outer_ndim; axis-- > 0;) {
      const std::int64_t index = place % nest.outer_extents[axis];
      place /= nest.outer_extents[axis];
      for (std::uint32_t j = 0; j < nops; ++j)
        ptr[j] += index * nest.outer_strides[axis * nops + j];
    }
    const std::int64_t from = begin - outer * per_outer;
    const std::int64_t to = std::min(end - outer * per_outer, per_outer);
    faults |= nest.elementwise   ? run_elements(nest, args, ptr, from, to)
              : nest.npacks != 0 ? run_tiles(nest, ptr, from, to, own)
                                 : nest.fn(&args, from, to);
    begin = (outer + 1) * per_outer;
  }
  return faults;
}

/// Elements [begin, end) of rows x cols: a part row, whole rows, a part row.
std::uint64_t Executor::run_elements(const Nest& nest, KernelArgs& args, char** ptr,
                                     std::int64_t begin, std::int64_t end) const {
  std::uint64_t faults = 0;
  const std::int64_t cols = nest.args.cols;
  while (begin < end) {
    const std::int64_t row = begin / cols, first = begin % cols;
    const std::int64_t count = std::min(cols - first, end - begin);
    const std::int64_t rows = count == cols ? (end - begin) / cols : 1;
    if (nest.npacks != 0) {
      faults |= run_packed(nest, ptr, row, rows, first, count);
      begin += rows * count;
      continue;
    }
    if (count == cols) {
      args.cols = cols;
      faults |= nest.fn(&args, row, row + rows);
      begin += rows * cols;
      continue;
    }
    for (std::uint32_t j = 0; j < nest.nops; ++j) ptr[j] += first * args.col[j];
    args.cols = count;
    faults |= nest.fn(&args, row, row + 1);
    for (std::uint32_t j = 0; j < nest.nops; ++j) ptr[j] -= first * args.col[j];
    begin += count;
  }
  return faults;
}

/// A rectangle of elements, a tile at a time: strided operands by way of dense copies.
std::uint64_t Executor::run_packed(const Nest& nest, char* const* ptr, std::int64_t row,
                                   std::int64_t rows, std::int64_t col, std::int64_t cols) const {
  alignas(64) char near[kNearBytes];
  std::unique_ptr<char, AlignedFree> far;
  char* tile = near;
  if (nest.tile_bytes > kNearBytes) {  // very many operands
    far.reset(static_cast<char*>(
        ::operator new(static_cast<std::size_t>(nest.tile_bytes), std::align_val_t{64})));
    tile = far.get();
  }
  Pointers pointers(nest.nops);
  KernelArgs args = nest.args;
  args.ptr = pointers.get();
  std::uint64_t faults = 0;
  for (const std::int64_t bottom = row + rows; row < bottom; row += nest.tile_rows) {
    const std::int64_t high = std::min(nest.tile_rows, bottom - row);
    for (std::int64_t left = col, right = col + cols; left < right; left += nest.tile_cols) {
      const std::int64_t wide = std::min(nest.tile_cols, right - left);
      for (std::uint32_t j = 0; j < nest.nops; ++j)
        pointers.get()[j] = ptr[j] + row * args.row[j] + left * args.col[j];
      const auto move = [&](const Pack& pack, bool back) {
        const std::int64_t step = pack.col_strides[0];
        char* real = ptr[pack.operand] + row * pack.row_stride + left * step;
        char* dense = pointers.get()[pack.operand] = tile + pack.offset;
        const std::int64_t item = pack.item, line = (nest.flat ? wide : nest.tile_cols) * item;
        if (back)
          copy_lines(pack.item, {real, pack.row_stride, step}, {dense, line, item}, high, wide);
        else if (!pack.write)
          copy_lines(pack.item, {dense, line, item}, {real, pack.row_stride, step}, high, wide);
      };
      for (std::uint32_t i = 0; i < nest.npacks; ++i) move(nest.packs[i], false);
      args.cols = nest.flat ? high * wide : wide;
      faults |= nest.fn(&args, 0, nest.flat ? 1 : high);
      for (std::uint32_t i = 0; i < nest.npacks; ++i)
        if (nest.packs[i].write) move(nest.packs[i], true);
    }
  }
  return faults;
}

/// Rows of a reduction with operands that have no single column stride: packed a tile at a time.
std::uint64_t Executor::run_tiles(const Nest& nest, char** ptr, std::int64_t begin,
                                  std::int64_t end, char* own) const {
  Pointers moved(nest.nops);
  char** tile = moved.get();
  KernelArgs args = nest.args;
  args.ptr = tile;
  if (own != nullptr) args.scratch = own;
  std::uint64_t faults = 0;
  for (std::int64_t row = begin; row < end; row += nest.tile_rows) {
    const std::int64_t rows = std::min(nest.tile_rows, end - row);
    for (std::uint32_t j = 0; j < nest.nops; ++j) tile[j] = ptr[j] + row * args.row[j];
    for (std::uint32_t i = 0; i < nest.npacks; ++i) {
      const Pack& pack = nest.packs[i];
      tile[pack.operand] = own != nullptr ? own + pack.own : workspace_.get() + pack.offset;
      if (!pack.write)
        move_tile(pack, ptr[pack.operand] + row * pack.row_stride, tile[pack.operand], rows,
                  args.cols);
    }
    faults |= nest.fn(&args, 0, rows);
    for (std::uint32_t i = 0; i < nest.npacks; ++i) {
      const Pack& pack = nest.packs[i];
      if (pack.write)
        move_tile(pack, ptr[pack.operand] + row * pack.row_stride, tile[pack.operand], rows,
                  args.cols);
    }
  }
  return faults;
}

int Executor::overlap_of_out(std::uint32_t k) const noexcept {
  if (!out_specs_[k].given) return -1;
  const std::uint32_t nargs = capture_at_;
  const std::uint32_t mine = out_at_ + k;
  for (std::uint32_t other = 0; other < temp_at_; ++other) {
    if (other == mine || (other >= out_at_ && !out_specs_[other - out_at_].given)) continue;
    if (other < nargs && alias_ok_[k * nargs + other] != 0 && base_[other] == base_[mine]) continue;
    if (ranges_overlap(base_[mine], ranges_[mine], base_[other], ranges_[other]))
      return static_cast<int>(other);
  }
  return -1;
}

bool Executor::touches(const char* base, ByteRange range, bool writes) const noexcept {
  for (std::uint32_t slot = writes ? out_at_ : 0; slot < temp_at_; ++slot)
    if (ranges_overlap(base_[slot], ranges_[slot], base, range)) return true;
  return false;
}

bool Executor::conflicts_with(const Executor& other) const noexcept {
  for (std::uint32_t slot = 0; slot < temp_at_; ++slot)
    if (other.touches(base_[slot], ranges_[slot], slot < out_at_)) return true;
  return false;
}

int Executor::overlap_of_fresh(std::size_t k, const char* data) const noexcept {
  const std::size_t mine = out_at_ + k;
  for (std::size_t other = 0; other < mine; ++other)
    if (ranges_overlap(data, ranges_[mine], base_[other], ranges_[other]))
      return static_cast<int>(other);
  return -1;
}

bool Executor::outs_are_safe() const noexcept {
  for (std::uint32_t k = 0; k < out_count_; ++k)
    if (overlap_of_out(k) >= 0) return false;
  return true;
}

}  // namespace opkiln::core
