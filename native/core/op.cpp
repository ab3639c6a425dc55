// op.cpp: what a custom op is given: tensors, scalars, workspace; copies of what does not lie in C
// order.
#include "op.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>

#include "errors.h"
#include "tile.h"

namespace opkiln::core {
namespace {

constexpr std::size_t kMessage = 1024;

constexpr std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::int64_t numel(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape)
    if (n == 0) return 0;
  for (const std::int64_t n : shape)
    if (__builtin_mul_overflow(count, n, &count)) throw std::bad_alloc();
  return count;
}

/// Strides in elements of C order.
std::vector<std::int64_t> dense_steps(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> steps(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    steps[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return steps;
}

/// Calls one of an op's functions; an exception that it lets out is an error as well.
void invoke(ok_function function, ok_call* call, const std::string& message) {
  std::int32_t code;
  try {
    code = function(call);
  } catch (const std::exception& e) {
    throw OpError(e.what());
  } catch (...) {
    throw OpError("unknown C++ exception");
  }
  if (code == 0) return;
  const std::string said = message.c_str();
  throw OpError(said.empty() ? "error " + std::to_string(code) : said);
}

}  // namespace

ok_op read_op(const void* descriptor) {
  ok_op op{};
  constexpr std::size_t head = offsetof(ok_op, run);
  std::memcpy(&op, descriptor, sizeof(op.magic));
  if (op.magic != OK_OP_MAGIC)
    throw AbiError("it is no op descriptor: OK_OP() or OK_CPP_OP() defines one");
  std::memcpy(&op, descriptor, head);
  if (op.abi != OK_OP_ABI)
    throw AbiError("it has ABI " + std::to_string(op.abi) + ", this runtime knows " +
                   std::to_string(OK_OP_ABI));
  if (op.size < head + sizeof(ok_function) || op.size > sizeof(ok_op) ||
      op.call_size > sizeof(ok_call) || op.tensor_size != sizeof(ok_tensor) ||
      op.scalar_size != sizeof(ok_scalar))
    throw AbiError("it was compiled with a later opkiln/op.h than this runtime has");
  std::memcpy(&op, descriptor, op.size);
  if (op.run == nullptr) throw AbiError("it has no function to run");
  return op;
}

ok_dtype op_dtype(DType dtype) noexcept {
  const auto bits = static_cast<std::uint8_t>(8 * itemsize(dtype));
  switch (dtype) {
    case DType::kBool:
      return {OK_BOOL, bits, 1};
    case DType::kBF16:
      return {OK_BFLOAT, bits, 1};
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
      return {OK_FLOAT, bits, 1};
    case DType::kC64:
    case DType::kC128:
      return {OK_COMPLEX, bits, 1};
    default:
      return {static_cast<std::uint8_t>(is_unsigned(dtype) ? OK_UINT : OK_INT), bits, 1};
  }
}

std::size_t OpSpec::inputs() const noexcept {
  return static_cast<std::size_t>(std::count(given.begin(), given.end(), true));
}

void OpCall::Free::operator()(char* p) const noexcept {
  ::operator delete(p, std::align_val_t{64});
}

OpCall::OpCall(std::shared_ptr<const OpSpec> spec, std::vector<Operand> operands)
    : spec_(std::move(spec)), operands_(std::move(operands)) {
  const std::size_t inputs = spec_->inputs(), outputs = operands_.size() - inputs;
  tensors_.resize(spec_->given.size() + outputs);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].ndim = -1;
    if (i >= spec_->given.size() || spec_->given[i]) places_.push_back(i);
  }
  for (std::size_t j = 0; j < operands_.size(); ++j) {
    Operand& operand = operands_[j];
    const std::int64_t item = operand.dtype.bits / 8;
    std::vector<std::int64_t> steps = dense_steps(operand.shape);
    bool dense = true, whole = true;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      dense = dense && (operand.shape[i] == 1 || operand.strides[i] == steps[i] * item);
      whole = whole && operand.strides[i] % item == 0;
    }
    const std::int64_t count = numel(operand.shape);
    if (count != 0 && !dense && spec_->any_layout && whole) {
      for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = operand.strides[i] / item;
    } else if (count != 0 && !dense) {
      if (operand.device.type != OK_CPU) throw OpError("expected an array in C order");
      copies_.push_back({j, scratch_, static_cast<std::size_t>(item)});
      scratch_ += padded(count * item);
    }
    steps_.push_back(std::move(steps));
  }
  for (std::size_t j = 0; j < operands_.size(); ++j) {  // whose vectors move no more
    Operand& operand = operands_[j];
    tensor(j) = {nullptr,
                 operand.device,
                 static_cast<std::int32_t>(operand.shape.size()),
                 operand.dtype,
                 operand.shape.data(),
                 steps_[j].data(),
                 0};
  }
  for (const OpSpec::Scalar& scalar : spec_->scalars) {
    ok_scalar made{scalar.kind, 0, {0}};
    if (scalar.kind == OK_SCALAR_STRING) made.value.s = scalar.text.c_str();
    scalars_.push_back(made);
  }
}

/// `scalars` has a slot for each that is no string.
void OpCall::fill(ok_call* call, const std::uint64_t* scalars, std::string* message) {
  for (ok_scalar& scalar : scalars_)
    if (scalar.kind != OK_SCALAR_STRING) std::memcpy(&scalar.value, scalars++, 8);
  message->assign(kMessage, '\0');
  const std::size_t inputs = spec_->given.size();
  *call = {};
  call->size = sizeof(ok_call);
  call->abi = OK_OP_ABI;
  call->inputs = tensors_.data();
  call->outputs = tensors_.data() + inputs;
  call->scalars = scalars_.data();
  call->n_inputs = static_cast<std::int32_t>(inputs);
  call->n_outputs = static_cast<std::int32_t>(tensors_.size() - inputs);
  call->n_scalars = static_cast<std::int32_t>(scalars_.size());
  call->message = message->data();
  call->message_size = kMessage;
}

std::uint64_t OpCall::workspace(const std::uint64_t* scalars) {
  if (spec_->op.workspace == nullptr) return 0;
  const auto slots = std::count_if(scalars_.begin(), scalars_.end(),
                                   [](const ok_scalar& s) { return s.kind != OK_SCALAR_STRING; });
  if (asked_ && std::equal(asked_with_.begin(), asked_with_.end(), scalars)) return wanted_;
  ok_call call;
  std::string message;
  fill(&call, scalars, &message);
  for (ok_tensor& tensor : tensors_) tensor.data = nullptr;
  invoke(spec_->op.workspace, &call, message);
  wanted_ = call.workspace_size;
  asked_with_.assign(scalars, scalars + slots);
  asked_ = true;
  return wanted_;
}

/// Between the real operand and its copy in C order, two axes at a time.
void OpCall::move(const Copy& copy, char* real, char* dense, bool back) const {
  const Operand& operand = operands_[copy.operand];
  const std::size_t rank = operand.shape.size();
  const auto item = static_cast<std::int64_t>(copy.item);
  const auto extent = [&](std::size_t from_end) {
    return rank >= from_end ? operand.shape[rank - from_end] : 1;
  };
  const auto stride = [&](std::size_t from_end) {
    return rank >= from_end ? operand.strides[rank - from_end] : 0;
  };
  const std::int64_t rows = extent(2), cols = extent(1);
  std::vector<std::int64_t> index(rank);
  for (;;) {
    const Lines<char> strided{real, stride(2), stride(1)}, lines{dense, cols * item, item};
    const auto from = [](const Lines<char>& l) { return Lines<const char>{l.at, l.row, l.col}; };
    if (back)
      copy_lines(copy.item, strided, from(lines), rows, cols);
    else
      copy_lines(copy.item, lines, from(strided), rows, cols);
    dense += rows * cols * item;
    std::size_t axis = rank >= 2 ? rank - 2 : 0;
    for (;; --axis) {
      if (axis == 0) return;
      real += operand.strides[axis - 1];
      if (++index[axis - 1] < operand.shape[axis - 1]) break;
      real -= operand.strides[axis - 1] * operand.shape[axis - 1];
      index[axis - 1] = 0;
    }
  }
}

void OpCall::run(char* const* data, const std::uint64_t* scalars, char* scratch, void* workspace,
                 void* stream) {
  const std::uint64_t wanted = this->workspace(scalars);
  if (wanted != 0 && workspace == nullptr) {
    if (wanted > held_bytes_) {
      held_.reset();
      held_bytes_ = 0;
      held_.reset(static_cast<char*>(::operator new(wanted, std::align_val_t{64})));
      held_bytes_ = wanted;
    }
    workspace = held_.get();
  }
  for (std::size_t j = 0; j < operands_.size(); ++j) tensor(j).data = data[j];
  const std::size_t inputs = spec_->inputs();
  for (const Copy& copy : copies_) {
    char* dense = scratch + copy.offset;
    tensor(copy.operand).data = dense;
    if (copy.operand < inputs) move(copy, data[copy.operand], dense, false);
  }
  ok_call call;
  std::string message;
  fill(&call, scalars, &message);
  call.workspace = workspace;
  call.workspace_size = wanted;
  call.stream = stream;
  invoke(spec_->op.run, &call, message);
  for (const Copy& copy : copies_)
    if (copy.operand >= inputs) move(copy, data[copy.operand], scratch + copy.offset, true);
}

std::vector<OpCall::Operand> OpCall::infer(const std::uint64_t* scalars) {
  ok_call call;
  std::string message;
  fill(&call, scalars, &message);
  const auto count = static_cast<std::size_t>(call.n_outputs);
  std::vector<std::int64_t> room(count * OK_MAX_RANK);
  for (std::size_t k = 0; k < count; ++k) {
    call.outputs[k].shape = room.data() + k * OK_MAX_RANK;
    call.outputs[k].strides = nullptr;
  }
  invoke(spec_->op.infer, &call, message);
  std::vector<Operand> found;
  for (std::size_t k = 0; k < count; ++k) {
    const ok_tensor& made = call.outputs[k];
    if (made.ndim < 0 || made.ndim > OK_MAX_RANK)
      throw OpError("output " + std::to_string(k) + " has " + std::to_string(made.ndim) + " axes");
    Operand operand;
    operand.dtype = made.dtype;
    operand.shape.assign(made.shape, made.shape + made.ndim);
    found.push_back(std::move(operand));
  }
  return found;
}

}  // namespace opkiln::core
