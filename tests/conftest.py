"""What every test shares: a private cache, golden files, threads behind a barrier, CI's rules."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests import jit_child

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# Real ones are there in CI.
PEERS = (
    "torch", "expecttest", "jax", "ml_dtypes", "scipy", "pandas", "xarray", "numexpr", "matplotlib",
)  # fmt: skip
WHEELS = ("nvidia-cuda-nvrtc",)  # the same of packages that are no module
CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
_OWN_CACHE = (
    "PYTEST_OPKILN_CACHE_OWNER"  # set by the process that made the cache, seen by its workers
)

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if CI else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files anew from this run"
    )


def pytest_configure(config: pytest.Config) -> None:
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    missing += [name for name in WHEELS if not list(importlib.metadata.distributions(name=name))]
    if CI and missing:
        raise pytest.UsageError(
            f"CI is set but {', '.join(missing)} is not installed, so its tests would be skipped: "
            "pip install it first (as .ci/run does), or unset CI"
        )
    # Set before any test module imports opkiln: no test may read or write the user's cache, and
    # no OPKILN_* setting of the user may decide a test.
    if _OWN_CACHE not in os.environ:
        kept = {"OPKILN_DEBUG", "OPKILN_DUMP_DIR"}
        for name in [name for name in os.environ if name.startswith("OPKILN_")]:
            if name not in kept:
                del os.environ[name]
        os.environ["OPKILN_CACHE_DIR"] = tempfile.mkdtemp(prefix="opkiln-tests-")
        os.environ[_OWN_CACHE] = str(os.getpid())


def pytest_unconfigure(config: pytest.Config) -> None:
    if os.environ.get(_OWN_CACHE) == str(os.getpid()):
        shutil.rmtree(os.environ["OPKILN_CACHE_DIR"], ignore_errors=True)
        del os.environ[_OWN_CACHE], os.environ["OPKILN_CACHE_DIR"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if Path("/dev/nvidiactl").exists():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    report = yield
    named = report.skipped and any(name in report.longreprtext for name in PEERS + WHEELS)
    if CI and named and not hasattr(report, "wasxfail"):
        report.outcome = "failed"  # they are there, so nothing about them may be left out
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests of the op table recorded: how often random programs had each row, and gaps."""
    counts: Counter[str] = Counter()
    gaps: list[str] = []
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        noted = dict(report.user_properties)
        counts.update(noted.get("rows exercised", {}))
        gaps += noted.get("rows that torch lacks", [])
    if counts or gaps:
        terminalreporter.section("op table")
    if counts:
        shown = ", ".join(f"{row} {n}" for row, n in sorted(counts.items()))
        terminalreporter.line(f"rows in random programs: {shown}")
    if gaps:
        terminalreporter.line(f"rows not compared with torch, which lacks them: {', '.join(gaps)}")


class Golden(str):
    """Text a test must reproduce: `assert text == golden`, stored under tests/golden.

    The file is `golden/<module>/<test>.<ext>`; `golden.ext("dot")` and `golden.part("tail")` name
    further files of the same test. `pytest --update-golden` writes what the run produced.
    """

    path: Path
    update: bool
    __slots__ = ("path", "update")

    def __new__(cls, path: Path, update: bool) -> "Golden":
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self = super().__new__(cls, text)
        self.path, self.update = path, update
        return self

    def ext(self, extension: str) -> "Golden":
        return Golden(self.path.with_name(f"{self.path.stem}.{extension}"), self.update)

    def part(self, name: str) -> "Golden":
        return Golden(self.path.with_stem(f"{self.path.stem}.{_slug(name)}"), self.update)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        if self.update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(other, encoding="utf-8")
            return True
        if not self.path.exists():
            pytest.fail(
                f"golden file {self.path.relative_to(ROOT)} is missing: run this test with "
                "--update-golden, read the file it writes, and commit it",
                pytrace=False,
            )
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    module = Path(str(request.node.path)).stem.removeprefix("test_")
    test = _slug(request.node.name.removeprefix("test_"))
    path = TESTS / "golden" / module / f"{test}.cpp"
    return Golden(path, request.config.getoption("--update-golden"))


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty artifact cache for the subprocesses of one test (in-process: config.scope)."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPKILN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def known_compilers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the compiler said of itself, so that not every test asks it again."""
    from opkiln.runtime import jit
    from opkiln.runtime.config import config

    folder = tmp_path_factory.mktemp("known") / "cache"
    with config.scope(cache_dir=folder):
        jit.compiler()
    return folder / "compilers"


@pytest.fixture
def known_cache(tmp_path: Path, known_compilers: Path) -> Iterator[Path]:
    """An own cache directory that knows the compiler, in force for this test."""
    from opkiln.runtime.config import config

    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    shutil.copytree(known_compilers, folder / "compilers")
    with config.scope(cache_dir=folder):
        yield folder


@pytest.fixture
def fast_cxx(tmp_path: Path, known_cache: Path) -> Iterator[Path]:
    """A compiler for extensions that takes 10 ms and logs each source; in force for this test."""
    from opkiln.runtime.config import config

    path = jit_child.fast_extension_compiler(tmp_path / "bin" / "cxx")
    with config.scope(cxx=path):
        yield path


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`mount(options)`: a new tmpfs; `mount(options, source)`: another view of a directory."""
    made: list[Path] = []

    def do(options: str, source: Path | None = None) -> Path:
        place = tmp_path / f"mount{len(made)}"
        place.mkdir()
        kind = ["-t", "tmpfs", "tmpfs"] if source is None else ["--bind", str(source)]
        done = (
            subprocess.run(["mount", "-o", options, *kind, str(place)], check=False)
            if os.geteuid() == 0
            else None
        )
        if done is None or done.returncode != 0:
            pytest.skip("may not mount here")
        made.append(place)
        if source is not None:  # the kernel takes "ro" of a bind mount only when it is there
            subprocess.run(["mount", "-o", f"remount,bind,{options}", str(place)], check=True)
        return place

    yield do
    for path in made:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def parallelize() -> Callable[..., list[object]]:
    """`parallelize(func, n)`: func(0) ... func(n - 1) in n fresh threads that start together."""
    return run_in_threads


def run_in_threads(func: Callable[[int], object], n: int, timeout: float = 120) -> list[object]:
    barrier = threading.Barrier(n)
    results: list[object] = [None] * n
    errors: list[BaseException] = []

    def body(index: int) -> None:
        try:
            barrier.wait(timeout)
            results[index] = func(index)
        except BaseException as error:  # carried to the caller's thread below
            errors.append(error)

    threads = [threading.Thread(target=body, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        if thread.is_alive():
            raise TimeoutError(f"{thread.name} still runs after {timeout} s")
    if errors:
        raise errors[0]
    return results


@pytest.fixture(scope="session")
def cxx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiler that takes 5 ms, for tests of all but the compiler: see jit_child."""
    from tests import jit_child

    return jit_child.fast_compiler(tmp_path_factory.mktemp("fast") / "cxx")


# ---- custom ops ----


@pytest.fixture(scope="session")
def op_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the tests of custom ops."""
    from tests.op_library import build

    return build(TESTS / "custom_ops.cpp", tmp_path_factory.mktemp("custom_op"))


@pytest.fixture
def define_op(op_library: Path) -> Iterator[Callable[..., Any]]:
    """`ok.custom_op` on that library; the ops go when the test ends."""
    import opkiln as ok
    from opkiln.runtime.custom_op import registered

    before = registered()

    made: list[Any] = []

    def make(schema: str, cpu: Any, **options: Any) -> Any:
        op = ok.custom_op(schema, cpu=cpu, **{"library": op_library, **options})
        made.append(op)
        return op

    yield make
    for op in made:
        if op.name in registered():
            op.unregister()
    assert registered() == before


@pytest.fixture
def smooth(define_op: Callable[..., Any]) -> Any:
    """T29's op, whose gradient is another op."""
    from tests.op_library import BOTH, SMOOTH

    define_op(BOTH, "t_both")
    return define_op(SMOOTH, "t_smooth", backward="t::both")
