// instantiate.cpp: plan and exact layouts in; layouts of results, loop nests, variants, workspace
// out.
#include "instantiate.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "reshape.h"

namespace opkiln::core {
namespace {

/// A product that nothing is read through when it does not fit: slices of nothing start anywhere.
std::int64_t wrapped(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

std::vector<int> in_order(std::size_t rank) {
  std::vector<int> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

/// The axes of a new buffer, outermost first, in the order of the loops that fill it. Along an
/// axis that these loops write one place of, it follows its neighbour.
std::vector<int> nested_axes(const std::vector<Along>& along, const std::vector<int>& nesting,
                             const std::vector<std::int64_t>& shape) {
  std::vector<int> axes;
  const int rank = static_cast<int>(along.size());
  const auto stays = [&](int i) { return along[static_cast<std::size_t>(i)].axis < 0; };
  for (int i = 0; i < rank; ++i)
    if (stays(i) && shape[static_cast<std::size_t>(i)] == 1) axes.push_back(i);
  for (const int axis : nesting)
    for (int i = 0; i < rank; ++i)
      if (along[static_cast<std::size_t>(i)].axis == axis) axes.push_back(i);
  for (int i = 0; i < rank; ++i) {
    if (!stays(i) || shape[static_cast<std::size_t>(i)] == 1) continue;
    const auto neighbour = std::find(axes.begin(), axes.end(), i - 1);
    axes.insert(neighbour == axes.end() ? axes.begin() : neighbour + 1, i);
  }
  return axes;
}

}  // namespace

Instantiated Instantiation::run(const ArrayView* args, const ArrayView* captures,
                                const ArrayView* outs) {
  if (!plan_.finished()) throw PlanError("instantiate: the plan is not finished");
  bind_inputs(plan_.args(), args);
  bind_inputs(plan_.captures(), captures);
  regs_.resize(plan_.program().size());
  plan_.program().run_fixed(regs_.data(), shape_pointers().data());
  bind_results(outs);
  lay_out_kernels();
  Instantiated result;
  if (!plan_.fallback() && !pick_variants(&result.missing)) return result;
  place_workspace();
  result.executor = assemble(args, captures, outs);
  return result;
}

void Instantiation::bind_inputs(const std::vector<int>& ids, const ArrayView* views) {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const BufferSpec& want = spec(ids[k]);
    const ArrayView& view = views[k];
    if (view.dtype != want.dtype || view.ndim != want.rank)
      throw PlanError("instantiate: input " + std::to_string(k) +
                      " has not the dtype and rank of the plan");
    Buffer& buffer = at(ids[k]);
    buffer.dtype = view.dtype;
    buffer.known = true;
    buffer.shape.assign(view.shape, view.shape + view.ndim);
    buffer.strides.assign(view.strides, view.strides + view.ndim);
  }
}

std::vector<const std::int64_t*> Instantiation::shape_pointers() {
  std::vector<const std::int64_t*> pointers;
  pointers.reserve(buffers_.size());
  for (const Buffer& buffer : buffers_) pointers.push_back(buffer.shape.data());
  return pointers;
}

void Instantiation::bind_results(const ArrayView* outs) {
  for (const BufferKind kind : {BufferKind::kOut, BufferKind::kTemp, BufferKind::kView}) {
    for (const int id : plan_.of_kind(kind)) {
      const BufferSpec& want = spec(id);
      Buffer& buffer = at(id);
      buffer.dtype = want.dtype;
      for (const int reg : want.extents) {
        const std::int64_t extent = regs_[static_cast<std::size_t>(reg)].i;
        if (extent < 0)
          throw HostError(HostErrorKind::kRange, reg, extent, static_cast<int>(DType::kI64));
        buffer.shape.push_back(extent);
      }
      buffer.strides.assign(buffer.shape.size(), 0);
      if (want.dense) {
        buffer.nbytes = dense_strides(buffer.dtype, buffer.shape, in_order(buffer.shape.size()),
                                      buffer.strides.data());
        buffer.known = true;
      }
      if (kind != BufferKind::kOut || outs == nullptr || !outs[want.ordinal].present()) continue;
      const ArrayView& out = outs[want.ordinal];
      const bool fits = out.dtype == want.dtype && out.ndim == want.rank &&
                        std::equal(buffer.shape.begin(), buffer.shape.end(), out.shape);
      if (!fits) throw OutMismatch(want.ordinal, static_cast<int>(want.dtype), buffer.shape);
      buffer.strides.assign(out.strides, out.strides + out.ndim);
      buffer.known = buffer.given = true;
    }
  }
}

/// The bytes that one step along an iteration axis moves by; `still` says that it moves nothing.
std::int64_t Instantiation::stride_along(int id, const std::vector<Along>& axes, std::size_t axis,
                                         std::int64_t extent, bool* still) {
  const Buffer& buffer = at(id);
  std::int64_t total = 0;
  *still = true;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].axis != static_cast<int>(axis)) continue;
    std::int64_t step = 1;
    if (axes[i].step >= 0) {
      step = regs_[static_cast<std::size_t>(axes[i].step)].i;
    } else if (buffer.shape[i] != extent) {
      if (buffer.shape[i] != 1)
        throw PlanError("instantiate: buffer " + std::to_string(id) + " has extent " +
                        std::to_string(buffer.shape[i]) + " where the kernel runs over " +
                        std::to_string(extent));
      step = 0;
    }
    *still = *still && step == 0;
    if (extent != 1) total += wrapped(step, buffer.strides[i]);
  }
  return total;
}

std::int64_t Instantiation::operand_stride(const KernelSpec& kernel, const OperandSpec& op,
                                           std::size_t axis, std::int64_t extent) {
  bool still;
  const std::int64_t stride = stride_along(op.buffer, op.axes, axis, extent, &still);
  const bool reduced = (kernel.reduce_mask >> axis & 1) != 0;
  // Scratch is one row long and written anew in every row.
  if (op.write && still && extent > 1 && !reduced && !kernel.op &&
      spec(op.buffer).kind != BufferKind::kTemp)
    throw PlanError("instantiate: buffer " + std::to_string(op.buffer) +
                    " is written more than once per element");
  return stride;
}

Instantiation::Start Instantiation::start_of(int buffer, const std::vector<Along>& axes) {
  Start start = at(buffer).start;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].start < 0) continue;
    const std::int64_t stride = at(buffer).strides[i];
    if (plan_.program().at(axes[i].start).per_call)
      start.moving.emplace_back(axes[i].start, stride);
    else
      start.fixed += wrapped(regs_[static_cast<std::size_t>(axes[i].start)].i, stride);
  }
  return start;
}

/// The strides of a reshaped view; where there are none, it is of the copy that a kernel makes.
void Instantiation::resolve_view(int id) {
  const ViewSpec& view = spec(id).view;
  Buffer& buffer = at(id);
  if (buffer.known) return;
  if (spec(view.buffer).kind == BufferKind::kView) resolve_view(view.buffer);
  std::vector<std::int64_t> space, strides;
  for (const int reg : view.space) {
    bool still;
    space.push_back(regs_[static_cast<std::size_t>(reg)].i);
    strides.push_back(stride_along(view.buffer, view.axes, space.size() - 1, space.back(), &still));
  }
  buffer.known = true;
  if (reshaped_strides(buffer.dtype, space, strides, buffer.shape, buffer.strides.data())) {
    buffer.memory = at(view.buffer).memory;
    buffer.start = start_of(view.buffer, view.axes);
    if (view.copy >= 0) at(view.copy).nbytes = 0;
    return;
  }
  if (view.copy < 0)
    throw PlanError("instantiate: buffer " + std::to_string(id) + " has no strides for its view");
  buffer.memory = view.copy;
  dense_strides(buffer.dtype, buffer.shape, in_order(buffer.shape.size()), buffer.strides.data());
}

bool Instantiation::broadcast_by_construction(const KernelSpec& kernel,
                                              const OperandSpec& op) const {
  for (std::size_t i = 0; i < op.axes.size(); ++i) {
    const Along& along = op.axes[i];
    if (along.axis < 0 || (kernel.reduce_mask != 0 && (kernel.reduce_mask >> along.axis & 1) == 0))
      continue;
    const BufferSpec& buffer = spec(op.buffer);
    if (along.step >= 0 || buffer.extents.empty()) return false;  // an input's come with the call
    const HostInstr& extent = plan_.program().at(buffer.extents[i]);
    if (extent.op != HostOp::kConstI || extent.ival != 1) return false;
  }
  return true;
}

std::vector<NestOperand> Instantiation::operands_of(const KernelSpec& kernel,
                                                    const std::vector<std::int64_t>& extents) {
  std::vector<NestOperand> operands;
  operands.reserve(kernel.operands.size());
  for (const OperandSpec& op : kernel.operands) {
    if (spec(op.buffer).kind == BufferKind::kView) resolve_view(op.buffer);
    NestOperand made;
    made.dtype = spec(op.buffer).dtype;
    made.write = op.write;
    made.known = at(op.buffer).known;
    made.column_broadcast = broadcast_by_construction(kernel, op);
    for (std::size_t i = 0; i < extents.size(); ++i)
      made.strides.push_back(operand_stride(kernel, op, i, extents[i]));
    operands.push_back(std::move(made));
  }
  return operands;
}

void Instantiation::allocate(const KernelSpec& kernel, const std::vector<int>& order,
                             std::vector<NestOperand>* operands,
                             const std::vector<std::int64_t>& extents) {
  for (std::size_t j = 0; j < kernel.operands.size(); ++j) {
    const OperandSpec& op = kernel.operands[j];
    Buffer& buffer = at(op.buffer);
    if (!buffer.known) {
      // Scratch of one reduction: reduced axes inside, in logical order, so that it never needs
      // packing (it is written and read back by the same kernel).
      const BufferSpec& made = spec(op.buffer);
      const bool scratch = kernel.reduce_mask != 0 && made.kind == BufferKind::kTemp &&
                           made.first_use == made.last_use;
      std::vector<int> nesting = order;
      if (scratch) {
        const auto kept = [&](int axis) { return (kernel.reduce_mask >> axis & 1) == 0; };
        std::sort(nesting.begin(), nesting.end());
        const auto middle = std::stable_partition(nesting.begin(), nesting.end(), kept);
        auto next = nesting.begin();
        for (const int axis : order)
          if (kept(axis) && next != middle) *next++ = axis;
      }
      const std::vector<int> axes = nested_axes(op.axes, nesting, buffer.shape);
      buffer.nbytes = dense_strides(buffer.dtype, buffer.shape, axes, buffer.strides.data());
      buffer.known = true;
    }
    NestOperand& operand = (*operands)[j];
    if (operand.known) continue;
    for (std::size_t i = 0; i < extents.size(); ++i)
      operand.strides[i] = operand_stride(kernel, op, i, extents[i]);
    operand.known = true;
  }
}

namespace {

/// As NumPy: the axes before the matrices as its other functions nest them, the matrices dense.
std::vector<int> product_order(const std::vector<int>& axes,
                               const std::vector<NestOperand>& operands) {
  std::vector<int> order = sort_axes({axes.begin(), axes.end() - 3}, operands);
  order.insert(order.end(), axes.end() - 3, axes.end());
  return order;
}

}  // namespace

NestLayout Instantiation::lay_out_op(const KernelSpec& kernel,
                                     const std::vector<std::int64_t>& extents,
                                     const std::vector<NestOperand>& operands) const {
  NestLayout nest;
  nest.launch = false;  // unless there is an element to write
  nest.elementwise = false;
  nest.elements = 1;
  std::vector<OpCall::Operand> layouts;
  std::ptrdiff_t at = 0;
  for (std::size_t j = 0; j < operands.size(); ++j) {
    OpCall::Operand layout;
    layout.dtype = op_dtype(operands[j].dtype);
    const std::ptrdiff_t end = at + kernel.ranks[j];
    const std::vector<std::int64_t>& strides = operands[j].strides;
    layout.shape.assign(extents.begin() + at, extents.begin() + end);
    layout.strides.assign(strides.begin() + at, strides.begin() + end);
    const auto& shape = layout.shape;
    nest.launch = nest.launch ||
                  (operands[j].write && std::find(shape.begin(), shape.end(), 0) == shape.end());
    layouts.push_back(std::move(layout));
    at = end;
  }
  nest.row_strides.assign(operands.size(), 0);
  nest.op = std::make_shared<OpCall>(kernel.op, std::move(layouts));
  nest.scratch = nest.op->scratch();
  return nest;
}

void Instantiation::lay_out_kernels() {
  for (std::size_t id = 0; id < buffers_.size(); ++id) buffers_[id].memory = static_cast<int>(id);
  for (const KernelSpec& kernel : plan_.kernels()) {
    std::vector<std::int64_t> extents;
    std::vector<int> axes;
    for (const int reg : kernel.extents) {
      const std::int64_t extent = regs_[static_cast<std::size_t>(reg)].i;
      if (extent < 0)
        throw HostError(HostErrorKind::kRange, reg, extent, static_cast<int>(DType::kI64));
      axes.push_back(static_cast<int>(extents.size()));
      extents.push_back(extent);
    }
    std::vector<NestOperand> operands = operands_of(kernel, extents);
    if (kernel.op) {
      allocate(kernel, axes, &operands, extents);
      nests_.push_back(lay_out_op(kernel, extents, operands));
    } else if (kernel.product) {
      allocate(kernel, product_order(axes, operands), &operands, extents);
      nests_.push_back(build_product(extents, operands));
    } else {
      allocate(kernel, sort_axes(axes, operands), &operands, extents);
      nests_.push_back(build_nest(extents, kernel.reduce_mask, operands));
    }
    for (const OperandSpec& op : kernel.operands) starts_.push_back(start_of(op.buffer, op.axes));
    if (kernel.view < 0) continue;
    resolve_view(kernel.view);
    nests_.back().launch =
        nests_.back().launch && at(kernel.view).memory == spec(kernel.view).view.copy;
  }
  for (const int id : plan_.outs()) {
    Buffer& buffer = at(id);
    buffer.nbytes = itemsize(buffer.dtype);
    for (const std::int64_t extent : buffer.shape)
      if (__builtin_mul_overflow(buffer.nbytes, extent, &buffer.nbytes)) throw std::bad_alloc();
  }
}

/// A variant of another class that gives the same bits here, so that nothing need be built; or
/// null.
const Variant* Instantiation::substitute(int kernel, const NestLayout& nest) const {
  if (plan_.kernels()[static_cast<std::size_t>(kernel)].product) return nullptr;
  if (!nest.long_class.empty()) return plan_.find_variant(kernel, nest.long_class);
  if (nest.column_class[0] == 'r') return nullptr;
  // With one column at most no column stride is ever used, with one row no row stride.
  const Variant* variant = nest.cols <= 1 ? plan_.any_variant(kernel, false) : nullptr;
  if (variant == nullptr && !nest.elementwise && nest.rows == 1 && nest.one_panel())
    variant = plan_.any_variant(kernel, true);
  // A panel of a long row, held of it: far more memory than the row.
  const bool holds = variant != nullptr && variant->column_class.find('H') != std::string::npos;
  return holds ? nullptr : variant;
}

bool Instantiation::pick_variants(std::vector<Missing>* missing) {
  for (std::size_t k = 0; k < nests_.size(); ++k) {
    const int kernel = static_cast<int>(k);
    fns_.push_back(nullptr);
    if (!nests_[k].launch || nests_[k].op) continue;
    const NestLayout& nest = nests_[k];
    if (nest.library != nullptr) {
      fns_.back() = nest.library;
      continue;
    }
    const Variant* variant = plan_.find_variant(kernel, nest.column_class);
    if (variant == nullptr) variant = substitute(kernel, nest);
    if (variant == nullptr) {
      missing->push_back({kernel, nest.column_class});
      // Sizes may change with each call, so what longer rows need is built along.
      if (!nest.long_class.empty()) missing->push_back({kernel, nest.long_class});
      continue;
    }
    fns_.back() = variant->fn;
    if (!nests_[k].elementwise)
      nests_[k].scratch = static_cast<std::int64_t>(variant->fn(nullptr, nests_[k].cols, 0));
  }
  return missing->empty();
}

/// First fit by lifetime: buffers that are live together never overlap.
void Instantiation::place_workspace() {
  struct Block {
    std::int64_t size, offset;
    int first, last;
    std::int64_t* result;
  };
  std::vector<Block> blocks;
  temp_offsets_.assign(plan_.temps().size(), 0);
  for (const int id : plan_.temps()) {
    const BufferSpec& temp = spec(id);
    blocks.push_back({at(id).nbytes, 0, temp.first_use, temp.last_use,
                      &temp_offsets_[static_cast<std::size_t>(temp.ordinal)]});
  }
  for (std::size_t k = 0; k < nests_.size(); ++k) {
    NestLayout& nest = nests_[k];
    const int here = static_cast<int>(k);
    if (nest.scratch != 0) blocks.push_back({nest.scratch, 0, here, here, &nest.scratch_offset});
    if (nest.elementwise) continue;
    for (NestPack& pack : nest.packs)
      blocks.push_back({nest.tile_rows * nest.row_strides[static_cast<std::size_t>(pack.operand)],
                        0, here, here, &pack.offset});
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& a, const Block& b) { return a.size > b.size; });
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block& block = blocks[i];
    block.size = (block.size + 63) / 64 * 64;
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t j = 0; j < i; ++j) {
        const Block& placed = blocks[j];
        const bool together = placed.first <= block.last && block.first <= placed.last;
        const bool overlap =
            block.offset < placed.offset + placed.size && placed.offset < block.offset + block.size;
        if (!together || !overlap) continue;
        block.offset = placed.offset + placed.size;
        moved = true;
      }
    }
    *block.result = block.offset;
    workspace_ = std::max(workspace_, block.offset + block.size);
  }
}

Instantiated instantiate(const Ref<Plan>& plan, const ArrayView* args, const ArrayView* captures,
                         const ArrayView* outs, Stream& stream) {
  return Instantiation(plan, stream).run(args, captures, outs);
}

}  // namespace opkiln::core
