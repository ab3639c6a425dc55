// plan.cpp: checks while a plan is built, liveness of its buffers, and the lock-free lists of
// variants.
#include "plan.h"

#include <algorithm>
#include <numeric>

#include "errors.h"

namespace opkiln::core {

BufferKind buffer_kind_from_name(std::string_view name) {
  if (name == "arg") return BufferKind::kArg;
  if (name == "capture") return BufferKind::kCapture;
  if (name == "out") return BufferKind::kOut;
  if (name == "temp") return BufferKind::kTemp;
  throw PlanError("unknown buffer kind '" + std::string(name) + "'");
}

Plan::~Plan() {
  if (!variants_) return;
  for (std::size_t k = 0; k < kernels_.size(); ++k)
    for (Variant* v = variants_[k].load(std::memory_order_acquire); v != nullptr;) {
      Variant* next = v->next;
      delete v;
      v = next;
    }
}

void Plan::require_open() const {
  if (finished_) throw PlanError("the plan is finished and cannot change");
}

void Plan::check_reg(int reg, const char* what) const {
  if (reg < 0 || static_cast<std::size_t>(reg) >= program_.size())
    throw PlanError(std::string(what) + ": no register " + std::to_string(reg));
}

void Plan::check_extents(const std::vector<int>& regs) const {
  for (const int reg : regs) {
    check_reg(reg, "extent");
    if (program_.at(reg).type != HostType::kInt)
      throw PlanError("extent: register is not an integer");
    if (program_.at(reg).per_call)
      throw PlanError("extent: depends on a weak scalar, which is not part of the key");
  }
}

const BufferSpec& Plan::checked_buffer(int buffer) const {
  if (buffer < 0 || static_cast<std::size_t>(buffer) >= buffers_.size())
    throw PlanError("no buffer " + std::to_string(buffer));
  return buffers_[static_cast<std::size_t>(buffer)];
}

int Plan::host(HostOp op, int a, int b, std::int64_t ival, double fval) {
  require_open();
  if (op == HostOp::kExtent) {
    const BufferSpec& source = checked_buffer(a);
    if (source.kind != BufferKind::kArg && source.kind != BufferKind::kCapture)
      throw PlanError("extent: only of arguments and captures");
    if (ival < 0 || ival >= source.rank) throw PlanError("extent: no axis " + std::to_string(ival));
  }
  return program_.add(op, a, b, ival, fval);
}

/// Starts may come with each call, steps belong to the layout.
void Plan::check_axes(int buffer, const std::vector<Along>& axes, std::size_t rank,
                      bool write) const {
  const BufferSpec& spec = checked_buffer(buffer);
  if (axes.size() != static_cast<std::size_t>(spec.rank))
    throw PlanError("kernel: an operand needs a map for each axis of its buffer");
  std::vector<bool> seen(rank);
  for (const Along& along : axes) {
    if (along.axis < -1 || along.axis >= static_cast<int>(rank))
      throw PlanError("kernel: a map follows an axis that is not there");
    if (along.step >= 0) check_extents({along.step});
    if (along.start >= 0) {
      check_reg(along.start, "start");
      if (program_.at(along.start).type != HostType::kInt)
        throw PlanError("start: register is not an integer");
    }
    if (along.axis < 0) continue;
    const auto axis = static_cast<std::size_t>(along.axis);
    if (write && seen[axis]) throw PlanError("kernel: two written axes follow one iteration axis");
    seen[axis] = true;
  }
}

int Plan::buffer(BufferKind kind, DType dtype, std::vector<int> extents, int rank, bool dense) {
  require_open();
  if (kind == BufferKind::kView) throw PlanError("buffer: a view has a call of its own");
  if (static_cast<int>(dtype) >= kMostDTypes) throw PlanError("buffer: no such dtype");
  const bool input = kind == BufferKind::kArg || kind == BufferKind::kCapture;
  if (input) {
    if (!extents.empty())
      throw PlanError("buffer: an input's extents come with the call; give its rank");
    if (rank < 0) throw PlanError("buffer: an input needs a rank");
  } else {
    check_extents(extents);
    if (rank >= 0 && static_cast<std::size_t>(rank) != extents.size())
      throw PlanError("buffer: rank and extents differ");
    rank = static_cast<int>(extents.size());
  }
  if (rank > kMaxRank) throw PlanError("buffer: rank above 16");
  auto& siblings = by_kind_[static_cast<std::size_t>(kind)];
  const int index = static_cast<int>(buffers_.size());
  buffers_.push_back({kind, dtype, rank, std::move(extents), static_cast<int>(siblings.size())});
  buffers_.back().dense = dense;
  siblings.push_back(index);
  return index;
}

int Plan::view(DType dtype, std::vector<int> extents, ViewSpec spec) {
  require_open();
  check_extents(extents);
  check_extents(spec.space);
  check_axes(spec.buffer, spec.axes, spec.space.size(), false);
  const auto fits = [&](int buffer) {
    return itemsize(checked_buffer(buffer).dtype) == itemsize(dtype);
  };
  if (!fits(spec.buffer)) throw PlanError("view: items of another size");
  if (spec.copy >= 0 && (!fits(spec.copy) || !checked_buffer(spec.copy).dense))
    throw PlanError("view: the copy is no dense buffer of such items");
  if (extents.size() > kMaxRank) throw PlanError("buffer: rank above 16");
  auto& siblings = by_kind_[static_cast<std::size_t>(BufferKind::kView)];
  const int index = static_cast<int>(buffers_.size()), rank = static_cast<int>(extents.size());
  buffers_.push_back(
      {BufferKind::kView, dtype, rank, std::move(extents), static_cast<int>(siblings.size())});
  buffers_.back().view = std::move(spec);
  siblings.push_back(index);
  return index;
}

int Plan::scalar(int reg, DType dtype, ScalarMode mode) {
  require_open();
  check_reg(reg, "scalar");
  const HostInstr& source = program_.at(reg);
  if (!is_integer(dtype) && !is_float(dtype))
    throw PlanError("scalar: dtype without a scalar form");
  if (source.type == HostType::kFloat && !is_float(dtype))
    throw PlanError("scalar: float register to integer dtype");
  scalars_.push_back({reg, dtype, mode, source.per_call});
  const int slot = static_cast<int>(scalars_.size()) - 1;
  if (source.per_call) call_scalars_.push_back({slot, reg, source.type, dtype, mode});
  return slot;
}

int Plan::kernel(KernelSpec spec) {
  require_open();
  check_extents(spec.extents);
  const std::size_t rank = spec.extents.size();
  if (rank > 32 && !spec.op) throw PlanError("kernel: more than 32 axes");
  if (rank < 32 && (spec.reduce_mask >> rank) != 0)
    throw PlanError("kernel: reduce_mask names an axis that is not there");
  if (spec.operands.empty()) throw PlanError("kernel: no operands");
  if (spec.product && (rank < 3 || spec.operands.size() != 3 || !spec.scalars.empty() ||
                       spec.reduce_mask != std::uint32_t{1} << (rank - 1)))
    throw PlanError("kernel: a product has axes m, n and k, sums over k, and has three operands");
  if (spec.op) check_op(spec);
  for (const OperandSpec& op : spec.operands) {
    const BufferSpec& buffer = checked_buffer(op.buffer);
    check_axes(op.buffer, op.axes, rank, op.write);
    if (op.write && buffer.kind != BufferKind::kOut && buffer.kind != BufferKind::kTemp)
      throw PlanError("kernel: writes to an input");
  }
  if (spec.view >= 0 && checked_buffer(spec.view).view.copy != spec.operands.back().buffer)
    throw PlanError("kernel: is not the copy of its view");
  for (const int slot : spec.scalars)
    if (slot < 0 || static_cast<std::size_t>(slot) >= scalars_.size())
      throw PlanError("kernel: no such scalar");
  may_raise_ = may_raise_ || spec.may_raise;
  kernels_.push_back(std::move(spec));
  return static_cast<int>(kernels_.size()) - 1;
}

/// Operands are the inputs that are given, then results; their axes follow each other.
void Plan::check_op(const KernelSpec& spec) const {
  const std::size_t inputs = spec.op->inputs();
  for (std::size_t j = 0; j < spec.operands.size(); ++j)
    if (spec.operands[j].write != (j >= inputs))
      throw PlanError("kernel: an op's results follow its inputs");
  const int axes = std::accumulate(spec.ranks.begin(), spec.ranks.end(), 0);
  if (spec.operands.size() < inputs || spec.ranks.size() != spec.operands.size() ||
      static_cast<std::size_t>(axes) != spec.extents.size() || spec.reduce_mask != 0 ||
      spec.product || spec.op->op.run == nullptr)
    throw PlanError("kernel: the operands do not fit the op");
}

void Plan::output_buffer(int buffer) {
  require_open();
  const BufferSpec& spec = checked_buffer(buffer);
  if (spec.kind != BufferKind::kOut) throw PlanError("output: not an out buffer");
  for (const OutputRef& o : outputs_)
    if (!o.host && o.index == spec.ordinal) throw PlanError("output: buffer listed twice");
  outputs_.push_back({false, spec.ordinal});
}

void Plan::output_host(int reg) {
  require_open();
  check_reg(reg, "output");
  outputs_.push_back({true, reg});
}

const BufferSpec& Plan::pinned(int buffer, int axis) const {
  require_open();
  const BufferSpec& spec = checked_buffer(buffer);
  if (spec.kind != BufferKind::kArg && spec.kind != BufferKind::kCapture)
    throw PlanError("pin: not an input");
  if (axis < 0 || axis >= spec.rank) throw PlanError("pin: no such axis");
  return spec;
}

void Plan::pin(int arg_buffer, int axis, std::int64_t value) {
  const BufferSpec& spec = pinned(arg_buffer, axis);
  if (spec.kind == BufferKind::kArg) pins_.push_back({spec.ordinal, axis, value});
}

void Plan::pin_equal(int arg_buffer, int axis, int other_buffer, int other_axis) {
  const BufferSpec &spec = pinned(arg_buffer, axis), &other = pinned(other_buffer, other_axis);
  if (spec.kind != BufferKind::kArg || other.kind != BufferKind::kArg)
    throw PlanError("pin_equal: not of two arguments");
  pins_.push_back({spec.ordinal, axis, other_axis, other.ordinal});
}

/// Notes that a kernel uses the buffer, and what the buffer is a view of.
void Plan::touch(int index, int kernel) {
  BufferSpec& buffer = buffers_[static_cast<std::size_t>(index)];
  if (buffer.kind == BufferKind::kView) {
    touch(buffer.view.buffer, kernel);
    if (buffer.view.copy >= 0) touch(buffer.view.copy, kernel);
  }
  const bool made = buffer.kind == BufferKind::kOut || buffer.kind == BufferKind::kTemp;
  if (made && buffer.writer < 0)
    throw PlanError("kernel " + std::to_string(kernel) + " reads buffer " + std::to_string(index) +
                    " before anything wrote it");
  if (buffer.first_use < 0) buffer.first_use = kernel;
  buffer.last_use = kernel;
}

void Plan::finish() {
  require_open();
  for (std::size_t k = 0; k < kernels_.size(); ++k) {
    const int here = static_cast<int>(k);
    // In operand order: a kernel may read back scratch that one of its earlier operands writes.
    for (const OperandSpec& op : kernels_[k].operands) {
      BufferSpec& buffer = buffers_[static_cast<std::size_t>(op.buffer)];
      if (op.write && buffer.writer < 0) buffer.writer = here;
      touch(op.buffer, here);
    }
  }
  for (const BufferKind kind : {BufferKind::kOut, BufferKind::kTemp})
    for (const int b : of_kind(kind))
      if (buffers_[static_cast<std::size_t>(b)].writer < 0)
        throw PlanError("buffer " + std::to_string(b) + " is never written");
  variants_.reset(new std::atomic<Variant*>[kernels_.size() + 1]);
  for (std::size_t k = 0; k <= kernels_.size(); ++k)
    variants_[k].store(nullptr, std::memory_order_relaxed);
  finished_ = true;
}

void Plan::add_variant(int kernel, std::string_view column_class, void* address,
                       std::shared_ptr<void> keepalive) {
  if (!finished_) throw PlanError("add_variant: finish the plan first");
  if (kernel < 0 || static_cast<std::size_t>(kernel) >= kernels_.size())
    throw PlanError("add_variant: no such kernel");
  const auto k = static_cast<std::size_t>(kernel);
  const bool by_rows = !column_class.empty() && column_class[0] == 'r';
  const std::string_view letters = column_class.substr(by_rows ? 1 : 0);
  if (letters.size() != kernels_[k].operands.size() ||
      letters.find_first_not_of(by_rows ? "CZGH" : "CZG") != std::string_view::npos)
    throw PlanError("add_variant: class '" + std::string(column_class) +
                    "' does not fit the operands");
  if (address == nullptr) throw PlanError("add_variant: null address");
  auto* fresh = new Variant{std::string(column_class), reinterpret_cast<KernelFn>(address),
                            std::move(keepalive), nullptr};
  fresh->next = variants_[k].load(std::memory_order_relaxed);
  while (!variants_[k].compare_exchange_weak(fresh->next, fresh, std::memory_order_release,
                                             std::memory_order_relaxed)) {
  }
}

const Variant* Plan::find_variant(int kernel, std::string_view column_class) const noexcept {
  const Variant* v = variants_[static_cast<std::size_t>(kernel)].load(std::memory_order_acquire);
  while (v != nullptr && v->column_class != column_class) v = v->next;
  return v;
}

const Variant* Plan::any_variant(int kernel, bool across) const noexcept {
  const Variant* v = variants_[static_cast<std::size_t>(kernel)].load(std::memory_order_acquire);
  while (v != nullptr && (v->column_class[0] == 'r') != across) v = v->next;
  return v;
}

bool Plan::pins_hold(const ArrayView* args) const noexcept {
  return std::all_of(pins_.begin(), pins_.end(), [args](const Pin& p) {
    if (args[p.arg].ndim <= p.axis) return false;
    const std::int64_t extent = args[p.arg].shape[p.axis];
    if (p.other >= 0) return args[p.other].ndim > p.value && args[p.other].shape[p.value] == extent;
    return p.value == kNotOne ? extent != 1 : extent == p.value;
  });
}

bool Plan::inplace_ok(int out_buffer, int in_buffer) const noexcept {
  if (kernels_.size() != 1 || kernels_[0].reduce_mask != 0 || kernels_[0].op) return false;
  if (!of_kind(BufferKind::kView).empty()) return false;  // which may read the input elsewhere
  const KernelSpec& kernel = kernels_[0];
  bool written = false, read = false;
  for (const OperandSpec& op : kernel.operands) {
    if (op.buffer != out_buffer && op.buffer != in_buffer) continue;
    if (op.write != (op.buffer == out_buffer)) return false;
    (op.write ? written : read) = true;
    if (op.axes.size() != kernel.extents.size()) return false;
    for (std::size_t i = 0; i < op.axes.size(); ++i)
      if (op.axes[i].axis != static_cast<int>(i) || op.axes[i].step >= 0 || op.axes[i].start >= 0)
        return false;
  }
  return written && read &&
         buffers_[static_cast<std::size_t>(out_buffer)].dtype ==
             buffers_[static_cast<std::size_t>(in_buffer)].dtype;
}

std::size_t Plan::slot(int buffer) const noexcept {
  const BufferSpec& spec = buffers_[static_cast<std::size_t>(buffer)];
  std::size_t at = static_cast<std::size_t>(spec.ordinal);
  for (int kind = 0; kind < static_cast<int>(spec.kind); ++kind) at += by_kind_[kind].size();
  return at;
}

}  // namespace opkiln::core
