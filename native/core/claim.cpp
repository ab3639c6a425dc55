#include "claim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

namespace opkiln::core {

struct Claim::File {
  explicit File(int fd) : fd(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(fd); }

  int fd;
  pid_t owner = getpid();
  bool useless = false;                 // its file system has no such locks: do not ask again
  std::map<std::uint64_t, int> counts;  // claims by offset
};

struct Claim::Files {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<File>> open;

  /// Leaked: a library may be dropped after static destructors ran.
  static Files& get() {
    static Files* made = nullptr;
    static const bool once = [] {
      made = new Files;
      pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                     [] { made->mutex.unlock(); });
      return true;
    }();
    static_cast<void>(once);
    return *made;
  }

  std::shared_ptr<File> find(const std::string& path) {
    std::shared_ptr<File>& known = open[path];
    struct stat status;
    const bool there = known && fstat(known->fd, &status) == 0 && status.st_nlink > 0;
    if (there && known->owner == getpid()) return known;  // a forked child opens its own
    // Not only for reading: NFS gives locks by the mode of the open file.
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    known = fd < 0 ? nullptr : std::make_shared<File>(fd);
    return known;
  }
};

namespace {

bool set_lock([[maybe_unused]] int fd, [[maybe_unused]] short kind,
              [[maybe_unused]] std::uint64_t at) {
#ifdef F_OFD_SETLK
  struct flock lock = {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(at);
  lock.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
#else
  errno = ENOSYS;
  return false;
#endif
}

}  // namespace

Claim::Claim(const std::string& file, std::uint64_t at) : at_(at) {
  Files& files = Files::get();
  const std::lock_guard<std::mutex> lock(files.mutex);
  std::shared_ptr<File> found = files.find(file);
  if (!found || found->useless) return;
  if (!found->counts.contains(at) && !set_lock(found->fd, F_RDLCK, at)) {
    found->useless = errno != EAGAIN && errno != EACCES && errno != EINTR;
    return;
  }
  ++found->counts[at];
  file_ = std::move(found);
}

Claim& Claim::operator=(Claim&& other) noexcept {
  if (this != &other) {
    release();
    file_ = std::move(other.file_);
    at_ = other.at_;
  }
  return *this;
}

void Claim::release() noexcept {
  if (!file_) return;
  const std::lock_guard<std::mutex> lock(Files::get().mutex);
  const auto found = file_->counts.find(at_);
  if (--found->second == 0) {
    file_->counts.erase(found);
    // A forked child's copy is its parent's lock too, which the child must not end.
    if (file_->owner == getpid()) set_lock(file_->fd, F_UNLCK, at_);
  }
  file_.reset();
}

}  // namespace opkiln::core
