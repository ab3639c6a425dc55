"""One call of a lowered program on a device: shapes in, buffers, grids and argument blocks out.

It allocates and launches nothing: whoever does (a test, benchmarks/cuda_table.py) hands in where
the buffers lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from opkiln.runtime import kernel as k
from opkiln.runtime.emit_cuda.text import is_scratch
from opkiln.runtime.folds import ACCUMULATORS
from opkiln.runtime.reference import evaluate_host, from_host

_BLOCK = 256  # threads
_BLOCKS = 1024  # at most; each thread takes elements, each warp rows, in turns of the whole grid


class Memory(NamedTuple):
    """Where a buffer lies: its first element, extents and byte strides."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Call:
    """The sizes of one call."""

    def __init__(
        self,
        lowered: k.Lowered,
        shapes: Sequence[tuple[int, ...]],
        weak: Sequence[int | float] = (),
    ) -> None:
        launches = lowered.launches
        sizes = [tuple(b.extents) for b in lowered.buffers]
        wanted = [*sizes, *(launch.extents for launch in launches)]
        roots = [node for nodes in wanted for node in nodes]
        roots += [node for node, _, _ in lowered.scalars]
        values = iter(evaluate_host(roots, shapes, weak))
        extents = [tuple(int(next(values)) for _ in nodes) for nodes in wanted]
        self.kernels = [launch.kernel for launch in launches]
        self.extents = extents[len(sizes) :]
        slots = [_slot(next(values), d, mode) for _, d, mode in lowered.scalars]
        self.scalars = [[slots[i] for i in launch.scalars] for launch in launches]
        self.shapes = extents[: len(sizes)]  # of the buffers; scratch has one part per warp
        self.scratch: set[int] = set()
        for index, kernel in enumerate(self.kernels):
            for buffer in {o.buffer for o in kernel.operands if is_scratch(kernel, o)}:
                if lowered.buffers[buffer].kind == "temp":
                    self.scratch.add(buffer)
                    self.shapes[buffer] = (self.warps(index), *self.shapes[buffer])

    def size(self, index: int) -> int:
        """Elements of a launch, or rows of a reduction."""
        kernel = self.kernels[index]
        return prod(e for i, e in enumerate(self.extents[index]) if i not in kernel.reduced)

    def grid(self, index: int) -> tuple[int, int]:
        """Blocks and threads of a launch; no blocks where nothing is to be done."""
        kernel = self.kernels[index]
        warps = bool(kernel.reduced) and not kernel.product
        threads = self.size(index) * (ACCUMULATORS if warps else 1)
        return min(-(-threads // _BLOCK), _BLOCKS), _BLOCK

    def warps(self, index: int) -> int:
        """Warps of a launch."""
        blocks, threads = self.grid(index)
        return blocks * threads // ACCUMULATORS

    def arguments(self, index: int, memory: Sequence[Memory], fault: int) -> bytes:
        """The `ok_args` of a launch; `memory` is that of all buffers."""
        kernel = self.kernels[index]
        words = [memory[o.buffer].pointer for o in kernel.operands] or [0]
        for operand in kernel.operands:
            words += self._strides(kernel, operand, memory[operand.buffer]) or [0]
        words += [] if kernel.operands else [0] * max(kernel.rank, 1)
        words += self.extents[index] or [0]
        words += self.scalars[index] or [0]
        return np.array([w % 2**64 for w in (*words, fault)], np.uint64).tobytes()

    def _strides(self, kernel: k.Kernel, operand: k.Operand, place: Memory) -> list[int]:
        shape, strides = place.shape, place.strides
        if operand.buffer not in self.scratch:
            return [strides[a] if a >= 0 and shape[a] != 1 else 0 for a in operand.axes]
        steps = [strides[a + 1] if a >= 0 else 0 for a in operand.axes]
        steps[next(i for i in range(kernel.rank) if i not in kernel.reduced)] = strides[0]
        return steps


def _slot(value: int | float, dtype: k.DT, mode: str) -> int:
    """A scalar parameter's bits."""
    return int.from_bytes(from_host(value, dtype, mode).tobytes(), "little")
