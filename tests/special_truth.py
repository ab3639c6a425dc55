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


def erfinv(x: Any) -> Any:
    """By Newton's steps on erfc: mpmath's own loses digits near 1."""
    c = 1 - abs(x)
    if c <= 0:
        return mp.inf * x if c == 0 else mp.nan
    y = mp.erfinv(abs(x)) if c > 0.01 else mp.sqrt(-mp.log(c))
    for _ in range(40):
        step = (mp.erfc(y) - c) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step / (1 - y * step)
        if abs(step) < mp.mpf(10) ** (2 - mp.mp.dps):
            break
    return y * mp.sign(x)


def _but_for_poles(function: Callable[[Any], Any], pole: Any) -> Callable[[Any], Any]:
    return lambda x: pole if x <= 0 and x == mp.floor(x) else mp.re(function(x))


TRUE: dict[str, Callable[[Any], Any]] = {
    "erf": mp.erf,
    "erfc": erfc,
    "erfinv": erfinv,
    "lgamma": _but_for_poles(mp.loggamma, mp.inf),
    "digamma": _but_for_poles(mp.digamma, mp.nan),
    "trigamma": _but_for_poles(lambda x: mp.polygamma(1, x), mp.inf),
    "sinc": mp.sincpi,
    "expit": expit,
    "logit": logit,
    "softplus": softplus,
    "log_sigmoid": lambda x: -softplus(-x),
    "gelu": lambda x: x * erfc(-x / mp.sqrt(2)) / 2,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * expit(x),
    "hard_swish": lambda x: x * min(max(x + 3, 0), 6) / 6,
}

# Where each function changes, up to where its float32 and float64 results leave the range.
RANGES: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "erf": ((-4, 4), (-6, 6)),
    "erfc": ((-4, 10.1), (-6, 27.3)),
    "erfinv": ((-1, 1), (-1, 1)),
    "lgamma": ((-40, 100), (-40, 200)),
    "digamma": ((-40, 100), (-40, 200)),
    "trigamma": ((-40, 100), (-40, 200)),
    "sinc": ((-100, 100), (-100, 100)),
    "expit": ((-104, 20), (-746, 40)),
    "logit": ((0, 1), (0, 1)),
    "softplus": ((-104, 20), (-746, 40)),
    "log_sigmoid": ((-20, 104), (-40, 746)),
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
    if name in ("lgamma", "digamma", "trigamma"):
        points += [np.exp(rng.uniform(0, 40, n // 4))]
        points += [zero + rng.normal(0, 1e-3, n // 8) for zero in (1, 2, 1.4616321449683623)]
    if name == "erfinv":
        points += [1 - np.exp(-rng.uniform(1, 16 if np.dtype(dtype) == np.float32 else 36, n // 4))]
    if name == "logit":
        points += [rng.uniform(0.25, 0.75, n // 4), 1 - 10 ** rng.uniform(-7, 0, n // 4)]
    x = np.concatenate(points).astype(dtype)
    return x[np.abs(x) < 1] if name == "erfinv" else x
