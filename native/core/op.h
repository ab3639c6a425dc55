// op.h: custom ops: the functions that a library exports, and one call of them over concrete
// layouts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtype.h"
#include "include/opkiln/op.h"

namespace opkiln::core {

/// Checks what a library exports as an op, and reads it. Throws AbiError.
ok_op read_op(const void* descriptor);

/// A type of elements as op.h has it; of a datetime the int64 that it is.
ok_dtype op_dtype(DType dtype) noexcept;

/// What all calls of one op with the same scalars have in common.
struct OpSpec {
  struct Scalar {
    std::int32_t kind = OK_SCALAR_INT;
    std::string text;  // of a string; all others come in slots
  };
  ok_op op{};
  std::shared_ptr<void> keepalive;  // of the library; its deleter runs on any thread
  std::vector<bool> given;          // per input, whether there is an operand for it
  std::vector<Scalar> scalars;
  bool any_layout = false;  // else operands are C order, by copies where they do not lie so

  std::size_t inputs() const noexcept;  // operands that are inputs
};

/// A call with layouts that stay: operands are the given inputs, then the outputs. One thread at a
/// time may run it.
class OpCall {
 public:
  struct Operand {
    ok_device device{OK_CPU, 0};
    ok_dtype dtype{};
    std::vector<std::int64_t> shape, strides;  // in bytes
  };
  OpCall(std::shared_ptr<const OpSpec> spec, std::vector<Operand> operands);
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  /// Bytes for copies of operands.
  std::int64_t scratch() const noexcept { return scratch_; }
  /// How many operands are copied.
  std::size_t copies() const noexcept { return copies_.size(); }
  /// What the op asks for beside them; asked once for equal scalars. Throws OpError.
  std::uint64_t workspace(const std::uint64_t* scalars);
  /// Throws OpError with what the op says. `workspace` null: the call has memory of its own.
  void run(char* const* data, const std::uint64_t* scalars, char* scratch,
           void* workspace = nullptr, void* stream = nullptr);
  /// Asks the op for dtypes and shapes of the outputs, given as operands without axes.
  std::vector<Operand> infer(const std::uint64_t* scalars);

 private:
  struct Copy {
    std::size_t operand;
    std::int64_t offset;  // into the scratch
    std::size_t item;
  };
  struct Free {
    void operator()(char* p) const noexcept;
  };
  void fill(ok_call* call, const std::uint64_t* scalars, std::string* message);
  void move(const Copy& copy, char* real, char* dense, bool back) const;
  ok_tensor& tensor(std::size_t operand) noexcept { return tensors_[places_[operand]]; }

  std::shared_ptr<const OpSpec> spec_;
  std::vector<Operand> operands_;
  std::vector<std::vector<std::int64_t>> steps_;  // strides in elements, as the op sees them
  std::vector<ok_tensor> tensors_;                // inputs, absent ones too, then outputs
  std::vector<std::size_t> places_;               // per operand, among them
  std::vector<ok_scalar> scalars_;
  std::vector<Copy> copies_;
  std::int64_t scratch_ = 0;
  bool asked_ = false;
  std::vector<std::uint64_t> asked_with_;  // scalars
  std::uint64_t wanted_ = 0, held_bytes_ = 0;
  std::unique_ptr<char, Free> held_;
};

}  // namespace opkiln::core
