"""Order and choice."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import INVALID_CHOICE, same

# Gradient rules compare by these: NumPy makes an array, which a trace captures, of a number that
# stands on the left of an operator.
le, lt = np.less_equal, np.less

# np.clip is a Python function around this ufunc.
clip_ufunc = cast("np.ufunc", np._core.umath.clip)  # type: ignore[attr-defined]


def _choice_index(index: Any, count: Any) -> Any:
    if np.any((index < 0) | (index >= count)):
        raise ValueError("invalid entry in choice array")
    return index + np.int64(0) * count


# fmt: off
ROWS: tuple[OpRow, ...] = (
    same("maximum", 2, np.maximum, expr="ok_max({0}, {1})", exprs=(("b", "ok_or({0}, {1})"),),
          rounds=False, ungated="zero sign", cost=2,
          gradient=lambda g, y, a, b: (np.where(le(b, a), g, 0), np.where(lt(a, b), g, 0))),
    same("minimum", 2, np.minimum, expr="ok_min({0}, {1})", exprs=(("b", "ok_and({0}, {1})"),),
          rounds=False, ungated="zero sign", cost=2,
          gradient=lambda g, y, a, b: (np.where(le(a, b), g, 0), np.where(lt(b, a), g, 0))),
    same("fmax", 2, np.fmax, expr="ok_max({0}, {1})", ungated="zero sign", cost=2,
          rounds=False,
          exprs=(("b", "ok_or({0}, {1})"), ("f", "ok_fmax({0}, {1})")),
          gradient=lambda g, y, a, b: (np.where(np.isnan(b) | le(b, a), g, 0),
                                       np.where(np.isnan(b) | le(b, a), 0, g))),
    same("fmin", 2, np.fmin, expr="ok_min({0}, {1})", ungated="zero sign", cost=2,
          rounds=False,
          exprs=(("b", "ok_and({0}, {1})"), ("f", "ok_fmin({0}, {1})")),
          gradient=lambda g, y, a, b: (np.where(np.isnan(b) | le(a, b), g, 0),
                                       np.where(np.isnan(b) | le(a, b), 0, g))),
    OpRow("where", 3, np.where, sig.select, "ok_sel({0}, {1}, {2})", rounds=False,
          gradient=lambda g, y, c, a, b: (None, np.where(c, g, 0), np.where(c, 0, g))),
    OpRow("choice_index", 2, _choice_index, sig.index, "ok_choice({0}, {1}, {f})", accepts="i",
          faults=INVALID_CHOICE, differentiable=False,
          doc="Integers that name one of so many choices; np.choose refuses others."),
    same("clip", 3, clip_ufunc, expr="ok_min(ok_max({0}, {1}), {2})", accepts="iuf", cost=3,
          rounds=False, ungated="zero sign",
          gradient=lambda g, y, a, lo, hi: (
              np.where(le(lo, a) & le(a, hi), g, 0),
              np.where(lt(a, lo) & le(lo, hi), g, 0),
              np.where(lt(hi, np.maximum(a, lo)), g, 0))),
)
# fmt: on
