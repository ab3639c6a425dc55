// claim.h: a shared lock on one byte of a file, which tells other processes that a thing is in use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace opkiln::core {

/// Held until it is destroyed; the system drops it when the process ends, in whatever way. Never
/// waits. A forked child shares its parent's claims, and they last as long as either lives.
class Claim {
 public:
  Claim() = default;
  /// Holds nothing where the file cannot be opened, its file system has no such locks, or someone
  /// is about to remove the thing.
  Claim(const std::string& file, std::uint64_t at);
  Claim(Claim&& other) noexcept = default;
  Claim& operator=(Claim&& other) noexcept;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { release(); }

  bool held() const noexcept { return file_ != nullptr; }

 private:
  struct File;  // one open file per path: as many claims as wanted cost one descriptor
  struct Files;

  void release() noexcept;

  std::shared_ptr<File> file_;
  std::uint64_t at_ = 0;
};

}  // namespace opkiln::core
