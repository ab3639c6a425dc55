// queue.cpp: the queue of an asynchronous CPU stream, its thread, and what a fork leaves of both.
#include "queue.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "errors.h"

namespace opkiln::core {

/// Shared by the stream and its thread: whoever is last frees it.
class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  explicit WorkQueue(std::chrono::nanoseconds idle);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void push(Work& work);
  EventRecord mark() const;
  void close() noexcept;
  std::size_t drop() noexcept;

  // --- around fork(), with the list locked
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  void reset_in_child() noexcept;

  mutable std::mutex mutex_;
  std::size_t pending_ = 0;
  bool thread_ = false;  // one is there
  bool closed_ = false;

 private:
  void start();
  void append(Work& work) noexcept;
  void work();
  Work* pop() noexcept;

  std::condition_variable wake_;
  Work* head_ = nullptr;
  Work* tail_ = nullptr;
  Work* running_ = nullptr;
  bool asleep_ = false;
  bool parents_ = false;  // this process is a child of the one whose thread works here
  const std::chrono::nanoseconds idle_;
};

namespace {

struct QueueList {
  std::mutex mutex;
  std::vector<WorkQueue*> queues;
};

QueueList& queue_list() {
  static QueueList* state = [] {
    static auto* made = new QueueList;  // never destroyed: threads may end after main
    pthread_atfork(
        [] {
          made->mutex.lock();
          for (WorkQueue* queue : made->queues) queue->lock_for_fork();
        },
        [] {
          for (WorkQueue* queue : made->queues) queue->unlock_after_fork();
          made->mutex.unlock();
        },
        [] {
          for (WorkQueue* queue : made->queues) queue->reset_in_child();
          made->mutex.unlock();
        });
    return made;
  }();
  return *state;
}

/// Nothing but the completion of its event's record.
class Mark : public Work {
 public:
  using Work::Work;
  void run() noexcept override {}
  void finished() noexcept override { delete this; }
  void dropped() noexcept override { delete this; }
  void lost() noexcept override {}  // not freed: a thread of the parent is in its event for ever
};

/// Holds up the queue until another stream's record is done.
class Barrier final : public Mark {
 public:
  Barrier(Event& event, std::uint64_t generation) : other_(&event), of_other_(generation) {}
  void run() noexcept override { other_->wait_for(of_other_); }

 private:
  Ref<Event> other_;
  std::uint64_t of_other_;
};

}  // namespace

WorkQueue::WorkQueue(std::chrono::nanoseconds idle) : idle_(idle) {
  QueueList& all = queue_list();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.queues.push_back(this);
}

WorkQueue::~WorkQueue() {
  QueueList& all = queue_list();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.queues.erase(std::remove(all.queues.begin(), all.queues.end(), this), all.queues.end());
}

void WorkQueue::append(Work& work) noexcept {
  work.next_ = nullptr;
  (tail_ != nullptr ? tail_->next_ : head_) = &work;
  tail_ = &work;
  ++pending_;
}

void WorkQueue::push(Work& work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (parents_)
      throw StreamClosed("the stream belongs to the process that this one was forked from");
    if (closed_) throw StreamClosed("the stream is closed");
    if (!thread_) start();
    append(work);
    if (!asleep_) return;
    asleep_ = false;
  }
  wake_.notify_one();
}

/// Work is done in order, so all is done when the last is.
EventRecord WorkQueue::mark() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Work* last = tail_ != nullptr ? tail_ : running_;
  return last != nullptr ? EventRecord{last->event_, last->generation_} : EventRecord{};
}

/// Signals are for the threads of the program: Ctrl-C must interrupt the one that waits.
void WorkQueue::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread([self = shared_from_this()] { self->work(); });
#if defined(__linux__)
    pthread_setname_np(thread.native_handle(), "opkiln-stream");
#endif
    thread.detach();
    thread_ = true;
  } catch (const std::system_error& e) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(std::string("no thread for the stream: ") + e.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Work* WorkQueue::pop() noexcept {
  Work* work = head_;
  if (work == nullptr) return nullptr;
  head_ = work->next_;
  if (head_ == nullptr) tail_ = nullptr;
  return work;
}

void WorkQueue::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    running_ = pop();
    if (running_ != nullptr) {
      Work& work = *running_;
      lock.unlock();
      work.run();
      work.event_->complete(work.generation_);
      lock.lock();
      running_ = nullptr;  // before it may be freed: a fork looks at it
      --pending_;
      lock.unlock();
      work.finished();
      lock.lock();
      continue;
    }
    if (closed_) break;
    asleep_ = true;
    const bool woken = wake_.wait_for(lock, idle_, [this] { return head_ != nullptr || closed_; });
    asleep_ = false;
    if (!woken) break;
  }
  thread_ = false;
}

void WorkQueue::close() noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  wake_.notify_one();
}

/// All at once: with a wait gone the thread must not come to what it held up.
std::size_t WorkQueue::drop() noexcept {
  Work* work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    work = std::exchange(head_, nullptr);
    tail_ = nullptr;
  }
  wake_.notify_one();
  std::size_t count = 0;
  for (; work != nullptr; ++count) {
    Work* next = work->next_;
    const Ref<Event> event = work->event_;
    const std::uint64_t generation = work->generation_;
    work->dropped();
    event->complete(generation);
    const std::lock_guard<std::mutex> lock(mutex_);
    --pending_;
    work = next;
  }
  return count;
}

/// The thread is the parent's. What it would have done is not done here; whoever waits is told.
void WorkQueue::reset_in_child() noexcept {
  new (&mutex_) std::mutex;
  new (&wake_) std::condition_variable;
  const auto give_up = [](Work* work) {
    const Ref<Event> event = work->event_;
    const std::uint64_t generation = work->generation_;
    work->lost();
    event->complete_in_child(generation);
  };
  if (running_ != nullptr) give_up(std::exchange(running_, nullptr));
  while (Work* work = pop()) give_up(work);
  pending_ = 0;
  thread_ = asleep_ = false;
  closed_ = parents_ = true;
}

QueueStream::QueueStream(std::chrono::nanoseconds idle, DeviceId device)
    : Stream(device, false), queue_(std::make_shared<WorkQueue>(idle)) {}

QueueStream::~QueueStream() { queue_->close(); }

void QueueStream::submit(Work& work) { queue_->push(work); }

void QueueStream::enqueue(Event& event, std::uint64_t generation) {
  auto mark = std::make_unique<Mark>(event, generation);
  queue_->push(*mark);
  static_cast<void>(mark.release());
}

void QueueStream::wait(Event& event, std::uint64_t generation) {
  auto barrier = std::make_unique<Barrier>(event, generation);
  make_ref<Event>(device(), false)->record(*this, *barrier);
  static_cast<void>(barrier.release());
}

EventRecord QueueStream::mark() { return queue_->mark(); }

void QueueStream::close() noexcept { queue_->close(); }

bool QueueStream::closed() const noexcept {
  const std::lock_guard<std::mutex> lock(queue_->mutex_);
  return queue_->closed_;
}

std::size_t QueueStream::pending() const noexcept {
  const std::lock_guard<std::mutex> lock(queue_->mutex_);
  return queue_->pending_;
}

bool QueueStream::has_thread() const noexcept {
  const std::lock_guard<std::mutex> lock(queue_->mutex_);
  return queue_->thread_;
}

Queues Queues::count() {
  QueueList& all = queue_list();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Queues sum{all.queues.size(), 0, 0};
  for (const WorkQueue* queue : all.queues) {
    const std::lock_guard<std::mutex> of_queue(queue->mutex_);
    sum.threads += queue->thread_ ? 1 : 0;
    sum.pending += queue->pending_;
  }
  return sum;
}

namespace {

/// Those that no destructor has begun on.
std::vector<std::shared_ptr<WorkQueue>> live_queues() {
  QueueList& all = queue_list();
  std::vector<std::shared_ptr<WorkQueue>> live;
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (WorkQueue* queue : all.queues)
    if (std::shared_ptr<WorkQueue> alive = queue->weak_from_this().lock())
      live.push_back(std::move(alive));
  return live;
}

}  // namespace

std::vector<EventRecord> Queues::marks() {
  std::vector<EventRecord> last;
  for (const std::shared_ptr<WorkQueue>& queue : live_queues())
    if (EventRecord mark = queue->mark(); mark.event) last.push_back(std::move(mark));
  return last;
}

std::size_t Queues::drop_all() {
  std::size_t count = 0;
  for (const std::shared_ptr<WorkQueue>& queue : live_queues()) count += queue->drop();
  return count;
}

}  // namespace opkiln::core
