"""This machine in, what `opkiln doctor` knows about it out: checks, each with how to mend it.

Each probe asks anew: nothing here is taken from what an earlier process wrote down.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import opkiln
from opkiln.runtime import blas
from opkiln.runtime.errors import ConfigError, OpkilnError, OpkilnWarning

OK, NOTE, PROBLEM = "ok", "note", "PROBLEM"
UNREADABLE = "environment"  # the name of a check that says that a setting cannot be read


@dataclass(frozen=True)
class Check:
    """One finding. `state`: ok, note (nothing is lost) or PROBLEM (kernels suffer)."""

    section: str
    state: str
    name: str
    text: str
    fix: str = ""


def every_check() -> Iterator[tuple[str, Callable[[], Iterator[Check]]]]:
    """The probes by section, in the order in which each makes sense of the next."""
    yield "versions", versions
    yield "settings", settings
    yield "cache", cache
    yield "compiler", compilers
    yield "build", build
    yield "CUDA", cuda
    yield "packages", packages


def run(probe: Callable[[], Iterator[Check]], section: str) -> list[Check]:
    """The findings of one probe; an error that it meets, and each warning, is one of them."""
    found: list[Check] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OpkilnWarning)
        try:
            found.extend(probe())
        except OpkilnError as error:
            found.append(_problem(section, type(error).__name__, error))
    said = [str(w.message) for w in caught if issubclass(w.category, OpkilnWarning)]
    state = NOTE if section == "settings" else PROBLEM  # a name that is none changes nothing
    found += [Check(section, state, "warning", text.removeprefix("opkiln: ")) for text in said]
    return found


def _problem(section: str, name: str, error: OpkilnError) -> Check:
    text = str(error).split("\n  how to fix: ")[0]
    return Check(section, PROBLEM, name, text, error.fix or "")


def versions() -> Iterator[Check]:
    """What runs here."""
    section = "versions"
    where = os.path.dirname(opkiln.__file__)  # noqa: PTH120
    yield Check(section, OK, "opkiln", f"{opkiln.__version__} in {where}")
    python = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    yield Check(section, OK, "Python", python)
    yield Check(section, OK, "NumPy", importlib.metadata.version("numpy"))
    found = blas.ready()
    text = f"{found.library.path}, for large matrices" if found else "none: kernels multiply alone"
    yield Check(section, OK if found else NOTE, "BLAS", text)
    tested = sys.platform.startswith("linux")
    yield Check(
        section,
        OK if tested else NOTE,
        "system",
        f"{platform.platform()}, {platform.machine()}" + ("" if tested else " (untested)"),
    )
    yield Check(section, OK, "CPU", f"{_cpu_name()}, {_cpus()} for this process")


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            facts = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return platform.processor() or platform.machine()
    named = {key.strip(): value.strip() for key, value in facts.items()}
    return named.get("model name") or named.get("CPU part") or platform.machine()


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settings() -> Iterator[Check]:
    """What the environment changes; a value that cannot be used stops everything else too."""
    from opkiln.runtime.config import config

    section = "settings"
    try:
        values = config.as_dict()
    except ConfigError as error:
        yield _problem(section, UNREADABLE, error)
        return
    changed = [row for row in config.table() if values[row.name] != row.default]
    for row in changed:
        variable = next((v for v in row.variables if os.environ.get(v)), row.variables[0])
        yield Check(section, OK, variable, f"{values[row.name]}: {row.doc}")
    if not changed:
        yield Check(section, OK, "OPKILN_*", "all settings have their defaults")
    if config.disable:
        text = "nothing is compiled, functions run as plain Python"
        yield Check(section, PROBLEM, "OPKILN_DISABLE", text, "unset OPKILN_DISABLE")


def compilers() -> Iterator[Check]:
    """Every compiler that is asked for, and why the one in use is."""
    from opkiln.runtime.jit import flags, toolchain
    from opkiln.runtime.program import vector_bytes

    section = "compiler"
    variable = next((v for v in ("OPKILN_CXX", "CXX") if os.environ.get(v)), "")
    reason = f"{variable} names it" if variable else "the first that works; no setting names one"
    chosen = None
    for request in toolchain.requests():
        name = " ".join(request.words) or "(empty)"
        if not request.program:
            yield Check(section, NOTE, name, "not found on PATH")
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="opkiln-") as folder:
                found = toolchain.probe(folder, request)
        except OpkilnError as error:
            yield Check(section, NOTE, name, str(error))
            continue
        said = f"{found.version}, {found.target}"
        if chosen is None:
            chosen = found
            yield Check(section, OK, name, f"in use: {reason}; {said}")
        else:
            yield Check(section, OK, name, f"works too, not needed; {said}")
    if chosen is None:
        text = "no compiler works: kernels in the cache still run, others are interpreted"
        yield Check(section, PROBLEM, "compiler", text, toolchain.HOW_TO_INSTALL)
        return
    arch = " ".join(chosen.arch) or "none (the compiler takes neither -march nor -mcpu=native)"
    yield Check(section, OK, "CPU flag", arch)
    yield Check(section, OK, "flags", " ".join(flags.Flags().compile_flags()))
    steps = "compiler, assembler and linker are started directly" if chosen.direct else "its driver"
    yield Check(section, OK, "run as", steps)
    yield Check(section, OK, "features", " ".join(f.strip("_") for f in chosen.features))
    bits = vector_bytes() * 8
    text = f"{bits} bits: {bits // 32} float32 or {bits // 64} float64"
    yield Check(section, OK, "vectors", text)


def cache() -> Iterator[Check]:
    """Where kernels are kept."""
    from opkiln.runtime.config import config
    from opkiln.runtime.jit import store

    section = "cache"
    wanted = config.cache_dir or store.default_root()
    source = "OPKILN_CACHE_DIR" if config.cache_dir else "default"
    used = store.root()
    if os.path.abspath(wanted) != used:  # noqa: PTH100 - a warning has said why
        yield Check(section, NOTE, "directory", f"{wanted} ({source}) cannot be used")
        yield Check(section, NOTE, "instead", f"{used}, until this process ends")
        return
    count = size = 0
    for folder, _, files in os.walk(used):
        libraries = {store.LIBRARY, store.DEVICE_FILES[1], store.EXTENSION_FILES[1]}
        count += not libraries.isdisjoint(files)
        size += sum(_size(f"{folder}/{file}") for file in files)
    most = config.cache_max_bytes
    limit = f"of at most {_bytes(most)}" if most else "without a limit"
    text = f"{used} ({source}): {count} kernels, {_bytes(size)} {limit}"
    yield Check(section, OK, "directory", text)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # gone meanwhile
        return 0


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"


def build() -> Iterator[Check]:
    """A kernel that no cache can have: compiled, kept, loaded, run, compared with NumPy."""
    import numpy as np

    import opkiln as ok
    from opkiln.runtime import jit
    from opkiln.runtime.config import config
    from opkiln.runtime.jit import ninja, store

    section = "build"
    number = random.SystemRandom().random()

    def trial(x: Any, y: Any) -> Any:
        return (x * y + number) / y

    x = np.linspace(1, 2, 1000, dtype=np.float64)
    with config.scope(assert_cached=False, disable=False):
        source = ok.compile(trial).lower(x, x).source
        start = time.perf_counter()
        loaded = jit.build_or_load(source, ["ok_k0"], name="kernel")
        seconds = time.perf_counter() - start
        compiled = ok.compile(trial)
        equal = compiled(x, x).tobytes() == trial(x, x).tobytes()
    store.remove(os.path.dirname(loaded.path))  # noqa: PTH120
    if not equal:
        fix = (
            "report this with `opkiln doctor --json`; until then set OPKILN_CXX to another compiler"
        )
        yield Check(section, PROBLEM, "kernel", "its results are not NumPy's", fix)
    elif compiled.info().fallbacks:
        yield Check(section, PROBLEM, "kernel", "calls run in the interpreter")
    else:
        text = f"compiled, kept and loaded in {seconds * 1e3:.0f} ms; its results are NumPy's bits"
        yield Check(section, OK, "kernel", text)
    found = ninja.find()
    text = found or "not found; only libraries of several sources of your own need it"
    yield Check(section, OK if found else NOTE, "ninja", text, "" if found else "pip install ninja")


def cuda() -> Iterator[Check]:
    """What of CUDA is there. No version uses it yet, so nothing here is a problem."""
    from opkiln.runtime.jit.device import devices

    section = "CUDA"
    found = devices()
    release = "CUDA {}.{}, ".format(*found.version) if found.version[0] else ""
    archs = f"{len(found.archs)} device(s): {', '.join(found.archs)}"
    state = OK if found.archs else NOTE
    yield Check(section, state, "driver", f"{release}{found.why or archs}")
    nvrtc = importlib.util.find_spec("nvidia") is not None and any(
        importlib.util.find_spec(f"nvidia.{name}") for name in ("cuda_nvrtc", "cu13")
    )
    yield Check(section, NOTE, "NVRTC", "installed" if nvrtc else "not installed")
    yield Check(section, NOTE, "in use", "no: backend='cuda' is not built yet in this version")


# What each optional package gives, and the extra that brings it.
_PACKAGES = {
    "rich": ("colours, tables and progress on a terminal", "opkiln[cli]"),
    "matplotlib": ("opkiln bench --png", "opkiln[bench]"),
    "numexpr": ("compared in opkiln bench", "opkiln[bench]"),
    "numba": ("compared in opkiln bench", "opkiln[bench]"),
    "jax": ("compared in opkiln bench", "jax"),
    "torch": ("compared in opkiln bench; tensors as arguments", "opkiln[torch]"),
}


def packages() -> Iterator[Check]:
    """Optional packages; none is imported."""
    for name, (use, what) in _PACKAGES.items():
        try:
            text, fix = f"{importlib.metadata.version(name)}: {use}", ""
        except importlib.metadata.PackageNotFoundError:
            text, fix = f"not installed: {use}", f"pip install '{what}'"
        yield Check("packages", NOTE if fix else OK, name, text, fix)
