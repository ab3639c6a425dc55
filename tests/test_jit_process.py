"""Forks and interrupts around a build: no lock, pipe, descriptor or child is left to anyone."""

import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import jit_child as child

from opkiln.runtime import jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import build, descriptors, lock, spawn

SLEEP = ["/bin/sleep", "30"]


@pytest.fixture
def worker() -> Iterator[Callable[[], int]]:
    """`worker()` forks a child that lives until the test ends, as a pool of workers does."""
    pids: list[int] = []

    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        pids.append(pid)
        return pid

    yield fork
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def in_fork(question: Callable[[], bool]) -> bool:
    """Ask a forked child."""
    pid = os.fork()
    if pid == 0:
        answer = 2
        try:
            answer = 0 if question() else 1
        finally:
            os._exit(answer)
    return os.waitpid(pid, 0)[1] == 0


def take(path: Path) -> lock.ProcessLock:
    return lock.ProcessLock(str(path), 0, print)


def start(job: spawn.Job, command: list[str]) -> int:
    with Path(os.devnull).open("w", encoding="utf-8") as out:
        job.start(command, stdin=None, stdout=out.fileno(), stderr=out.fileno())
    return job._pids[-1]


def waited_for(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == ()
    except ChildProcessError:
        return True


def children(name: str) -> list[int]:
    """Children of this process with that name, ended ones too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            start, _, rest = stat.read_text(encoding="utf-8").rpartition(")")
            pid, _, comm = start.partition(" (")
            if comm == name and rest.split()[1] == str(os.getpid()):
                found.append(int(pid))
    return found


# ---- fork ----


def test_F086_a_lock_ends_with_its_holder_although_a_forked_worker_lives(
    tmp_path: Path, worker: Callable[[], int]
) -> None:
    held = take(tmp_path / "lock").__enter__()
    assert held.held
    worker()
    time.sleep(0.05)  # the child closes its copy
    assert held._file is not None
    held._file.close()  # as the kernel does for a holder that is killed: nobody unlocks
    with take(tmp_path / "lock") as second:
        assert second.held


def test_F086_a_forked_child_leaves_its_parents_lock_alone(tmp_path: Path) -> None:
    with take(tmp_path / "lock") as held:

        def ask() -> bool:
            mine = held.held
            with take(tmp_path / "lock") as second:
                theirs = second.held
            held.__exit__()  # the child unwinds the parent's block
            return not mine and not theirs and (tmp_path / "lock").exists()

        assert in_fork(ask)
        assert held.held
        with take(tmp_path / "lock") as second:
            assert not second.held


def test_F086_release_unlocks_a_copy_too(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with take(tmp_path / "lock") as held:
        assert held._file is not None
        copy = os.dup(held._file.fileno())  # as in a child whose hooks did not run
    try:
        again = os.open(f"/proc/self/fd/{copy}", os.O_RDWR)
        try:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(again)
    finally:
        os.close(copy)


def test_F086_a_fork_between_opening_and_knowing(
    tmp_path: Path, worker: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    forked: list[int] = []

    def opening(path: str, *rest: int) -> int:
        descriptor = real(path, *rest)
        if not forked:
            forked.append(worker())  # another thread forks in this moment
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(descriptors.os, "open", opening)
        held = take(tmp_path / "lock").__enter__()
    assert forked
    assert held.held
    assert held._file is not None
    held._file.close()
    with take(tmp_path / "lock") as second:
        assert second.held


def test_F086_a_worker_forked_between_the_steps_of_a_build(
    tmp_path: Path, worker: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The assembler reads to the end of the pipe, which never comes while a worker can write to it.
    real = spawn.Job.start

    def starting(self: spawn.Job, *args: object, **kw: int | None) -> None:
        real(self, *args, **kw)
        worker()

    monkeypatch.setattr(spawn.Job, "start", starting)
    with config.scope(cache_dir=tmp_path / "cache", compile_timeout=15):
        assert jit.build_or_load(child.TEXT, ["answer"], name="answer").hit == "built"


FORK = """
import os, threading, time
from opkiln.runtime import jit
mark = os.environ["MARK"]
def ask():
    return jit.build_or_load(TEXT, ["answer"], name="answer")
jit.compiler()
thread = threading.Thread(target=ask)
thread.start()
while not os.path.exists(mark):
    time.sleep(.005)
pid = os.fork()
if pid == 0:
    os._exit(0 if ask().hit == "disk" else 1)
thread.join()
start = time.monotonic()
report["status"] = os.waitpid(pid, 0)[1]
report["waited"] = time.monotonic() - start
"""


def test_F086_a_child_forked_during_a_build_needs_the_same_kernel(
    cache_dir: Path, tmp_path: Path
) -> None:
    body = child.PROBES + 'echo build >> "$LOG"\nsleep 1\nexec "$G" "$@"'
    cxx = child.stub(tmp_path / "cxx", body)
    text = f"TEXT = {child.TEXT!r}\n{FORK}"
    report = child.run_child(
        {"before": text}, OPKILN_CXX=cxx, OPKILN_LOCK_WAIT="30", MARK=cxx.with_suffix(".log")
    )
    assert report["status"] == 0
    assert report["waited"] < 10
    assert child.starts(cxx) == 1


IMPORT = """
import os, signal, sys, threading, time
from opkiln.runtime import jit
class Slow:
    def find_spec(self, name, *_):
        if name == "opkiln.runtime.jit.build":
            began.set()
            time.sleep(0.5)
began = threading.Event()
sys.meta_path.insert(0, Slow())
def ask():
    return jit.build_or_load(TEXT, ["answer"], name="answer")
thread = threading.Thread(target=ask)
thread.start()
began.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    ask()
    os._exit(0)
thread.join()
report["status"] = os.waitpid(pid, 0)[1]
"""


def test_F086_a_fork_while_a_thread_imports_what_builds(cache_dir: Path) -> None:
    report = child.run_child({"before": f"TEXT = {child.TEXT!r}\n{IMPORT}"})
    assert report["status"] == 0


def test_what_a_build_imports_takes_no_lock_that_a_fork_takes() -> None:
    text = (
        "import opkiln.runtime.jit as j, sys; j.import_builder(); print('logging' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


# ---- children ----


LATE = """
import ctypes, sys, time
time.sleep(.3)
assert ctypes.CDLL(None).tgkill(int(sys.argv[1]), int(sys.argv[1]), 2) == 0
time.sleep(.2)
open(sys.argv[2], "w").close()
"""


def test_K1_an_interrupt_between_the_start_and_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The child hangs inside posix_spawn, in which this thread's signals wait, until the pipe has a
    # writer. The signal is for this thread: another would take it at once, but tell us too late.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    helper = subprocess.Popen([sys.executable, "-c", LATE, str(os.getpid()), str(pipe)])
    monkeypatch.setattr(os, "devnull", str(pipe))
    job = spawn.Job()
    with pytest.raises(KeyboardInterrupt), job:
        job.start(SLEEP, stdin=None, stdout=1, stderr=2)
        time.sleep(20)
    assert helper.wait(10) == 0
    assert not children("sleep")


def test_K1_a_child_that_someone_else_reaped_does_not_save_the_others() -> None:
    with spawn.Job() as job:
        first, second = start(job, ["/bin/true"]), start(job, SLEEP)
        os.waitpid(first, 0)
    assert waited_for(second)


def test_K1_interrupted_while_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    real, times = os.killpg, []

    def interrupted(*args: int) -> None:
        times.append(args)
        if len(times) == 1:
            raise KeyboardInterrupt
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", interrupted)
        with pytest.raises(KeyboardInterrupt), spawn.Job() as job:
            pids = [start(job, SLEEP), start(job, SLEEP)]
    assert all(map(waited_for, pids))


def test_K1_a_job_that_nobody_ended() -> None:
    job = spawn.Job()
    pid = start(job, SLEEP)
    del job
    gc.collect()
    assert waited_for(pid)


def test_a_forked_child_does_not_end_its_parents_compiler() -> None:
    with spawn.Job() as job:
        pid = start(job, SLEEP)

        def ask() -> bool:
            job.__exit__()
            return True

        assert in_fork(ask)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert waited_for(pid)


INTERRUPTS = """
import os, signal, sys, time
sys.path.insert(0, os.path.dirname(os.environ["CHILD"]))
import jit_child
from opkiln.runtime import jit
def ask(number):
    text = jit_child.TEXT.replace("42", str(number))
    jit.build_or_load(text, ["answer"], name="answer")
def stop(*_):
    raise KeyboardInterrupt
def opened():
    return sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{n}"))
start = time.monotonic()
ask(0)
ask(0)
start = time.monotonic()
ask(1)
whole = time.monotonic() - start
before = opened()
signal.signal(signal.SIGALRM, stop)
for i in range(int(sys.argv[1])):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003 + whole * (i * 0.618 % 1))
        ask(2 + i)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
assert opened() == before, (before, opened())
try:
    print("left", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("none")
"""


def test_K1_K2_many_interrupts_leave_no_child_and_no_descriptor(cache_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS, "40"],
        env=os.environ | {"CHILD": child.__file__},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


class _Interrupted(BaseException):
    pass


@pytest.mark.parametrize("function", [os.open, os.pipe, os.memfd_create])
def test_K2_a_descriptor_is_owned_in_the_step_that_opens_it(
    tmp_path: Path, function: Callable[..., object]
) -> None:
    def profile(_: object, event: str, called: object) -> None:
        if event == "c_return" and called is function:  # where Ctrl-C may come in
            sys.setprofile(None)
            raise _Interrupted

    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    sys.setprofile(profile)
    try:
        with contextlib.suppress(_Interrupted):
            with descriptors.open_file(str(tmp_path / "file"), descriptors.WRITE):
                pass
            for end in descriptors.open_pipe():
                end.close()
            descriptors.owned(os.memfd_create, "test").close()
    finally:
        sys.setprofile(None)
    assert opened() == before


def test_failed_builds_that_are_kept_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_KEPT_FAILURES", 3)
    for index in range(6):
        private = tmp_path / f".build-k{index}-1-ab"
        private.mkdir()
        os.utime(private, (100 + index, 100 + index))
        build._keep(str(private))
    kept = sorted(p.name for p in tmp_path.iterdir())
    assert kept == [".failed-k3", ".failed-k4", ".failed-k5"]
