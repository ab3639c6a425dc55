"""Comparison, logic on truth values, and operations on bits."""

from __future__ import annotations

import numpy as np

from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import flag, same


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
    # comparison
    _compare("less", np.less, "<", "lt", "gt", "ok_and(ok_not({0}), {1})"),
    _compare("less_equal", np.less_equal, "<=", "le", "ge", "ok_or(ok_not({0}), {1})"),
    _compare("greater", np.greater, ">", "gt", "lt", "ok_and({0}, ok_not({1}))"),
    _compare("greater_equal", np.greater_equal, ">=", "ge", "le", "ok_or({0}, ok_not({1}))"),
    _compare("equal", np.equal, "==", "eq", "eq", "ok_not(ok_xor({0}, {1}))"),
    _compare("not_equal", np.not_equal, "!=", "ne", "ne", "ok_xor({0}, {1})"),
    # logic on truth values
    flag("logical_and", 2, np.logical_and, expr="ok_and({0}, {1})"),
    flag("logical_or", 2, np.logical_or, expr="ok_or({0}, {1})"),
    flag("logical_xor", 2, np.logical_xor, expr="ok_xor({0}, {1})"),
    flag("logical_not", 1, np.logical_not, expr="ok_not({0})"),
    # bits
    same("bitwise_and", 2, np.bitwise_and, expr="{0} & {1}", exprs=(("b", "ok_and({0}, {1})"),),
          differentiable=False, accepts="biu"),
    same("bitwise_or", 2, np.bitwise_or, expr="{0} | {1}", exprs=(("b", "ok_or({0}, {1})"),),
          differentiable=False, accepts="biu"),
    same("bitwise_xor", 2, np.bitwise_xor, expr="{0} ^ {1}", exprs=(("b", "ok_xor({0}, {1})"),),
          differentiable=False, accepts="biu"),
    same("invert", 1, np.invert, expr="~{0}", exprs=(("b", "ok_not({0})"),),
          differentiable=False, accepts="biu"),
    same("left_shift", 2, np.left_shift, expr="ok_shl({0}, {1})",
          differentiable=False, accepts="iu"),
    same("right_shift", 2, np.right_shift, expr="ok_shr({0}, {1})",
          differentiable=False, accepts="iu"),
    same("bitwise_count", 1, np.bitwise_count, expr="ok_bitcount({0})",
          differentiable=False, accepts="iu", cost=2),
)
# fmt: on
