"""The artifact store: damage is a miss with one warning, strange directories are refused."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import pytest
from tests import jit_child as child

from opkiln.runtime import errors, jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import load, store
from opkiln.runtime.jit.record import Record, render


@pytest.fixture
def scoped(tmp_path: Path) -> Iterator[Path]:
    with config.scope(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def answer() -> jit.Loaded:
    return jit.build_or_load(child.TEXT, ["answer"], name="answer")


# ---- damage (each part in each way: test_jit_damage.py) ----


def test_F070_many_threads_heal_once(
    scoped: Path,
    monkeypatch: pytest.MonkeyPatch,
    parallelize: Callable[..., list[jit.Loaded]],
) -> None:
    Path(answer().path).write_bytes(b"")
    real = store.check

    def slow(*args: object) -> bool:
        try:
            return real(*args)
        except store.Damaged:
            time.sleep(0.05)  # so that all see the damage before one of them heals it
            raise

    monkeypatch.setattr(store, "check", slow)

    def ask(_: int) -> jit.Loaded:
        with config.scope(cache_dir=scoped):
            return answer()

    with pytest.warns(errors.OpkilnWarning) as caught:
        results = parallelize(ask, 8)
    assert len(caught) == 1
    assert [r.hit for r in results].count("built") == 1


def test_F066_code_for_another_cpu_never_runs(scoped: Path) -> None:
    first = answer()
    manifest = Path(first.path).with_name(store.MANIFEST)
    fields = json.loads(manifest.read_text(encoding="utf-8"))
    del fields["check"]
    fields["features"].append("__AVX9000__")
    manifest.write_bytes(render(fields))
    with pytest.warns(errors.OpkilnWarning, match="__AVX9000__"):
        assert answer().hit == "built"


def test_F066_another_machine_has_its_own_compiler_record(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer()
    monkeypatch.setattr(jit.toolchain, "_cpu", lambda: "0123456789abcdef")
    monkeypatch.setattr(jit, "_known", {})
    assert answer().hit == "disk"  # same expansion of -march=native, so the same key
    assert len(list((scoped / "compilers").glob("*.json"))) == 2


def test_F076_noexec_is_explained_and_another_directory_tried(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opkiln import native

    real = native.Library

    def library(path: str) -> object:
        if path.startswith(str(scoped)):
            raise OSError(f"{path}: failed to map segment from shared object")
        return real(path)

    monkeypatch.setattr(native, "Library", library)
    monkeypatch.setattr(store, "_roots", {})
    monkeypatch.setattr(store, "_temporary", None)
    with pytest.warns(errors.OpkilnWarning, match="failed to map segment") as caught:
        loaded = answer()
    assert len(caught) == 1
    assert child.call(loaded.addresses["answer"]) == 42
    with pytest.raises(errors.LoadFailed, match=r"noexec.*OPKILN_CACHE_DIR"):
        load.open_library(f"{scoped}/x.so", [])


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("/a.so: wrong ELF class: ELFCLASS32", "another machine"),
        ("/lib/libstdc++.so.6: version `GLIBCXX_9' not found (required by /a.so)", "OPKILN_CXX"),
        ("/a.so: undefined symbol: f", "nothing in this process provides f"),
    ],
)
def test_F100_load_errors_are_explained(said: str, advice: str) -> None:
    assert advice in str(load._explain("/a.so", said))


# ---- directories ----


def fresh(**env: str | Path | None) -> dict[str, object]:
    report = child.run_child({"times": 2, "after": child_modes}, **env)
    assert report["value"] == 42, report
    return report


child_modes = """
import os
from opkiln.runtime.jit import store
report["root"] = store.root()
report["mode"] = os.stat(store.root()).st_mode & 0o777
"""


@pytest.mark.parametrize(
    "kind", ["file", "readonly", "link", "writable", "below a file", "foreign"]
)
def test_F074_F075_F143_hostile_cache_directories(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "cache"
    if kind == "file":
        place.write_text("", encoding="utf-8")
    elif kind == "below a file":
        place.write_text("", encoding="utf-8")
        place = place / "below"
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to("elsewhere")
    else:
        place.mkdir(mode=0o700)
        if kind == "readonly":
            if os.geteuid() == 0:
                place = Path("/proc/opkiln")  # root may write anywhere else
            else:
                place.chmod(0o555)
        elif kind == "writable":
            place.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(place, 12345, 12345)
        else:
            pytest.skip("only root can give a directory away")
    report = fresh(OPKILN_CACHE_DIR=place, TMPDIR=tmp_path)
    assert len(report["warnings"]) == 1, report["warnings"]
    assert "OPKILN_CACHE_DIR" in report["warnings"][0]
    assert report["loaded"] == ["built", "disk"]
    assert report["mode"] == 0o700
    assert not Path(report["root"]).exists()  # it went with the process


@pytest.mark.parametrize("home", [None, "/proc/nonexistent", "/dev/null"])
def test_F074_no_home(tmp_path: Path, home: str | None) -> None:
    before = """
import pwd
def nobody(*_): raise KeyError("random user id of a container")
pwd.getpwuid = nobody
"""
    report = child.run_child(
        {"before": before, "times": 2},
        HOME=home,
        OPKILN_CACHE_DIR=None,
        XDG_CACHE_HOME=None,
        TMPDIR=tmp_path,
    )
    assert report["loaded"] == ["built", "disk"]
    assert len(report["warnings"]) == 1
    assert "OPKILN_CACHE_DIR" in report["warnings"][0]


def test_a_shared_home_directory_setting(tmp_path: Path) -> None:
    report = fresh(OPKILN_CACHE_DIR=None, XDG_CACHE_HOME=tmp_path / "xdg")
    assert report["root"] == str(tmp_path / "xdg" / "opkiln")
    assert report["warnings"] == []
    assert report["mode"] == 0o700


def test_the_default_is_what_platformdirs_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.default_root() == platformdirs.user_cache_dir("opkiln", appauthor=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert store.default_root() == platformdirs.user_cache_dir("opkiln", appauthor=False)


def test_no_place_at_all_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    before = """
import tempfile
def refuse(*a, **k): raise OSError(28, "No space left on device")
tempfile.mkdtemp = refuse
"""
    report = child.run_child({"before": before}, OPKILN_CACHE_DIR=tmp_path / "file")
    assert report["error"] == "CacheError"
    assert "OPKILN_CACHE_DIR" in report["message"]


def test_a_temporary_directory_survives_a_forked_child(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    after = """
import os, sys
from opkiln.runtime.jit import store
pid = os.fork()
if pid == 0:
    sys.stdout = open(os.devnull, "w")
    store._remove_temporary(store.root(), os.getppid())
    os._exit(0)
os.waitpid(pid, 0)
report["there"] = os.path.isdir(store.root())
"""
    report = child.run_child({"after": after}, OPKILN_CACHE_DIR=tmp_path / "file")
    assert report["there"]


def test_remove_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "file").touch()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "keep")
    store.remove(str(tmp_path / "gone"))
    assert (tmp_path / "keep" / "file").exists()
    assert not (tmp_path / "gone").exists()


def test_a_cache_removed_under_a_running_program_is_made_again(scoped: Path) -> None:
    answer()
    shutil.rmtree(scoped)
    assert answer().hit == "built"
    assert answer().path.startswith(str(scoped))


def test_any_other_problem_of_the_directory_is_survived(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.mkdir

    def refuse(path: str, mode: int = 0o777) -> None:
        if ".build-" in path and path.startswith(str(scoped)):
            raise PermissionError(13, "Permission denied", path)
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(store, "_roots", {})
    monkeypatch.setattr(store, "_temporary", None)
    with pytest.warns(errors.OpkilnWarning, match="Permission denied") as caught:
        assert answer().hit == "built"
    assert len(caught) == 1
    assert answer().hit == "disk"


def test_F075_F082_an_entry_that_cannot_be_opened_is_a_miss(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer()
    real, refused = os.open, []

    def once(path: str, flags: int, mode: int = 0o777, **kw: int) -> int:
        if str(path).endswith(store.LIBRARY) and len(refused) < 2:
            refused.append(path)
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, mode, **kw)

    monkeypatch.setattr(os, "open", once)
    with pytest.warns(errors.OpkilnWarning, match="Permission denied") as caught:
        assert answer().hit == "built"
    assert len(caught) == 1
    assert len(refused) == 2


def test_a_warning_points_at_the_line_of_the_user(scoped: Path) -> None:
    Path(answer().path).write_bytes(b"")
    with pytest.warns(errors.OpkilnWarning) as caught:
        answer()
    assert caught[0].filename == __file__


def test_a_target_directory_that_others_may_write_is_left(scoped: Path) -> None:
    first = answer()
    shutil.rmtree(Path(first.path).parent)
    Path(first.path).parent.parent.chmod(0o777)
    with pytest.warns(errors.OpkilnWarning, match="other users") as caught:
        assert not answer().path.startswith(str(scoped))
    assert len(caught) == 1
    store.forget_root()


def test_a_hit_counts_as_use(scoped: Path) -> None:
    folder = Path(answer().path).parent
    os.utime(folder, (1, 1))
    answer()
    assert time.time() - folder.stat().st_mtime < 60


# ---- names ----

ODD = [
    "with space",
    "quote'\"",
    "dollar$HOME",
    "colon:",
    "hash#",
    "编译",
    "Ωδ",
    "back\\slash",
    "a|b",
]


@pytest.mark.parametrize("odd", ODD)
def test_F095_F096_odd_paths_in_the_c_locale(tmp_path: Path, odd: str) -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    report = fresh(OPKILN_CACHE_DIR=tmp_path / odd, **env)
    assert report["loaded"] == ["built", "disk"]
    assert report["warnings"] == []


def test_F096_text_and_symbols_in_utf8(scoped: Path) -> None:
    loaded = jit.build_or_load("// ελ 🙂\n" + child.TEXT, ["answer"], name="编译/../x y$")
    assert Path(loaded.path).parent.parent.parent == scoped
    assert "🙂" in Path(loaded.path).with_name("kernel.cpp").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ['";}', "a\nb", "*/", "$(touch x)", "../../x", "", "x" * 300])
def test_F142_names_never_reach_a_path_or_text(scoped: Path, name: str) -> None:
    loaded = jit.build_or_load(child.TEXT, ["answer"], name=name)
    assert Path(loaded.path).parent.parent.parent == scoped
    assert loaded.hit == "built"


# ---- records ----


@pytest.mark.parametrize(
    "fields",
    [
        {"a": "", "b": 7, "c": []},
        {"a": 'quote " and \\ back', "c": ["x, y", 'z", "w', "Ω", ""]},
        {"line": "a\nb", "flags": ["-DX=1", "a b"]},
    ],
)
def test_records_come_back(fields: dict[str, str | int | list[str]]) -> None:
    data = render(fields)
    record = Record(data)
    plain = json.loads(data)
    for name, value in fields.items():
        assert plain[name] == value
        read = {str: record.text, int: record.number, list: record.texts}[type(value)]
        assert read(name) == value
    assert (record.text("no"), record.number("no"), record.texts("no")) == ("", -1, [])


def test_any_flipped_byte_of_a_record_is_seen() -> None:
    data = render({"a": "text", "b": 7, "c": ["x", "y"]})
    for at in range(len(data)):
        for bit in (1, 32):
            broken = bytearray(data)
            broken[at] ^= bit
            with pytest.raises(ValueError):
                Record(bytes(broken))
