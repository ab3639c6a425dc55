"""The library of the tests of custom ops, and what some of its ops give by NumPy."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import opkiln as ok
from opkiln.native import include_dir

Array = np.ndarray[Any, Any]
Define = Callable[..., ok.CustomOp]
BOTH = "t::both(Tensor grad) -> (Tensor, Tensor)"
SMOOTH = "t::smooth(Tensor l, Tensor r, float s=0.2) -> Tensor"


def smoothed(left: Array, right: Array, s: float = 0.2) -> Array:
    """What t::smooth gives, by NumPy."""
    total = left + right
    step = total.dtype.type(s)
    return np.where(total < 0, total + step, total - step)


def draw(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def build(source: Path, folder: Path, *flags: str) -> Path:
    """A shared library of a source, with every warning an error."""
    library = folder / f"lib{source.stem}.so"
    c = source.suffix == ".c"
    compiler = ["gcc", "-std=c11"] if c else ["g++", "-std=c++17"]
    strict = ["-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fvisibility=hidden"]
    include = f"-I{include_dir()}"
    command = [*compiler, *strict, "-shared", "-fPIC", include, *flags, str(source)]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=120)
    return library
