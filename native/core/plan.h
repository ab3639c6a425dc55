// plan.h: what a traced function became: host program, buffers, kernels, outputs, compiled
// variants.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "abi.h"
#include "dtype.h"
#include "host_program.h"
#include "layout.h"
#include "op.h"
#include "ref.h"

namespace opkiln::core {

enum class BufferKind : std::uint8_t { kArg, kCapture, kOut, kTemp, kView };
BufferKind buffer_kind_from_name(std::string_view name);  // "arg" | "capture" | "out" | "temp"

/// What the index along one axis of a buffer follows: start + step * i with i along an iteration
/// axis, or the start alone. Without a step the buffer has the iteration's extent, or 1 and is
/// broadcast.
struct Along {
  Along(int axis_followed = -1, int step_reg = -1, int start_reg = -1)  // NOLINT: a whole axis
      : axis(axis_followed), step(step_reg), start(start_reg) {}
  int axis;   // of the iteration, or -1
  int step;   // register, or -1
  int start;  // register, or -1: 0
};

/// Elements of another buffer, in C order, under other extents.
struct ViewSpec {
  int buffer = -1;
  std::vector<Along> axes;  // per axis of that buffer, over `space`
  std::vector<int> space;   // registers
  int copy = -1;            // the dense buffer that has them where no strides do, or -1: some do
};

struct BufferSpec {
  BufferKind kind;
  DType dtype;
  int rank;
  std::vector<int> extents;           // registers, for out, temp and view
  int ordinal;                        // position among the buffers of its kind
  int first_use = -1, last_use = -1;  // kernels
  int writer = -1;                    // first kernel that writes it
  bool dense = false;                 // a temp in C order, whatever its kernel would choose
  ViewSpec view = {};
};

struct ScalarSpec {
  int reg;
  DType dtype;
  ScalarMode mode;
  bool per_call;
};

/// A scalar slot that is filled anew on every call.
struct CallScalar {
  int slot;
  int reg;
  HostType type;
  DType dtype;
  ScalarMode mode;
};

struct OperandSpec {
  int buffer = 0;
  std::vector<Along> axes;  // per axis of the buffer
  bool write = false;
};

struct KernelSpec {
  std::vector<int> extents;  // registers, one per logical axis
  std::uint32_t reduce_mask = 0;
  std::vector<OperandSpec> operands;
  std::vector<int> scalars;  // slots
  double ns_per_element = 1.0;
  bool may_raise = false;
  bool product = false;  // of matrices: the last axes are m, n and k, the operands a, b and out
  int view = -1;         // the kernel is the copy that this view may need
  // A custom op in place of a kernel: its axes are those of its operands, one after the other.
  std::shared_ptr<const OpSpec> op = nullptr;
  std::vector<int> ranks = {};  // of a custom op's operands
};

struct OutputRef {
  bool host;
  int index;  // register, or ordinal among the out buffers
};

constexpr std::int64_t kNotOne = -1;  // as NOT_ONE in runtime/graph.py

/// A size that the plan holds for: `value`, or any but 1 where that is kNotOne; or, with another
/// argument, the size of that one's axis `value`.
struct Pin {
  int arg;  // ordinal among the args
  int axis;
  std::int64_t value;
  int other = -1;  // ordinal among the args
};

/// A variant compiled for one class string. Never removed while the plan lives.
struct Variant {
  std::string column_class;
  KernelFn fn;
  std::shared_ptr<void> keepalive;  // its deleter runs on any thread and must not need Python
  Variant* next;
};

/// Built by calls, then immutable after finish() except for its growing lists of variants.
class Plan : public RefCounted {
 public:
  Plan() = default;
  ~Plan() override;

  // --- building; each call throws PlanError on a wrong index or type
  int host(HostOp op, int a = -1, int b = -1, std::int64_t ival = 0, double fval = 0.0);
  int buffer(BufferKind kind, DType dtype, std::vector<int> extents, int rank = -1,
             bool dense = false);
  int view(DType dtype, std::vector<int> extents, ViewSpec spec);
  int scalar(int reg, DType dtype, ScalarMode mode);
  int kernel(KernelSpec spec);
  void output_buffer(int buffer);
  void output_host(int reg);
  /// Of a capture: accepted and not stored, since a plan's captures do not change.
  void pin(int arg_buffer, int axis, std::int64_t value);
  void pin_equal(int arg_buffer, int axis, int other_buffer, int other_axis);
  void finish();

  // --- variants: lock-free, any thread, also after finish()
  void add_variant(int kernel, std::string_view column_class, void* address,
                   std::shared_ptr<void> keepalive = nullptr);
  const Variant* find_variant(int kernel, std::string_view column_class) const noexcept;
  /// Any that goes across rows ('r'), or any that does not.
  const Variant* any_variant(int kernel, bool across) const noexcept;
  /// No compiler: executors of this plan carry layouts only; the face interprets each call.
  void set_fallback() noexcept { fallback_.store(true, std::memory_order_release); }
  bool fallback() const noexcept { return fallback_.load(std::memory_order_acquire); }

  // --- reading
  bool finished() const noexcept { return finished_; }
  bool pins_hold(const ArrayView* args) const noexcept;
  /// One elementwise kernel that reads element i of `in` only to write element i of `out`.
  bool inplace_ok(int out_buffer, int in_buffer) const noexcept;
  bool may_raise() const noexcept { return may_raise_; }
  const HostProgram& program() const noexcept { return program_; }
  const std::vector<BufferSpec>& buffers() const noexcept { return buffers_; }
  const std::vector<KernelSpec>& kernels() const noexcept { return kernels_; }
  const std::vector<ScalarSpec>& scalars() const noexcept { return scalars_; }
  const std::vector<CallScalar>& call_scalars() const noexcept { return call_scalars_; }
  const std::vector<OutputRef>& outputs() const noexcept { return outputs_; }
  const std::vector<Pin>& pins() const noexcept { return pins_; }
  /// Buffer indices by ordinal.
  const std::vector<int>& args() const noexcept { return of_kind(BufferKind::kArg); }
  const std::vector<int>& captures() const noexcept { return of_kind(BufferKind::kCapture); }
  const std::vector<int>& outs() const noexcept { return of_kind(BufferKind::kOut); }
  const std::vector<int>& temps() const noexcept { return of_kind(BufferKind::kTemp); }
  const std::vector<int>& of_kind(BufferKind kind) const noexcept {
    return by_kind_[static_cast<std::size_t>(kind)];
  }
  /// Place of a buffer among an executor's pointers: args, captures, outs, temps.
  std::size_t slot(int buffer) const noexcept;
  /// Pointers of an executor: one for each buffer that is no view.
  std::size_t slots() const noexcept { return buffers_.size() - of_kind(BufferKind::kView).size(); }
  bool has_per_call() const noexcept { return program_.has_per_call(); }

 private:
  void require_open() const;
  void check_reg(int reg, const char* what) const;
  void check_extents(const std::vector<int>& regs) const;
  void check_axes(int buffer, const std::vector<Along>& axes, std::size_t rank, bool write) const;
  void check_op(const KernelSpec& spec) const;
  void touch(int buffer, int kernel);
  const BufferSpec& checked_buffer(int buffer) const;
  const BufferSpec& pinned(int buffer, int axis) const;

  HostProgram program_;
  std::vector<BufferSpec> buffers_;
  std::vector<int> by_kind_[5];
  std::vector<ScalarSpec> scalars_;
  std::vector<CallScalar> call_scalars_;
  std::vector<KernelSpec> kernels_;
  std::vector<OutputRef> outputs_;
  std::vector<Pin> pins_;
  std::unique_ptr<std::atomic<Variant*>[]> variants_;  // one list per kernel, made by finish()
  std::atomic<bool> fallback_{false};
  bool finished_ = false;
  bool may_raise_ = false;
};

}  // namespace opkiln::core
