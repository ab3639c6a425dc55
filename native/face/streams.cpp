// Streams, events and the stream of a context, for Python.
#include "face/streams.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/blocking.h"
#include "core/queue.h"
#include "face/errors.h"
#include "face/future.h"
#include "face/gil.h"
#include "face/module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace opkiln::face {

uint32_t g_async_live = 0;

namespace {

// One `with stream:` block. The innermost is the value of a context variable, so tasks and threads
// that run in a copy of the context are in it too; it lives while any context holds it.
struct Block {
  nb::object stream;                     // of Python, which keeps the next alive
  std::shared_ptr<core::Stream> target;  // null: inline
  nb::object outer;                      // Block or None

  Block(nb::object s, std::shared_ptr<core::Stream> t, nb::object o)
      : stream(std::move(s)), target(std::move(t)), outer(std::move(o)) {
    g_async_live++;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { g_async_live--; }
};

struct PyManualStream : PyStream {};

PyObject* g_block = nullptr;  // the context variable

nb::object block_here() {
  PyObject* block = nullptr;
  if (PyContextVar_Get(g_block, Py_None, &block) < 0) throw PythonError{};
  return nb::steal(block);
}

nb::object set_block(nb::handle block) {
  PyObject* token = PyContextVar_Set(g_block, block.ptr());
  if (!token) throw nb::python_error();
  return nb::steal(token);
}

core::Stream* g_stream = nullptr;

// Executors on any thread may use a stream that was current once, so such streams stay for good.
void use_stream(std::optional<PyStream*> stream) {
  static auto* kept = new std::vector<std::shared_ptr<core::Stream>>();
  if (!stream || !*stream) {
    g_stream = nullptr;
    return;
  }
  kept->push_back((*stream)->stream);
  g_stream = (*stream)->stream.get();
}

nb::object device_class() { return nb::module_::import_("opkiln.runtime.device").attr("Device"); }

// In C++ a device is two numbers; Python's class reads and words it.
core::DeviceId device_from(nb::handle device) {
  const nb::object parsed = device_class()(device);
  return {static_cast<uint8_t>(nb::cast<std::string>(parsed.attr("kind")) == "cuda"),
          nb::cast<uint8_t>(parsed.attr("index"))};
}

nb::object device_object(core::DeviceId device) {
  return device_class()((device.kind ? "cuda:" : "cpu:") + std::to_string(device.index));
}

void check_device(core::DeviceId of_event, const core::Stream& stream) {
  if (of_event == stream.device()) return;
  raise(Err::device, "make the event with device= as the stream has it",
        "expected an event and a stream of one device, got %S and %S",
        device_object(of_event).ptr(), device_object(stream.device()).ptr());
  throw nb::python_error();
}

std::shared_ptr<core::Stream> inline_stream() {
  return {&core::inline_cpu_stream(), [](core::Stream*) {}};
}

// ---- streams ----

PyStream make_queue(nb::handle device, nb::handle idle_seconds) {
  if (device_from(device).kind != 0) {
    raise(Err::not_yet, "use Stream(\"cpu\"); the CUDA runtime is a later issue",
          "streams of %S are not built yet", device.ptr());
    throw nb::python_error();
  }
  const core::Timeout idle = timeout_of(idle_seconds.ptr());
  finish_at_exit();
  constexpr std::chrono::hours forever{24 * 365};
  return {std::make_shared<core::QueueStream>(idle.value_or(forever))};
}

core::QueueStream* as_queue(const PyStream& self) {
  return dynamic_cast<core::QueueStream*>(self.stream.get());
}

nb::object enter(nb::handle self) {
  auto& stream = nb::cast<PyStream&>(self);
  const bool queued = !stream.stream->completes_inline();
  set_block(nb::cast(new Block(nb::borrow(self), queued ? stream.stream : nullptr, block_here()),
                     nb::rv_policy::take_ownership));
  return nb::borrow(self);
}

void leave(nb::handle self) {
  const nb::object here = block_here();
  if (here.is_none() || !nb::cast<Block&>(here).stream.is(self)) {
    raise(Err::stream, "leave the blocks of a context in the order opposite to entering them",
          "the end of a `with stream:` block whose stream is not the present one");
    throw nb::python_error();
  }
  set_block(nb::cast<Block&>(here).outer);
}

void synchronize(const PyStream& self, nb::handle timeout) {
  const core::EventRecord last = self.stream->mark();
  if (last.event) wait_here(last, timeout.ptr(), "the stream's work is");
  reclaim();
}

void close(const PyStream& self, nb::handle timeout) {
  core::QueueStream* queue = as_queue(self);
  if (!queue) return;
  queue->close();
  synchronize(self, timeout);
}

std::string stream_repr(const PyStream& self) {
  const std::string device = nb::cast<std::string>(nb::str(device_object(self.stream->device())));
  if (self.stream->completes_inline()) return "<Stream inline on " + device + ">";
  std::string text = "<Stream " + std::to_string(self.stream->id()) + " on " + device;
  const core::QueueStream* queue = as_queue(self);
  if (queue && queue->closed()) text += ", closed";
  if (queue && queue->pending()) text += ", " + std::to_string(queue->pending()) + " pending";
  return text + ">";
}

core::Stream& target_of(std::optional<PyStream*> stream, std::shared_ptr<core::Stream>& here) {
  if (stream && *stream) return *(*stream)->stream;
  here = stream_here();
  return here ? *here : core::inline_cpu_stream();
}

// ---- events ----

struct PyEvent {
  core::EventLease lease;

  core::Event& live() const {
    if (!lease) throw core::EventError("the event was released");
    return *lease;
  }
  // The record to ask for: the last one, or that of `generation`, which must still be the last.
  core::EventRecord record(std::optional<uint64_t> generation, const char* what) const {
    core::Event& event = live();
    if (event.state() == core::Event::kUnrecorded)
      throw core::EventError(std::string(what) + " an event that was never recorded");
    const uint64_t last = event.generation();
    if (generation && *generation != last) {
      throw core::EventError("stale record " + std::to_string(*generation) +
                             ": the event was recorded again, as " + std::to_string(last));
    }
    return {core::Ref<core::Event>(&event), last};
  }
};

uint64_t record_event(PyEvent& self, std::optional<PyStream*> stream) {
  std::shared_ptr<core::Stream> here;
  core::Stream& target = target_of(stream, here);
  check_device(self.live().device(), target);
  return self.lease->record(target);
}

void wait_on_device(const core::EventRecord& record, core::Stream& stream) {
  if (record.event->passed(record.generation)) return;
  check_device(record.event->device(), stream);
  if (stream.completes_inline())
    wait_here(record, Py_None, "the event is");
  else
    stream.wait(*record.event, record.generation);
}

std::string event_repr(const PyEvent& self) {
  if (!self.lease) return "<Event released>";
  const char* const states[] = {"unrecorded", "pending", "done"};
  return std::string("<Event ") + states[self.lease->state()] +
         (self.lease->timing() ? ", timing>" : ">");
}

void bind_events(nb::module_& m) {
  nb::class_<PyEvent>(m, "Event", "A point in a stream's work, to ask for and to wait for.")
      .def(
          "__init__",
          [](PyEvent* self, bool timing, nb::handle device) {
            new (self) PyEvent{core::EventPool::acquire(device_from(device), timing)};
          },
          "timing"_a = false, nb::kw_only(), "device"_a.none() = "cpu")
      .def("record", &record_event, "stream"_a.none() = nb::none(),
           "Marks the end of what is queued now; returns the number of the record.")
      .def(
          "query",
          [](const PyEvent& self, std::optional<uint64_t> generation) {
            const core::EventRecord record = self.record(generation, "query of");
            return record.event->passed(record.generation);
          },
          "generation"_a.none() = nb::none(), "Whether the last record is done.")
      .def(
          "wait",
          [](const PyEvent& self, nb::handle timeout, std::optional<uint64_t> generation) {
            wait_here(self.record(generation, "wait for"), timeout.ptr(), "the event is");
          },
          "timeout"_a.none() = nb::none(), "generation"_a.none() = nb::none(),
          "Blocks until the last record is done; Ctrl-C ends the wait.")
      .def(
          "device_wait",
          [](const PyEvent& self, const PyStream& stream) {
            wait_on_device(self.record({}, "device_wait for"), *stream.stream);
          },
          "stream"_a, "Lets a stream wait, as its wait_event().")
      .def(
          "elapsed_ms",
          [](const PyEvent& self, const PyEvent& start) {
            return self.live().elapsed_ms(start.live());
          },
          "start"_a, "Milliseconds from the end of `start` to the end of this one.")
      .def(
          "release", [](PyEvent& self) { self.lease.release(); },
          "Gives it back to the pool, which happens by itself when nobody holds it.")
      .def_prop_ro(
          "generation", [](const PyEvent& self) { return self.live().generation(); },
          "The number of the last record; 0 before the first.")
      .def_prop_ro(
          "timing", [](const PyEvent& self) { return self.live().timing(); },
          "Whether elapsed_ms() may be asked.")
      .def_prop_ro(
          "device", [](const PyEvent& self) { return device_object(self.live().device()); },
          "That of the streams it may be recorded on.")
      .def("__repr__", &event_repr);
}

nb::dict stream_stats() {
  const core::Queues queues = core::Queues::count();
  nb::dict d;
  d["streams"] = queues.streams;
  d["stream_threads"] = queues.threads;
  d["stream_pending"] = queues.pending;
  return d;
}

void synchronize_all() {
  for (const core::EventRecord& last : core::Queues::marks())
    wait_here(last, Py_None, "all work is");
  reclaim();
}

}  // namespace

core::Stream& current_stream() { return g_stream ? *g_stream : core::inline_cpu_stream(); }

std::shared_ptr<core::Stream> stream_here() {
  const nb::object block = block_here();
  return block.is_none() ? nullptr : nb::inst_ptr<Block>(block)->target;
}

InlineHere::InlineHere() {
  token_ = PyContextVar_Set(g_block, Py_None);
  if (!token_) throw PythonError{};
}

InlineHere::~InlineHere() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (PyContextVar_Reset(g_block, token_) < 0) PyErr_WriteUnraisable(nullptr);
  Py_DECREF(token_);
  PyErr_Restore(type, value, traceback);
}

core::Timeout timeout_of(PyObject* seconds) {
  if (seconds == Py_None) return {};
  const bool number = !PyBool_Check(seconds) && (PyFloat_Check(seconds) || PyNumber_Check(seconds));
  const double value = number ? PyFloat_AsDouble(seconds) : -1;
  if (value == -1 && PyErr_Occurred()) PyErr_Clear();
  if (std::isnan(value) || value < 0) {
    raise(Err::argument, "pass None for no limit", "expected seconds >= 0 or None, got %R",
          seconds);
    throw PythonError{};
  }
  constexpr double most = 1e9;  // 31 years; beyond some centuries nanoseconds overflow
  return std::chrono::nanoseconds(static_cast<int64_t>(std::fmin(value, most) * 1e9));
}

void wait_here(const core::EventRecord& record, PyObject* timeout, const char* what) {
  if (core::wait_interruptibly(record, timeout_of(timeout))) return;
  raise(Err::event_timeout, nullptr, "%s not done after %S s", what, timeout);
  throw PythonError{};
}

void bind_streams(nb::module_& m) {
  g_block = PyContextVar_New("opkiln_stream", nullptr);
  if (!g_block) throw nb::python_error();
  nb::class_<Block>(m, "_StreamBlock");
  nb::class_<PyStream>(m, "Stream", "A queue that one thread of its own works off in order.")
      .def(
          "__init__",
          [](PyStream* self, nb::handle device, nb::handle idle_seconds) {
            new (self) PyStream{make_queue(device, idle_seconds)};
          },
          "device"_a.none() = "cpu", nb::kw_only(), "idle_seconds"_a.none() = 10.0)
      .def_static(
          "inline", [] { return PyStream{inline_stream()}; },
          "The stream that calls run on outside of every block: in the call itself.")
      .def_static(
          "current",
          [] {
            const nb::object block = block_here();
            return block.is_none() ? nb::cast(PyStream{inline_stream()})
                                   : nb::cast<Block&>(block).stream;
          },
          "The stream of the innermost `with` block of this context, or the inline one.")
      .def("__enter__", &enter)
      .def("__exit__", [](nb::handle self, nb::args) { leave(self); })
      .def("synchronize", &synchronize, "timeout"_a.none() = nb::none(),
           "Waits until all that is queued now is done.")
      .def("close", &close, "timeout"_a.none() = nb::none(),
           "Takes no more work, and waits until what is queued is done.")
      .def(
          "wait_event",
          [](const PyStream& self, const PyEvent& event) {
            wait_on_device(event.record({}, "wait for"), *self.stream);
          },
          "event"_a, "Begins what is queued from now on only after an event's last record.")
      .def(
          "wait_stream",
          [](const PyStream& self, const PyStream& other) {
            const core::EventRecord last = other.stream->mark();
            if (last.event) wait_on_device(last, *self.stream);
          },
          "stream"_a, "Begins what is queued from now on only after all that is queued there now.")
      .def_prop_ro(
          "id", [](const PyStream& self) { return self.stream->id(); },
          "A number that no other stream of the process has or had.")
      .def_prop_ro(
          "device", [](const PyStream& self) { return device_object(self.stream->device()); },
          "Where its work runs: a Device.")
      .def_prop_ro(
          "pending",
          [](const PyStream& self) -> size_t {
            if (auto* manual = dynamic_cast<core::ManualStream*>(self.stream.get()))
              return manual->pending();
            const core::QueueStream* queue = as_queue(self);
            return queue ? queue->pending() : 0;
          },
          "How many calls, records and waits are queued or running.")
      .def_prop_ro(
          "closed",
          [](const PyStream& self) {
            const core::QueueStream* queue = as_queue(self);
            return queue && queue->closed();
          },
          "Whether close() was called.")
      .def_prop_ro(
          "has_thread",
          [](const PyStream& self) {
            const core::QueueStream* queue = as_queue(self);
            return queue && queue->has_thread();
          },
          "Whether its thread runs or sleeps now.")
      .def(
          "__eq__",
          [](const PyStream& self, nb::handle other) {
            PyStream* same = nullptr;
            return nb::try_cast<PyStream*>(other, same) && same &&
                   same->stream->id() == self.stream->id();
          },
          nb::arg("other").none())
      .def("__hash__", [](const PyStream& self) { return self.stream->id(); })
      .def("__repr__", &stream_repr);
  nb::class_<PyManualStream, PyStream>(
      m, "ManualStream", "A stream whose work finishes `lag` ticks after it was queued.")
      .def(
          "__init__",
          [](PyManualStream* self, uint64_t lag, bool queue_limited, nb::handle device) {
            new (self) PyManualStream{
                {std::make_shared<core::ManualStream>(lag, device_from(device), queue_limited)}};
          },
          "lag"_a, "queue_limited"_a = false, "device"_a = "cuda:0")
      .def(
          "advance",
          [](PyManualStream& self, uint64_t ticks) {
            static_cast<core::ManualStream&>(*self.stream).advance(ticks);
          },
          "ticks"_a);
  m.def("use_stream", &use_stream, "stream"_a.none(),
        "New executors run on this stream; None for the inline CPU stream.");
  m.def(
      "answer",
      [](nb::handle value) {
        if (!stream_here()) return nb::borrow(value);
        Future* future = new_future();
        if (!future) throw nb::python_error();
        future->pending().value = Py_NewRef(value.ptr());
        return nb::steal(reinterpret_cast<PyObject*>(future));
      },
      "value"_a.none(), "What a call gives whose value is known: on a stream a Future.");
  m.def("synchronize", &synchronize_all, "Waits until all that is queued now is done.");
  m.def(
      "set_exit_patience",
      [](double seconds) {
        set_exit_patience(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
      },
      "seconds"_a, "How long the interpreter's exit waits for what is queued.");
  m.def("stream_stats", &stream_stats, "Numbers of the process's asynchronous streams.");
  bind_events(m);
}

}  // namespace opkiln::face
