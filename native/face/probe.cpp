// The executor pool by hand, for tests and benchmarks: in go single steps of a call on streams with
// manual clocks, out come the pool's states.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/event.h"
#include "core/table.h"
#include "face/bind.h"
#include "face/errors.h"
#include "face/module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace opkiln::face {

void bind_probe(nb::module_& m);

namespace {

PyObject* g_on_wait = nullptr;

thread_local int t_launch = 0;
thread_local int t_fail_at = -1;

uint64_t probe_kernel(const core::KernelArgs*, int64_t, int64_t) {
  if (t_launch++ == t_fail_at) throw std::runtime_error("the kernel failed, as it was told to");
  return 0;
}

// One function's executors on the calling thread, which must be the one that made this object.
class PoolProbe {
 public:
  // Streams by the ticks that their work takes, negative: for ever.
  PoolProbe(const std::vector<int64_t>& lags, size_t limit, size_t hard_cap, double timeout_s,
            bool grow, size_t executors, int kernels)
      : plan_(core::make_ref<core::Plan>()), data_(64) {
    for (const int64_t lag : lags) {
      const uint64_t ticks = lag < 0 ? core::ManualStream::kNever : static_cast<uint64_t>(lag);
      streams_.push_back(std::make_unique<core::ManualStream>(ticks, core::DeviceId{1, 0}, grow));
    }
    limits_.pool.limit = limit;
    limits_.pool.hard_cap = hard_cap;
    limits_.pool.timeout = std::chrono::nanoseconds(static_cast<int64_t>(timeout_s * 1e9));
    limits_.pool.queue_limited = grow ? core::QueuePolicy::kGrow : core::QueuePolicy::kWait;
    limits_.executors = executors;
    make_plan(kernels);
  }
  PoolProbe(const PoolProbe&) = delete;
  PoolProbe& operator=(const PoolProbe&) = delete;
  ~PoolProbe() {
    leases_.clear();
    for (const auto& stream : streams_) stream->synchronize();
    core::ThreadTable::current().trim(function_->id());
  }

  // The number of the executor that acquire() leased. `build` is called before one is made.
  int64_t acquire(uint64_t key, size_t stream, const nb::object& build) {
    core::KeyBuilder words(function_->id());
    core::ThreadTable& table = core::ThreadTable::current();
    core::ManualStream& target = *streams_.at(stream);
    const Limits scope(table, limits_);
    core::Lease lease = table.acquire(key_of(words, key), *function_, [&] {
      if (!build.is_none()) build();
      return make(target);
    });
    const auto number = reinterpret_cast<intptr_t>(lease->user);
    leases_.emplace(number, std::move(lease));
    return number;
  }

  void run(int64_t executor, int fail_at) {
    core::Executor& x = *leases_.at(executor);
    x.args()[0] = x.outs()[0] = reinterpret_cast<char*>(data_.data());
    t_launch = 0;
    t_fail_at = fail_at;
    x.run();
  }
  void release(int64_t executor) {
    leases_.at(executor).release();
    leases_.erase(executor);
  }
  // What an exception on the way does.
  void drop(int64_t executor) { leases_.erase(executor); }

  void advance(size_t stream, uint64_t ticks) { streams_.at(stream)->advance(ticks); }

  // (idle, oldest first; leased; in flight, oldest first) of a key.
  nb::tuple state(uint64_t key) const {
    core::KeyBuilder words(function_->id());
    const core::Pool* pool = core::ThreadTable::current().find(key_of(words, key));
    nb::list idle, in_flight;
    if (pool != nullptr) {
      pool->for_each([&](const core::Executor& x, bool pending) {
        (pending ? in_flight : idle).append(reinterpret_cast<intptr_t>(x.user));
      });
    }
    return nb::make_tuple(idle, pool != nullptr ? pool->leased() : 0, in_flight);
  }

  size_t trim(std::optional<uint64_t> key) {
    core::ThreadTable& table = core::ThreadTable::current();
    if (!key) return table.trim({function_->id(), nullptr}, limits_.pool.timeout);
    core::KeyBuilder words(function_->id());
    const core::KeyView view = key_of(words, *key);
    return table.trim({0, &view}, limits_.pool.timeout);
  }

  nb::dict counts() const {
    const core::FunctionStats& stats = function_->stats;
    nb::dict d;
    d["executors"] = stats.executors.load();
    d["in_flight"] = stats.in_flight.load();
    d["built"] = stats.built.load();
    d["waits"] = stats.waits.load();
    d["grew_past_limit"] = stats.grew_past_limit.load();
    d["evictions"] = stats.evictions.load();
    d["bytes"] = stats.bytes.load();
    return d;
  }

 private:
  struct Limits {
    core::ThreadTable& table;
    core::TableLimits before;
    Limits(core::ThreadTable& t, const core::TableLimits& now) : table(t), before(t.limits()) {
      table.set_limits(now);
    }
    ~Limits() { table.set_limits(before); }
    Limits(const Limits&) = delete;
    Limits& operator=(const Limits&) = delete;
  };

  void make_plan(int kernels) {
    const int arg = plan_->buffer(core::BufferKind::kArg, core::DType::kF32, {}, 1);
    const int n = plan_->host(core::HostOp::kExtent, arg, -1, 0);
    const int out = plan_->buffer(core::BufferKind::kOut, core::DType::kF32, {n});
    for (int k = 0; k < kernels; k++) {
      core::KernelSpec spec;
      spec.extents = {n};
      spec.operands = {{arg, {0}, false}, {out, {0}, true}};
      plan_->kernel(spec);
    }
    plan_->output_buffer(out);
    plan_->finish();
    for (int k = 0; k < kernels; k++) {
      plan_->add_variant(k, "CC", reinterpret_cast<void*>(&probe_kernel));
    }
  }

  std::unique_ptr<core::Executor> make(core::Stream& stream) {
    core::ArrayView view;
    view.data = reinterpret_cast<char*>(data_.data());
    view.ndim = 1;
    view.shape = shape_;
    view.strides = strides_;
    auto made = core::instantiate(plan_, &view, nullptr, nullptr, stream).executor;
    made->user = reinterpret_cast<void*>(next_++);
    return made;
  }

  static core::KeyView key_of(core::KeyBuilder& words, uint64_t key) {
    words.word(tagged('s', key));
    return words.view();
  }

  core::Ref<core::Plan> plan_;
  core::Ref<core::FunctionState> function_ = core::make_ref<core::FunctionState>();
  std::vector<std::unique_ptr<core::ManualStream>> streams_;
  core::TableLimits limits_;
  std::map<int64_t, core::Lease> leases_;
  std::vector<float> data_;
  int64_t shape_[1] = {4}, strides_[1] = {4};
  intptr_t next_ = 0;
};

}  // namespace

void before_wait() {
  if (OPKILN_LIKELY(!g_on_wait)) return;
  const Ref called(PyObject_CallNoArgs(g_on_wait));
  if (!called) PyErr_WriteUnraisable(g_on_wait);
}

void bind_probe(nb::module_& m) {
  nb::class_<PoolProbe>(m, "PoolProbe",
                        "The executor pool by hand: one function, streams with manual clocks.")
      .def(nb::init<const std::vector<int64_t>&, size_t, size_t, double, bool, size_t, int>(),
           "lags"_a, nb::kw_only(), "limit"_a = 10, "hard_cap"_a = 64, "timeout_s"_a = 0.0,
           "grow"_a = false, "executors"_a = 1024, "kernels"_a = 1)
      .def("acquire", &PoolProbe::acquire, "key"_a, "stream"_a, "build"_a.none() = nb::none())
      .def("run", &PoolProbe::run, "executor"_a, "fail_at"_a = -1)
      .def("release", &PoolProbe::release, "executor"_a)
      .def("drop", &PoolProbe::drop, "executor"_a)
      .def("advance", &PoolProbe::advance, "stream"_a, "ticks"_a)
      .def("state", &PoolProbe::state, "key"_a)
      .def("trim", &PoolProbe::trim, "key"_a.none() = nb::none())
      .def("counts", &PoolProbe::counts);
  m.def(
      "on_wait",
      [](nb::handle call) {
        PyObject* now = call.is_none() ? nullptr : Py_NewRef(call.ptr());
        PyObject* old = std::exchange(g_on_wait, now);
        Py_XDECREF(old);
      },
      "call"_a.none(), "Called on the thread that is about to wait for an event (tests).");
}

}  // namespace opkiln::face
