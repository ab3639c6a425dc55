// Events and a stream with a manual clock for Python tests of the executor pool.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <optional>
#include <vector>

#include "core/event.h"
#include "core/stream.h"
#include "face/gil.h"
#include "face/module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace opkiln::face {

void bind_events(nb::module_& m);

namespace {

struct PyStream {
  std::shared_ptr<core::ManualStream> stream;
};

struct PyEvent {
  core::EventLease lease;
};

core::Stream* g_stream = nullptr;

// Executors on any thread may use a stream that was current once, so such streams stay for good.
void use_stream(std::optional<PyStream*> stream) {
  static auto* kept = new std::vector<std::shared_ptr<core::ManualStream>>();
  if (!stream || !*stream) {
    g_stream = nullptr;
    return;
  }
  kept->push_back((*stream)->stream);
  g_stream = (*stream)->stream.get();
}

core::Timeout timeout_of(std::optional<double> seconds) {
  if (!seconds) return {};
  return std::chrono::nanoseconds(static_cast<int64_t>(*seconds * 1e9));
}

}  // namespace

core::Stream& current_stream() { return g_stream ? *g_stream : core::inline_cpu_stream(); }

void bind_events(nb::module_& m) {
  nb::class_<PyStream>(m, "ManualStream",
                       "A stream whose work finishes `lag` ticks after it was queued.")
      .def(
          "__init__",
          [](PyStream* self, uint64_t lag, bool queue_limited) {
            new (self) PyStream{
                std::make_shared<core::ManualStream>(lag, core::DeviceId{1, 0}, queue_limited)};
          },
          "lag"_a, "queue_limited"_a = false)
      .def(
          "advance", [](PyStream& self, uint64_t ticks) { self.stream->advance(ticks); }, "ticks"_a)
      .def_prop_ro("pending", [](const PyStream& self) { return self.stream->pending(); });
  m.def("use_stream", &use_stream, "stream"_a.none(),
        "New executors run on this stream; None for the inline CPU stream.");

  nb::class_<PyEvent>(m, "Event", "A point in a stream's work.")
      .def(
          "__init__",
          [](PyEvent* self, bool timing) {
            new (self) PyEvent{core::EventPool::acquire(core::DeviceId{}, timing)};
          },
          "timing"_a = false)
      .def(
          "record",
          [](PyEvent& self, std::optional<PyStream*> stream) {
            core::Stream& target = stream && *stream
                                       ? static_cast<core::Stream&>(*(*stream)->stream)
                                       : core::inline_cpu_stream();
            return self.lease->record(target);
          },
          "stream"_a.none() = nb::none())
      .def("query", [](const PyEvent& self) { return self.lease->query(); })
      .def(
          "wait",
          [](PyEvent& self, std::optional<double> timeout) {
            const WithoutGil released;
            self.lease->wait(timeout_of(timeout));
          },
          "timeout"_a.none() = nb::none())
      .def(
          "elapsed_ms",
          [](const PyEvent& self, const PyEvent& start) {
            return self.lease->elapsed_ms(*start.lease);
          },
          "start"_a)
      .def("release", [](PyEvent& self) { self.lease.release(); })
      .def_prop_ro("generation", [](const PyEvent& self) { return self.lease->generation(); });
}

}  // namespace opkiln::face
