"""Gradients: traced values and their cotangents in, traced gradients out, by reverse mode."""

from __future__ import annotations

from opkiln.runtime.grad.backward import Backward, backward_graph, backward_of
from opkiln.runtime.grad.custom import custom_gradient, leaves, with_rule
from opkiln.runtime.grad.reverse import Reverse, same_values, stop_gradient, variable

__all__ = [
    "Backward",
    "Reverse",
    "backward_graph",
    "backward_of",
    "custom_gradient",
    "leaves",
    "same_values",
    "stop_gradient",
    "variable",
    "with_rule",
]
