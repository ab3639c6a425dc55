// stream.h: where work is queued; the CPU's inline stream is done when the call returns.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "ref.h"

namespace opkiln::core {

class Event;
struct EventRecord;
class Work;

struct DeviceId {
  std::uint8_t kind = 0;  // 0 cpu, 1 cuda
  std::uint8_t index = 0;
  bool operator==(const DeviceId& o) const noexcept { return kind == o.kind && index == o.index; }
};

/// What a device implements. Outlives every executor that was made for it.
class Stream {
 public:
  explicit Stream(DeviceId device, bool completes_inline, bool queue_limited = false);
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  DeviceId device() const noexcept { return device_; }
  std::uint64_t id() const noexcept { return id_; }  // never reused
  /// Work is finished when the launching call returns, so events complete at record.
  bool completes_inline() const noexcept { return inline_; }
  bool queue_limited() const noexcept { return queue_limited_; }

  /// Queues `work` and then the completion of its event's record. Throws StreamClosed: then nothing
  /// is queued.
  virtual void submit(Work& work) = 0;
  /// Queues completion of `event`'s record number `generation`. Not called on inline streams.
  virtual void enqueue(Event& event, std::uint64_t generation) = 0;
  /// What is queued from now on begins after that record is done. On an inline stream: blocks.
  virtual void wait(Event& event, std::uint64_t generation) = 0;
  /// Blocks until all queued work is done.
  virtual void synchronize();
  /// A record that is done when all that is queued now is; none where that is nothing.
  virtual EventRecord mark();

 private:
  const DeviceId device_;
  const std::uint64_t id_;
  const bool inline_;
  const bool queue_limited_;
};

/// The process's inline CPU stream.
Stream& inline_cpu_stream();

/// For tests: a stream on a manual clock; a record made at tick t is done at tick t + lag, and work
/// submitted at t is run then, by the thread that moves the clock.
class ManualStream final : public Stream {
 public:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  explicit ManualStream(std::uint64_t lag, DeviceId device = {1, 0}, bool queue_limited = false);
  ~ManualStream() override;  // drops what is queued
  void submit(Work& work) override;
  void enqueue(Event& event, std::uint64_t generation) override;
  void wait(Event& event, std::uint64_t generation) override;
  void synchronize() override;
  /// Moves the clock and completes what is due, in record order.
  void advance(std::uint64_t ticks);
  std::size_t pending() const;

 private:
  struct Record {
    Ref<Event> event;
    std::uint64_t generation;
    std::uint64_t due;
    Work* work;         // to run first, or null
    bool waits_for_it;  // the record is another stream's: nothing later is done before it
  };
  void push(Record record);
  void finish(std::vector<Record>& records);
  const std::uint64_t lag_;
  mutable std::mutex mutex_;
  std::uint64_t now_ = 0;
  std::vector<Record> queue_;
};

}  // namespace opkiln::core
