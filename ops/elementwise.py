"""The elementwise rows: facts per op, for tracing, emission, interpreter, tests and docs."""

from __future__ import annotations

import math
from functools import partial
from typing import cast

import numpy as np

from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow

# Fault bits, as in native/include/opkiln/kernel.h.
DIVISION_BY_ZERO, NEGATIVE_POWER, DIVISION_OVERFLOW = 1, 2, 4

# np.clip is a Python function around this ufunc.
_clip = cast("np.ufunc", np._core.umath.clip)  # type: ignore[attr-defined]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf_reference(x: np.ndarray) -> np.ndarray:
    single = np.asarray(x).dtype == np.float32
    return np.asarray(_erf(x)).astype(np.float32 if single else np.float64)


# The row computes in the dtypes that NumPy's resolver names.
_same = partial(OpRow, signature=sig.by_ufunc)
_flag = partial(OpRow, signature=sig.logical, differentiable=False)
_math = partial(OpRow, signature=sig.by_result, exactness="ulp", ulp=4.0, accepts="f")
_near = partial(_same, accepts="f")  # rounding and sign functions of floats


def _compare(name: str, fn: np.ufunc, symbol: str, mixed: str, swapped: str, on_bool: str) -> OpRow:
    return OpRow(
        name,
        2,
        fn,
        sig.by_ufunc,
        f"{{0}} {symbol} {{1}}",
        exprs=(
            ("b", on_bool),
            # int64 against uint64, exact as NumPy's own loops
            ("iu", f"ok_{mixed}_iu({{0}}, {{1}})"),
            ("ui", f"ok_{swapped}_iu({{1}}, {{0}})"),
        ),
        differentiable=False,
    )


# fmt: off
ROWS: tuple[OpRow, ...] = (
    # arithmetic
    _same("add", 2, np.add, expr="{0} + {1}", exprs=(("b", "ok_or({0}, {1})"),),
          gradient=lambda g, y, a, b: (g, g)),
    _same("subtract", 2, np.subtract, expr="{0} - {1}", accepts="iuf",
          gradient=lambda g, y, a, b: (g, -g)),
    _same("multiply", 2, np.multiply, expr="{0} * {1}", exprs=(("b", "ok_and({0}, {1})"),),
          gradient=lambda g, y, a, b: (g * b, g * a)),
    OpRow("divide", 2, np.true_divide, sig.by_result, "{0} / {1}", accepts="f", cost=2,
          gradient=lambda g, y, a, b: (g / b, -g * y / b)),
    _same("floor_divide", 2, np.floor_divide, expr="ok_floordiv({0}, {1}, {f})", accepts="iuf",
          faults=DIVISION_BY_ZERO | DIVISION_OVERFLOW, cost=20, domain=(-40.0, 40.0),
          differentiable=False),
    _same("remainder", 2, np.remainder, expr="ok_mod({0}, {1}, {f})", accepts="iuf",
          faults=DIVISION_BY_ZERO, cost=20, domain=(-40.0, 40.0),
          gradient=lambda g, y, a, b: (g, None)),
    _same("fmod", 2, np.fmod, expr="ok_fmod({0}, {1}, {f})", accepts="iuf",
          faults=DIVISION_BY_ZERO, cost=20, domain=(-40.0, 40.0),
          gradient=lambda g, y, a, b: (g, None)),
    _same("power", 2, np.power, expr="ok_pow({0}, {1})",
          exprs=(("i", "ok_ipow({0}, {1}, {f})"), ("u", "ok_ipow({0}, {1}, {f})")),
          faults=NEGATIVE_POWER, exactness="ulp", ulp=4.0, cost=24, accepts="iuf",
          domain=(0.05, 8.0),
          gradient=lambda g, y, a, b: (g * b * a ** (b - 1), g * y * np.log(a))),
    _same("negative", 1, np.negative, expr="-{0}", accepts="iuf",
          gradient=lambda g, y, a: (-g,)),
    _same("positive", 1, np.positive, expr="{0}", accepts="iuf", cost=0,
          gradient=lambda g, y, a: (g,)),
    _same("absolute", 1, np.absolute, expr="ok_abs({0})", exprs=(("b", "{0}"), ("u", "{0}")),
          gradient=lambda g, y, a: (g * np.sign(a),)),
    _same("sign", 1, np.sign, expr="ok_sign({0})", differentiable=False, accepts="iuf"),
    _near("copysign", 2, np.copysign, expr="ok_copysign({0}, {1})",
          gradient=lambda g, y, a, b: (np.copysign(g, y * np.sign(a)), None)),
    _same("square", 1, np.square, expr="{0} * {0}", accepts="iuf",
          gradient=lambda g, y, a: (g * (a + a),)),
    _near("reciprocal", 1, np.reciprocal, expr="1 / {0}", cost=2, domain=(0.1, 8.0),
          gradient=lambda g, y, a: (-g * y * y,)),
    # comparison
    _compare("less", np.less, "<", "lt", "gt", "ok_and(ok_not({0}), {1})"),
    _compare("less_equal", np.less_equal, "<=", "le", "ge", "ok_or(ok_not({0}), {1})"),
    _compare("greater", np.greater, ">", "gt", "lt", "ok_and({0}, ok_not({1}))"),
    _compare("greater_equal", np.greater_equal, ">=", "ge", "le", "ok_or({0}, ok_not({1}))"),
    _compare("equal", np.equal, "==", "eq", "eq", "ok_not(ok_xor({0}, {1}))"),
    _compare("not_equal", np.not_equal, "!=", "ne", "ne", "ok_xor({0}, {1})"),
    # logic on truth values
    _flag("logical_and", 2, np.logical_and, expr="ok_and({0}, {1})"),
    _flag("logical_or", 2, np.logical_or, expr="ok_or({0}, {1})"),
    _flag("logical_xor", 2, np.logical_xor, expr="ok_xor({0}, {1})"),
    _flag("logical_not", 1, np.logical_not, expr="ok_not({0})"),
    # bits
    _same("bitwise_and", 2, np.bitwise_and, expr="{0} & {1}", exprs=(("b", "ok_and({0}, {1})"),),
          differentiable=False, accepts="biu"),
    _same("bitwise_or", 2, np.bitwise_or, expr="{0} | {1}", exprs=(("b", "ok_or({0}, {1})"),),
          differentiable=False, accepts="biu"),
    _same("bitwise_xor", 2, np.bitwise_xor, expr="{0} ^ {1}", exprs=(("b", "ok_xor({0}, {1})"),),
          differentiable=False, accepts="biu"),
    _same("invert", 1, np.invert, expr="~{0}", exprs=(("b", "ok_not({0})"),),
          differentiable=False, accepts="biu"),
    _same("left_shift", 2, np.left_shift, expr="ok_shl({0}, {1})",
          differentiable=False, accepts="iu"),
    _same("right_shift", 2, np.right_shift, expr="ok_shr({0}, {1})",
          differentiable=False, accepts="iu"),
    # order
    _same("maximum", 2, np.maximum, expr="ok_max({0}, {1})", exprs=(("b", "ok_or({0}, {1})"),),
          ungated="zero sign", cost=2,
          gradient=lambda g, y, a, b: (np.where(b <= a, g, 0), np.where(a < b, g, 0))),
    _same("minimum", 2, np.minimum, expr="ok_min({0}, {1})", exprs=(("b", "ok_and({0}, {1})"),),
          ungated="zero sign", cost=2,
          gradient=lambda g, y, a, b: (np.where(a <= b, g, 0), np.where(b < a, g, 0))),
    # rounding: integers are their own floor, so these rows hold for floats and the front end
    # skips the rest
    _near("floor", 1, np.floor, expr="ok_floor({0})", differentiable=False),
    _near("ceil", 1, np.ceil, expr="ok_ceil({0})", differentiable=False),
    _near("trunc", 1, np.trunc, expr="ok_trunc({0})", differentiable=False),
    _near("rint", 1, np.rint, expr="ok_rint({0})", differentiable=False),
    # functions
    OpRow("sqrt", 1, np.sqrt, sig.by_result, "ok_sqrt({0})", accepts="f", cost=3,
          domain=(0.0, 64.0),
          gradient=lambda g, y, a: (g / (y + y),)),
    _math("exp", 1, np.exp, expr="ok_exp({0})", cost=8, domain=(-80.0, 80.0),
          gradient=lambda g, y, a: (g * y,)),
    _math("exp2", 1, np.exp2, expr="ok_exp2({0})", cost=8, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (g * y * math.log(2.0),)),
    _math("expm1", 1, np.expm1, expr="ok_expm1({0})", cost=8, domain=(-40.0, 80.0),
          gradient=lambda g, y, a: (g * (y + 1),)),
    _math("log", 1, np.log, expr="ok_log({0})", cost=8, domain=(1e-6, 1e6),
          gradient=lambda g, y, a: (g / a,)),
    _math("log2", 1, np.log2, expr="ok_log2({0})", cost=8, domain=(1e-6, 1e6),
          gradient=lambda g, y, a: (g / (a * math.log(2.0)),)),
    _math("log1p", 1, np.log1p, expr="ok_log1p({0})", cost=10, domain=(-0.99, 1e6),
          gradient=lambda g, y, a: (g / (a + 1),)),
    _math("tanh", 1, np.tanh, expr="ok_tanh({0})", cost=9,
          gradient=lambda g, y, a: (g * (1 - y * y),)),
    _math("sin", 1, np.sin, expr="ok_sin({0})", cost=12, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (g * np.cos(a),)),
    _math("cos", 1, np.cos, expr="ok_cos({0})", cost=12, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (-g * np.sin(a),)),
    OpRow("erf", 1, _erf_reference, sig.inexact, "ok_erf({0})", accepts="f", cost=14,
          exactness="ulp", ulp=4.0, domain=(-5.0, 5.0),
          gradient=lambda g, y, a: (g * (2 / math.sqrt(math.pi)) * np.exp(-a * a),)),
    # tests of floats
    _near("isnan", 1, np.isnan, expr="{0} != {0}", differentiable=False),
    _near("isinf", 1, np.isinf, expr="ok_isinf({0})", differentiable=False),
    _near("isfinite", 1, np.isfinite, expr="ok_isfinite({0})", differentiable=False),
    # choice
    OpRow("where", 3, np.where, sig.select, "ok_sel({0}, {1}, {2})",
          gradient=lambda g, y, c, a, b: (None, np.where(c, g, 0), np.where(c, 0, g))),
    _same("clip", 3, _clip, expr="ok_min(ok_max({0}, {1}), {2})", accepts="iuf", cost=3,
          ungated="zero sign",
          gradient=lambda g, y, a, lo, hi: (np.where((a >= lo) & (a <= hi), g, 0), None, None)),
)
# fmt: on
