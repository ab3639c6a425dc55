// In: the path of a shared library; out: addresses of its functions, valid while anyone holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/claim.h"

namespace opkiln::face {

// Closed when the last Python object and the last plan that uses it are gone, on any thread.
class LibraryHandle {
 public:
  // Null with a Python error set when it cannot be loaded.
  static std::shared_ptr<LibraryHandle> open(const std::string& path);
  ~LibraryHandle();
  LibraryHandle(const LibraryHandle&) = delete;
  LibraryHandle& operator=(const LibraryHandle&) = delete;

  // Null with a Python error set when there is no such function.
  void* symbol(const std::string& name) const;
  const std::string& path() const { return path_; }
  void* handle() const { return handle_; }  // what dlopen returned
  // Tells other processes, by a lock at `at` in `file`, that the library is in use until it is
  // closed.
  bool claim(const std::string& file, std::uint64_t at);

 private:
  LibraryHandle(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
  core::Claim claim_;
};

}  // namespace opkiln::face
