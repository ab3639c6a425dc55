"""A CompiledOp with the user's own code inside: compiled pieces, in order, equal to interpreted."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln.runtime import errors
from opkiln.runtime.segments import plan_of

X = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)
CALLS: list[str] = []


@dataclass(frozen=True)
class Log:
    """Its own code, which notes when it runs."""

    name: str
    fails: bool = False

    def apply(self, x: Any) -> tuple[Any, ...]:
        CALLS.append(self.name)
        if self.fails:
            raise RuntimeError("mine")
        return (np.asarray(x) + 1,)

    def infer(self, x: ok.TensorDesc) -> Any:
        return (x.but(value=None),), x.known


def own(name: str) -> ok.GenericPyOp:
    return ok.GenericPyOp(Log(name))


def build() -> ok.SubgraphOp:
    """exp | a | b (its result unused) | what a gives; and a second output that needs no call."""
    b = ok.SubgraphBuilder("mixed")
    x, y = b.input(), b.input()
    before = b.apply("*", b.apply("exp", x), y)
    first = b.apply(own("a"), before)
    b.apply(own("b"), y)
    inner = ok.SubgraphBuilder("inner")
    z = inner.input()
    inner.outputs(inner.apply(own("c"), inner.apply("negative", z)))
    nested = b.apply(ok.CompiledOp(inner.get()), b.apply("sqrt", first))
    b.apply(own("d"), y)  # could run earlier, and must not
    b.outputs(b.apply("fma3", nested, 2, before), b.apply("+", x, 3), first, x)
    return b.get()


def test_segments_run_in_order_and_give_the_same() -> None:
    op = build()
    CALLS.clear()
    want = op.apply(X, X + 1)
    assert CALLS == ["a", "b", "c", "d"]
    for level in (2, 0):
        compiled = ok.CompiledOp(op, level)
        CALLS.clear()
        got = compiled.apply(X, X + 1)
        assert CALLS == ["a", "b", "c", "d"]
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_allclose(g, w, rtol=2e-6)
    plan = plan_of(op, 2, ())
    assert plan is not None
    kinds = ["own" if step.op.opaque else "compiled" for step in plan.steps]
    assert kinds == ["compiled", "own", "own", "compiled", "own", "own", "compiled"]
    assert plan.syncs == 0
    pieces = [s.op.op for s in plan.steps if not s.op.opaque]
    assert [[e.op.name for e in piece.graph.exprs] for piece in pieces] == [
        ["exp", "multiply", "add"], ["sqrt", "negative"], ["fma3"],
    ]  # fmt: skip


def test_pieces_are_compiled_once() -> None:
    op = ok.CompiledOp(build())
    op.apply(X, X + 1)
    plan = plan_of(op.op, 2, ())
    assert plan is not None
    pieces = [s.op.function for s in plan.steps if not s.op.opaque]
    before = [f.info() for f in pieces]
    ok.CompiledOp(build()).apply(X, X + 1)
    for f, b in zip(pieces, before, strict=True):
        assert (f.info().hits, f.info().misses) == (b.hits + 1, b.misses)


def test_inference_walks_around_own_code() -> None:
    op = ok.CompiledOp(build())
    desc = ok.TensorDesc("f4", (3, None))
    found, validated = op.infer([desc, ok.TensorDesc("f4", (1, 4))])
    assert [d.shape for d in found] == [(3, 4), (3, None), (3, 4), (3, None)]
    assert not validated
    assert op.infer([ok.TensorDesc.of(X)] * 2)[1]


def test_errors_in_own_code_pass_through() -> None:
    b = ok.SubgraphBuilder("fails")
    b.outputs(b.apply(ok.GenericPyOp(Log("f", fails=True)), b.apply("exp", b.input())))
    op = b.compile()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            op.apply(X)
    with pytest.raises(errors.ArgumentError, match="expected 1 inputs, got 2"):
        op.apply(X, X)
    with pytest.raises(errors.TraceError, match="own code"):
        ok.compile(lambda x: op.apply(x)[0])(X)


def test_fusion_of_own_code_falls_back_and_is_counted() -> None:
    b = ok.SubgraphBuilder("unfusible")
    x = b.input()
    b.outputs(b.apply(own("d"), b.apply("exp", x)))
    op = b.jit_fuse()
    count = ok.fusion_enabled.fallbacks.get(op.op.name, (0, ""))[0]
    np.testing.assert_allclose(op.apply(X)[0], np.exp(X) + 1, rtol=1e-6)
    count_after, why = ok.fusion_enabled.fallbacks[op.op.name]
    assert count_after == count + 1
    assert "cannot be one fused kernel" in why
    with pytest.raises(errors.FusionUnsupported, match="unfusible"):
        op.op.apply(X)
    with ok.fusion_enabled.scope(False):
        np.testing.assert_allclose(op.op.apply(X)[0], np.exp(X) + 1, rtol=1e-6)
        np.testing.assert_allclose(op.apply(X)[0], np.exp(X) + 1, rtol=1e-6)


def test_matmul_cannot_be_fused() -> None:
    b = ok.SubgraphBuilder("product")
    x, y = b.input(), b.input()
    b.outputs(b.apply("relu", b.apply("matmul", x, y)))
    op = b.jit_fuse(strict=False)
    np.testing.assert_allclose(op.apply(X, X.T)[0], X @ X.T, rtol=1e-6)
    with pytest.raises(errors.FusionUnsupported, match="MatMul"):
        op.op.apply(X, X.T)
