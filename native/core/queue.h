// queue.h: the asynchronous CPU stream: a queue that one thread of its own works off in order.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "event.h"
#include "stream.h"

namespace opkiln::core {

class WorkQueue;

/// The thread starts with the first work, and ends when there was none for `idle`, after close(),
/// or when this object is gone and the queue is empty. All methods may be called from any thread.
class QueueStream final : public Stream {
 public:
  static constexpr std::chrono::seconds kIdle{10};
  explicit QueueStream(std::chrono::nanoseconds idle = kIdle, DeviceId device = {0, 0});
  ~QueueStream() override;  // what is queued is still done

  void submit(Work& work) override;
  void enqueue(Event& event, std::uint64_t generation) override;
  void wait(Event& event, std::uint64_t generation) override;
  EventRecord mark() override;  // also of a closed stream

  /// No more work is taken; what is queued is done, then the thread ends. Does not block.
  void close() noexcept;
  bool closed() const noexcept;
  std::size_t pending() const noexcept;  // queued or running
  bool has_thread() const noexcept;

 private:
  std::shared_ptr<WorkQueue> queue_;
};

/// All queues of the process.
struct Queues {
  std::size_t streams, threads, pending;
  static Queues count();
  /// What is to be waited for until all that is queued now is done.
  static std::vector<EventRecord> marks();
  /// Takes what is still queued out of every queue, in order, and closes them. Returns how much.
  static std::size_t drop_all();
};

}  // namespace opkiln::core
