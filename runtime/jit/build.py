"""A build: in goes work to be done, out comes a published entry; one build per key at a time.

Threads of this process wait for the first one, other processes for its lock. Whatever ends a build
(an exception, Ctrl-C, SIGKILL) leaves only a private directory, which a later build sweeps away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from opkiln.runtime import debug
from opkiln.runtime.config import config
from opkiln.runtime.errors import (
    CompileFailed,
    CompileTimeout,
    NotYet,
    ToolchainNotFound,
    warn,
)
from opkiln.runtime.jit import evict, nearest, report, spawn, store
from opkiln.runtime.jit.claims import Claims
from opkiln.runtime.jit.descriptors import WRITE, open_file, open_pipe
from opkiln.runtime.jit.flags import DeviceFlags, Flags
from opkiln.runtime.jit.load import Opened, claim, look_up, open_entry
from opkiln.runtime.jit.lock import ProcessLock
from opkiln.runtime.jit.toolchain import Compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from io import FileIO

    from opkiln.runtime.jit.load import Order
    from opkiln.runtime.jit.nearest import Difference
    from opkiln.runtime.jit.store import Entry

T = TypeVar("T")

_SHOWN_BYTES = 64 * 1024
_KEPT_FAILURES = 32  # per directory; those older than a day go in any case

# How often each way was taken in this process; "direct_failed" must stay 0 on a healthy machine.
counters = {"direct": 0, "driver": 0, "direct_failed": 0}
_direct_off: set[str] = set()  # compilers whose direct steps failed here


# ---- building ----


class Made(NamedTuple, Generic[T]):
    """What a build has put into its private directory, manifest included."""

    opened: T
    entry: Entry  # where it belongs


class Work(Protocol[T]):
    """What can be built: a kernel, an extension."""

    @property
    def entry(self) -> Entry:
        """The place whose name lock and private directory bear."""
        ...

    def look_up(self, *, heal: bool) -> T | None:
        """The artifact if it is there, see `load.usable`."""
        ...

    def make(self, private: str) -> Made[T]:
        """Build it in a private directory."""
        ...

    def why(self) -> tuple[Difference, ...]:
        """What keeps it from being served by the cache."""
        ...


class Kernel(NamedTuple):
    """The work of a kernel: one text, one compiler."""

    order: Order

    @property
    def entry(self) -> Entry:
        """Where it belongs."""
        return self.order.entry

    def look_up(self, *, heal: bool) -> Opened | None:
        """Load it from disk."""
        return look_up(self.order, heal=heal)

    def make(self, private: str) -> Made[Opened]:
        """Compile it."""
        return _build_in(self.order, private)

    def why(self) -> tuple[Difference, ...]:
        """The parts in which its key differs from the nearest one."""
        return nearest.why(self.order)


def build(work: Work[T], lock_wait: float) -> tuple[T, str]:
    """Return what was opened and how it came: 'built', or 'disk' if others were first.

    Another process that builds it is waited for, up to `lock_wait` seconds.
    """
    entry = work.entry
    store.make_folder(entry.folder)

    def tell(holder: str) -> None:
        warn(
            f"waiting for {holder}, which builds {entry.name} too; "
            f"after {lock_wait:g} s (OPKILN_LOCK_WAIT) it is built here as well"
        )

    lock = f"{entry.folder}/.lock-{entry.name}"
    with ProcessLock(lock, lock_wait, tell):
        store.refresh(entry.folder)  # for who waited: the builder may be on another machine
        opened = work.look_up(heal=True)
        if opened is not None:
            return opened, "disk"
        evict.before_build(entry)
        with _private(entry) as private:
            made = work.make(private)
            built = _publish(work, made, private)
    evict.after_build(made.entry)  # others need not wait for that
    return built


def _publish(work: Work[T], made: Made[T], private: str) -> tuple[T, str]:
    for _ in range(3):
        if store.publish(private, made.entry):
            return made.opened, "built"
        found = work.look_up(heal=True)
        if found is not None:
            return found, "disk"
    # Others keep putting damaged entries there; this one is loaded anyway.
    return made.opened, "built"


@contextlib.contextmanager
def _private(entry: Entry) -> Generator[str]:
    """A directory for one build; its claim tells others that the builder lives."""
    path = store.private_folder(entry)
    with Claims(store.claims_file(os.path.dirname(entry.folder))) as claims:
        claims.share(int(path.rpartition("-")[2], 16))
        os.mkdir(path, 0o700)
        try:
            yield path
        finally:
            store.remove(path)  # gone already if it was published


def _build_in(order: Order, private: str) -> Made[Opened]:
    names = order.entry.files
    source, library = (f"{private}/{name}" for name in names[:2])
    store.write_file(source, order.text)
    log = _compile(order, source, library, f"{private}/{store.LOG}")
    opened = open_entry(order.entry, library, order.symbols)
    claim(opened, order.entry)
    store.write_file(f"{private}/{store.LOG}", log)
    show(log)
    files = dict(zip(names, (order.text, store.read_owned(library), log), strict=True))
    manifest = store.manifest(order.parts, order.compiler.features, order.symbols, files)
    store.write_file(f"{private}/{store.MANIFEST}", manifest)
    return Made(opened, order.entry)


def show(log: bytes) -> None:
    """Tell those who want to see compilers what was run and said."""
    if debug.enabled(5):
        debug.log(5, "%s", log.decode("utf-8", "replace").rstrip())


def _compile(order: Order, source: str, library: str, log: str) -> bytes:
    if not isinstance(order.flags, Flags) or not isinstance(order.compiler, Compiler):
        from opkiln.runtime.jit import nvrtc

        assert isinstance(order.flags, DeviceFlags)
        assert isinstance(order.compiler, nvrtc.Nvrtc)
        return nvrtc.compile_text(order.compiler, order.flags, source, library, log)
    return compile_library(order.compiler, order.flags, source, library, log)


def assembly(compiler: Compiler, flags: Flags, source: str, output: str, log: str) -> None:
    """Write the assembly that `compile_library` would make of the text."""
    command = [*compiler.words, *compiler.arch, *flags.compile_flags(), "-x", "c++"]
    command += ["-S", source, "-o", output]
    code = run_logged(command, log, time.monotonic() + config.compile_timeout)
    if code not in (0, spawn.UNKNOWN):
        raise failure([command], log, code)


def compile_library(compiler: Compiler, flags: Flags, source: str, library: str, log: str) -> bytes:
    """Compile one text into a shared library; return the log, or raise CompileFailed."""
    if not compiler.words:
        raise ToolchainNotFound("the compiler is gone and this kernel is not in the cache")
    deadline = time.monotonic() + config.compile_timeout
    said = b""
    if not hasattr(os, "posix_spawn"):
        raise NotYet("building kernels on this operating system is not supported yet")
    if _direct_allowed(compiler, flags):
        steps = _direct_steps(compiler, flags, source, library)
        try:
            if _run_direct(steps, log, deadline) == [0, 0, 0] and os.path.exists(library):
                counters["direct"] += 1
                return read_log(steps, log)
            said = read_log(steps, log)
        except spawn.NotStarted as error:
            said = str(error).encode()
        except spawn.OutOfTime:
            raise _timeout(steps, log) from None
    # The driver decides: it repeats an error of the text, and it works where a step failed for
    # another reason (a moved tool, a changed installation).
    command = compiler.driver(flags, source, library)
    code = run_logged(command, log, deadline)
    if code not in (0, spawn.UNKNOWN) or not os.path.exists(library):
        raise failure([command], log, code)
    counters["driver"] += 1
    if said:
        counters["direct_failed"] += 1
        _direct_off.add(compiler.digest)  # do not pay twice for every kernel
        return (
            b"direct steps failed, the driver did not:\n" + said + b"\n" + read_log([command], log)
        )
    return read_log([command], log)


def _direct_allowed(compiler: Compiler, flags: Flags) -> bool:
    """Whether the steps may run without the driver."""
    known = bool(compiler.direct) and compiler.digest not in _direct_off
    return known and not flags.libraries and _passes_unchanged(flags)


def _passes_unchanged(flags: Flags) -> bool:
    """Whether cc1plus takes the kernel's own flags as the driver does."""
    return all(
        flag.startswith(("-f", "-O", "-D", "-W")) for flag in (*flags.optimize, *flags.extra)
    )


def _direct_steps(compiler: Compiler, flags: Flags, source: str, library: str) -> list[list[str]]:
    cc1plus, assembler, linker = compiler.direct
    obj = library.removesuffix(".so") + ".o"
    return [
        [*cc1plus, *flags.compile_flags(), source, "-o", "-"],
        [*assembler, "-o", obj],
        [*linker, obj, "-o", library],
    ]


def _open_log(path: str) -> FileIO:
    return open_file(path, WRITE | os.O_APPEND)


def _run_direct(steps: list[list[str]], log: str, deadline: float) -> list[int]:
    """cc1plus | as, then ld: what the driver does, without the driver and its library search."""
    with _open_log(log) as file:
        out = file.fileno()
        with spawn.Job() as job:
            read, write = open_pipe()
            with read, write:
                job.start(steps[0], stdin=None, stdout=write.fileno(), stderr=out)
                job.start(steps[1], stdin=read.fileno(), stdout=out, stderr=out)
            codes = job.wait(deadline)
        if codes != [0, 0]:
            return codes
        codes.append(spawn.run(steps[2], stdout=out, stderr=out, deadline=deadline))
    with contextlib.suppress(OSError):
        os.unlink(steps[1][-1])
    return codes


def run_logged(
    command: list[str],
    log: str,
    deadline: float,
    *,
    append: bool = False,
    tick: Callable[[], None] | None = None,
) -> int:
    """Run one command with its output in a fresh log, or after what is there; return its code."""
    if not append:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(log)
    try:
        with _open_log(log) as file:
            out = file.fileno()
            return spawn.run(command, stdout=out, stderr=out, deadline=deadline, tick=tick)
    except spawn.OutOfTime:
        raise _timeout([command], log) from None
    except spawn.NotStarted as error:
        raise ToolchainNotFound(f"the compiler could not be started: {error}") from None


# ---- reports ----


def head(log: str, limit: int = _SHOWN_BYTES) -> bytes:
    """The start of a log."""
    try:
        with open(log, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def read_log(commands: list[list[str]], log: str) -> bytes:
    """The commands and the start of what they said."""
    lines = [os.fsencode(report.shell(command)) + b"\n" for command in commands]
    return b"".join(lines) + head(log)


def _keep(private: str) -> str:
    """Keep source and log of a failed build under a name of its own; the older one goes."""
    folder, _, name = private.rpartition("/")
    kept = f"{folder}/.failed-{name.removeprefix('.build-').rsplit('-', 3)[0]}"
    try:
        store.remove(kept)
        evict.keep_newest(folder, ".failed-", _KEPT_FAILURES - 1)
        os.rename(private, kept)
    except OSError:
        return private
    return kept


def _check_room(folder: str) -> None:
    """Raise OSError where a full disk may be why a compiler failed: its message is lost then."""
    path = f"{folder}/room"
    try:
        store.write_file(path, bytes(2**20))
    finally:
        store.remove(path)


def keep_failure(log: str) -> tuple[str, str]:
    """Keep the files of a failed build; return the path of its log, and what that holds.

    Raises OSError where a full disk, not a text, is why it failed.
    """
    private = os.path.dirname(log)
    output = head(log).decode("utf-8", "replace")
    if "No space left on device" in output:
        raise OSError(errno.ENOSPC, "No space left on device", log)
    _check_room(private)
    kept = _keep(private)
    return f"{kept}/{os.path.basename(log)}", output.replace(f"{private}/", f"{kept}/")


def failure(commands: list[list[str]], log: str, code: int) -> CompileFailed:
    """The error for a failed build of a generated text."""
    path, output = keep_failure(log)
    kept = os.path.dirname(path)
    command = "\n  ".join(report.shell(c) for c in commands)
    from pathlib import Path

    return CompileFailed(
        f"the compiler refused the generated text (exit code {code})\n"
        f"  command: {command}\n  log: {path}\n{report.shown(output)}",
        fix="this is a bug of opkiln unless flags or the compiler are unusual; please report it",
        command=command,
        exit_code=code,
        output=output,
        log_path=Path(path),
        source_path=Path(kept) / _source_in(kept),
    )


def _source_in(folder: str) -> str:
    device = store.DEVICE_FILES[0]
    return device if os.path.exists(f"{folder}/{device}") else store.SOURCE


def _timeout(commands: list[list[str]], log: str) -> CompileTimeout:
    output = head(log).decode("utf-8", "replace")
    command = "\n  ".join(report.shell(c) for c in commands)
    kept = _keep(os.path.dirname(log))
    from pathlib import Path

    path = f"{kept}/{os.path.basename(log)}"
    return CompileTimeout(
        f"the compiler ran longer than {config.compile_timeout:g} s and was stopped\n"
        f"  command: {command}\n  log: {path}\n{report.shown(output)}",
        fix="raise OPKILN_COMPILE_TIMEOUT, or look why the compiler hangs",
        command=command,
        output=output,
        log_path=Path(path),
        source_path=Path(kept) / _source_in(kept),
    )
