"""The true values of the functions that NumPy lacks, by mpmath, and where to ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np


def expit(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def erfc(x: Any) -> Any:
    return mp.erfc(min(max(x, mp.mpf(-1e6)), mp.mpf(1e6)))  # beyond, mpmath itself overflows


def logit(x: Any) -> Any:
    if not 0 <= x <= 1:
        return mp.nan
    return mp.log(x) - mp.log1p(-x) if 0 < x < 1 else mp.inf * (2 * x - 1)


def softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x))


def gelu_tanh(x: Any) -> Any:
    return x * expit(mp.sqrt(8 / mp.pi) * (x + mp.mpf("0.044715") * x**3))


TRUE: dict[str, Callable[[Any], Any]] = {
    "erf": mp.erf,
    "erfc": erfc,
    "expit": expit,
    "logit": logit,
    "softplus": softplus,
    "log_sigmoid": lambda x: -softplus(-x),
    "relu": lambda x: max(x, mp.mpf(0)),
    "gelu": lambda x: x * erfc(-x / mp.sqrt(2)) / 2,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * expit(x),
    "hard_swish": lambda x: x * min(max(x + 3, 0), 6) / 6,
}

# Where each function changes, up to where its float32 and float64 results leave the range.
RANGES: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "erf": ((-4, 4), (-6, 6)),
    "erfc": ((-4, 10.1), (-6, 27.3)),
    "expit": ((-104, 20), (-746, 40)),
    "logit": ((0, 1), (0, 1)),
    "softplus": ((-104, 20), (-746, 40)),
    "log_sigmoid": ((-20, 104), (-40, 746)),
    "relu": ((-1, 1), (-1, 1)),
    "gelu": ((-14.3, 6), (-38.6, 9)),
    "gelu_tanh": ((-10.7, 6), (-21.2, 9)),
    "silu": ((-108, 20), (-752, 40)),
    "hard_swish": ((-4, 4), (-4, 4)),
}


def sample(name: str, dtype: Any, n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Points of the function's range, many of them near 0."""
    low, high = RANGES[name][np.dtype(dtype) == np.float64]
    rng = np.random.default_rng([seed, *name.encode()])
    near = np.exp(rng.uniform(-30, 1, n // 4)) * np.where(rng.random(n // 4) < 0.5, -1, 1)
    points = [
        rng.uniform(low, high, n // 4),
        rng.uniform(max(low, -3), min(high, 3), n // 4),
        near[(near > low) & (near < high)],
    ]
    if name == "logit":
        points += [rng.uniform(0.25, 0.75, n // 4), 1 - 10 ** rng.uniform(-7, 0, n // 4)]
    return np.concatenate(points).astype(dtype)


def distance(got: Any, true: Any, magnitude: float = 0.0) -> float:
    """How far from the true value, in units of the last place of it or of `magnitude`."""
    info = np.finfo(type(got))
    if mp.isnan(true):
        return 0.0 if np.isnan(got) else float("inf")
    if not np.isfinite(got):
        return 0.0 if abs(true) >= float(info.max) and got * mp.sign(true) > 0 else float("inf")
    with np.errstate(over="ignore"):
        place = np.spacing(min(type(got)(max(abs(float(true)), magnitude)), info.max))
    return float(abs(mp.mpf(float(got)) - true) / float(max(place, info.smallest_subnormal)))
