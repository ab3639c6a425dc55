// The object a user calls: in go the arguments, out comes the result; on a known key no Python
// runs.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/function.h"
#include "core/pool.h"
#include "face/bind.h"
#include "face/misses.h"
#include "face/results.h"
#include "face/statics.h"

namespace opkiln::face {

// Changed under the GIL only; the executors' own numbers are in core::FunctionStats.
struct Counters {
  uint64_t calls, hits, misses, traces, programs, builds, disk_hits, fallbacks, integer_faults;
};

// What the object owns beside plain fields; never null between tp_new and tp_dealloc.
struct Inside {
  Interns interns;
  RecordMap records;
  MissLog misses;
  CopyLog copies;
  core::Ref<core::FunctionState> state = core::make_ref<core::FunctionState>();
  std::vector<char> kinds;      // inspect's kind of each parameter
  std::vector<char> is_static;  // parameter named in static=
  Ref reaper;                   // capsule whose context is the object, until that is destroyed
};

struct Compiled {
  PyObject_HEAD vectorcallfunc vectorcall;
  uint64_t id;  // of `state`, never reused; renewed by clear()
  int n_params;
  int n_positional;  // parameters that may be given by position
  int n_positional_only;
  int n_quick;                // n_params when so many arguments need no binding, else -1
  bool plain;                 // positional parameters only, none static: the short way binds
  bool takes_out;             // there is an `out=`, and no parameter has that name
  uint8_t errstate;           // what an integer division fault does: an Errstate
  bool has_self;              // the first parameter is named `self`: any object, by identity
  uint64_t guess_generation;  // while this is the thread's generation, `guess` is alive:
  core::Pool* guess;          // the pool of the last hit, on any thread
  Counters counters;
  PyObject* frontend;
  PyObject* names;
  PyObject* defaults;
  PyObject* dict;
  PyObject* weakrefs;
  Inside* inside;
};

enum Errstate : uint8_t { kIgnore, kWarn, kRaise };

// What an integer division fault does in this context: what `with ok.errstate()` says, else the
// function's own option. May throw PythonError.
Errstate errstate_of(const Compiled* self);

// The context variable of ok.errstate(), once it has been used; null before.
extern PyObject* g_errstate;
// Whether executors made for new layouts are told to the frontend too, for its log.
extern bool g_tell_all;

// Creates the type and adds it to the module; -1 on error.
int add_compiled_type(PyObject* module);

extern PyObject* g_missing;  // the MISSING singleton
extern PyObject* g_str_out;  // interned "out"

}  // namespace opkiln::face
