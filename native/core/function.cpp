// function.cpp: never-reused ids and the list of those whose functions are gone.
#include "function.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>

namespace opkiln::core {
namespace {

std::atomic<std::uint64_t> next_id{1};

struct DeadState {
  std::mutex mutex;
  std::atomic<std::uint64_t> epoch{0};
  struct Mark {
    std::uint64_t epoch, id;
  };
  std::vector<Mark> marks;  // by epoch
};

DeadState& dead_state() {
  static DeadState* state = [] {
    static auto* made = new DeadState;  // never destroyed: threads may end after main
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { made->mutex.unlock(); });
    return made;
  }();
  return *state;
}

}  // namespace

FunctionState::FunctionState() : id_(next_id.fetch_add(1, std::memory_order_relaxed)) {}

void FunctionState::renew() {
  DeadFunctions::mark(id_.exchange(next_id.fetch_add(1, std::memory_order_relaxed)));
}

void FunctionState::retire() { DeadFunctions::mark(id()); }

std::uint64_t DeadFunctions::epoch() noexcept {
  return dead_state().epoch.load(std::memory_order_acquire);
}

void DeadFunctions::mark(std::uint64_t id) {
  DeadState& state = dead_state();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const std::uint64_t now = state.epoch.load(std::memory_order_relaxed) + 1;
  state.marks.push_back({now, id});
  state.epoch.store(now, std::memory_order_release);
}

std::vector<std::uint64_t> DeadFunctions::after(std::uint64_t since, std::uint64_t* now) {
  DeadState& state = dead_state();
  std::vector<std::uint64_t> ids;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    *now = state.epoch.load(std::memory_order_relaxed);
    const auto first =
        std::upper_bound(state.marks.begin(), state.marks.end(), since,
                         [](std::uint64_t e, const DeadState::Mark& m) { return e < m.epoch; });
    for (auto it = first; it != state.marks.end(); ++it) ids.push_back(it->id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

void DeadFunctions::forget_until(std::uint64_t epoch) {
  DeadState& state = dead_state();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto last =
      std::upper_bound(state.marks.begin(), state.marks.end(), epoch,
                       [](std::uint64_t e, const DeadState::Mark& m) { return e < m.epoch; });
  state.marks.erase(state.marks.begin(), last);
}

std::size_t DeadFunctions::size() {
  DeadState& state = dead_state();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.marks.size();
}

}  // namespace opkiln::core
