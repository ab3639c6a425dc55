// executor.h: a plan made concrete for exact layouts: pointers, loop nests, workspace, events;
// run() is the warm path.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#include "alias.h"
#include "event.h"
#include "function.h"
#include "layout.h"
#include "plan.h"

namespace opkiln::core {

/// What the face must allocate (or was given) for one output buffer. Strides are in bytes.
struct OutSpec {
  DType dtype;
  bool given;    // its layout came from out=
  bool c_order;  // dense, last axis fastest
  int ndim;
  const std::int64_t* shape;
  const std::int64_t* strides;
  std::int64_t nbytes;  // of the elements
};

struct Missing {
  int kernel;
  std::string column_class;
};

class Executor;
class Pool;

struct Instantiated {
  std::unique_ptr<Executor> executor;  // null exactly when something is missing
  std::vector<Missing> missing;
};

/// Runs the fixed part of the host program, lays out loops, picks variants. `args` and `captures`
/// by ordinal; `outs` null, or one entry per output buffer (absent_array() for a fresh one).
/// Throws HostError, OutMismatch, PlanError. Capture pointers are bound here.
Instantiated instantiate(const Ref<Plan>& plan, const ArrayView* args, const ArrayView* captures,
                         const ArrayView* outs = nullptr, Stream& stream = inline_cpu_stream());

/// Copy into or out of dense rows; see NestPack.
struct Pack {
  std::uint32_t operand;
  std::uint32_t ncols_axes;
  bool write;
  std::uint8_t item;
  std::int64_t row_stride;  // of the real operand
  std::int64_t offset;      // into the tile; of reductions into the workspace
  std::int64_t own;         // of reductions: into the memory that a helping thread has of its own
  const std::int64_t* col_extents;
  const std::int64_t* col_strides;
};

/// An operand that all rows of a reduction write anew: each thread needs its own.
struct Held {
  std::uint32_t operand;
  std::int64_t own;  // where its columns begin in that memory
};

/// A start that comes with each call.
struct MovingStart {
  std::int64_t* place;  // of its operand
  std::int64_t fixed;   // what the layout alone gives it
  std::int64_t bytes;   // per unit of the register
  std::int32_t reg;
};

/// One kernel over concrete loops. Everything it points to lives in the executor's block.
struct Nest {
  KernelFn fn;
  KernelArgs args;  // ptr is filled per run unless `direct`
  std::int64_t rows;
  std::int64_t outer_count;  // product of the outer extents
  std::int64_t units;        // what run_range() cuts: elements, or rows of a reduction
  std::uint32_t nops;
  std::uint32_t outer_ndim;
  std::uint32_t npacks;
  bool elementwise;
  bool direct;  // operands are consecutive pointers of the executor: args.ptr points there
  bool single;  // one call covers everything
  bool simple;  // direct, single, not split and no op: the warm path
  bool split;   // may be worth several threads
  bool flat;    // of NestLayout, as the tile's shape
  const std::uint32_t* slot;          // per operand
  std::int64_t* start;                // per operand: bytes from its pointer on; or null
  const std::int64_t* outer_extents;  // outermost first
  const std::int64_t* outer_strides;  // [axis][operand]
  Pack* packs;
  std::int64_t tile_rows, tile_cols, tile_bytes;
  std::int64_t scratch;               // offset into the workspace, or -1
  const std::uint32_t* scalar_slots;  // null when args.scalar points into the executor's slots
  std::uint64_t* scalar_copy;
  std::uint32_t nscalars;
  std::int32_t kernel;
  // Of those that may be split. Memory of a helping thread: scratch, tiles, held operands.
  std::uint32_t nheld;
  const Held* held;
  std::int64_t own_bytes;
  std::int64_t grain;  // units: cuts between lie at its multiples
  double estimated_ns;
  OpCall* op;  // runs in place of `fn`; or null
};

class Executor {
 public:
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Plan& plan() const noexcept { return *plan_; }
  /// Fallback executors know layouts only: run() must not be called.
  bool is_fallback() const noexcept { return fallback_; }
  /// For the caller: borrowed, never touched here.
  void* user = nullptr;
  bool user_flag = false;

  // --- pointers to set before run(); each array is indexed by ordinal
  char** args() noexcept { return base_; }
  char** captures() noexcept { return base_ + capture_at_; }
  char** outs() noexcept { return base_ + out_at_; }

  std::size_t out_count() const noexcept { return out_count_; }
  const OutSpec& out(std::size_t k) const noexcept { return out_specs_[k]; }

  /// The part of the host program that depends on weak scalars: guards, scalar slots, host outputs.
  /// run() does this itself; call it first where an error must come before outputs are allocated.
  void prepare(const HostValue* weak);
  /// Runs every kernel; returns fault bits. Throws HostError before any device code.
  std::uint64_t run(const HostValue* weak = nullptr) {
    if (__builtin_expect(!one_call_, 0)) return run_all(weak);
    phase_ = Phase::kDevice;  // stays so if a kernel throws
    const std::uint64_t faults = nests_->fn(&nests_->args, 0, nests_->rows);
    phase_ = Phase::kLaunched;
    return faults;
  }
  /// The two halves of a run(): what must happen on the thread that has the lease, and the kernels,
  /// which any one thread may run then. What a kernel throws goes to `error`, and the executor is
  /// failed(), to be read once its event is done.
  void set_up(const HostValue* weak) {
    if (needs_setup_) setup(weak);
  }
  std::uint64_t launch(std::exception_ptr& error) noexcept;
  bool failed() const noexcept { return failed_; }
  /// After a run() without a lease on an inline stream: there is nothing to wait for, so no event.
  void ended() noexcept { phase_ = Phase::kHost; }
  /// Units [begin, end) of one kernel. Disjoint ranges may run on different threads if all but one
  /// bring `own` memory: nest.own_bytes, aligned to 64.
  std::uint64_t run_range(const Nest& nest, std::int64_t begin, std::int64_t end,
                          char* own = nullptr) const;

  std::size_t nest_count() const noexcept { return nest_count_; }
  const Nest& nest(std::size_t i) const noexcept { return nests_[i]; }

  /// Value of a host register that is an output of the plan; after prepare() or run().
  HostValue reg(int index) const noexcept { return regs_[index]; }

  /// With all pointers set: no given output overlaps another output, a capture or an argument other
  /// than an exact alias that the plan allows. When false: run without out= and copy.
  bool outs_are_safe() const noexcept;
  /// What a given output overlaps in that sense: the place of its pointer (arguments, captures,
  /// outputs), or -1.
  int overlap_of_out(std::uint32_t k) const noexcept;
  /// The same for a fresh output that would be at `data`: the place of an argument, a capture or an
  /// output before it that shares memory with it.
  int overlap_of_fresh(std::size_t k, const char* data) const noexcept;

  /// With pointers set: this run reads or writes memory of these bytes; `writes`: writes.
  bool touches(const char* base, ByteRange range, bool writes) const noexcept;
  /// One of the two runs writes what the other reads or writes.
  bool conflicts_with(const Executor& other) const noexcept;

  /// Bytes an argument touches, relative to its data pointer.
  ByteRange arg_range(std::size_t k) const noexcept { return ranges_[k]; }

  double estimated_ns() const noexcept { return estimated_ns_; }
  bool launches() const noexcept { return nest_count_ != 0; }
  std::size_t bytes() const noexcept { return bytes_; }  // without workspace
  std::size_t workspace_bytes() const noexcept { return workspace_size_; }
  bool workspace_held() const noexcept { return static_cast<bool>(workspace_); }
  void drop_workspace() noexcept;

  // --- used by the pool
  enum class Phase : std::uint8_t { kHost, kDevice, kLaunched };
  Stream& stream() const noexcept { return *stream_; }
  Event& event() const noexcept { return *event_; }
  Phase phase() const noexcept { return phase_; }
  void clear_pointers() noexcept;

 private:
  friend class Instantiation;
  friend class Pool;
  friend class Lease;
  Executor() = default;
  std::uint64_t run_all(const HostValue* weak);
  std::uint64_t run_nests();
  void setup(const HostValue* weak);
  void count_packs(std::uint64_t count) const noexcept;
  void fill_fixed_scalars();
  void copy_scalars() noexcept;
  void move_starts() noexcept;
  std::uint64_t run_nest(const Nest& nest) const;
  void run_op(const Nest& nest) const;
  void point(const Nest& nest, char** ptr, char* own) const noexcept;
  void allocate_workspace();
  void settle() noexcept;
  std::uint64_t run_elements(const Nest& nest, KernelArgs& args, char** ptr, std::int64_t begin,
                             std::int64_t end) const;
  std::uint64_t run_packed(const Nest& nest, char* const* ptr, std::int64_t row, std::int64_t rows,
                           std::int64_t col, std::int64_t cols) const;
  std::uint64_t run_tiles(const Nest& nest, char** ptr, std::int64_t begin, std::int64_t end,
                          char* own) const;

  struct AlignedFree {
    void operator()(char* p) const noexcept;
  };

  // What a warm call reads is together, from `user` on.
  bool one_call_ = false;  // run() is one call of one kernel, nothing is set up before it
  char** base_ = nullptr;
  Nest* nests_ = nullptr;
  OutSpec* out_specs_ = nullptr;
  std::uint32_t nest_count_ = 0;
  std::uint32_t capture_at_ = 0, out_at_ = 0, temp_at_ = 0, slot_count_ = 0;
  std::uint32_t out_count_ = 0;
  bool copies_scalars_ = false;  // some kernel has its scalars in an order of its own
  bool needs_setup_ = false;     // weak scalars, or a workspace still to be allocated
  Phase phase_ = Phase::kHost;
  bool fallback_ = false;
  bool failed_ = false;  // written by launch()
  HostValue* regs_ = nullptr;
  std::uint64_t* scalars_ = nullptr;
  std::int64_t* temp_offsets_ = nullptr;
  MovingStart* moving_ = nullptr;
  std::uint32_t moving_count_ = 0;
  std::uint32_t packs_ = 0;           // operands copied in each run: for a reshape, or as tiles
  ByteRange* ranges_ = nullptr;       // per pointer slot before the temps
  std::uint8_t* alias_ok_ = nullptr;  // [out][arg]
  double estimated_ns_ = 0;
  std::size_t bytes_ = 0;
  std::size_t workspace_size_ = 0;
  std::unique_ptr<char[]> block_;
  std::unique_ptr<char, AlignedFree> workspace_;
  std::vector<std::shared_ptr<OpCall>> ops_;  // of nests
  Ref<Plan> plan_;
  Stream* stream_ = nullptr;
  EventLease event_;
  Pool* pool_ = nullptr;         // owner, told about the workspace
  Ref<FunctionState> function_;  // counts the copies of operands
};

}  // namespace opkiln::core
