"""SIGKILL at 50 moments of a build, in every phase of it: the next process always recovers.

Run as a program it prints the histogram of the phases hit: python -m tests.test_jit_kill; the
builds of extensions are killed the same way, with `extension` as its argument.
A builder stops before the chosen system call, says so on a pipe and waits there for its end; so
each kill lands where it should, without any guess about time.
"""

import collections
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from tests import jit_child as child

MOMENTS = 50
TEXT = child.text_of(4711)
PATIENCE = 60  # seconds, after which a process counts as hanging

# A phase is named by the first of these functions that is on the stack.
PHASES = {
    "_identify": "compiler's identity",
    "after_build": "ledger",
    "before_build": "sweep",
    "sync": "fsync",
    "publish": "rename",
    "manifest": "manifest",
    "open_library": "load",
    "claim": "load",
    "compile_library": "compile",
    "__exit__": "unlock",
    "look_up": "look-up",
    "_try": "lock",
    "_private": "private directory",
    "make_folder": "target directory",
}
ORDER = [
    *("compiler's identity", "target directory", "lock", "look-up", "sweep", "private directory"),
    *("source", "compile", "link", "load", "log", "manifest", "fsync", "rename", "ledger"),
    *("after the rename", "unlock", "done"),
]
# System calls that C code makes for Python raise audit events, the others are seen as calls.
AUDITED = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.utime"),
    *("os.posix_spawn", "os.truncate", "fcntl.flock", "fcntl.fcntl"),
}
CALLED = {"write", "fsync", "pwrite"}
# Functions of ours that leave the system calls to native code, or make none, or any number.
OURS = {"look_up", "open_library", "claim", "remove", "_wait_one"}


# The same of an extension.
EXTENSION_PHASES = {
    "_identify": "compiler's identity",
    "after_build": "ledger",
    "before_build": "sweep",
    "sync": "fsync",
    "publish": "rename",
    "manifest": "manifest",
    "add": "index",
    "_headers": "headers",
    "opened": "load",
    "_tidy": "tidy",
    "_run": "compile",
    "__exit__": "unlock",
    "on_disk": "look-up",
    "_try": "lock",
    "_private": "private directory",
    "make_folder": "target directory",
}
EXTENSION_ORDER = [
    *("compiler's identity", "target directory", "lock", "look-up", "sweep", "private directory"),
    *("source", "compile", "link", "headers", "load", "tidy", "log", "manifest", "index", "fsync"),
    *("rename", "ledger", "after the rename", "unlock", "done"),
]
WRITTEN = {"source0.cpp": "source", "build.log": "log", "interface.py": "log"}


def extension_phase_of(frame: FrameType | None) -> str | None:
    """The phase of a build of an extension that these frames are in; None outside."""
    names: list[str] = []
    file = ""
    words: list[str] = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        if frame.f_code.co_name == "write_file":
            file = os.path.basename(str(frame.f_locals.get("path", "")))  # noqa: PTH119
        if frame.f_code.co_name == "run_logged":
            words = frame.f_locals.get("command", [])
        frame = frame.f_back
    if "load_inline" not in names:
        return None
    if "-shared" in words:
        return "link"
    if "make" in names and "index" not in names and (file in WRITTEN or file == "manifest.json"):
        return WRITTEN.get(file, "manifest")
    if "_private" in names and "remove" in names:
        return "after the rename"
    return next((phase for name, phase in EXTENSION_PHASES.items() if name in names), None)


def phase_of(frame: FrameType | None) -> str | None:
    """The phase of a build that these frames are in; None outside."""
    names: list[str] = []
    file = ""
    while frame is not None:
        names.append(frame.f_code.co_name)
        if frame.f_code.co_name == "write_file":
            file = os.path.basename(str(frame.f_locals.get("path", "")))  # noqa: PTH119
        frame = frame.f_back
    if "build_or_load" not in names:
        return None
    if "compile_library" in names and "run" in names:
        return "link"
    if file in {"kernel.cpp", "build.log", "manifest.json"} and "_build_in" in names:
        return {"kernel.cpp": "source", "build.log": "log"}.get(file, "manifest")
    if "_private" in names and "remove" in names:
        return "after the rename"
    return next((phase for name, phase in PHASES.items() if name in names), None)


def watch(reached: Callable[[str], None]) -> None:
    """Call `reached(phase)` before each step of a build in this process."""
    busy = [False]

    def tell(frame: FrameType | None) -> None:
        if busy[0]:
            return
        busy[0] = True
        try:
            phase = KIND.phase_of(frame)
            if phase is not None:
                reached(phase)
        finally:
            busy[0] = False

    def audit(event: str, _: object) -> None:
        if event in AUDITED:
            tell(sys._getframe(1))

    def profile(frame: FrameType, event: str, called: Any) -> None:
        ours = event == "call" and frame.f_code.co_name in OURS
        if ours or (event == "c_call" and getattr(called, "__name__", "") in CALLED):
            tell(frame)

    sys.addaudithook(audit)
    sys.setprofile(profile)


# ---- processes: each fork reports on a pipe ----


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Run `work(pipe)` in a child; return its pid and the pipe's other end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(PATIENCE)  # a hang becomes a death by SIGALRM
            os.close(read)
            work(write)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    return pid, read


def ask_extension(cache: Path) -> tuple[int, str]:
    import opkiln
    from opkiln.runtime.config import config
    from opkiln.runtime.extension import image

    image._images.clear()  # as a new process
    image._asked.clear()
    with config.scope(cache_dir=cache, cxx=cache.parent / "bin" / "cxx"):
        loaded = opkiln.load_inline("answer", TEXT, functions="int answer(void)")
        return loaded.answer(), loaded.hit


def ask(cache: Path) -> tuple[int, str]:
    from opkiln.runtime import jit
    from opkiln.runtime.config import config

    with config.scope(cache_dir=cache):
        loaded = jit.build_or_load(TEXT, ["answer"], name="answer")
        return child.call(loaded.addresses["answer"]), loaded.hit


class Kind(NamedTuple):
    """What is built."""

    ask: Callable[[Path], tuple[int, str]]
    phase_of: Callable[[FrameType | None], str | None]
    order: list[str]


KINDS = {
    "kernel": Kind(ask, phase_of, ORDER),
    "extension": Kind(ask_extension, extension_phase_of, EXTENSION_ORDER),
}
KIND = KINDS["kernel"]


def phases_of_a_build(cache: Path) -> list[str]:
    def work(pipe: int) -> None:
        seen: list[str] = []
        watch(seen.append)
        KIND.ask(cache)
        sys.setprofile(None)
        os.write(pipe, json.dumps(seen).encode())

    pid, read = forked(work)
    with open(read, "rb") as file:  # noqa: PTH123
        seen = json.loads(file.read())
    assert os.waitpid(pid, 0)[1] == 0
    return [*seen, "done"]


def kill_at(cache: Path, phase: str, count: int) -> bool:
    """Build, and die before the `count`-th call of the phase; whether it came to that."""

    def work(pipe: int) -> None:
        left = [count]

        def reached(at: str) -> None:
            if at != phase:
                return
            if left[0] == 0:
                os.write(pipe, b"!")
                while True:
                    signal.pause()
            left[0] -= 1

        watch(reached)
        KIND.ask(cache)
        sys.setprofile(None)
        if phase == "done":
            os.write(pipe, b"!")
            signal.pause()

    pid, read = forked(work)
    there = os.read(read, 1) == b"!"
    os.kill(pid, signal.SIGKILL)
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    return there and os.WTERMSIG(status) == signal.SIGKILL


def recover(cache: Path) -> dict[str, Any]:
    """What the next process gets, while compilers of the killed one may still run."""

    def work(pipe: int) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value, hit = KIND.ask(cache)
            again = KIND.ask(cache)
        said = [str(one.message) for one in caught]
        report = {"value": value, "hit": hit, "again": again, "warnings": said}
        os.write(pipe, json.dumps(report).encode())

    pid, read = forked(work)
    with open(read, "rb") as file:  # noqa: PTH123
        data = file.read()
    status = os.waitpid(pid, 0)[1]
    return {"status": status} | (json.loads(data) if data else {})


def reap() -> None:
    """Wait for the orphans of killed builders, which are ours to wait for."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def leftovers(cache: Path) -> list[str]:
    from opkiln.runtime.jit import evict

    evict.sweep(str(cache))
    whole = child.entries(cache)
    return [path.name for path in (*child.private_files(cache), *whole[1:])]


def moments(seen: list[str]) -> Iterator[tuple[str, int]]:
    """50 of the moments of a build, from each phase in turn, spread over it."""
    counts = collections.Counter(seen)
    shares: collections.Counter[str] = collections.Counter()
    while shares.total() < MOMENTS:
        for phase in KIND.order:
            if counts[phase] > shares[phase] and shares.total() < MOMENTS:
                shares[phase] += 1
    for phase in KIND.order:
        for index in range(shares[phase]):
            yield phase, index * counts[phase] // shares[phase]


def main(folder: Path) -> None:
    """One JSON line per moment."""
    from opkiln.runtime import jit

    jit.import_builder()
    if KIND is KINDS["extension"]:
        import opkiln.runtime.extension.make as _  # noqa: F401
        from opkiln.runtime.extension import declare

        declare.interface(())  # imports cffi, which else falls into whatever phase comes first
        child.fast_extension_compiler(folder / "bin" / "cxx")
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    seen = phases_of_a_build(folder / "first")
    unknown = set(seen) - set(KIND.order)
    assert not unknown, unknown
    for number, (phase, count) in enumerate(moments(seen)):
        # A build may do a step less often than the first one did: a wait that needs one look less.
        for cache, index in ((folder / str(number), count), (folder / f"{number}-first", 0)):
            if phase != KIND.order[0]:  # who the compiler is takes as long to ask as all the rest
                cache.mkdir(mode=0o700)
                shutil.copytree(folder / "first" / "compilers", cache / "compilers")
            killed = kill_at(cache, phase, index)
            if killed:
                break
        report = recover(cache)
        reap()
        left = leftovers(cache)
        print(json.dumps({"phase": phase, "killed": killed, "left": left} | report), flush=True)


def histogram(reports: list[dict[str, Any]]) -> str:
    lines = []
    for phase in KIND.order:
        hits = [r.get("hit", "lost") for r in reports if r["phase"] == phase and r["killed"]]
        built = f"{hits.count('built')} built again, {hits.count('disk')} found whole"
        lines.append(f"{phase:20} {'#' * len(hits):8} {len(hits):2} kills: {built}")
    return "\n".join(lines)


def run(folder: Path, kind: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_jit_kill", kind, str(folder)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=350,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_F071_F078_K1_killed_at_fifty_moments(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "KIND", KINDS[kind])
    reports = run(tmp_path, kind)
    print(f"\n{histogram(reports)}")
    assert len(reports) == MOMENTS
    assert all(r["killed"] for r in reports)
    assert {r["phase"] for r in reports} == set(KINDS[kind].order)
    for report in reports:
        assert report["status"] == 0, report
        assert report["value"] == 4711, report
        assert report["again"] == [4711, "disk"], report
        assert report["warnings"] == [], report
        assert report["left"] == [], report


if __name__ == "__main__":
    KIND = KINDS[sys.argv[1] if len(sys.argv) > 1 else "kernel"]
    if len(sys.argv) > 2:
        main(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as place:
            print(histogram(run(Path(place), *sys.argv[1:] or ["kernel"])))
