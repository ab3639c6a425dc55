// test_claim.cpp: a claim is seen by others, shared, dropped with its last holder, and survives
// forks.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "core/claim.h"
#include "support.h"

namespace opkiln::test {
namespace {

#ifdef F_OFD_SETLK

struct Scratch {
  Scratch() { close(mkstemp(path.data())); }
  ~Scratch() { unlink(path.c_str()); }
  std::string path = "/tmp/opkiln-claim-XXXXXX";
};

/// Whether nobody claims the byte: what a remover asks.
bool is_free(const std::string& path, off_t at) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_start = at;
  lock.l_len = 1;
  const bool got = fcntl(fd, F_OFD_SETLK, &lock) == 0;
  close(fd);
  return got;
}

TEST(claim_is_seen_until_the_last_holder_drops_it) {
  const Scratch file;
  CHECK(is_free(file.path, 7));
  {
    core::Claim first(file.path, 7);
    CHECK(first.held() && !is_free(file.path, 7) && is_free(file.path, 8));
    core::Claim second(file.path, 7);
    first = core::Claim();
    CHECK(!is_free(file.path, 7));
    core::Claim moved = std::move(second);
    CHECK(moved.held() && !second.held() && !is_free(file.path, 7));
    moved = core::Claim(file.path, std::uint64_t{1} << 59);
    CHECK(is_free(file.path, 7) && !is_free(file.path, off_t{1} << 59));
  }
  CHECK(is_free(file.path, off_t{1} << 59));
}

TEST(claim_where_there_is_no_file) { CHECK(!core::Claim("/nowhere/at/all", 1).held()); }

TEST(claim_on_a_file_that_was_replaced) {
  const Scratch file;
  const core::Claim first(file.path, 7);
  unlink(file.path.c_str());
  const core::Claim second(file.path, 7);
  CHECK(second.held() && !is_free(file.path, 7));
}

TEST(claim_and_fork) {
  const Scratch file;
  auto* parents = new core::Claim(file.path, 7);
  int done[2];
  int go[2];
  CHECK(pipe(done) == 0 && pipe(go) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(go[1]);  // or the child itself would keep the pipe open
    bool right = true;
    {
      const core::Claim own(file.path, 9);
      right = own.held() && !is_free(file.path, 9);
    }
    right = right && is_free(file.path, 9);  // its own are its own to drop
    delete parents;
    right = right && !is_free(file.path, 7);  // its parent's are not
    char byte = right ? 1 : 0;
    if (write(done[1], &byte, 1) != 1) _exit(2);
    if (read(go[0], &byte, 1) < 0) _exit(3);
    _exit(0);
  }
  char right = 0;
  CHECK(read(done[0], &right, 1) == 1 && right == 1);
  CHECK(!is_free(file.path, 7));
  delete parents;
  CHECK(is_free(file.path, 7));
  close(go[1]);
  CHECK(waitpid(pid, nullptr, 0) == pid);
  for (const int fd : {done[0], done[1], go[0]}) close(fd);
}

#endif

}  // namespace
}  // namespace opkiln::test
