"""The contract of every op value, and the tables' own rules.

Ops keep identity, hash, pickle, digest across processes, and distinctness.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from opkiln.ops import elementwise, reduce
from opkiln.ops.defs import OpDef, OpRow, encode
from opkiln.ops.primitives import (
    BroadcastTo,
    Cast,
    Constant,
    Dim,
    Elementwise,
    ExpandDims,
    FromHost,
    HostArg,
    HostConst,
    HostOp,
    Input,
    Reduce,
    Transpose,
)
from opkiln.ops.record import record
from opkiln.ops.rules import NoRule, RuleTable
from opkiln.ops.table import BY_UFUNC, ELEMENTWISE, REDUCTIONS, _index
from opkiln.runtime.graph import make
from opkiln.runtime.infer import graph_input

F4, F8, I8 = np.dtype("f4"), np.dtype("f8"), np.dtype("i8")


def values() -> list[OpDef]:
    """At least one of every op type, and neighbours that must stay apart."""
    return [
        Input(0, F4, 2), Input(1, F4, 2), Input(0, F8, 2), Input(0, F4, 1),
        HostArg(0, "i"), HostArg(0, "f"), HostArg(1, "i"), Dim(0), Dim(1),
        HostConst(1), HostConst(1.0), HostConst(0.0), HostConst(-0.0), HostConst(float("nan")),
        HostOp("add"), HostOp("mul"), Constant(np.float32(0.0)), Constant(np.float32(-0.0)),
        Constant(np.float64(0.0)), Constant(np.int64(0)), Constant(np.bool_(True)),
        Constant(np.float32("nan")),
        FromHost(F4, "check"), FromHost(F4, "wrap"), FromHost(I8, "check"),
        *(Elementwise(name) for name in ELEMENTWISE), Cast(F4), Cast(F8),
        Reduce("sum", (0,), False, F4), Reduce("sum", (0,), True, F4),
        Reduce("sum", (1,), False, F4), Reduce("sum", (0, 1), False, F4),
        Reduce("max", (0,), False, F4),
        Transpose((1, 0)), Transpose((0, 1)), ExpandDims((0,)), ExpandDims((1,)), BroadcastTo(),
    ]  # fmt: skip


@pytest.mark.parametrize("op", values(), ids=repr)
def test_contract(op: OpDef) -> None:
    twin = type(op)(**op.props)
    assert op == twin
    assert hash(op) == hash(twin)
    assert op.digest == twin.digest
    assert pickle.loads(pickle.dumps(op)) == op
    assert type(op).__name__ in repr(op)
    assert op.name
    with pytest.raises(AttributeError):
        op.anything = 1  # type: ignore[attr-defined]


def test_distinct_ops_have_distinct_digests() -> None:
    digests = {op.digest for op in values()}
    assert len(digests) == len(values())


def test_O1_digests_are_the_same_in_every_process() -> None:
    code = "from tests.test_ops import values; print(b''.join(op.digest for op in values()).hex())"
    here = b"".join(op.digest for op in values()).hex()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == here


def test_encoding_is_length_delimited() -> None:
    assert encode(("ab", "c")) != encode(("a", "bc"))
    assert encode((1, (2,))) != encode((1, 2))
    assert len({encode(v) for v in (1, 1.0, True, "1", b"1", None, np.int8(1), np.int16(1))}) == 8
    with pytest.raises(TypeError, match="canonical"):
        encode(object())


def test_rows_are_complete() -> None:
    for row in elementwise.ROWS:
        assert row.exactness in ("exact", "ulp", "bound"), row.name
        assert (row.ulp > 0) == (row.exactness == "ulp"), row.name
        assert set(row.accepts) <= set("biufc"), row.name
        assert row.exactness_of("c") in ("exact", "ulp", "bound", "modulus"), row.name
        highest = max((int(d) for d in "012" if f"{{{d}}}" in row.expr), default=-1)
        assert highest == row.arity - 1, row.name
    assert {row.name for row in reduce.ROWS} == set(REDUCTIONS)
    assert BY_UFUNC[np.add] is ELEMENTWISE["add"]


def test_a_row_defined_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        _index((ELEMENTWISE["add"], ELEMENTWISE["add"]))


def test_signatures_are_numpys() -> None:
    def of(name: str, *operands: object) -> tuple[tuple[np.dtype, ...], np.dtype]:
        row: OpRow = ELEMENTWISE[name]
        return row.signature(row, operands)

    assert of("add", F4, float) == ((F4, F4), F4)
    assert of("add", np.dtype("i4"), float) == ((F8, F8), F8)
    assert of("divide", np.dtype("i1"), np.dtype("i1")) == ((F8, F8), F8)
    assert of("less", np.dtype("u8"), I8)[1] == np.dtype("?")
    with pytest.raises(TypeError):
        of("subtract", np.dtype("?"), np.dtype("?"))


def test_rules_follow_the_mro_and_are_never_replaced() -> None:
    @record
    class Base(OpDef):
        """A type with a rule."""

    @record
    class Derived(Base):
        """A type that inherits it."""

    table = RuleTable()

    @table.register("lower", Base)
    def rule() -> str:
        return "base"

    assert table.find("lower", Derived())() == "base"
    with pytest.raises(NoRule, match="infer"):
        table.find("infer", Derived())
    with pytest.raises(ValueError, match="already"):
        table.register("lower", Base)(rule)


def test_equal_nodes_are_one_object() -> None:
    x = graph_input(0, F4, 1)
    first, second = (make(Elementwise("add"), x, x) for _ in range(2))
    assert first is second
    assert first is not make(Elementwise("subtract"), x, x)
    with pytest.raises(TypeError, match="cast"):
        make(Elementwise("add"), x, graph_input(1, F8, 1))
