#include "face/torch.h"

#include "face/errors.h"

namespace opkiln::face {

namespace {

// What torch offers for this, looked up once. A private name that a version lacks stays null, and
// with it the check; tests/test_interop.py sees that of the tested version none is missing.
struct Torch {
  PyObject* requires_grad = nullptr;  // descriptor of the property
  PyObject* is_neg = nullptr;         // unbound method
  PyObject* is_conj = nullptr;        // unbound method
  PyObject* is_tracing = nullptr;     // () -> torch.jit.trace is at work
  PyObject* count_modes = nullptr;    // () -> number of dispatch modes
  PyObject* transform = nullptr;      // () -> None outside of torch.func's transforms
  PyObject* forward_names = nullptr;  // dict of torch.autograd.forward_ad
  PyObject* current_level = nullptr;  // its name for the open level, -1 for none
  PyObject* increment_version = nullptr;
};

PyObject* attribute(PyObject* module, const char* path) {
  Ref found = Ref::borrow(module);
  Ref names(PyUnicode_FromString(path));
  Ref dot(PyUnicode_FromString("."));
  Ref parts(names && dot ? PyUnicode_Split(names.get(), dot.get(), -1) : nullptr);
  const Py_ssize_t n = parts ? PyList_GET_SIZE(parts.get()) : 0;
  for (Py_ssize_t i = 0; found && i < n; i++) {
    found = Ref(PyObject_GetAttr(found.get(), PyList_GET_ITEM(parts.get(), i)));
  }
  if (!found) PyErr_Clear();
  return found.release();
}

// Null with an error set when torch cannot be imported.
const Torch* torch() {
  static Torch* known = nullptr;
  if (OPKILN_LIKELY(known != nullptr)) return known;
  Ref module(PyImport_ImportModule("torch"));
  Ref forward(module ? PyImport_ImportModule("torch.autograd.forward_ad") : nullptr);
  Ref level(PyUnicode_InternFromString("_current_level"));
  if (!forward || !level) return nullptr;
  auto* made = new Torch;
  made->requires_grad = attribute(module.get(), "Tensor.requires_grad");
  made->is_neg = attribute(module.get(), "Tensor.is_neg");
  made->is_conj = attribute(module.get(), "Tensor.is_conj");
  made->is_tracing = attribute(module.get(), "_C._is_tracing");
  made->count_modes = attribute(module.get(), "_C._len_torch_dispatch_stack");
  made->transform = attribute(module.get(), "_C._functorch.peek_interpreter_stack");
  made->increment_version = attribute(module.get(), "autograd.graph.increment_version");
  if (!made->requires_grad || !made->is_neg || !made->is_conj) {
    raise(Err::internal, nullptr, "opkiln: torch.Tensor lacks requires_grad, is_neg or is_conj");
    return nullptr;
  }
  made->forward_names = Py_NewRef(PyModule_GetDict(forward.get()));
  made->current_level = level.release();
  known = made;
  return known;
}

PyObject* call_python(const char* name, PyObject* tensor, PyObject* argument) {
  Ref module(PyImport_ImportModule("opkiln.runtime.interop"));
  Ref function(module ? PyObject_GetAttrString(module.get(), name) : nullptr);
  return function ? PyObject_CallFunctionObjArgs(function.get(), tensor, argument, nullptr)
                  : nullptr;
}

// The truth of a property or method of no arguments, -1 with an error set.
int truth(Ref answer) {
  if (!answer) return -1;
  if (answer.get() == Py_False) return 0;
  return PyObject_IsTrue(answer.get());
}

int is_special(const Torch& t, PyObject* tensor) {
  const descrgetfunc get = Py_TYPE(t.requires_grad)->tp_descr_get;
  const auto type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  const int yes = truth(Ref(get(t.requires_grad, tensor, type)));
  return yes ? yes : truth(Ref(PyObject_Vectorcall(t.is_neg, &tensor, 1, nullptr)));
}

}  // namespace

int torch_is_watching() {
  const Torch* t = torch();
  if (!t) return -1;
  for (PyObject* question : {t->is_tracing, t->count_modes, t->transform}) {
    const int yes = question ? truth(Ref(PyObject_CallNoArgs(question))) : 0;
    if (yes) return yes;
  }
  PyObject* level = PyDict_GetItemWithError(t->forward_names, t->current_level);
  if (!level) return PyErr_Occurred() ? -1 : 0;
  const long open = PyLong_AsLong(level);
  return open == -1 && PyErr_Occurred() ? -1 : open >= 0;
}

bool check_torch(PyObject* tensor, bool watching, bool written) {
  const Torch* t = torch();
  if (!t) return false;
  const int special = watching ? 1 : is_special(*t, tensor);
  if (OPKILN_LIKELY(special == 0)) return true;
  if (special < 0) return false;
  return bool(Ref(call_python("check_tensor", tensor, written ? Py_True : Py_False)));
}

int is_conjugate(PyObject* tensor) {
  const Torch* t = torch();
  return t ? truth(Ref(PyObject_Vectorcall(t->is_conj, &tensor, 1, nullptr))) : -1;
}

bool mark_written(PyObject* tensor) {
  const Torch* t = torch();
  if (!t) return false;
  if (!t->increment_version) return true;
  return bool(Ref(PyObject_CallOneArg(t->increment_version, tensor)));
}

}  // namespace opkiln::face
