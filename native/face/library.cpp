#include "face/library.h"

#include <dlfcn.h>

#include "face/errors.h"

namespace opkiln::face {

std::shared_ptr<LibraryHandle> LibraryHandle::open(const std::string& path) {
  std::string message;
  void* handle = nullptr;
  Py_BEGIN_ALLOW_THREADS;  // the loader may read a slow disk
  handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* text = dlerror();
    message = text ? text : "unknown reason";
  }
  Py_END_ALLOW_THREADS;
  if (!handle) {
    raise(Err::load,
          "see the loader's reason in the message; removing the file makes opkiln rebuild it",
          "cannot load %s: %s", path.c_str(), message.c_str());
    return nullptr;
  }
  return std::shared_ptr<LibraryHandle>(new LibraryHandle(handle, path));
}

LibraryHandle::~LibraryHandle() { dlclose(handle_); }

bool LibraryHandle::claim(const std::string& file, std::uint64_t at) {
  Py_BEGIN_ALLOW_THREADS;  // the file may be on another machine
  claim_ = core::Claim(file, at);
  Py_END_ALLOW_THREADS;
  return claim_.held();
}

void* LibraryHandle::symbol(const std::string& name) const {
  void* address = dlsym(handle_, name.c_str());
  if (!address) {
    raise(Err::symbol, nullptr, "expected %s to export %s, it does not", path_.c_str(),
          name.c_str());
  }
  return address;
}

}  // namespace opkiln::face
