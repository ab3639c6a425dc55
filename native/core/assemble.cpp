// assemble.cpp: packs a finished instantiation into one block of memory: the executor.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "instantiate.h"
#include "threads.h"

namespace opkiln::core {
namespace {

/// Where an elementwise nest is cut: between rows of tiles if they are short, else within rows.
std::int64_t elements_grain(const NestLayout& layout) {
  constexpr std::int64_t kLine = 1024, kPieces = 16;
  const std::int64_t tile = layout.cols * std::max<std::int64_t>(layout.tile_rows, 1);
  for (const std::int64_t grain : {tile, layout.cols})
    if (layout.rows > 1 && grain <= layout.elements / kPieces) return grain;
  return kLine;
}

/// Where a reduction is cut: its rows fill tiles, or panels of which each column is read at once.
std::int64_t rows_grain(const NestLayout& layout) {
  constexpr std::int64_t kPanel = 64, kPanelBytes = 1024;
  if (!layout.packs.empty()) return layout.tile_rows;
  if (layout.column_class[0] != 'r') return 1;
  std::int64_t step = kPanelBytes;
  for (const std::int64_t stride : layout.row_strides)
    if (stride != 0) step = std::min(step, std::abs(stride));
  return std::max(kPanel, kPanelBytes / step);
}

// To move a byte between memory and a core takes at least so long.
constexpr double kByteNs = 0.02;

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

std::size_t Instantiation::block_bytes() const {
  const std::size_t slots = plan_.slots(), nouts = plan_.outs().size();
  std::size_t bytes = room<char*>(slots) + room<Nest>(nests_.size()) + room<OutSpec>(nouts) +
                      room<HostValue>(regs_.size()) + room<std::uint64_t>(plan_.scalars().size()) +
                      room<std::int64_t>(plan_.temps().size()) + room<ByteRange>(slots) +
                      room<std::uint8_t>(nouts * plan_.args().size());
  for (const Start& start : starts_) bytes += room<MovingStart>(start.moving.size());
  for (const int id : plan_.outs())
    bytes += 2 * room<std::int64_t>(buffers_[static_cast<std::size_t>(id)].shape.size());
  for (std::size_t k = 0; k < nests_.size(); ++k) {
    const NestLayout& nest = nests_[k];
    const std::size_t nops = nest.row_strides.size(), outer = nest.outer_extents.size();
    bytes += room<std::int64_t>(nops) * 2 + room<std::int64_t>(nest.col_strides.size()) +
             room<std::int64_t>(nest.run_strides.size()) + room<std::uint32_t>(nops) +
             room<std::int64_t>(outer) + room<std::int64_t>(outer * nops) +
             room<Pack>(nest.packs.size()) + (nest.elementwise ? 0 : room<Held>(nops));
    for (const NestPack& pack : nest.packs)
      bytes += 2 * room<std::int64_t>(pack.col_extents.size());
    const std::size_t scalars = plan_.kernels()[k].scalars.size();
    bytes += room<std::uint32_t>(scalars) + room<std::uint64_t>(scalars);
  }
  return bytes;
}

void Instantiation::assemble_buffers(Executor* ex, const ArrayView* args, const ArrayView* captures,
                                     const ArrayView* outs) {
  const std::size_t nargs = plan_.args().size(), ncaptures = plan_.captures().size(),
                    nouts = plan_.outs().size();
  const std::size_t slots = plan_.slots();
  ex->base_ = take<char*>(slots);
  std::fill(ex->base_, ex->base_ + slots, nullptr);
  ex->slot_count_ = static_cast<std::uint32_t>(slots);
  ex->capture_at_ = static_cast<std::uint32_t>(nargs);
  ex->out_at_ = static_cast<std::uint32_t>(nargs + ncaptures);
  ex->temp_at_ = static_cast<std::uint32_t>(nargs + ncaptures + nouts);
  ex->out_count_ = static_cast<std::uint32_t>(nouts);
  for (std::size_t k = 0; k < ncaptures; ++k) ex->captures()[k] = captures[k].data;

  ex->ranges_ = take<ByteRange>(slots);
  for (std::size_t id = 0; id < buffers_.size(); ++id) {
    const Buffer& b = buffers_[id];
    if (spec(static_cast<int>(id)).kind == BufferKind::kView) continue;
    ex->ranges_[plan_.slot(static_cast<int>(id))] =
        byte_range(b.dtype, static_cast<int>(b.shape.size()), b.shape.data(), b.strides.data());
  }
  ex->temp_offsets_ = take<std::int64_t>(temp_offsets_.size());
  std::copy(temp_offsets_.begin(), temp_offsets_.end(), ex->temp_offsets_);
  ex->out_specs_ = take<OutSpec>(nouts);
  ex->alias_ok_ = take<std::uint8_t>(nouts * nargs);
  for (std::size_t k = 0; k < nouts; ++k) {
    const Buffer& b = at(plan_.outs()[k]);
    const std::size_t rank = b.shape.size();
    auto *shape = take<std::int64_t>(rank), *strides = take<std::int64_t>(rank);
    std::copy(b.shape.begin(), b.shape.end(), shape);
    std::copy(b.strides.begin(), b.strides.end(), strides);
    bool c_order = true;
    std::int64_t step = itemsize(b.dtype);
    for (std::size_t i = rank; i-- > 0; step *= std::max<std::int64_t>(shape[i], 1))
      c_order = c_order && (shape[i] == 1 || strides[i] == step);
    new (&ex->out_specs_[k])
        OutSpec{b.dtype, b.given, c_order, static_cast<int>(rank), shape, strides, b.nbytes};
    for (std::size_t a = 0; a < nargs; ++a)
      ex->alias_ok_[k * nargs + a] = b.given &&
                                     plan_.inplace_ok(plan_.outs()[k], plan_.args()[a]) &&
                                     same_layout(args[a], outs[k]);
  }
}

void Instantiation::assemble_packs(Nest* nest, std::size_t kernel) {
  const NestLayout& layout = nests_[kernel];
  auto* packs = take<Pack>(layout.packs.size());
  for (std::size_t i = 0; i < layout.packs.size(); ++i) {
    const NestPack& from = layout.packs[i];
    const std::size_t axes = from.col_extents.size();
    auto *extents = take<std::int64_t>(axes), *strides = take<std::int64_t>(axes);
    std::copy(from.col_extents.begin(), from.col_extents.end(), extents);
    std::copy(from.col_strides.begin(), from.col_strides.end(), strides);
    const BufferSpec& buffer =
        spec(plan_.kernels()[kernel].operands[static_cast<std::size_t>(from.operand)].buffer);
    new (&packs[i]) Pack{static_cast<std::uint32_t>(from.operand),
                         static_cast<std::uint32_t>(axes),
                         from.write,
                         static_cast<std::uint8_t>(itemsize(buffer.dtype)),
                         from.row_stride,
                         from.offset,
                         0,
                         extents,
                         strides};
  }
  nest->packs = packs;
  nest->npacks = static_cast<std::uint32_t>(layout.packs.size());
  nest->tile_rows = layout.tile_rows;
  nest->tile_cols = layout.tile_cols;
  nest->tile_bytes = layout.tile_bytes;
  nest->flat = layout.flat;
}

/// Whether all rows write the same columns: what a reduction keeps of one row for a later loop.
bool Instantiation::is_held(const NestLayout& layout, const OperandSpec& op, std::size_t j) const {
  if (!op.write || spec(op.buffer).kind != BufferKind::kTemp) return false;
  bool still = layout.rows == 1 || layout.row_strides[j] == 0;
  for (const std::vector<std::int64_t>& outer : layout.outer_strides)
    still = still && outer[j] == 0;
  return still;
}

/// Whether the nest may be worth several threads, and what each of them needs for itself.
void Instantiation::assemble_split(Nest* nest, std::size_t kernel) {
  const KernelSpec& spec_of = plan_.kernels()[kernel];
  const NestLayout& layout = nests_[kernel];
  std::int64_t bytes = 0;
  for (const OperandSpec& op : spec_of.operands) bytes += itemsize(spec(op.buffer).dtype);
  nest->estimated_ns = std::max(spec_of.ns_per_element, kByteNs * static_cast<double>(bytes)) *
                       static_cast<double>(layout.elements);
  nest->grain = layout.elementwise ? elements_grain(layout) : rows_grain(layout);
  // A BLAS has threads of its own, and an op of the user's is one call.
  const bool one_call = layout.library != nullptr || nest->op != nullptr;
  nest->split = nest->estimated_ns >= kSplitNs && nest->units > nest->grain && !one_call;
  if (!nest->split || layout.elementwise) return;
  std::int64_t end = aligned(layout.scratch);
  for (std::uint32_t i = 0; i < nest->npacks; ++i) {
    Pack& pack = nest->packs[i];
    pack.own = end;
    end += aligned(layout.tile_rows * layout.row_strides[pack.operand]);
  }
  auto* held = take<Held>(nest->nops);
  nest->held = held;
  for (std::size_t j = 0; j < spec_of.operands.size(); ++j) {
    const OperandSpec& op = spec_of.operands[j];
    const bool met = std::any_of(held, held + nest->nheld,
                                 [j](const Held& other) { return other.operand == j; });
    if (met || !is_held(layout, op, j)) continue;
    for (std::uint32_t reader = 0; reader < nest->nops; ++reader)
      if (nest->slot[reader] == nest->slot[j]) new (&held[nest->nheld++]) Held{reader, end};
    end += aligned(at(op.buffer).nbytes);
  }
  nest->own_bytes = end;
}

void Instantiation::assemble_nest(Executor* ex, Nest* nest, std::size_t kernel,
                                  std::size_t starts_at) {
  const KernelSpec& spec_of = plan_.kernels()[kernel];
  const NestLayout& layout = nests_[kernel];
  const std::size_t nops = spec_of.operands.size(), outer = layout.outer_extents.size();
  new (nest) Nest{};
  auto *row = take<std::int64_t>(nops), *col = take<std::int64_t>(layout.col_strides.size()),
       *far = take<std::int64_t>(layout.run_strides.size());
  std::copy(layout.row_strides.begin(), layout.row_strides.end(), row);
  std::copy(layout.col_strides.begin(), layout.col_strides.end(), col);
  std::copy(layout.run_strides.begin(), layout.run_strides.end(), far);
  auto* slot = take<std::uint32_t>(nops);
  auto* start = take<std::int64_t>(nops);
  nest->direct = true;
  bool moved = false;
  for (std::size_t j = 0; j < nops; ++j) {
    slot[j] = static_cast<std::uint32_t>(plan_.slot(at(spec_of.operands[j].buffer).memory));
    const Start& from = starts_[starts_at + j];
    start[j] = from.fixed;
    moved = moved || from.fixed != 0 || !from.moving.empty();
    for (const auto& [reg, bytes] : from.moving)
      ex->moving_[ex->moving_count_++] = {start + j, from.fixed, bytes, reg};
    nest->direct = nest->direct && slot[j] == slot[0] + j;
  }
  nest->direct = nest->direct && !moved;
  nest->start = moved ? start : nullptr;
  auto *extents = take<std::int64_t>(outer), *strides = take<std::int64_t>(outer * nops);
  std::copy(layout.outer_extents.begin(), layout.outer_extents.end(), extents);
  nest->outer_count = 1;
  for (std::size_t i = 0; i < outer; ++i) {
    nest->outer_count *= extents[i];
    std::copy(layout.outer_strides[i].begin(), layout.outer_strides[i].end(), strides + i * nops);
  }
  assemble_packs(nest, kernel);

  // Scalars: straight from the executor's slots when they lie there in order.
  const std::vector<int>& scalars = spec_of.scalars;
  bool in_order = true;
  for (std::size_t i = 0; i < scalars.size(); ++i)
    in_order = in_order && scalars[i] == scalars[0] + static_cast<int>(i);
  auto* slots = take<std::uint32_t>(scalars.size());
  auto* copy = take<std::uint64_t>(scalars.size());
  std::copy(scalars.begin(), scalars.end(), slots);
  nest->scalar_slots = in_order ? nullptr : slots;
  nest->scalar_copy = copy;
  nest->nscalars = static_cast<std::uint32_t>(scalars.size());

  nest->fn = fns_[kernel];
  nest->args = {nest->direct ? ex->base_ + slot[0] : nullptr,
                row,
                col,
                in_order && !scalars.empty() ? ex->scalars_ + scalars[0] : copy,
                layout.cols,
                layout.run,
                far,
                nullptr};
  nest->scratch = layout.scratch != 0 ? layout.scratch_offset : -1;
  nest->rows = layout.rows;
  nest->nops = static_cast<std::uint32_t>(nops);
  nest->outer_ndim = static_cast<std::uint32_t>(outer);
  nest->elementwise = layout.elementwise;
  nest->units = layout.elementwise ? layout.elements : layout.rows * nest->outer_count;
  nest->single = nest->outer_count == 1 && nest->npacks == 0;
  nest->op = layout.op.get();
  if (layout.op) ex->ops_.push_back(layout.op);
  nest->slot = slot;
  nest->outer_extents = extents;
  nest->outer_strides = strides;
  nest->kernel = static_cast<std::int32_t>(kernel);
  assemble_split(nest, kernel);
  nest->simple = nest->direct && nest->single && !nest->split && nest->op == nullptr;
  ex->estimated_ns_ += nest->estimated_ns;
  ex->packs_ += (spec_of.view >= 0) + (nest->elementwise ? 0 : nest->npacks);
}

std::unique_ptr<Executor> Instantiation::assemble(const ArrayView* args, const ArrayView* captures,
                                                  const ArrayView* outs) {
  std::unique_ptr<Executor> ex(new Executor);
  const std::size_t bytes = block_bytes();
  ex->block_.reset(new char[bytes + 8]);
  cursor_ = ex->block_.get();
  ex->bytes_ = sizeof(Executor) + bytes + sizeof(Event);
  ex->plan_ = ref_;
  ex->stream_ = &stream_;
  ex->fallback_ = plan_.fallback();
  assemble_buffers(ex.get(), args, captures, outs);
  ex->regs_ = take<HostValue>(regs_.size());
  std::copy(regs_.begin(), regs_.end(), ex->regs_);
  ex->scalars_ = take<std::uint64_t>(plan_.scalars().size());
  std::fill(ex->scalars_, ex->scalars_ + plan_.scalars().size(), 0);
  ex->nests_ = take<Nest>(nests_.size());
  std::size_t moving = 0, starts_at = 0;
  for (const Start& start : starts_) moving += start.moving.size();
  ex->moving_ = take<MovingStart>(moving);
  for (std::size_t k = 0; k < nests_.size(); starts_at += plan_.kernels()[k++].operands.size())
    if (nests_[k].launch && !ex->fallback_)
      assemble_nest(ex.get(), &ex->nests_[ex->nest_count_++], k, starts_at);
  ex->fill_fixed_scalars();
  ex->workspace_size_ = ex->nest_count_ != 0 ? static_cast<std::size_t>(workspace_) : 0;
  ex->settle();
  if (ex->launches()) ex->event_ = EventPool::acquire(stream_.device());
  return ex;
}

}  // namespace opkiln::core
