// stream.cpp: the inline CPU stream and the test stream with a manual clock.
#include "stream.h"

#include <atomic>

#include "event.h"

namespace opkiln::core {
namespace {

std::atomic<std::uint64_t> next_stream_id{1};

void do_work(Work& work) {
  work.run();
  work.event()->complete(work.generation());
  work.finished();
}

class InlineCpuStream final : public Stream {
 public:
  InlineCpuStream() : Stream({0, 0}, true) {}
  void submit(Work& work) override { do_work(work); }
  void enqueue(Event& event, std::uint64_t generation) override { event.complete(generation); }
  void wait(Event& event, std::uint64_t generation) override { event.wait_for(generation); }
  void synchronize() override {}
  EventRecord mark() override { return {}; }
};

}  // namespace

Stream::Stream(DeviceId device, bool completes_inline, bool queue_limited)
    : device_(device),
      id_(next_stream_id.fetch_add(1, std::memory_order_relaxed)),
      inline_(completes_inline),
      queue_limited_(queue_limited) {}

EventRecord Stream::mark() {
  const EventLease event = EventPool::acquire(device_);
  const std::uint64_t generation = event->record(*this);
  return {Ref<Event>(&*event), generation};
}

void Stream::synchronize() {
  const EventRecord last = mark();
  if (last.event) last.event->wait_for(last.generation);
}

Stream& inline_cpu_stream() {
  static auto* stream = new InlineCpuStream;  // never destroyed: threads may end after main
  return *stream;
}

ManualStream::ManualStream(std::uint64_t lag, DeviceId device, bool queue_limited)
    : Stream(device, false, queue_limited), lag_(lag) {}

ManualStream::~ManualStream() {
  for (Record& record : queue_) {
    if (record.work == nullptr) continue;
    record.work->dropped();
    record.event->complete(record.generation);
  }
}

void ManualStream::push(Record record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (record.due != kNever) record.due += now_;
  queue_.push_back(std::move(record));
}

void ManualStream::submit(Work& work) {
  if (lag_ == 0)
    do_work(work);
  else
    push({Ref<Event>(work.event()), work.generation(), lag_, &work, false});
}

void ManualStream::enqueue(Event& event, std::uint64_t generation) {
  if (lag_ == 0)
    event.complete(generation);
  else
    push({Ref<Event>(&event), generation, lag_, nullptr, false});
}

void ManualStream::wait(Event& event, std::uint64_t generation) {
  push({Ref<Event>(&event), generation, 0, nullptr, true});
}

void ManualStream::finish(std::vector<Record>& records) {
  for (Record& record : records) {
    if (record.work != nullptr)
      do_work(*record.work);
    else if (!record.waits_for_it)
      record.event->complete(record.generation);
  }
}

void ManualStream::advance(std::uint64_t ticks) {
  std::vector<Record> due;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ += ticks;
    std::size_t n = 0;
    while (n < queue_.size() && queue_[n].due <= now_ &&
           (!queue_[n].waits_for_it || queue_[n].event->passed(queue_[n].generation)))
      ++n;
    const auto split = queue_.begin() + static_cast<std::ptrdiff_t>(n);
    due.assign(queue_.begin(), split);
    queue_.erase(queue_.begin(), split);
  }
  finish(due);
}

void ManualStream::synchronize() {
  std::vector<Record> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all.swap(queue_);
  }
  finish(all);
}

std::size_t ManualStream::pending() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queue_.size();
}

}  // namespace opkiln::core
