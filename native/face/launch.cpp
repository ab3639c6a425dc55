// A call under `with stream:`. It is bound, leased and given its memory here; its kernels run when
// the stream comes to them.
#include "core/blocking.h"
#include "core/table.h"
#include "face/call.h"
#include "face/doors.h"
#include "face/errors.h"
#include "face/future.h"
#include "face/streams.h"

namespace opkiln::face {

namespace {

struct RunNow {};  // thrown when the call cannot be queued

// Waits until the stream and the arguments are ready, then runs the call on this thread.
PyObject* run_now(Compiled* self, CallArgs& call, PyObject* out) {
  for (PyObject* need : call.needs) {
    Future* future = future_of(need);
    if (!wait_for(future)) return nullptr;
    const Ref value(value_of(future));
    if (!value) return nullptr;
  }
  const core::EventRecord last = call.stream->mark();
  if (last.event) wait_here(last, Py_None, "");
  call.key.resize_down(call.args_size);
  const InlineHere inline_here;
  Ref value(compute_now(self, call, out));
  if (!value) return nullptr;
  Future* future = new_future();
  if (!future) return nullptr;
  future->pending().value = value.release();
  future->pending().function =
      reinterpret_cast<Compiled*>(Py_NewRef(reinterpret_cast<PyObject*>(self)));
  return reinterpret_cast<PyObject*>(future);
}

// Whatever the kernels read or write lives until they are done.
void keep_alive(CallArgs& call, OutArgs* outs, Pending& pending) {
  for (size_t i = 0; i < call.leaf.size(); i++) {
    if (call.kind[i] == 'a') pending.kept.push(Py_NewRef(call.leaf[i]));
  }
  for (PyObject* o : call.owned) pending.kept.push(o);
  call.owned.resize_down(0);
  for (PyObject* need : call.needs) pending.needs.push(&future_of(need)->pending());
  for (size_t k = 0; outs && k < outs->given.size(); k++) {
    pending.given.push(Py_XNewRef(outs->given[k]));
    if (outs->arrays[k]) pending.kept.push(Py_NewRef(as_object(outs->arrays[k])));
  }
}

// What another stream computes is waited for there.
void wait_for_needs(const CallArgs& call) {
  for (PyObject* need : call.needs) {
    const Pending& pending = future_of(need)->pending();
    if (pending.stream != call.stream->id() && !pending.done())
      call.stream->wait(*pending.event(), pending.generation());
  }
}

// The memory of a run. False with an error set.
bool bind_memory(Compiled* self, CallArgs& call, OutArgs* outs, core::Executor& x,
                 Pending& pending) {
  Record* record = pending.record.get();
  std::memcpy(x.args(), call.data.data(), call.data.size() * sizeof(char*));
  if (!record->captures.empty() && !bind_captures(self, call, record, x)) return false;
  if (!bind_outs(self, call, outs, outs != nullptr, record->n_outs, x, pending.results, nullptr))
    return false;
  if (outs && !may_write_outs(self, record, x, *outs)) throw RunNow{};
  try {
    x.set_up(reinterpret_cast<const core::HostValue*>(call.weak.data()));
  } catch (const core::HostError& e) {
    throw_host_error(self, record, e);
  }
  const bool numbers = record->out_of_output.size() != record->n_outs;
  return !numbers || host_numbers(record, x, pending.numbers);
}

PyObject* enqueue(Compiled* self, CallArgs& call, OutArgs* outs) {
  RecordRef held;
  bool hit;
  const size_t key_size = outs ? call.key.size() : call.args_size;
  core::Lease lease = lease_executor(self, call, key_size, outs, held, hit);
  core::Executor& x = *lease;
  Ref owner(reinterpret_cast<PyObject*>(new_future()));
  if (!owner) return nullptr;
  Pending& pending = future_of(owner.get())->pending();
  pending.record.reset(static_cast<Record*>(x.user));
  const Record* record = pending.record.get();
  if (outs && !check_out_count(*outs, record->n_outs)) return nullptr;
  if (x.is_fallback() || (outs && record->by_copy)) {
    lease.cancel();
    throw RunNow{};
  }
  pending.function = reinterpret_cast<Compiled*>(Py_NewRef(reinterpret_cast<PyObject*>(self)));
  pending.origin = call.origin;
  pending.errstate = record->divides ? errstate_of(self) : kIgnore;
  pending.stream = call.stream->id();
  if (!bind_memory(self, call, outs, x, pending)) return nullptr;
  if (x.launches()) {
    wait_for_needs(call);
    order_after_queued(x, call.stream);
  }
  ++(hit ? self->counters.hits : self->counters.misses);
  if (!x.launches()) {
    lease.release();
    return owner.release();
  }
  keep_alive(call, outs, pending);
  pending.executor = &x;
  lease.submit(*call.stream, pending);  // from here on the worker may be through with it
  Py_INCREF(owner.get());               // the queue's, which only reclaim() gives back
  pending.track();
  return owner.release();
}

}  // namespace

PyObject* launch(Compiled* self, CallArgs& call, PyObject* out) {
  reclaim();
  if (!(call.stream->device() == core::DeviceId{})) {
    return raise(Err::device, "use a stream of the arrays' device",
                 "expected a stream of cpu, where the arrays are");
  }
  OutArgs outs;
  if (out && !read_outs(call, out, outs)) return nullptr;
  const auto now = [&] { return run_now(self, call, out); };
  const auto queued = [&] {
    try {
      return enqueue(self, call, out ? &outs : nullptr);
    } catch (const RunNow&) {
      return now();
    }
  };
  return out ? into_outs(outs, queued, now) : queued();
}

}  // namespace opkiln::face
