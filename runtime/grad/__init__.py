"""Gradients: traced values and their cotangents in, traced gradients out, by reverse mode."""

from __future__ import annotations

from opkiln.runtime.grad.reverse import Reverse, variable

__all__ = ["Reverse", "variable"]
