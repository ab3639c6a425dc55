// stream.h: where work is queued; the CPU's inline stream is done when the call returns.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "ref.h"

namespace opkiln::core {

class Event;

struct DeviceId {
  std::uint8_t kind = 0;  // 0 cpu, 1 cuda
  std::uint8_t index = 0;
  bool operator==(const DeviceId& o) const noexcept { return kind == o.kind && index == o.index; }
};

/// Outlives every executor that uses it.
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

  /// Queues completion of `event`'s record number `generation`. Not called on inline streams.
  virtual void enqueue(Event& event, std::uint64_t generation) = 0;
  /// Blocks until all queued work is done.
  virtual void synchronize() = 0;

 private:
  const DeviceId device_;
  const std::uint64_t id_;
  const bool inline_;
  const bool queue_limited_;
};

/// The process's inline CPU stream.
Stream& inline_cpu_stream();

/// For tests: a stream on a manual clock; a record made at tick t is done at tick t + lag.
class ManualStream final : public Stream {
 public:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  explicit ManualStream(std::uint64_t lag, DeviceId device = {1, 0}, bool queue_limited = false);
  void enqueue(Event& event, std::uint64_t generation) override;
  void synchronize() override;
  /// Moves the clock and completes what is due, in record order.
  void advance(std::uint64_t ticks);
  std::size_t pending() const;

 private:
  struct Record {
    Ref<Event> event;
    std::uint64_t generation;
    std::uint64_t due;
  };
  const std::uint64_t lag_;
  mutable std::mutex mutex_;
  std::uint64_t now_ = 0;
  std::vector<Record> queue_;
};

}  // namespace opkiln::core
