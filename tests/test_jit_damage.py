"""Every part of a cache damaged in every way: right results, one warning, one build, no trace."""

import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import jit_child as child

from opkiln.runtime import jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import evict, store


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))  # what a power cut may leave of it


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def directory(path: Path) -> None:
    remove(path)
    (path / "below").mkdir(parents=True)


def absent(path: Path) -> None:
    remove(path)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved").name)


def dangling(path: Path) -> None:
    remove(path)
    path.symlink_to("/nowhere/at/all")


def fifo(path: Path) -> None:
    remove(path)
    os.mkfifo(path, 0o600)  # whoever opens it without care waits for ever


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def foreign(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        path.chmod(0o070)  # then at least nobody may use it


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch exploded",)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb()))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def empty(path: Path) -> None:
    remove(path)
    path.mkdir()


def regular(path: Path) -> None:
    remove(path)
    path.write_text("x", encoding="utf-8")


def moved_aside(path: Path) -> None:
    aside = path.with_name("aside")
    if aside.exists():
        shutil.rmtree(aside)
    path.rename(aside)
    path.symlink_to("aside")


def of_another_key(path: Path) -> None:
    other = next(p for p in child.entries(path.parent.parent) if p != path and p.is_dir())
    remove(path)
    shutil.copytree(other, path)


FILE_DAMAGES = [truncate, halve, zero, flip, lengthen, directory, absent, link, dangling, fifo]
FILE_DAMAGES += [open_to_all, foreign, pickled]
ENTRY_DAMAGES = [empty, regular, moved_aside, dangling, fifo, open_to_all, foreign, of_another_key]
LOCK_DAMAGES = [directory, dangling, fifo, foreign]

Case = tuple[str, Callable[[Path], None]]
CASES: list[Case] = [
    *((name, damage) for name in (*store.FILES, store.MANIFEST) for damage in FILE_DAMAGES),
    *(("", damage) for damage in ENTRY_DAMAGES),
    *((".lock", damage) for damage in LOCK_DAMAGES),
]


def ask(number: int) -> tuple[jit.Loaded, list[str]]:
    """The kernel, which gives the right number, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = jit.build_or_load(child.text_of(number), ["answer"], name="answer")
    assert child.call(loaded.addresses["answer"]) == number
    return loaded, [str(one.message) for one in caught]


def spoil(entry: Path, case: Case) -> None:
    part, damage = case
    if part == ".lock":
        lock = entry.with_name(f".lock-{entry.name}")
        lock.touch()
        damage(lock)
        truncate(entry / store.LIBRARY)
    else:
        damage(entry / part)


def test_F070_F144_sixty_four_damaged_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cxx: Path
) -> None:
    assert len(CASES) == 64
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "cache"
    with config.scope(cache_dir=cache, cxx=str(cxx)):
        paths = [Path(ask(number)[0].path).parent for number in range(64)]
        for path, case in zip(paths, CASES, strict=True):
            spoil(path, case)
        built = child.starts(cxx)
        for number, case in enumerate(CASES):
            name = f"{case[1].__name__} {case[0] or 'entry'}"
            loaded, said = ask(number)
            assert loaded.hit == "built", name
            assert len(said) == 1, (name, said)
            assert "is built again" in said[0]
            assert str(paths[number]) in said[0]
            again, said = ask(number)
            assert (again.hit, said) == ("disk", []), name
        assert child.starts(cxx) == built + 64
        assert sorted(child.entries(cache)) == sorted(paths)
        assert {len(list(path.iterdir())) for path in paths} == {len(store.FILES) + 1}
        odd = [p for p in child.private_files(cache) if not p.name.startswith(".lock-")]
        assert odd == []
        for path in child.private_files(cache):  # what stood in place of locks goes after a day
            os.utime(path, (1, 1), follow_symlinks=False)
        evict.sweep(str(cache))
        assert child.private_files(cache) == []
    assert not (tmp_path / "exploded").exists()


SHARED_DAMAGES = [truncate, zero, flip, directory, dangling, fifo, open_to_all, foreign, pickled]


@pytest.mark.parametrize("part", ["identity", "identity's lock", "claims", "ledger"])
@pytest.mark.parametrize("damage", SHARED_DAMAGES)
def test_F070_damage_to_what_all_entries_share(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cxx: Path,
    part: str,
    damage: Callable[[Path], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "cache"
    with config.scope(cache_dir=cache, cxx=str(cxx)):
        ask(1)
        (record,) = (cache / store.COMPILERS).glob("*.json")
        whole = record.read_bytes()
        path = {
            "identity": record,
            "identity's lock": record.with_name(".lock"),
            "claims": Path(store.claims_file(str(cache))),
            "ledger": cache / evict._LEDGER,
        }[part]
        if not path.exists() or not path.stat().st_size:
            path.write_text("some\n", encoding="utf-8")
        damage(path)
        if part == "identity's lock":
            record.unlink()
        monkeypatch.setattr(jit, "_known", {})
        loaded, said = ask(1)
        assert (loaded.hit, said) == ("disk", [])
        loaded, said = ask(2)
        assert (loaded.hit, said) == ("built", [])
        assert (ask(2)[0].hit, ask(1)[0].hit) == ("disk", "disk")
        if record.is_file() and not record.is_symlink():
            assert record.read_bytes() == whole
        assert set(child.private_files(cache)) <= {record.with_name(".lock")}
    assert not (tmp_path / "exploded").exists()
