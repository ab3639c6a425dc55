// blocking.h: waits during which the face gives up the interpreter lock and listens to signals.
#pragma once

#include "event.h"

namespace opkiln::core {

/// `begin` gives up the interpreter lock and `end` takes it again; `check`, called with the lock
/// some times a second, may throw to end the wait (Ctrl-C).
struct BlockingHooks {
  void* (*begin)() = nullptr;
  void (*end)(void*) = nullptr;
  void (*check)() = nullptr;
};
void set_blocking_hooks(BlockingHooks hooks) noexcept;

/// Blocks until the record is done; false when the time is over first. Any code may run meanwhile
/// on this thread (a signal handler) and on others. Throws what `check` throws.
bool wait_interruptibly(const EventRecord& record, Timeout timeout = {});

}  // namespace opkiln::core
