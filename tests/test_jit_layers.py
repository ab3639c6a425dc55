"""The lower cache and hostile file systems: real mounts and a real second user, where allowed."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import jit_child as child

from opkiln.runtime import errors, jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import store, toolchain
from opkiln.runtime.jit.record import Record, render

ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture
def image(tmp_path: Path, cxx: Path) -> Path:
    """A cache as an image has it: filled once with answer 42, readable by all."""
    folder = tmp_path / "image"
    with config.scope(cache_dir=folder, cxx=str(cxx)):
        assert ask().hit == "built"
    readable(folder)
    return folder


@pytest.fixture
def scoped(tmp_path: Path, cxx: Path, image: Path) -> Iterator[Path]:
    with config.scope(cache_dir=tmp_path / "cache", cxx=str(cxx), cache_lower=image):
        yield tmp_path / "cache"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_lowers", "_roots"):
        monkeypatch.setattr(store, name, {})
    monkeypatch.setattr(store, "_temporary", None)
    monkeypatch.setattr(jit, "_known", {})


def ask(number: int = 42) -> jit.Loaded:
    loaded = jit.build_or_load(child.text_of(number), ["answer"], name="answer")
    assert child.call(loaded.addresses["answer"]) == number
    return loaded


def readable(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    return found


# ---- the lower cache ----


def test_F119_the_lower_cache_is_read_and_never_written(scoped: Path, image: Path) -> None:
    for path in [image, *image.rglob("*")]:
        os.utime(path, (0, 0))
    before = snapshot(image)
    loaded = ask()
    assert loaded.hit == "disk"
    assert loaded.path.startswith(str(image))
    new = ask(43)
    assert new.hit == "built"
    assert new.path.startswith(str(scoped))
    assert ask(43).hit == "disk"
    assert snapshot(image) == before
    assert not (image / ".in-use").exists() or snapshot(image) == before
    assert not child.private_files(scoped)


def test_the_first_cache_comes_first(scoped: Path, image: Path) -> None:
    with config.scope(cache_lower=None):
        upper = ask()
    assert upper.hit == "built"
    assert ask().path == upper.path


DAMAGES: dict[str, Callable[[Path], object]] = {
    "library": lambda entry: (entry / store.LIBRARY).write_bytes(b"x"),
    "manifest": lambda entry: (entry / store.MANIFEST).unlink(),
    "link": lambda entry: [
        (entry / store.LOG).unlink(),
        (entry / store.LOG).symlink_to("/etc/hosts"),
    ],
    "file open to all": lambda entry: (entry / store.LIBRARY).chmod(0o666),
    "entry open to all": lambda entry: entry.chmod(0o777),
    "target open to the group": lambda entry: entry.parent.chmod(0o775),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_F070_F143_damage_below_is_built_above_with_one_warning(
    scoped: Path, image: Path, damage: str
) -> None:
    (entry,) = child.entries(image)
    DAMAGES[damage](entry)
    before = snapshot(image)
    with pytest.warns(errors.OpkilnWarning, match=str(entry)) as caught:
        loaded = ask()
    assert loaded.hit == "built"
    assert ask().path == loaded.path
    assert len(caught) == 1
    assert snapshot(image) == before


@pytest.mark.parametrize("kind", ["absent", "file", "open to all", "open to the group"])
def test_F143_a_lower_cache_that_cannot_be_trusted_is_named_once(
    tmp_path: Path, image: Path, kind: str, cxx: Path
) -> None:
    if kind == "absent":
        shutil.rmtree(image)
    elif kind == "file":
        image = image / store.COMPILERS / "cxx"
        image.touch()
    else:
        image.chmod(0o777 if kind == "open to all" else 0o775)
    setting = {"cache_dir": tmp_path / "cache", "cache_lower": image, "cxx": str(cxx)}
    with config.scope(**setting), pytest.warns(errors.OpkilnWarning) as caught:
        assert ask().hit == "built"
        assert ask().hit == "disk"
    (warning,) = caught
    assert "OPKILN_CACHE_LOWER" in str(warning.message)
    assert str(image) in str(warning.message)


def test_a_link_may_lead_to_the_lower_cache(tmp_path: Path, image: Path, scoped: Path) -> None:
    (tmp_path / "link").symlink_to(image)  # as a mounted volume has it; a setting, not a find
    with config.scope(cache_lower=tmp_path / "link"):
        assert ask().path.startswith(str(image))


def test_only_a_lower_cache(tmp_path: Path, image: Path, cxx: Path) -> None:
    """Nowhere to write at all, as in a container that is only read: what is there is used."""
    (tmp_path / "file").touch()
    env = {
        "OPKILN_CACHE_DIR": tmp_path / "file" / "cache",
        "OPKILN_CACHE_LOWER": image,
        "OPKILN_CXX": cxx,
        "TMPDIR": tmp_path,
    }
    report = child.run_child({"times": 2}, **env)
    assert (report["loaded"], report["warnings"]) == (["disk", "disk"], [])
    report = child.run_child({"text": child.text_of(7)}, **env)  # now it must say so, and works
    assert (report["loaded"], report["value"], len(report["warnings"])) == (["built"], 7, 1)
    assert "cache" in report["warnings"][0]
    before = (
        "import tempfile\ndef no(*a, **k): raise OSError(30, 'Read-only')\ntempfile.mkdtemp = no"
    )
    report = child.run_child({"before": before, "text": child.text_of(7)}, **env)
    assert report["error"] == "CacheError"
    report = child.run_child({"before": before}, **env)
    assert (report["loaded"], report["warnings"]) == (["disk"], [])


def test_F105_F115_the_identity_below_serves_without_a_compiler(
    tmp_path: Path, image: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {"OPKILN_CACHE_LOWER": image, "PATH": empty, "OPKILN_CACHE_DIR": tmp_path / "cache"}
    report = child.run_child({"times": 2}, **env)
    assert (report["loaded"], report["warnings"]) == (["disk", "disk"], [])
    assert report["path"].startswith(str(image))
    cold = child.run_child({"text": child.text_of(1)}, **env)
    assert cold["error"] == "ToolchainNotFound"


def test_F119_the_identity_below_serves_a_copied_compiler(tmp_path: Path) -> None:
    """An image is unpacked with new inodes; its compiler is not asked again in each container."""
    body = f'echo "$@" >> "$LOG"\n{child.PROBES}exec "$G" "$@"'
    cxx = child.stub(tmp_path / "cxx", body)
    env = {"OPKILN_CXX": cxx, "OPKILN_CACHE_DIR": tmp_path / "cache"}
    assert child.run_child(OPKILN_CACHE_DIR=tmp_path / "image", OPKILN_CXX=cxx)["loaded"] == [
        "built"
    ]
    cxx.with_suffix(".log").unlink()
    shutil.copy2(cxx, tmp_path / "copy")
    (tmp_path / "copy").rename(cxx)
    env["OPKILN_CACHE_LOWER"] = tmp_path / "image"
    report = child.run_child(**env)
    assert (report["loaded"], report["warnings"], child.starts(cxx)) == (["disk"], [], 0)
    assert report["path"].startswith(str(tmp_path / "image"))
    assert not (tmp_path / "cache" / store.COMPILERS).exists()
    os.utime(cxx, (7, 7))  # a compiler that may be another one is asked
    assert child.run_child(**env)["loaded"] == ["disk"]
    assert child.starts(cxx) == 3


# ---- another CPU ----


def forge(image: Path, extra: list[str]) -> None:
    """Make the image one that was filled on another CPU, with these features besides ours."""
    (record,) = (image / store.COMPILERS).glob("*.json")
    fields = json.loads(record.read_text("utf-8"))
    del fields["check"]
    fields["features"] += extra
    record.unlink()
    other = record.with_name(f"{'0' * 16}-{record.name.partition('-')[2]}")
    other.write_bytes(render(fields))
    other.chmod(0o644)


@pytest.mark.parametrize("extra", [[], ["__AVX9000__"]])
def test_F066_F119_an_image_of_another_cpu(tmp_path: Path, image: Path, extra: list[str]) -> None:
    forge(image, extra)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {"OPKILN_CACHE_LOWER": image, "PATH": empty, "OPKILN_CACHE_DIR": tmp_path / "cache"}
    report = child.run_child(**env)
    if extra:
        assert report["error"] == "ToolchainNotFound"
    else:
        assert (report["loaded"], report["warnings"]) == (["disk"], [])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the flag is for x86-64")
@pytest.mark.parametrize("flag", ["", " -march=x86-64-v2"])
def test_F066_F119_an_image_of_another_cpu_with_a_compiler(tmp_path: Path, flag: str) -> None:
    body = f'echo "$@" >> "$LOG"\n{child.PROBES}exec "$G" "$@"'
    cxx = child.stub(tmp_path / "cxx", body)
    env = {"OPKILN_CXX": f"{cxx}{flag}"}
    assert child.run_child(OPKILN_CACHE_DIR=tmp_path / "image", **env)["loaded"] == ["built"]
    forge(tmp_path / "image", [])
    cxx.with_suffix(".log").unlink()
    env |= {"OPKILN_CACHE_LOWER": str(tmp_path / "image")}
    report = child.run_child(OPKILN_CACHE_DIR=tmp_path / "cache", **env)
    assert (report["loaded"], report["warnings"]) == (["disk"], [])
    assert child.starts(cxx) == (0 if flag else 3)  # what "native" means here has to be asked


def test_this_cpu_runs_what_its_compiler_says_it_has() -> None:
    features = jit.compiler().features
    assert features
    if not any(line.startswith("flags") for line in toolchain._cpu_lines()):
        pytest.skip("the system does not list CPU features")
    assert toolchain._runs_here(features)
    assert not toolchain._runs_here([*features, "__AVX9000__"])


def test_no_list_of_features_is_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_cpu_lines", list)
    assert not toolchain._runs_here(("__SSE2__",))
    assert not toolchain._runs_here(())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the flag is for x86-64")
def test_F066_F119_a_stated_baseline_is_built_as_stated(tmp_path: Path) -> None:
    with config.scope(cache_dir=tmp_path / "a", cxx="g++ -march=x86-64-v2"):
        first = jit.compiler()
        assert first.arch == ()
        assert "__SSE4_2__" in first.features
        assert not any("AVX" in feature for feature in first.features)
        loaded = jit.build_or_load(child.TEXT, ["answer"], name="answer")
        assert "-march=native" not in Path(loaded.path).with_name(store.LOG).read_text("utf-8")
    (name,) = [path.name for path in (tmp_path / "a" / store.COMPILERS).glob("*.json")]
    record = Record((tmp_path / "a" / store.COMPILERS / name).read_bytes())
    assert "native" not in " ".join(record.texts("cc1plus"))
    assert not [word for word in record.texts("cc1plus") if "cache-size" in word]  # of this CPU


# ---- mounts ----


def test_F119_a_lower_cache_on_a_read_only_mount(
    mount: Callable[..., Path], tmp_path: Path, image: Path, cxx: Path
) -> None:
    place = mount("ro", image)
    with pytest.raises(OSError, match="Read-only"):
        (place / "x").touch()
    env = {"OPKILN_CACHE_LOWER": place, "OPKILN_CXX": cxx, "OPKILN_CACHE_DIR": tmp_path / "cache"}
    report = child.run_child({"times": 2}, **env)
    assert (report["loaded"], report["warnings"]) == (["disk", "disk"], [])
    assert report["path"].startswith(str(place))
    report = child.run_child({"text": child.text_of(1)}, **env)
    assert (report["loaded"], report["warnings"]) == (["built"], [])


def test_F074_the_first_cache_on_a_read_only_mount(
    mount: Callable[..., Path], tmp_path: Path, image: Path, cxx: Path
) -> None:
    env = {"OPKILN_CACHE_DIR": mount("ro", image), "OPKILN_CXX": cxx, "TMPDIR": tmp_path}
    report = child.run_child({"times": 2}, **env)
    assert report["loaded"] == ["built", "disk"]
    (warning,) = report["warnings"]
    assert "OPKILN_CACHE_LOWER" in warning


def test_F076_a_real_noexec_mount(mount: Callable[..., Path], tmp_path: Path) -> None:
    report = child.run_child({"times": 2}, OPKILN_CACHE_DIR=mount("noexec") / "c", TMPDIR=tmp_path)
    assert report["loaded"] == ["built", "disk"]
    (warning,) = report["warnings"]
    assert "failed to map segment" in warning


def test_F076_a_lower_cache_on_a_noexec_mount(
    mount: Callable[..., Path], tmp_path: Path, image: Path, cxx: Path
) -> None:
    place = mount("ro,noexec", image)
    env = {"OPKILN_CACHE_LOWER": place, "OPKILN_CXX": cxx, "OPKILN_CACHE_DIR": tmp_path / "cache"}
    report = child.run_child({"times": 2}, **env)
    assert report["loaded"] == ["built", "disk"]
    assert report["path"].startswith(str(tmp_path / "cache"))
    (warning,) = report["warnings"]
    assert str(place) in warning


FULL = [f"size={pages * 4}k" for pages in (1, 3, 5, 6, 7, 8, 9)] + [
    f"nr_inodes={count}" for count in (2, 4, 6, 8, 9)
]


@pytest.mark.parametrize("room", FULL)
def test_F073_a_real_full_disk(
    mount: Callable[..., Path], tmp_path: Path, cxx: Path, room: str
) -> None:
    """Full at another step each time: directories, identity, text, library, manifest."""
    cache = mount(room) / "c"
    spec = {"times": 3, "text": child.text_of(42) + "// " + "x" * 9000 + "\n"}
    report = child.run_child(spec, OPKILN_CACHE_DIR=cache, TMPDIR=tmp_path, OPKILN_CXX=cxx)
    assert report["value"] == 42
    assert report["errors"] == []
    assert report["loaded"][1:] == ["disk", "disk"]
    (warning,) = report["warnings"]
    assert "No space left on device" in warning
    assert "OPKILN_CACHE_DIR" in warning
    assert not child.private_files(cache)


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path, cxx: Path) -> None:
    before = """
import resource, signal
from opkiln.runtime import jit
jit.compiler()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
"""
    spec = {"before": before, "text": child.text_of(42) + "// " + "x" * 70_000 + "\n"}
    report = child.run_child(spec, OPKILN_CACHE_DIR=tmp_path / "c", TMPDIR=tmp_path, OPKILN_CXX=cxx)
    assert report["error"] == "CacheError"  # nowhere is there room for it
    assert "File too large" in report["message"]
    assert "OPKILN_CACHE_DIR" in report["message"]
    assert not child.private_files(tmp_path / "c")


# ---- two users ----

# The user changes when all that a build imports is there: Python itself may be root's alone.
BECOME = f"""
import inspect, os, shutil, tempfile
from opkiln.runtime.config import config
scratch = tempfile.mkdtemp()
with config.scope(cache_dir=scratch, cache_lower=None):
    jit.build_or_load({child.TEXT!r}, ["answer"], name="answer")
shutil.rmtree(scratch)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can reach and write, as /tmp is; pytest's own are closed."""
    if not ROOT:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(prefix="opkiln-shared-") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def as_nobody(spec: dict[str, object] | None = None, **env: str | Path) -> dict[str, object]:
    return child.run_child({"before": BECOME, **(spec or {})}, **env)


def test_F075_two_users_of_one_directory(shared: Path) -> None:
    cache = shared / "cache"
    env = {"OPKILN_CACHE_DIR": cache, "OPKILN_CXX": "g++", "TMPDIR": shared}
    assert child.run_child(**env)["loaded"] == ["built"]
    before = snapshot(cache)
    report = as_nobody({"times": 2}, **env)
    assert (report["value"], report["loaded"]) == (42, ["built", "disk"])
    (warning,) = report["warnings"]
    assert "belongs to user 0, not to you" in warning
    assert snapshot(cache) == before


def test_F143_the_other_user_came_first(shared: Path) -> None:
    env = {"OPKILN_CACHE_DIR": shared / "cache", "OPKILN_CXX": "g++", "TMPDIR": shared}
    assert as_nobody(**env)["loaded"] == ["built"]
    before = snapshot(shared / "cache")
    report = child.run_child({"times": 2}, **env)
    assert report["loaded"] == ["built", "disk"]
    (warning,) = report["warnings"]
    assert f"belongs to user {NOBODY}, not to you" in warning
    assert snapshot(shared / "cache") == before


def test_F075_F119_roots_cache_is_another_users_lower_cache(shared: Path) -> None:
    image = shared / "image"
    env = {"OPKILN_CXX": "g++", "TMPDIR": shared}
    assert child.run_child(OPKILN_CACHE_DIR=image, **env)["loaded"] == ["built"]
    env |= {"OPKILN_CACHE_DIR": shared / "mine", "OPKILN_CACHE_LOWER": image}
    report = as_nobody(**env)  # as root left it: nobody else can read it
    assert report["loaded"] == ["built"]
    (warning,) = report["warnings"]
    assert "chmod -R a+rX" in warning
    shutil.rmtree(shared / "mine")
    readable(image)
    before = snapshot(image)
    report = as_nobody({"times": 2}, **env)
    assert (report["loaded"], report["warnings"]) == (["disk", "disk"], [])
    assert str(report["path"]).startswith(str(image))
    assert snapshot(image) == before


def test_F075_an_entry_below_that_only_root_can_read(shared: Path) -> None:
    image = shared / "image"
    env = {"OPKILN_CXX": "g++", "TMPDIR": shared}
    assert child.run_child(OPKILN_CACHE_DIR=image, **env)["loaded"] == ["built"]
    readable(image)
    (entry,) = child.entries(image)
    (entry / store.LIBRARY).chmod(0o600)
    report = as_nobody(OPKILN_CACHE_DIR=shared / "mine", OPKILN_CACHE_LOWER=image, **env)
    assert report["loaded"] == ["built"]
    (warning,) = report["warnings"]
    assert "Permission denied" in warning
