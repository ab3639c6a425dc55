"""The BLAS that multiplies large matrices: the one that NumPy has loaded, or another.

Looked for when the first product is planned, never at import; no process is started. Without one,
kernels of opkiln's own multiply matrices of every size.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from opkiln.native import Library, dtype_code, set_gemm
from opkiln.runtime.errors import OpkilnError
from opkiln.runtime.locks import ForkLock

# From m * n * k on a BLAS is as fast as a kernel, or faster by its threads (benchmarks/matmul.py).
LEAST = 128**3

_LETTERS = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
# What names its functions have: those of 64-bit integers first.
_NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_", "scipy_cblas_{}gemm", "cblas_{}gemm")
_PARTS = ("blas", "blis", "mkl_rt")  # of names of files
_WELL_KNOWN = ("libopenblas.so.0", "libopenblas64_.so.0", "libblis.so.4", "libcblas.so.3")


class Blas(NamedTuple):
    """A library that is in use."""

    library: Library  # stays loaded
    names: str  # of its functions, with {} for the letter of the dtype
    addresses: dict[str, int]  # by letter

    @property
    def wide(self) -> bool:
        """Whether its integers have 64 bits."""
        return self.names.endswith("64_")


_lock = ForkLock()
_found: list[Blas | None] = []


def ready() -> Blas | None:
    """The BLAS that products of large matrices use, or None; found once a process."""
    if not _found:
        with _lock:
            if not _found:
                blas = next(_search(), None)
                use(blas)
                _found.append(blas)
    return _found[0]


def use(blas: Blas | None, *, least: int = LEAST) -> None:
    """Multiply by it what has `least` products of numbers; executors made before keep theirs."""
    for letter, dtype in _LETTERS.items():
        address = blas.addresses[letter] if blas else 0
        set_gemm(dtype_code(np.dtype(dtype)), address, bool(blas and blas.wide), least)


def _search() -> Iterator[Blas]:
    """Libraries that can be loaded and have all functions, the best first."""
    for path in _paths():
        try:
            library = Library(path)
        except OpkilnError:
            continue
        for names in _NAMES:
            try:
                addresses = {c: library.symbol(names.format(c)) for c in _LETTERS}
            except OpkilnError:
                continue
            yield Blas(library, names, addresses)


def _paths() -> Iterator[str]:
    """Where one may be, each place looked at when those before had none."""
    for place in (_loaded, _beside_numpy, _wheel):
        yield from place()
    yield from _WELL_KNOWN


def _loaded() -> list[str]:
    """Of this process, where the system tells."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            lines = [line.split(maxsplit=5) for line in file if ".so" in line]
    except OSError:
        return []
    return among(line[5].strip() for line in lines)


def among(paths: Iterable[str]) -> list[str]:
    """Those that may be a BLAS, NumPy's own before all others."""
    found = [
        path
        for path in dict.fromkeys(paths)
        if any(part in os.path.basename(path) for part in _PARTS)  # noqa: PTH119
    ]
    return sorted(found, key=lambda path: "numpy" not in path)


def _folder(*parts: str) -> list[str]:
    """Libraries named after OpenBLAS in a folder."""
    path = os.path.join(*parts)  # noqa: PTH118
    try:
        return sorted(os.path.join(path, f) for f in os.listdir(path) if "openblas" in f)  # noqa: PTH118, PTH208
    except OSError:
        return []


def _beside_numpy() -> list[str]:
    home = os.path.dirname(np.__file__)  # noqa: PTH120
    return [*_folder(home + ".libs"), *_folder(home, ".dylibs")]


def _wheel() -> list[str]:
    """The wheel scipy-openblas64 or scipy-openblas32."""
    from importlib.util import find_spec

    found: list[str] = []
    for name in ("scipy_openblas64", "scipy_openblas32"):
        spec = find_spec(name)
        for home in (spec.submodule_search_locations or ()) if spec else ():
            found += _folder(home, "lib")
    return found
