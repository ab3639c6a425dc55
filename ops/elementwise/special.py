"""Special functions that NumPy lacks."""

from __future__ import annotations

import math

import numpy as np

from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf_reference(x: np.ndarray) -> np.ndarray:
    single = np.asarray(x).dtype == np.float32
    return np.asarray(_erf(x)).astype(np.float32 if single else np.float64)


# fmt: off
ROWS: tuple[OpRow, ...] = (
    OpRow("erf", 1, _erf_reference, sig.inexact, "ok_erf({0})", accepts="f", cost=14,
          exactness="ulp", ulp=4.0, domain=(-5.0, 5.0),
          gradient=lambda g, y, a: (g * (2 / math.sqrt(math.pi)) * np.exp(-a * a),)),
)
# fmt: on
