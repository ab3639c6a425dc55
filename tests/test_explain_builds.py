"""explain() of builds: layout classes, and the key against the nearest kernel on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln.runtime.config import config
from opkiln.runtime.errors import NotCached

A = np.arange(12.0).reshape(3, 4)


def changes(miss: ok.Miss) -> set[tuple[str, str, str]]:
    return {(c.name, c.old, c.new) for c in miss.changes}


@pytest.fixture
def scoped(tmp_path: Path) -> Iterator[Path]:
    """A cache directory of the test's own."""
    with config.scope(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def fresh(constant: float) -> Any:
    """A function whose kernels no earlier call of this process has."""
    ok.clear_cache()
    return ok.compile(lambda x, y: x * y + constant)


def test_a_layout_class_is_named(scoped: Path) -> None:
    ok.clear_cache()
    f = ok.compile(lambda x, y: (x * y + 0.125).sum(axis=1))
    f(A, A)
    f(A, A[:, ::-1])
    f(A, np.broadcast_to(A[:, :1], (3, 4)))
    built, strided, broadcast = f.explain()
    assert built.source == "built" and built.build_ms > 0 and built.load_ms == 0
    assert [str(c) for c in built.cache_changes] == [
        f"cache directory: {scoped}/{os.uname().machine}-linux-gnu has no kernels yet"
    ]
    assert changes(strided) == {("argument `y` inner axis", "contiguous", "strided")}
    assert (strided.layer, strided.source, strided.trace_ms) == ("artifact", "built", 0)
    assert [str(c) for c in strided.cache_changes] == ["kernel text: new to the cache"]
    assert changes(broadcast) == {("argument `y` inner axis", "strided", "broadcast")}


def test_a_memory_order_is_named_whatever_the_loops_make_of_it(scoped: Path) -> None:
    ok.clear_cache()
    c, fortran = np.ones((6, 8)), np.ones((6, 8), order="F")
    f = ok.compile(lambda x: (x * 0.375).sum(axis=0))
    f(fortran)
    f(c)
    f(np.ones((9, 8), order="F"))
    assert f.explain()[1].layer == "artifact"
    assert changes(f.explain()[1]) == {("argument `x` memory order", "Fortran", "C")}
    assert f.explain()[2].layer == "executor"
    g = fresh(0.375)  # elementwise: one kernel serves every layout
    g(c, c)
    g(fortran, c)
    assert g.explain()[1].layer == "executor"
    assert changes(g.explain()[1]) == {("argument `x` memory order", "C", "Fortran")}


def test_a_load_from_disk_is_told_apart(scoped: Path) -> None:
    fresh(0.25)(A, A)
    g = fresh(0.25)
    g(A, A)
    (miss,) = g.explain()
    assert (miss.layer, miss.source, miss.build_ms) == ("artifact", "disk", 0)
    assert miss.load_ms > 0 and miss.cache_changes == ()
    h = ok.compile(lambda a, b: a * b + 0.25)
    h(A, A)
    assert (h.explain()[0].layer, h.explain()[0].source) == ("program", "shared")


def wrapper(folder: Path, edit: str) -> str:
    """A compiler that says of itself what `edit`, a sed script, makes of the truth."""
    path = folder / "cxx"
    real = shutil.which("g++")
    path.write_text(f'#!/bin/sh\nexec 3>&1\n{real} "$@" 2>&1 >&3 | sed "{edit}" >&2\n')
    path.chmod(0o755)
    return str(path)


def rebuilt(constant: float, **settings: Any) -> ok.Miss:
    """The miss of a process that has the kernel in its cache, under other settings."""
    fresh(constant)(A, A)
    f = fresh(constant)
    with config.scope(**settings):
        f(A, A)
    (miss,) = f.explain()
    assert miss.source == "built" and miss.build_ms > 0
    return miss


def test_F129_a_compiler_upgrade_is_named(scoped: Path, tmp_path: Path) -> None:
    cxx = wrapper(tmp_path, "s/gcc version [0-9.]*/gcc version 99.1.0/")
    (change,) = rebuilt(0.5, cxx=cxx).cache_changes
    assert change.name == "compiler"
    assert "99.1.0" in change.new and "gcc version" in change.old and "99.1.0" not in change.old


def test_F129_flags_and_features_are_named(scoped: Path) -> None:
    miss = rebuilt(0.75, cxx="g++ -mno-bmi2" if os.uname().machine == "x86_64" else "g++ -DA=1")
    parts = {c.name: c for c in miss.cache_changes}
    flags = parts.pop("flags of the compiler setting")
    assert (flags.old, flags.new[:2]) == ("", "-m" if parts else "-D")
    if parts:
        assert set(parts) == {"CPU features"}
        assert parts["CPU features"].old.split() == ["__BMI2__"]


def entry_of(scoped: Path) -> Path:
    (entry,) = [p.parent for p in scoped.glob("*/*/kernel.so")]
    return entry


def test_a_damaged_entry_is_named(scoped: Path) -> None:
    fresh(1.25)(A, A)
    library = entry_of(scoped) / "kernel.so"
    library.write_bytes(library.read_bytes()[:-8])
    f = fresh(1.25)
    with pytest.warns(ok.errors.OpkilnWarning, match="not usable"):
        f(A, A)
    (change,) = f.explain()[0].cache_changes
    assert str(change) == f"cache entry: {library.parent} is damaged, built again"


def test_a_missing_directory_is_named(scoped: Path) -> None:
    fresh(1.5)(A, A)
    shutil.rmtree(scoped)
    f = fresh(1.5)
    f(A, A)
    assert f.explain()[0].cache_changes[0].name == "cache directory"


# ---- OPKILN_ASSERT_CACHED ----


def test_NotCached_gives_the_reason(scoped: Path) -> None:
    ok.clear_cache()
    f = ok.compile(lambda x, y: (x * y + 2.25).sum(axis=1))
    f(A, A)
    with config.scope(assert_cached=True):
        f(A[:2], A[:2])  # needs an executor only
        with pytest.raises(NotCached, match="argument `x` dtype: float64 -> float32") as caught:
            f(A.astype("f4"), A.astype("f4"))
        assert "kernel text: new to the cache" in str(caught.value)
        assert str(caught.value).count("how to fix") == 1
        with pytest.raises(NotCached, match="argument `y` inner axis: contiguous -> strided"):
            f(A, A[:, ::-1])
        with pytest.raises(NotCached, match=r"argument `x` dtype: float.. -> int16"):
            f.warmup(A.astype("i2"), A)
    failed = [m for m in f.explain() if m.number == 0]
    assert [m.source for m in failed] == ["NotCached"] * 3
    assert "failed" in str(failed[0]) and "dtype" in failed[0].reason
    f(A, A[:, ::-1])  # the error is not remembered
    assert f.explain()[-1].source == "built"


def test_NotCached_names_the_nearest_kernel_on_disk(scoped: Path, tmp_path: Path) -> None:
    fresh(2.5)(A, A)
    f = fresh(2.5)
    cxx = wrapper(tmp_path, "s/gcc version [0-9.]*/gcc version 99.1.0/")
    with (
        config.scope(cxx=cxx, assert_cached=True),
        pytest.raises(NotCached, match=r"compiler: gcc version .* -> gcc version 99\.1\.0"),
    ):
        f(A, A)


@pytest.mark.filterwarnings("ignore:compiled functions run in the interpreter")
def test_NotCached_also_without_a_compiler(tmp_path: Path) -> None:
    lost = SimpleNamespace(cache_dir=tmp_path / "empty", cxx=str(tmp_path / "none"))
    f = fresh(2.75)
    with config.scope(**vars(lost)):
        with config.scope(assert_cached=True):
            for build in (f, f.warmup):
                with pytest.raises(NotCached, match="no working C"):
                    build(A, A)
        assert f.info().fallbacks == 0
        f(A, A)  # interpreted
        assert f.info().fallbacks == 1
        with config.scope(assert_cached=True), pytest.raises(NotCached, match="interpreter"):
            f(A, A)
