// stream.cpp: the inline CPU stream and the test stream with a manual clock.
#include "stream.h"

#include <atomic>

#include "event.h"

namespace opkiln::core {
namespace {

std::atomic<std::uint64_t> next_stream_id{1};

class InlineCpuStream final : public Stream {
 public:
  InlineCpuStream() : Stream({0, 0}, true) {}
  void enqueue(Event& event, std::uint64_t generation) override { event.complete(generation); }
  void synchronize() override {}
};

}  // namespace

Stream::Stream(DeviceId device, bool completes_inline, bool queue_limited)
    : device_(device),
      id_(next_stream_id.fetch_add(1, std::memory_order_relaxed)),
      inline_(completes_inline),
      queue_limited_(queue_limited) {}

Stream& inline_cpu_stream() {
  static auto* stream = new InlineCpuStream;  // never destroyed: threads may end after main
  return *stream;
}

ManualStream::ManualStream(std::uint64_t lag, DeviceId device, bool queue_limited)
    : Stream(device, false, queue_limited), lag_(lag) {}

void ManualStream::enqueue(Event& event, std::uint64_t generation) {
  if (lag_ == 0) {
    event.complete(generation);
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back({Ref<Event>(&event), generation, lag_ == kNever ? kNever : now_ + lag_});
}

void ManualStream::advance(std::uint64_t ticks) {
  std::vector<Record> due;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ += ticks;
    std::size_t n = 0;
    while (n < queue_.size() && queue_[n].due <= now_) ++n;
    const auto split = queue_.begin() + static_cast<std::ptrdiff_t>(n);
    due.assign(queue_.begin(), split);
    queue_.erase(queue_.begin(), split);
  }
  for (Record& record : due) record.event->complete(record.generation);
}

void ManualStream::synchronize() {
  std::vector<Record> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all.swap(queue_);
  }
  for (Record& record : all) record.event->complete(record.generation);
}

std::size_t ManualStream::pending() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queue_.size();
}

}  // namespace opkiln::core
