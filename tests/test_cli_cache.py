"""`opkiln cache`: what is shown and removed; places that are absent, closed or read-only."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import jit_child as child

import opkiln as ok
from opkiln.runtime import jit
from opkiln.runtime.cli import main
from opkiln.runtime.config import config
from opkiln.runtime.jit import evict, inventory, store

Cache = Callable[..., str]


@pytest.fixture
def scoped(tmp_path: Path, cxx: Path) -> Iterator[Path]:
    with config.scope(cache_dir=tmp_path / "cache", cxx=str(cxx)):
        yield tmp_path / "cache"


@pytest.fixture
def cache(capsys: pytest.CaptureFixture[str]) -> Cache:
    """`cache("ls --long", status=0)`: what the command prints."""

    def call(line: str, status: int = 0) -> str:
        assert main(["cache", *line.split()]) == status
        return capsys.readouterr().out

    return call


def build(*numbers: int) -> list[Path]:
    """Entries that nobody holds."""
    paths = []
    for number in numbers:
        loaded = jit.build_or_load(child.text_of(number), ["answer"], name="answer")
        paths.append(Path(loaded.path).parent)
    return paths


def age(path: Path, days: float) -> None:
    stamp = time.time() - days * 86400
    os.utime(path, (stamp, stamp))


# ---- ls and info ----


def test_ls_says_what_an_entry_is(tmp_path: Path, cache: Cache) -> None:
    with config.scope(cache_dir=tmp_path / "cache"):

        @ok.compile
        def f(x, n):
            return np.sum(np.tanh(x * n) + x), np.sqrt(x).astype(np.float32)

        f(np.ones(5), 3)
        out = cache("ls --plain")
        (entry,) = child.entries(tmp_path / "cache")
        row = out.splitlines()[1]
        assert row.startswith(entry.name[:-16])
        assert "in use" in row
        for word in ("multiply", "tanh", "sum", "float64", "float32", "KiB"):
            assert word in out
        long = cache("ls --long")
        for word in (str(entry), "sqrt", "-march=native", jit.compiler().version, "just now"):
            assert word in long
        (shown,) = json.loads(cache("ls --json"))
        assert shown["path"] == str(entry)
        assert shown["in_use"] is True
        assert {"multiply", "tanh", "sum", "sqrt"} <= set(shown["operations"])
        assert set(shown["dtypes"]) == {"float64", "float32"}
        assert shown["size"] == evict.size_of(str(entry))
        assert shown["key"].startswith(entry.name[-24:])
        assert shown["functions"] >= 1


@pytest.mark.parametrize(
    ("text", "operations", "dtypes"),
    [
        ("//     v0 = load 0 : float32\n//     v1 = exp v0\n", ("exp",), ("float32",)),
        ("//     v0 = scalar 0 : int64\n//     v1 = float64 v0\n", (), ("int64", "float64")),
        ("//     v2 = fold argmax v1\n//     v3 = bool v2\n", ("argmax",), ("bool",)),
        ("//     v1 = np.float32(1.0)\n//     store 1 v4\n// x = exp v0\nexp v0\n", (), ()),
    ],
)
def test_describe(text: str, operations: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    assert inventory.describe(text) == (operations, dtypes)


def test_ls_puts_the_last_used_first_and_names_a_damaged_one(scoped: Path, cache: Cache) -> None:
    old, new, broken = build(1, 2, 3)
    age(old, 40)
    age(new, 0.5)
    (broken / store.MANIFEST).write_text("{}", encoding="utf-8")
    age(broken, 3)
    lines = cache("ls").splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [p.name[:-16] for p in (new, broken, old)]
    assert "12 hours ago" in lines[1]
    assert "checksum" in lines[2]
    assert "6 weeks ago" in lines[3]
    assert lines[-1].startswith("3 entries, ")
    assert "checksum" in cache("ls --long")
    assert [k["problem"] != "" for k in json.loads(cache("ls --json"))] == [False, True, False]


def test_both_layers_are_shown(scoped: Path, tmp_path: Path, cache: Cache) -> None:
    (below,) = build(1)
    scoped.rename(tmp_path / "image")
    build(2, 3)
    with config.scope(cache_lower=tmp_path / "image"):
        assert sum(line.endswith("lower") for line in cache("ls").splitlines()) == 1
        assert "OPKILN_CACHE_LOWER" in cache("ls --long")
        upper, lower = json.loads(cache("info --json"))["directories"]
        text = cache("info")
    assert (upper["entries"], lower["entries"]) == (2, 1)
    assert (upper["lower"], lower["lower"]) == (False, True)
    assert lower["path"] == str(tmp_path / "image")
    assert str(tmp_path / "image") in text
    assert below.parent.name in text


def test_info_counts_limit_use_and_leftovers(scoped: Path, cache: Cache) -> None:
    entry, _ = build(1, 2)
    held = jit.build_or_load(child.text_of(1), ["answer"], name="answer")
    trash = entry.with_name(".trash-x")
    trash.mkdir()
    (trash / "file").write_bytes(bytes(5000))
    entry.with_name(".failed-x").mkdir()
    with config.scope(cache_max_bytes="3MiB"):
        text = cache("info")
        found = json.loads(cache("info --json"))
    (one,) = found["directories"]
    assert found["limit"] == 3 * 2**20
    assert (one["entries"], one["in_use"], one["leftovers"]) == (2, 1, 2)
    assert one["leftover_size"] >= 5000
    assert one["size"] == sum(kept.size for kept in evict.kept(str(scoped)))
    for word in ("2 entries", "3 MiB", "2 left-overs", jit.compiler().version):
        assert word in text
    assert trash.exists()  # looking removes nothing
    del held


# ---- verify ----


def test_verify_names_what_is_damaged_and_repairs_it(scoped: Path, cache: Cache) -> None:
    assert "whole" in cache_of(build(1, 2, 3, 4, 5), cache)
    paths = child.entries(scoped)
    (paths[0] / store.LIBRARY).write_bytes(b"x")
    (paths[1] / store.LOG).unlink()
    (paths[2] / store.SOURCE).chmod(0o666)
    shutil.rmtree(paths[3])
    paths[3].symlink_to("elsewhere")
    (record,) = (scoped / store.COMPILERS).glob("*.json")
    record.write_text("{}", encoding="utf-8")
    said = cache("verify", status=1)
    for path in (*paths[:4], record):
        assert str(path) in said
    assert str(paths[4]) not in said
    assert "build.log is missing" in said
    assert "--repair" in said
    found = json.loads(cache("verify --json", status=1))
    assert (found["ok"], len(found["damages"])) == (False, 5)
    assert all(os.path.lexists(path) for path in paths)
    assert "Removed 5 of 5" in cache("verify --repair")
    assert [os.path.lexists(path) for path in paths] == [False] * 4 + [True]
    assert json.loads(cache("verify --json")) == {"ok": True, "damages": []}
    assert not child.private_files(scoped)


def cache_of(_: list[Path], cache: Cache) -> str:
    return cache("verify")


def test_verify_sees_an_entry_under_a_wrong_name(scoped: Path, cache: Cache) -> None:
    (path,) = build(1)
    path.rename(path.with_name(path.name[:-4] + "0000"))
    assert "another key" in cache("verify", status=1)


def test_damage_below_is_told_and_left(scoped: Path, tmp_path: Path, cache: Cache) -> None:
    build(1)
    scoped.rename(tmp_path / "image")
    (entry,) = child.entries(tmp_path / "image")
    (entry / store.LIBRARY).write_bytes(b"x")
    with config.scope(cache_lower=tmp_path / "image"):
        said = cache("verify --repair", status=1)
        assert str(entry) in said
        assert "fill the lower cache anew" in said
        cache("clear")
        cache("prune --max-size 0")
    assert (entry / store.LIBRARY).exists()


def test_F143_verify_tells_who_may_write(scoped: Path, cache: Cache) -> None:
    (path,) = build(1)
    path.parent.chmod(0o777)
    said = cache("verify --repair", status=1)
    assert "other users" in said
    assert "chmod go-w" in said
    assert path.exists()


# ---- prune and clear ----


def test_prune_by_size_and_age(scoped: Path, cache: Cache) -> None:
    paths = build(1, 2, 3, 4)
    for days, path in zip((1, 50, 20, 0), paths, strict=True):
        age(path, days)
    size = evict.size_of(str(paths[0]))
    plan = cache("prune --older-than 30d --dry-run")
    assert str(paths[1]) in plan
    assert "would remove 1 entry" in plan
    assert all(path.exists() for path in paths)
    assert "removed 1 entry" in cache("prune --older-than 30d")
    done = json.loads(cache(f"prune --max-size {2 * size} --json"))
    assert done["removed"] == [str(paths[2])]
    assert done["left"] == 2 * size
    assert [path.exists() for path in paths] == [True, False, False, True]
    with config.scope(cache_max_bytes=size):
        assert json.loads(cache("prune --json"))["removed"] == [str(paths[0])]
    with config.scope(cache_max_bytes=0):  # the setting's 0 is no limit; the option's is all
        assert json.loads(cache("prune --json"))["removed"] == []
    assert json.loads(cache("prune --max-size 0 --json"))["left"] == 0


def test_what_is_in_use_stays(scoped: Path, cache: Cache) -> None:
    build(1, 2)
    held = jit.build_or_load(child.text_of(1), ["answer"], name="answer")
    entry = Path(held.path).parent
    mine = scoped / "notes.txt"
    mine.write_text("mine", encoding="utf-8")
    entry.with_name(".failed-x").mkdir()
    entry.with_name(".trash-x").mkdir()
    said = cache("clear")
    assert "removed 1 entry" in said
    assert "kept 1 entry that living processes use" in said
    assert child.entries(scoped) == [entry]
    assert not list(entry.parent.glob(".*"))
    assert jit.build_or_load(child.text_of(1), ["answer"], name="answer").hit == "disk"
    del held
    done = json.loads(cache("clear --json"))
    assert (done["in_use"], done["left"]) == ([], 0)
    assert sorted(p.name for p in scoped.iterdir()) == [".in-use", ".sizes", "notes.txt"]
    assert mine.read_text("utf-8") == "mine"
    (again,) = build(1)
    assert again == entry


@pytest.mark.parametrize("option", ["--max-size", "--older-than"])
@pytest.mark.parametrize("value", ["", "5x", "many", "-3d", "nand", "infd", "1e999d", "-5M", "d"])
def test_bad_sizes_and_ages(
    option: str, value: str, capsys: pytest.CaptureFixture[str], scoped: Path
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["cache", "prune", f"{option}={value}"])
    assert left.value.code == 2
    assert f"got {value!r}" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["", "cook", "ls --repair", "clear --dry", "verify extra"])
def test_bad_actions(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["cache", *line.split()])
    assert left.value.code == 2
    assert "usage: opkiln" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1.5m", 90), ("2h", 7200), ("30d", 30 * 86400), ("1w", 604800), ("0D", 0)],
)
def test_ages(text: str, seconds: float) -> None:
    from opkiln.runtime.cli.cache import _age

    assert _age(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "just now"), (-5, "just now"), (61, "1 min ago"), (7300, "2 hours ago"),
     (3 * 86400, "3 days ago"), (60 * 86400, "9 weeks ago")],
)  # fmt: skip
def test_ages_in_words(seconds: float, text: str) -> None:
    from opkiln.runtime.cli.cache import _ago

    assert _ago(seconds) == text


# ---- places ----

ACTIONS = ["ls", "ls --long", "info", "verify", "prune", "prune --max-size 0 --dry-run", "clear"]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_cache_that_does_not_exist(tmp_path: Path, cache: Cache, action: str) -> None:
    with config.scope(cache_dir=tmp_path / "a" / "cache", cache_lower=tmp_path / "b"):
        said = cache(action)
        assert "does not exist" in said
        json.loads(cache(f"{action.replace(' --long', '')} --json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", ["file", "foreign", "open to all", "link"])
def test_F075_F143_a_cache_that_is_not_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str, kind: str
) -> None:
    place = tmp_path / "cache"
    if kind == "file":
        place.touch()
    elif kind == "link":
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
        if kind == "open to all":
            place.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(place, 12345, 12345)
        else:
            pytest.skip("only root can give a directory away")
    with config.scope(cache_dir=place):
        status = main(["cache", *action.split()])
    out, err = capsys.readouterr()
    assert status == (0 if action == "info" else 1)
    assert str(place) in out + err
    if action != "info":
        assert "CacheError" in err
        assert "how to fix" in err


def test_a_cache_that_may_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cache").mkdir(mode=0o300)
    if os.access(tmp_path / "cache", os.R_OK):
        pytest.skip("root may read everything")
    with config.scope(cache_dir=tmp_path / "cache"):
        assert main(["cache", "ls"]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_a_cache_on_a_read_only_disk(scoped: Path, tmp_path: Path, cache: Cache) -> None:
    (entry,) = build(1)
    place = tmp_path / "image"
    place.mkdir()
    steps: list[list[Any]] = [["--bind", scoped, place], ["-o", "remount,bind,ro", place]]
    for step in steps:
        if os.geteuid() != 0 or subprocess.run(["mount", *step], check=False).returncode != 0:
            pytest.skip("may not mount here")
    try:
        with config.scope(cache_dir=place):
            assert entry.name[:-16] in cache("ls")
            assert "is not writable" in cache("info")
            assert "whole" in cache("verify")
            for action in ("prune", "clear", "prune --max-size 0"):
                cache(action, status=1)
        with config.scope(cache_dir=tmp_path / "none", cache_lower=place):
            assert entry.name[:-16] in cache("ls")
            cache("clear")
        assert child.entries(place)
    finally:
        subprocess.run(["umount", "-l", place], check=True)
