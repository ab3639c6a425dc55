"""The size limit and the sweep: by last use, across processes, never what is in use."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import jit_child as child

from opkiln.runtime import jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import evict, store
from opkiln.runtime.jit.claims import Claims


@pytest.fixture
def scoped(tmp_path: Path, cxx: Path) -> Iterator[Path]:
    with config.scope(cache_dir=tmp_path / "cache", cxx=str(cxx)):
        yield tmp_path / "cache"


def load(number: int) -> jit.Loaded:
    loaded = jit.build_or_load(child.text_of(number), ["answer"], name="answer")
    assert child.call(loaded.addresses["answer"]) == number
    return loaded


def folder_of(number: int) -> Path:
    """The entry, which nobody holds when this returns."""
    return Path(load(number).path).parent


def age(folder: Path, seconds: float) -> None:
    stamp = time.time() - seconds
    os.utime(folder, (stamp, stamp))


def disk(base: Path) -> int:
    return sum(one.size for one in evict.kept(str(base)))


# ---- the limit ----


def test_F073_fifty_entries_under_a_limit(scoped: Path) -> None:
    size = evict.size_of(str(folder_of(0)))
    limit = 12 * size + size // 2
    with config.scope(cache_max_bytes=limit):
        for number in range(1, 50):
            load(number)
            assert disk(scoped) <= limit
    left = {path.name for path in child.entries(scoped)}
    assert len(left) >= 11  # no more goes than a sixteenth of the limit and what did not fit
    assert left == {folder_of(number).name for number in range(50 - len(left), 50)}
    assert not child.private_files(scoped)


def test_F073_the_limit_counts_what_other_processes_build(
    scoped: Path, cxx: Path, tmp_path: Path
) -> None:
    size = evict.size_of(str(folder_of(0)))
    between = """
from opkiln.runtime.jit import evict, store
spec["text"] = spec["text"].replace(f" {spec['n']};", f" {spec['n'] + 1};")
spec["n"] += 1
base = store.root()
"""
    env = {"OPKILN_CACHE_DIR": scoped, "OPKILN_CXX": cxx, "OPKILN_CACHE_MAX_BYTES": str(9 * size)}
    specs = [
        {"times": 12, "between": between, "n": n, "text": child.text_of(n)} for n in (100, 200)
    ]
    for report in [child.finish(c) for c in [child.start_child(s, **env) for s in specs]]:
        assert (report["error"], report["warnings"]) == (None, [])
    assert 6 * size <= disk(scoped) <= 9 * size
    assert evict._read_ledger(f"{scoped}/{evict._LEDGER}") <= 9 * size


def test_a_build_that_fits_looks_at_no_other_entry(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(1)
    monkeypatch.setattr(evict, "kept", None)
    load(2)
    load(3)


@pytest.mark.parametrize("damage", ["text", "empty", "directory", "link", "long"])
def test_a_damaged_ledger_is_written_anew(scoped: Path, damage: str) -> None:
    size = evict.size_of(str(folder_of(0)))
    for number in range(1, 6):
        load(number)
    ledger = scoped / evict._LEDGER
    ledger.unlink()
    if damage == "directory":
        ledger.mkdir()
    elif damage == "link":
        ledger.symlink_to(scoped / "elsewhere")
    else:
        ledger.write_text({"text": "many\n", "empty": "", "long": "1\n" * 3000}[damage], "utf-8")
    with config.scope(cache_max_bytes=3 * size + size // 2):
        load(7)
    assert disk(scoped) <= 3 * size + size // 2
    assert not (scoped / "elsewhere").exists()


def test_no_limit(scoped: Path) -> None:
    with config.scope(cache_max_bytes=0):
        load(1)
    assert not (scoped / evict._LEDGER).exists()


def test_only_entries_are_evicted(scoped: Path) -> None:
    target = folder_of(1).parent
    mine = target / "my-notes"
    mine.mkdir()
    (mine / "kernel.so").touch()
    assert len(evict.prune(str(scoped), max_bytes=0).removed) == 1
    assert list(mine.iterdir())


def test_dry_run_and_age(scoped: Path) -> None:
    folders = [folder_of(number) for number in range(4)]
    for days, folder in zip((9, 2, 5, 0), folders, strict=True):
        age(folder, days * 86400)
    plan = evict.prune(str(scoped), older_than=3 * 86400, dry_run=True)
    assert [one.entry.path for one in plan.removed] == [str(folders[0]), str(folders[2])]
    assert all(folder.exists() for folder in folders)
    done = evict.prune(str(scoped), older_than=3 * 86400)
    assert (done.removed, done.left) == (plan.removed, plan.left)
    assert [folder.exists() for folder in folders] == [False, True, False, True]
    assert disk(scoped) == done.left
    assert not child.private_files(scoped)


# ---- last use ----


def test_last_use_counts_across_processes(scoped: Path, cxx: Path) -> None:
    used, unused = folder_of(1), folder_of(2)
    age(used, 7200)
    age(unused, 3600)
    report = child.run_child(
        {"text": child.text_of(1)}, OPKILN_CACHE_DIR=scoped, OPKILN_CXX=cxx, LANG="C"
    )
    assert report["loaded"] == ["disk"]
    evict.prune(str(scoped), max_bytes=evict.size_of(str(used)))
    assert (used.exists(), unused.exists()) == (True, False)


@pytest.mark.parametrize("seconds", [90, -90, -1e9])
def test_F104_a_use_is_noted_to_the_minute_whatever_the_clock(scoped: Path, seconds: float) -> None:
    folder = folder_of(1)
    age(folder, seconds)
    begun = time.time()
    load(1)
    assert begun - 1 < folder.stat().st_mtime < time.time() + 1  # file systems stamp coarsely
    stamp = folder.stat().st_mtime_ns
    load(1)
    assert folder.stat().st_mtime_ns == stamp  # a hot kernel costs no write


def holder(scoped: Path, cxx: Path, number: int) -> subprocess.Popen:
    """A process that has a kernel loaded until it is killed."""
    env = {"OPKILN_CACHE_DIR": str(scoped), "OPKILN_CXX": str(cxx)}
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import jit_child
from opkiln.runtime import jit
loaded = jit.build_or_load({child.text_of(number)!r}, ["answer"], name="answer")
print(loaded.hit, flush=True)
sys.stdin.read()
print(jit_child.call(loaded.addresses["answer"]), flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while (line := process.stdout.readline().strip()) not in {"disk", "built"}:
        assert line, "the holder ended"
    return process


def test_F073_what_a_process_has_loaded_goes_when_it_has_ended(scoped: Path, cxx: Path) -> None:
    folders = [folder_of(number) for number in (1, 2)]
    for folder in folders:
        age(folder, 86400)
    process = holder(scoped, cxx, 1)
    age(folders[0], 90000)  # so that only being in use can save it
    try:
        pruned = evict.prune(str(scoped), max_bytes=0)
        assert [one.entry.path for one in pruned.in_use] == [str(folders[0])]
        assert [folder.exists() for folder in folders] == [True, False]
        assert time.time() - folders[0].stat().st_mtime < 60  # being in use is a use
        age(folders[0], 90000)
        evict.prune(str(scoped), older_than=1)
        assert folders[0].exists()
    finally:
        process.kill()
        process.communicate()
    assert evict.prune(str(scoped), max_bytes=0).left == 0
    assert not folders[0].exists()


def test_F122_a_library_that_was_dropped_is_no_longer_in_use(scoped: Path) -> None:
    first, again = load(1), load(1)
    assert len(evict.prune(str(scoped), max_bytes=0).in_use) == 1
    del first
    assert len(evict.prune(str(scoped), max_bytes=0).in_use) == 1
    del again
    assert evict.prune(str(scoped), max_bytes=0).left == 0


def test_a_limit_below_what_is_in_use_does_not_search_each_time(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    real = evict.prune
    monkeypatch.setattr(evict, "prune", lambda *a, **k: searched.append(1) or real(*a, **k))
    with config.scope(cache_max_bytes=evict.size_of(str(folder_of(0))) * 40):
        held = [load(number) for number in range(1, 61)]
    assert len(child.entries(scoped)) == 60  # entry 0 went
    assert 2 <= len(searched) <= 15
    assert held[0].hit == "built"


def test_without_locks_what_was_used_within_the_hour_stays(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Claims, "_lock", lambda *_: None)
    folders = [folder_of(number) for number in (1, 2)]
    age(folders[1], 3700)
    evict.prune(str(scoped), max_bytes=0)
    assert [folder.exists() for folder in folders] == [True, False]


def test_pruning_while_others_load(scoped: Path, cxx: Path) -> None:
    # Three processes want five kernels again and again in a cache that holds two.
    size = evict.size_of(str(folder_of(0)))
    between = """
n = spec["n"] = (spec.get("n", 0) + spec["step"]) % 5
spec["text"] = spec["texts"][n]
report.setdefault("right", []).append(report["value"] == report.get("expected", 0))
report["expected"] = n
"""
    texts = [child.text_of(n) for n in range(5)]
    env = {"OPKILN_CACHE_DIR": scoped, "OPKILN_CXX": cxx, "OPKILN_CACHE_MAX_BYTES": str(2 * size)}
    specs = [
        {"times": 25, "between": between, "texts": texts, "text": texts[0], "step": step}
        for step in (1, 2, 3)
    ]
    for report in [child.finish(c) for c in [child.start_child(s, **env) for s in specs]]:
        assert (report["errors"], report["warnings"]) == ([], [])
        assert report["right"] == [True] * 25
        assert "built" in report["loaded"][1:]
    assert disk(scoped) <= 4 * size  # each process may hold one


# ---- left-overs ----


def leftover(target: Path, name: str, *, seconds: float = 0) -> Path:
    path = target / name
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "file").touch()
    age(path, seconds)
    return path


DAY = 86400 + 60


def build_name(claim: int, host: str | None = None) -> str:
    return f".build-answer-{'ab' * 12}-{host or store.host()}-1-{claim:015x}"


def test_sweep_takes_what_is_private_and_abandoned(scoped: Path) -> None:
    entry = folder_of(1)
    target, compilers = entry.parent, scoped / store.COMPILERS
    (record,) = compilers.glob("*.json")
    age(entry, 400 * DAY)
    age(record, 400 * DAY)
    with Claims(store.claims_file(str(scoped))) as alive:
        alive.share(77)
        alive.share(78)
        goes = [
            leftover(target, ".build-of-an-older-version-1-ab", seconds=DAY),
            leftover(target, build_name(5)),  # its builder is dead, as the lock says
            leftover(target, build_name(77, host="11111111"), seconds=DAY),
            leftover(target, build_name(78), seconds=DAY),  # no build takes a day
            leftover(target, ".trash-x"),
            leftover(target, ".failed-x", seconds=DAY),
            leftover(target, ".lock-directory", seconds=DAY),
        ]
        (target / ".lock-file").touch()
        goes.append(target / ".lock-file")
        (compilers / f"{record.name}.1-abcd").touch()
        age(compilers / f"{record.name}.1-abcd", DAY)
        goes.append(compilers / f"{record.name}.1-abcd")
        stays = [
            entry,
            record,
            leftover(target, build_name(77)),  # its builder lives
            leftover(target, build_name(5, host="11111111")),  # another machine: cannot know
            leftover(target, ".build-x"),
            leftover(target, ".build-x-y-z"),
            leftover(target, ".failed-y"),
            leftover(target, "my-folder", seconds=DAY),
            leftover(target, ".hidden", seconds=DAY),
            leftover(target, ".lock-directory-2"),
        ]
        planned = evict.sweep(str(scoped), dry_run=True)
        assert all(path.exists() for path in goes)
        assert sorted(evict.sweep(str(scoped))) == sorted(map(str, goes))
        assert sorted(planned) == sorted(map(str, goes))
    assert not any(path.exists() for path in goes)
    assert all(path.exists() for path in stays)


def test_sweep_leaves_a_lock_that_is_held(scoped: Path) -> None:
    from opkiln.runtime.jit.lock import ProcessLock

    path = folder_of(1).parent / ".lock-held"
    with ProcessLock(str(path), 0, print) as held:
        evict.sweep(str(scoped))
        assert held.held
        assert path.exists()


def test_a_builder_at_work_keeps_its_directory_from_the_sweep(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opkiln.runtime.jit import build

    real = build.compile_library
    swept = []

    def sweeping(*args: object) -> bytes:
        swept.append(evict.sweep(str(scoped)))
        return real(*args)

    monkeypatch.setattr(build, "compile_library", sweeping)
    assert load(3).hit == "built"
    assert swept == [[]]


def test_the_name_of_this_boot() -> None:
    assert store.host() == store.host()
    assert len(store.host()) == 8
