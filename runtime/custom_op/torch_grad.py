"""Eager calls that torch differentiates: the op's own gradient as a torch.autograd.Function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from opkiln.ops.definitions import CustomOp
from opkiln.runtime.custom_op import arrays
from opkiln.runtime.custom_op.registry import Definition
from opkiln.runtime.custom_op.rules import pulled
from opkiln.runtime.errors import GradientError
from opkiln.runtime.trace.session import failure


def differentiable(
    op: CustomOp, found: Definition, inputs: arrays.Inputs, scalars: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The results of a call, through which gradients flow back.

    Raises:
        GradientError: the op has no gradient.
    """
    if found.backward is None:
        raise failure(
            GradientError,
            f"the gradient of {op.name}: it has none",
            fix="pass backward= to ok.custom_op, x.detach() to the op, or use torch.no_grad()",
        )
    results: tuple[Any, ...] = _autograd().apply((op, found, inputs, scalars), *inputs.arrays)
    return results


@cache
def _autograd() -> Any:
    import torch

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Any, *tensors: Any) -> tuple[Any, ...]:
            op, found, inputs, scalars = call
            results = arrays.run(op, found, inputs._replace(arrays=list(tensors)), scalars)
            ctx.save_for_backward(*tensors, *results)
            ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))
            ctx.call = op, found, scalars
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            op, found, scalars = ctx.call
            count = len(found.schema.tensors)
            tensors, results = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
            given = [
                torch.zeros_like(r) if g is None else g
                for g, r in zip(cotangents, results, strict=True)
            ]
            made = iter(pulled(op, found, tensors, scalars, given, lambda: results))
            gradients: Sequence[Any] = [None if t is None else next(made) for t in tensors]
            return None, *gradients

    return Custom
