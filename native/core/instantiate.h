// instantiate.h: internal to instantiate.cpp and assemble.cpp: the state of one instantiate() call.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "errors.h"
#include "executor.h"
#include "nest.h"

namespace opkiln::core {

/// The work of one instantiate() call.
class Instantiation {
 public:
  Instantiation(const Ref<Plan>& plan, Stream& stream)
      : ref_(plan), plan_(*plan), stream_(stream) {}

  Instantiated run(const ArrayView* args, const ArrayView* captures, const ArrayView* outs);

 private:
  /// Where an operand begins: bytes from its buffer's pointer on.
  struct Start {
    std::int64_t fixed = 0;
    std::vector<std::pair<int, std::int64_t>> moving;  // (register, bytes per unit) of each call
  };
  struct Buffer {
    DType dtype;
    bool known = false;
    bool given = false;
    std::int64_t nbytes = 0;
    std::vector<std::int64_t> shape, strides;
    int memory = -1;  // the buffer whose pointer it has: its own, or what it is a view of
    Start start = {};
  };

  const BufferSpec& spec(int buffer) const {
    return plan_.buffers()[static_cast<std::size_t>(buffer)];
  }
  Buffer& at(int buffer) { return buffers_[static_cast<std::size_t>(buffer)]; }

  void bind_inputs(const std::vector<int>& ids, const ArrayView* views);
  std::vector<const std::int64_t*> shape_pointers();
  void bind_results(const ArrayView* outs);
  std::vector<NestOperand> operands_of(const KernelSpec& kernel,
                                       const std::vector<std::int64_t>& extents);
  std::int64_t stride_along(int buffer, const std::vector<Along>& axes, std::size_t axis,
                            std::int64_t extent, bool* still);
  std::int64_t operand_stride(const KernelSpec& kernel, const OperandSpec& op, std::size_t axis,
                              std::int64_t extent);
  Start start_of(int buffer, const std::vector<Along>& axes);
  void resolve_view(int view);
  bool broadcast_by_construction(const KernelSpec& kernel, const OperandSpec& op) const;
  void allocate(const KernelSpec& kernel, const std::vector<int>& order,
                std::vector<NestOperand>* operands, const std::vector<std::int64_t>& extents);
  NestLayout lay_out_op(const KernelSpec& kernel, const std::vector<std::int64_t>& extents,
                        const std::vector<NestOperand>& operands) const;
  void lay_out_kernels();
  bool pick_variants(std::vector<Missing>* missing);
  const Variant* substitute(int kernel, const NestLayout& nest) const;
  void place_workspace();
  std::size_t block_bytes() const;
  std::unique_ptr<Executor> assemble(const ArrayView* args, const ArrayView* captures,
                                     const ArrayView* outs);
  void assemble_buffers(Executor* ex, const ArrayView* args, const ArrayView* captures,
                        const ArrayView* outs);
  void assemble_nest(Executor* ex, Nest* nest, std::size_t kernel, std::size_t starts_at);
  void assemble_packs(Nest* nest, std::size_t kernel);
  void assemble_split(Nest* nest, std::size_t kernel);
  bool is_held(const NestLayout& layout, const OperandSpec& op, std::size_t j) const;

  template <class T>
  T* take(std::size_t count) {
    static_assert(alignof(T) <= 8);
    auto* place = reinterpret_cast<T*>(cursor_);
    cursor_ += room<T>(count);
    return place;
  }
  template <class T>
  static std::size_t room(std::size_t count) {
    return (count * sizeof(T) + 7) & ~std::size_t{7};
  }

  const Ref<Plan>& ref_;
  const Plan& plan_;
  Stream& stream_;
  std::vector<Buffer> buffers_ = std::vector<Buffer>(plan_.buffers().size());
  std::vector<HostValue> regs_;
  std::vector<NestLayout> nests_;
  std::vector<Start> starts_;  // of all operands, kernel by kernel
  std::vector<KernelFn> fns_;
  std::vector<std::int64_t> temp_offsets_;  // by temp ordinal
  std::int64_t workspace_ = 0;
  char* cursor_ = nullptr;
};

}  // namespace opkiln::core
