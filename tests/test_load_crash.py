"""`ok.load` among processes: one build for all, holders that hang or fail, disks that are no use.

Killed builders: `test_jit_kill.py`.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import jit_child as child

import opkiln as ok
from opkiln.runtime import errors
from opkiln.runtime.config import config
from opkiln.runtime.extension import Extension
from opkiln.runtime.jit import evict, inventory, lock, store

ANSWER = 'extern "C" int answer() { return 42; }'
# Compiles as the fast compiler does, but what it does the first time is said by another file.
STOPPING = (
    child.PROBES
    + 'case " $* " in *" -c "*) if mkdir "$LOG.first" 2>/dev/null; then . "$LOG.do"; fi;; esac\n'
    + child.POUR_EXTENSION
)


def load(**options: Any) -> Extension:
    return ok.load_inline("answer", ANSWER, functions="int answer(void)", **options)


class Child:
    """A forked process that loads; `finish` returns what it got."""

    def __init__(self, **options: Any) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                signal.alarm(60)
                os.close(read)
                try:
                    loaded = load(**options)
                    said = {"value": loaded.answer(), "hit": loaded.hit}
                except errors.OpkilnError as error:
                    said = {"error": type(error).__name__, "message": str(error)}
                os.write(write, json.dumps(said).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        self.pipe = open(read, "rb")  # noqa: PTH123, SIM115

    def finish(self) -> dict[str, Any]:
        with self.pipe:
            data = self.pipe.read()
        status = os.waitpid(self.pid, 0)[1]
        return json.loads(data) if data else {"status": status}


def stopping(fast_cxx: Path, do: str) -> Path:
    """A compiler that does this when it is first asked to compile; it says so by a directory."""
    fast_cxx.with_suffix(".log.do").write_text(do, encoding="utf-8")
    child.stub(fast_cxx, STOPPING)
    return fast_cxx.with_suffix(".log.first")


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.005)


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many processes have found a lock taken; those forked from now on."""
    real = lock.ProcessLock._try

    def tell(self: lock.ProcessLock) -> bool:
        got = real(self)
        if not got and self._wait > 5:  # neither a look at left-overs, nor the list of a name
            (tmp_path / f"waiting-{os.getpid()}").touch()
        return got

    monkeypatch.setattr(lock.ProcessLock, "_try", tell)
    return lambda: len(list(tmp_path.glob("waiting-*")))


UNTIL_GO = 'until [ -e "$LOG.go" ]; do sleep 0.01; done\n'


def go(fast_cxx: Path) -> None:
    fast_cxx.with_suffix(".log.go").touch()


def test_O10_eight_processes_build_once(
    fast_cxx: Path, known_cache: Path, waiting: Callable[[], int]
) -> None:
    stopping(fast_cxx, UNTIL_GO)
    children = [Child() for _ in range(8)]
    wait_for(lambda: waiting() == 7)
    go(fast_cxx)
    results = [one.finish() for one in children]
    assert [r.get("value") for r in results] == [42] * 8, results
    assert sorted(r["hit"] for r in results) == ["built"] + ["disk"] * 7
    assert child.starts(fast_cxx) == 1
    assert len(child.entries(known_cache)) == 1
    assert child.private_files(known_cache) == []


def test_K4_who_waited_for_a_failure_builds_itself(
    fast_cxx: Path, known_cache: Path, waiting: Callable[[], int]
) -> None:
    first = stopping(fast_cxx, f'{UNTIL_GO}echo "no luck"; exit 3')
    owner = Child()
    wait_for(first.exists)
    waiter = Child()
    wait_for(lambda: waiting() == 1)
    go(fast_cxx)
    failed = owner.finish()
    assert failed.get("error") == "CompileFailed", failed
    assert "no luck" in failed["message"]
    assert waiter.finish() == {"value": 42, "hit": "built"}
    assert Child().finish() == {"value": 42, "hit": "disk"}


def test_F078_F079_a_holder_is_named_and_then_not_waited_for(
    fast_cxx: Path, known_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stopping(fast_cxx, UNTIL_GO)
    holder = Child()
    wait_for(first.exists)
    monkeypatch.setattr(lock, "MESSAGE_AFTER", 0.02)
    said = rf"waiting for pid {holder.pid} on .*, which builds answer-\w+ too; after 0.1 s"
    with config.scope(lock_wait=0.1), pytest.warns(errors.OpkilnWarning, match=said):
        loaded = load()
    assert (loaded.answer(), loaded.hit) == (42, "built")
    go(fast_cxx)
    assert holder.finish() == {"value": 42, "hit": "disk"}  # it was second
    assert len(child.entries(known_cache)) == 1
    assert child.private_files(known_cache) == []


def test_F078_K1_a_killed_builder_blocks_nobody(fast_cxx: Path, known_cache: Path) -> None:
    first = stopping(fast_cxx, UNTIL_GO)
    holder = Child()
    wait_for(first.exists)
    os.kill(holder.pid, signal.SIGKILL)
    assert holder.finish() == {"status": signal.SIGKILL}
    assert load().hit == "built"
    go(fast_cxx)  # the orphan of the killed builder ends, too
    assert child.private_files(known_cache) == []


# ---- disks ----


@pytest.fixture
def other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_roots", {})
    monkeypatch.setattr(store, "_temporary", None)


def fill(path: Path) -> None:
    """Leave no more room on the disk than three pages."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - 3 * 4096)


@pytest.mark.usefixtures("other_places")
def test_F073_a_full_disk(fast_cxx: Path, known_cache: Path, mount: Callable[..., Path]) -> None:
    place = mount("size=128k,mode=0700")
    shutil.copytree(known_cache / "compilers", place / "compilers")
    with config.scope(cache_dir=place):
        Child().finish()  # the stub is known, too
        shutil.rmtree(next(place.glob("ext-*")))
        fill(place / "filler")
        with pytest.warns(errors.OpkilnWarning, match="No space left on device") as said:
            loaded = load()
    assert len(said) == 1
    assert (loaded.answer(), loaded.hit) == (42, "built")
    assert not loaded.path.startswith(str(place))
    assert child.private_files(place) == []
    with pytest.raises(errors.CacheError, match="No space left on device"):
        ok.load_inline("other", ANSWER, build_directory=place)
    (place / "filler").unlink()
    assert ok.load_inline("other", ANSWER, build_directory=place).hit == "built"


@pytest.mark.usefixtures("other_places")
def test_F074_F119_a_read_only_disk(
    fast_cxx: Path, known_cache: Path, mount: Callable[..., Path]
) -> None:
    assert Child().finish()["hit"] == "built"
    place = mount("ro", known_cache)
    with (
        config.scope(cache_dir=place),
        pytest.warns(errors.OpkilnWarning, match="is not writable .*OPKILN_CACHE_LOWER"),
    ):
        assert Child().finish() == {"value": 42, "hit": "built"}
        assert load().hit == "built"
    with config.scope(cache_dir=known_cache.with_name("own"), cache_lower=place):
        assert Child().finish() == {"value": 42, "hit": "disk"}
    with pytest.raises(errors.CacheError, match=r"build_directory: .* is not writable"):
        load(build_directory=place)


# ---- what the command line knows of them ----


def test_the_inventory_lists_checks_and_prunes_extensions(
    fast_cxx: Path, known_cache: Path
) -> None:
    assert Child().finish()["hit"] == "built"
    (one,) = inventory.entries()
    assert (one.kind, one.operations, one.problem, one.in_use) == (
        "extension",
        ("answer",),
        "",
        False,
    )
    assert "-O2" in one.flags
    assert inventory.verify() == []
    folder = Path(one.path)
    library = folder / store.EXTENSION_FILES[1]
    data = library.read_bytes()
    library.write_bytes(data[:-1] + b"x")
    (damage,) = inventory.verify()
    assert damage.reason == "extension.so has changed since it was built"
    library.write_bytes(data)
    loaded = load()
    assert inventory.entries()[0].in_use
    assert inventory.prune(max_bytes=0).removed == ()
    loaded.unload()
    index = folder.with_name(".index-answer")
    assert index.exists()
    private = store.private_folder(store.Entry(str(folder.parent), folder.name))
    os.mkdir(private)  # noqa: PTH102
    folder.rename(folder.with_name("aside"))
    assert str(index) not in evict.sweep(str(known_cache), dry_run=True)  # being built
    os.rmdir(private)  # noqa: PTH106
    folder.with_name("aside").rename(folder)
    done = inventory.prune(max_bytes=0)
    assert done.removed == (str(folder),)
    assert done.leftovers == (str(index),)
    assert not index.exists()
