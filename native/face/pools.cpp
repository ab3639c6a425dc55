#include "face/pools.h"

#include <cstdio>
#include <string>

#include "face/call.h"
#include "face/errors.h"

namespace opkiln::face {

namespace {

std::string numbers(const uint64_t* words, int n) {
  std::string text;
  for (int i = 0; i < n; i++) {
    if (i) text += ", ";
    text += std::to_string(static_cast<int64_t>(words[i]));
  }
  return text;
}

// Of C order, as far as extents other than 1 tell.
bool is_dense(const uint64_t* shape, const uint64_t* strides, int rank, int64_t itemsize) {
  int64_t expected = itemsize;
  for (int i = rank; i-- > 0;) {
    const auto extent = static_cast<int64_t>(shape[i]);
    if (extent == 0) return true;
    if (extent != 1 && static_cast<int64_t>(strides[i]) != expected) return false;
    expected *= extent;
  }
  return true;
}

// False with an error set.
bool add_layout(std::string& text, const uint64_t* word) {
  PyArray_Descr* descr = g_descr[word_code(*word)];
  const Ref name(PyObject_Str(as_object(reinterpret_cast<PyArrayObject*>(descr))));
  const char* utf8 = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
  if (!utf8) return false;
  const int rank = word_rank(*word);
  text += std::string(utf8) + "[" + numbers(word + 1, rank) + "]";
  if (!is_dense(word + 1, word + 1 + rank, rank, PyDataType_ELSIZE(descr))) {
    text += " strides (" + numbers(word + 1 + rank, rank) + ")";
  }
  return true;
}

const char* word_for(uint8_t tag) {
  switch (tag) {
    case 'i':
      return "int";
    case 'u':
      return "unsigned int";
    case 'f':
      return "float";
    case 's':
      return "static";
    case 'n':
      return "out None";
    default:
      return nullptr;  // the shape of containers
  }
}

struct State {
  std::vector<uint64_t> key;
  size_t idle, leased, in_flight, bytes;
};

}  // namespace

PyObject* key_text(const uint64_t* key, size_t n) {
  std::string text;
  for (size_t i = 1; i < n; i++) {
    const uint8_t tag = word_tag(key[i]);
    const bool array = tag == 'a' || tag == 'o';
    const char* word = word_for(tag);
    if (!array && !word) continue;
    if (!text.empty()) text += ", ";
    if (word) text += word;
    if (!array) continue;
    if (tag == 'o') text += "out ";
    if (!add_layout(text, key + i)) return nullptr;
    i += 2 * static_cast<size_t>(word_rank(key[i]));
  }
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* list_pools() {
  std::vector<State> states;  // first: making objects may run any code
  if (const core::ThreadTable* table = core::ThreadTable::known()) {
    table->for_each([&](const core::Pool& pool) {
      size_t bytes = pool.key_bytes();
      pool.for_each([&](const core::Executor& x, bool) { bytes += x.bytes(); });
      states.push_back({{pool.words(), pool.words() + pool.key_size()},
                        pool.idle(),
                        pool.leased(),
                        pool.in_flight(),
                        bytes});
    });
  }
  Ref list(PyList_New(0));
  for (const State& state : states) {
    Ref key(list ? key_text(state.key.data(), state.key.size()) : nullptr);
    if (!key) return nullptr;
    Ref one(Py_BuildValue(
        "(KOnnnn)", static_cast<unsigned long long>(state.key[0]), key.get(),
        static_cast<Py_ssize_t>(state.idle), static_cast<Py_ssize_t>(state.leased),
        static_cast<Py_ssize_t>(state.in_flight), static_cast<Py_ssize_t>(state.bytes)));
    if (!one || PyList_Append(list.get(), one.get()) < 0) return nullptr;
  }
  return list.release();
}

PoolWatch::Counts PoolWatch::count() const {
  const core::FunctionStats& stats = self_->inside->state->stats;
  return {stats.built.load(), stats.waits.load(), stats.grew_past_limit.load(),
          table_.stats().evictions, core::Clock::now().time_since_epoch().count()};
}

void PoolWatch::tell(const core::KeyView& key) const {
  const Counts now = count();
  const core::Pool* pool = table_.find(key);
  Ref layouts(key_text(key.words, key.size));
  if (!pool || !layouts) throw PythonError{};
  const char* how = now.built != before_.built   ? "made"
                    : now.waits != before_.waits ? "waited for"
                                                 : "reused";
  Ref line(PyUnicode_FromFormat(
      "%s an executor for (%U) in %lld us; %zu idle, %zu leased, %zu in flight%s%s", how,
      layouts.get(), static_cast<long long>((now.nanoseconds - before_.nanoseconds) / 1000),
      pool->idle(), pool->leased(), pool->in_flight(),
      now.grew != before_.grew ? "; past the limit" : "",
      now.evictions != before_.evictions ? "; others were evicted" : ""));
  if (!line) throw PythonError{};
  call_hook(self_, g_hooks.leased, line.get(), nullptr);
}

void raise_pool_timeout(Compiled* self, const core::PoolTimeout& e) {
  Ref name(function_name(self->frontend));
  Ref key(key_text(e.key.data(), e.key.size()));
  if (!name || !key) return;
  std::string ages;
  for (const double age : e.event_age_s) {
    char text[32];
    std::snprintf(text, sizeof text, "%s%.3g s", ages.empty() ? " for " : ", ", age);
    ages += text;
  }
  const char* fix = e.in_flight ? "wait for earlier results, or raise OPKILN_POOL_CAP or "
                                  "OPKILN_POOL_TIMEOUT"
                                : "end the recursion: the function is called again before its call "
                                  "is over";
  raise(Err::pool_timeout, fix,
        "%U(): no executor for (%U) became free in time: %zu idle, %zu leased, %zu in flight%s",
        name.get(), key.get(), e.idle, e.leased, e.in_flight, ages.c_str());
}

}  // namespace opkiln::face
