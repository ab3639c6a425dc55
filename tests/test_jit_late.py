"""A file system that is late, as NFS is, or changes under the reader: a few looks decide."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import jit_child as child

from opkiln.runtime import errors, jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import flight, store


@pytest.fixture
def scoped(tmp_path: Path, cxx: Path) -> Iterator[Path]:
    with config.scope(cache_dir=tmp_path / "cache", cxx=str(cxx)):
        yield tmp_path / "cache"


def ask(number: int) -> jit.Loaded:
    loaded = jit.build_or_load(child.text_of(number), ["answer"], name="answer")
    assert child.call(loaded.addresses["answer"]) == number
    return loaded


def late(real: Callable[..., object], match: str, error: int, times: int) -> Callable[..., object]:
    """The function, failing the first `times` times for paths that end so."""
    left = [times]

    def call(path: object, *args: object, **kw: object) -> object:
        if str(path).endswith(match) and left[0]:
            left[0] -= 1
            raise OSError(error, os.strerror(error), path)
        return real(path, *args, **kw)

    return call


@pytest.mark.parametrize("name", [store.MANIFEST, store.LIBRARY, store.LOG])
@pytest.mark.parametrize("error", [2, 116])  # ENOENT, ESTALE
def test_a_file_that_shows_up_late_is_no_damage(
    scoped: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    name: str,
    error: int,
) -> None:
    ask(5)
    monkeypatch.setattr(os, "open", late(os.open, name, error, 2))
    assert ask(5).hit == "disk"
    assert not recwarn.list


def test_an_entry_that_is_replaced_while_it_is_read_is_no_damage(
    scoped: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    entry, aside = Path(ask(5).path).parent, scoped / "aside"
    entry.rename(aside)
    ask(5)
    assert (entry / store.LOG).read_bytes() != (aside / store.LOG).read_bytes()
    monkeypatch.setattr(flight, "build_once", None)  # the second look finds it; no lock, no build
    real = os.open

    def replacing(path: str, *args: int) -> int:
        if path.endswith(store.LIBRARY) and aside.exists():
            entry.rename(scoped / "old")
            aside.rename(entry)
        return real(path, *args)

    monkeypatch.setattr(os, "open", replacing)
    assert ask(5).hit == "disk"
    assert not aside.exists()
    assert not recwarn.list


def test_a_file_that_never_shows_up_is_damage(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(5)
    calls = []
    real = os.open

    def stale(path: object, *args: int) -> int:
        if str(path).endswith(store.LIBRARY) and "/.build-" not in str(path):
            calls.append(path)
            raise OSError(116, "Stale file handle", path)
        return real(path, *args)

    monkeypatch.setattr(os, "open", stale)
    with pytest.warns(errors.OpkilnWarning, match="Stale file handle") as caught:
        assert ask(5).hit == "built"
    assert len(caught) == 1
    assert len(calls) == 2 * store._LOOKS  # bounded: before and under the lock


@pytest.mark.parametrize("what", ["done", "not done"])
def test_a_rename_whose_answer_was_lost(
    scoped: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    real, lost = os.rename, []

    def rename(source: str, target: str) -> None:
        if "/.build-" in source and not lost:
            lost.append(source)
            if what == "done":
                real(source, target)
            raise FileNotFoundError(2, "No such file or directory", source)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert ask(6).hit == ("disk" if what == "done" else "built")
    assert ask(6).hit == "disk"
    assert not child.private_files(scoped)


def test_a_rename_that_shows_late(scoped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename worked, but its answer was lost and for a while the entry cannot be seen."""
    real, real_stat, hidden = os.rename, os.lstat, []

    def rename(source: str, target: str) -> None:
        real(source, target)
        if "/.build-" in source and not hidden:
            hidden.extend([target] * 2)
            raise FileNotFoundError(2, "No such file or directory", source)

    def lstat(path: str) -> os.stat_result:
        if path in hidden:
            hidden.remove(path)
            raise FileNotFoundError(2, "No such file or directory", path)
        return real_stat(path)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "lstat", lstat)
    ask(6)
    assert not hidden
    assert ask(6).hit == "disk"
    assert not child.private_files(scoped)


def test_an_entry_that_goes_while_it_is_read_is_a_plain_miss(
    scoped: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    entry = Path(ask(5).path).parent
    real, gone = os.open, []

    def going(path: object, *args: int, **kw: int) -> int:
        if str(path).endswith(store.LIBRARY) and len(gone) < 2:
            gone.append(path)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(entry)
        return real(path, *args, **kw)

    monkeypatch.setattr(os, "open", going)
    assert ask(5).hit == "built"
    assert not recwarn.list
