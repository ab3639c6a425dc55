"""What rows do over complex operands: how far NumPy's rows take them, and rows for their parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow
from opkiln.ops.record import fields_of


def _from_parts(re: Any, im: Any) -> Any:
    part = np.result_type(re, im, 0.0)
    if part.kind != "f":
        raise TypeError(f"a complex number of parts of {part.name}")
    result = np.empty(np.broadcast_shapes(np.shape(re), np.shape(im)), np.result_type(part, 1j))
    result.real, result.imag = re, im
    return result


# Row: its expression over complex operands, and how exact that is. A row that is not here takes
# none, as in NumPy.
_BODIES: dict[str, tuple[str, str]] = {
    "add": ("{0} + {1}", "exact"),
    "subtract": ("{0} - {1}", "exact"),
    "multiply": ("{0} * {1}", "bound"),
    "divide": ("ok_cdivide({0}, {1})", "exact"),
    "negative": ("-{0}", "exact"),
    "positive": ("{0}", "exact"),
    "absolute": ("ok_hypot({0}.re, {0}.im)", "ulp"),
    "sign": ("ok_csign({0})", "modulus"),
    "square": ("{0} * {0}", "bound"),
    "reciprocal": ("ok_creciprocal({0})", "exact"),
    "less": ("{0} < {1}", "exact"),
    "less_equal": ("{0} <= {1}", "exact"),
    "greater": ("{0} > {1}", "exact"),
    "greater_equal": ("{0} >= {1}", "exact"),
    "equal": ("{0} == {1}", "exact"),
    "not_equal": ("{0} != {1}", "exact"),
    "maximum": ("ok_cmax({0}, {1})", "exact"),
    "minimum": ("ok_cmin({0}, {1})", "exact"),
    "fmax": ("ok_cfmax({0}, {1})", "exact"),
    "fmin": ("ok_cfmin({0}, {1})", "exact"),
    "clip": ("ok_cclip({0}, {1}, {2})", "exact"),
    "rint": ("ok_complex(ok_rint({0}.re), ok_rint({0}.im))", "exact"),
    "isnan": ("{0} != {0}", "exact"),
    "isinf": ("ok_isinf({0}.re) | ok_isinf({0}.im)", "exact"),
    "isfinite": ("ok_isfinite({0}.re) & ok_isfinite({0}.im)", "exact"),
    "sqrt": ("ok_csqrt({0})", "modulus"),
    "power": ("ok_cpow({0}, {1})", "bound"),
    "float_power": ("ok_cpow({0}, {1})", "bound"),
    "exp": ("ok_cexp({0})", "modulus"),
    "exp2": ("ok_cexp2({0})", "modulus"),
    "expm1": ("ok_cexpm1({0})", "modulus"),
    "log": ("ok_clog({0})", "modulus"),
    "log1p": ("ok_clog1p({0})", "modulus"),
    "sin": ("ok_csin({0})", "modulus"),
    "cos": ("ok_ccos({0})", "modulus"),
    "tan": ("ok_ctan({0})", "modulus"),
    "sinh": ("ok_csinh({0})", "modulus"),
    "cosh": ("ok_ccosh({0})", "modulus"),
    "tanh": ("ok_ctanh({0})", "modulus"),
    "arcsin": ("ok_carcsin({0})", "modulus"),
    "arccos": ("ok_carccos({0})", "modulus"),
    "arctan": ("ok_carctan({0})", "modulus"),
    "arcsinh": ("ok_carcsinh({0})", "modulus"),
    "arccosh": ("ok_carccosh({0})", "modulus"),
    "arctanh": ("ok_carctanh({0})", "modulus"),
    "log2": ("ok_clog_base({0}, 1.4426950408889634)", "modulus"),
    "log10": ("ok_clog_base({0}, 0.4342944819032518)", "modulus"),
}


def modulus_rows() -> list[str]:
    """Rows that err by 16 eps of the result's modulus at most."""
    return [name for name, (_, exactness) in _BODIES.items() if exactness == "modulus"]


def over_complex(row: OpRow) -> OpRow:
    """The row as it is, or taking complex operands too."""
    expr, exactness = _BODIES.get(row.name, ("", ""))
    if not expr:
        return row
    fields = dict(zip(OpRow.__match_args__, fields_of(row), strict=True))
    fields["exprs"] = (*row.exprs, ("c", expr))
    fields["complex"] = exactness
    fields["accepts"] = row.accepts + "c"
    return OpRow(**fields)


# fmt: off
ROWS: tuple[OpRow, ...] = (
    OpRow("conjugate", 1, np.conjugate, sig.by_ufunc, "{0}", (("c", "ok_conjugate({0})"),),
          accepts="iufc", cost=0, gradient=lambda g, y, a: (np.conjugate(g),)),
    OpRow("real", 1, np.real, sig.part, "{0}.re", accepts="c", cost=0, differentiable=False),
    OpRow("imag", 1, np.imag, sig.part, "{0}.im", accepts="c", cost=0, differentiable=False),
    OpRow("from_parts", 2, _from_parts, sig.from_parts, "ok_complex({0}, {1})", accepts="f",
          cost=0, differentiable=False, doc="The complex number of a real and an imaginary part."),
)
# fmt: on
