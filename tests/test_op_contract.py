"""The contract of op definitions: identity, immutability, pickle, digests; what each does where.

SEMANTICS 2, 3 and 12.
"""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_in_threads

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.ops.calls import FUNCTIONS, Call
from opkiln.ops.defs import OpDef
from opkiln.ops.record import record
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import Expr, Literal, Subgraph
from opkiln.runtime import errors
from opkiln.runtime.encoded import EMPTY

ADD, MUL = p.Elementwise("add"), p.Elementwise("multiply")
F4 = np.dtype("f4")
SCHEMA = "ns::f(Tensor a, float k=2.0) -> Tensor"


@dataclass(frozen=True)
class Scale:
    """A user's op, equal by value."""

    factor: float
    name: str = "scale"

    def apply(self, x: Any) -> tuple[Any, ...]:
        return (x * self.factor,)

    def infer(self, desc: ok.TensorDesc) -> tuple[tuple[ok.TensorDesc, ...], bool]:
        return (desc.but(value=None),), desc.known

    def key(self) -> tuple[Any, ...]:
        return (self.factor,)


def graph(op: OpDef = ADD, constant: Any = 2.0) -> Subgraph:
    exprs = (Expr(op, (1, 2), (4,)), Expr(MUL, (4, 3), (5,)))
    return Subgraph((1, 2), ((3, Literal.of(np.float32(constant))),), exprs, (5, 4))


def definitions() -> list[OpDef]:
    """At least one of every definition, and neighbours that must stay apart."""
    nan = np.array([0x7FC00001], np.uint32).view(np.float32)[0]  # with a payload
    key = ok.UniqueKey(b"k" * 16)
    return [
        ok.Identity(), ok.FastpathCopy(),
        ok.ShapeInfer(ADD), ok.ShapeInfer(MUL), ok.ShapeInfer(ADD, ["cuda:0"]),
        ok.ShapeInfer(ADD, dtypes=["f8"]), ok.ShapeInfer(ok.ShapeInfer(ADD)),
        ok.SubgraphOp(graph()), ok.SubgraphOp(graph(MUL)), ok.SubgraphOp(graph(constant=2.0000002)),
        ok.SubgraphOp(graph(constant=0.0)), ok.SubgraphOp(graph(constant=-0.0)),
        ok.SubgraphOp(graph(constant=np.nan)), ok.SubgraphOp(graph(constant=nan)),
        ok.SubgraphOp(graph(constant=np.inf)),
        ok.SubgraphOp(graph(), grad_mask=(True, False)), ok.SubgraphOp(graph(), user_key=key),
        ok.SubgraphOp(graph(), gradient=graph()),
        ok.CompiledOp(ADD), ok.CompiledOp(ADD, 1), ok.CompiledOp(MUL),
        ok.CompiledOp(ADD, options={"errstate": "raise"}), ok.CompiledOp(ok.SubgraphOp(graph())),
        ok.JITFusionOp(ADD), ok.JITFusionOp(ADD, strict=False), ok.JITFusionOp(MUL),
        ok.GenericPyOp(Scale(2.0)), ok.GenericPyOp(Scale(3.0)),
        ok.CustomOp(SCHEMA, b"c" * 32), ok.CustomOp(SCHEMA, b"d" * 32),
        ok.CustomOp(SCHEMA, b"c" * 32, (("k", 1.0),)), ok.CustomOp(SCHEMA, b"c" * 32, (("k", 1),)),
        key, ok.UniqueKey(b"l" * 16),
        ok.BackwardOpKey(ADD, (True, False), (True,), (F4, F4), (1, 1)),
        ok.BackwardOpKey(ADD, (True, True), (True,), (F4, F4), (1, 1)),
        ok.BackwardOpKey(ADD, (True, False), (True,), (F4, F4), (1, None)),
        *(Call(name) for name in FUNCTIONS), Call("sum", {"axis": 0}.items()),
        Call("sum", {"axis": 0, "keepdims": True}.items()),
    ]  # fmt: skip


@pytest.mark.parametrize("op", definitions(), ids=repr)
def test_contract(op: OpDef) -> None:
    for twin in (copy.copy(op), copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
        assert twin == op
        assert hash(twin) == hash(op)
        assert twin.digest == op.digest
        assert twin.props == op.props
    assert type(op).__name__ in repr(op)
    assert op.name
    assert list(op.props) == list(type(op).__match_args__)
    assert op != ADD
    for name in (*op.props, "anything"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(op, name, 1)
        with pytest.raises(AttributeError, match="immutable"):
            delattr(op, name)


def test_contract_of_distinct_ops() -> None:
    ops = definitions()
    assert len({op.digest for op in ops}) == len(set(ops)) == len(ops)


def test_O1_contract_in_every_process() -> None:
    code = (
        "from tests.test_op_contract import definitions; "
        "print(b''.join(op.digest for op in definitions()).hex())"
    )
    here = b"".join(op.digest for op in definitions()).hex()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.split()[-1] == here


def test_a_name_is_no_part_of_the_identity() -> None:
    assert ok.SubgraphOp(graph(), "one") == ok.SubgraphOp(graph(), "two")
    assert ok.SubgraphOp(graph(), grad_mask=(True, True)) == ok.SubgraphOp(graph())
    assert ok.UniqueKey() != ok.UniqueKey()


def test_every_definition_says_what_it_does_in_each_context() -> None:
    ops: list[type[OpDef]] = [
        ok.Identity, ok.FastpathCopy, ok.ShapeInfer, ok.SubgraphOp, ok.CompiledOp, ok.JITFusionOp,
        ok.GenericPyOp,
    ]  # fmt: skip
    for cls in ops:
        for context in ("Eager:", "In a graph:", "Inference:", "Compiled:", "Exported:"):
            assert context in " ".join((cls.__doc__ or "").split()), (cls, context)


def test_generic_ops_are_equal_as_their_objects_are() -> None:
    one, two = ok.GenericPyOp(Scale(2.0)), ok.GenericPyOp(Scale(2.0))
    assert one == two
    assert one.digest == two.digest
    assert one.obj is two.obj

    class Keyless:
        def __init__(self, n: int) -> None:
            self.n = n

        def __hash__(self) -> int:
            return 1  # all collide

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Keyless) and other.n == self.n

        def apply(self, x: Any) -> tuple[Any, ...]:
            return (x,)

    a, b, other = (ok.GenericPyOp(Keyless(n)) for n in (1, 1, 2))
    assert a == b
    assert a.digest == b.digest
    assert a != other


def test_C1_generic_op_is_checked_when_made() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

        def apply(self, x: Any) -> tuple[Any, ...]:
            return (x,)

    class NoEq:
        def apply(self, x: Any) -> tuple[Any, ...]:
            return (x,)

    @dataclass(frozen=True)
    class NoApply:
        pass

    @dataclass(frozen=True)
    class BadHook:
        infer: int = 3

        def apply(self, x: Any) -> tuple[Any, ...]:
            return (x,)

    for obj, text in (
        (Unhashable(), "__hash__"), (NoEq(), "__hash__"), (NoApply(), "apply"),
        (BadHook(), "infer"), ([], "__hash__"),
    ):  # fmt: skip
        with pytest.raises(errors.ArgumentError, match=rf"{text}(.|\n)*test_op_contract.py:"):
            ok.GenericPyOp(obj)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ok.CompiledOp(3),  # type: ignore[arg-type]
        lambda: ok.JITFusionOp("add"),  # type: ignore[arg-type]
        lambda: ok.ShapeInfer(None),  # type: ignore[arg-type]
        lambda: ok.ShapeInfer(ADD, ["tpu"]),
        lambda: ok.CompiledOp(ADD, 7),
        lambda: ok.CompiledOp(ADD, options={"speed": 11}),
        lambda: ok.SubgraphOp(graph(), grad_mask=(True,)),
    ],
)
def test_wrong_fields_are_refused(make: Any) -> None:
    with pytest.raises(errors.ArgumentError):
        make()


def test_missing_trait_names_op_and_trait() -> None:
    @record
    class Strange(OpDef):
        pass

    with pytest.raises(errors.NotImplementedTrait, match=r"Strange.*apply_graph"):
        Strange().apply(np.ones(2))
    with pytest.raises(errors.NotImplementedTrait, match="forward_graph"):
        ADD.forward_graph([])


def test_rules_register_late_and_win_over_the_fallback() -> None:
    @record
    class Twice(OpDef):
        pass

    with pytest.raises(errors.NotImplementedTrait):
        Twice().apply(np.ones(2))
    RULES.register("apply_graph", Twice)(lambda op, args: (args[0] * 2,))
    assert Twice().apply(np.ones(2))[0].tolist() == [2, 2]
    assert ok.CompiledOp(Twice()).apply(np.ones(2))[0].tolist() == [2, 2]
    assert Twice().infer([ok.TensorDesc("f8", (3,))]) == ((ok.TensorDesc("f8", (3,)),), True)
    with pytest.raises(ValueError, match="already"):
        RULES.register("apply_graph", Twice)(lambda op, args: args)


def test_rules_from_several_threads() -> None:
    """Late registration and look-up at once; K27's unlocked filler."""
    made: list[Any] = []

    def work(i: int) -> None:
        @record
        class Own(OpDef):
            pass

        Own.__name__ = f"Own{i}"
        RULES.register("apply", Own)(lambda op, inputs: (i,))
        for _ in range(50):
            assert Own().apply(1) == (i,)
            assert RULES.find("describe", Own()) is not None
        made.append(i)

    run_in_threads(work, 8)
    assert sorted(made) == list(range(8))


# ---- SEMANTICS 12: eager, graph, infer, compiled ----

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_identity_and_copy() -> None:
    (same,) = ok.Identity().apply(X)
    assert same is not X
    assert same.base is X or np.shares_memory(same, X)
    assert ok.FastpathCopy().apply(X)[0] is X
    (compiled,) = ok.CompiledOp(ok.Identity()).apply(X)
    assert not np.shares_memory(compiled, X)
    assert compiled.tolist() == X.tolist()
    desc = ok.TensorDesc("i8", value=[1, 2])
    for op in (ok.Identity(), ok.FastpathCopy(), ok.CompiledOp(ok.Identity())):
        assert op.infer([desc]) == ((desc,), True)
        with pytest.raises(errors.ArgumentError, match="1 input"):
            op.apply(X, X)


def test_subgraph_op_eager_and_compiled() -> None:
    op = ok.SubgraphOp(graph())
    for made in (op, ok.CompiledOp(op), ok.CompiledOp(ok.CompiledOp(op), 0)):
        scaled, total = made.apply(X, X)
        assert total.tolist() == (X + X).tolist()
        assert scaled.tolist() == (2 * (X + X)).tolist()
        assert scaled.dtype == np.float32
    with pytest.raises(errors.ArgumentError, match="expected 2 inputs, got 1"):
        op.apply(X)


def test_ops_in_a_trace_are_inlined() -> None:
    inner = ok.CompiledOp(ok.SubgraphOp(graph(constant=3.0), "inner"))

    @ok.compile
    def outer(x: Any) -> Any:
        scaled, total = inner.apply(x, x)
        return ok.Identity().apply(scaled)[0] - total

    assert outer(X).tolist() == (2 * (X + X)).tolist()
    assert len(outer.lower(X).kernels) == 1
    assert inner.function.info().calls == 0


def test_O2_equal_structure_shares_program_and_executors() -> None:
    """K20, K21: another gradient mask does not; a renamed op does."""
    one, renamed = (ok.CompiledOp(ok.SubgraphOp(graph(constant=5.0), n)) for n in ("a", "b"))
    masked = ok.CompiledOp(ok.SubgraphOp(graph(constant=5.0), "a", (True, False)))
    one.apply(X, X)
    before = one.function.info()
    renamed.apply(X, X)
    after = one.function.info()
    assert renamed.function is one.function
    assert after.hits == before.hits + 1
    assert after.executors == before.executors
    assert masked.function is not one.function


def test_compiled_once_for_many_threads() -> None:
    op = graph(constant=6.0)

    def work(i: int) -> None:
        made = ok.CompiledOp(ok.SubgraphOp(op))
        assert made.apply(X, X)[1].tolist() == (X + X).tolist()

    run_in_threads(work, 4)
    info = ok.CompiledOp(ok.SubgraphOp(op)).function.info()
    assert (info.traces, info.builds + info.disk_hits) == (1, 1)


def test_generic_op_eager_in_graphs_and_inference() -> None:
    op = ok.GenericPyOp(Scale(2.0))
    assert op.apply(X)[0].tolist() == (X * 2).tolist()
    desc = ok.TensorDesc("f4", (2, None))
    assert op.infer([desc]) == ((desc,), False)
    with pytest.raises(errors.TraceError, match=r"scale.*own code(.|\n)*test_op_contract"):
        ok.compile(lambda x: op.apply(x)[0])(X)

    @dataclass(frozen=True)
    class Traceable:
        def apply(self, x: Any) -> tuple[Any, ...]:
            return (x + 1,)

        def apply_graph(self, x: Any) -> tuple[Any, ...]:
            return (x + 1,)

    traced = ok.GenericPyOp(Traceable())
    assert ok.compile(lambda x: traced.apply(x)[0])(X).tolist() == (X + 1).tolist()
    assert ok.CompiledOp(traced).apply(X)[0].tolist() == (X + 1).tolist()
    assert traced.infer([desc]) == ((desc,), False)

    @dataclass(frozen=True)
    class Wrong:
        def apply(self, x: Any) -> Any:
            return x

    with pytest.raises(errors.ArgumentError, match="tuple of arrays, got ndarray"):
        ok.GenericPyOp(Wrong()).apply(X)
    with pytest.raises(errors.NotImplementedTrait, match="no method infer"):
        ok.GenericPyOp(Wrong()).infer([desc])


def test_empty_is_no_gradient() -> None:
    assert not EMPTY
    assert ok.EncodedGraph(ADD, (True, True), (True,))
