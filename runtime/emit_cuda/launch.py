"""One call of a lowered program on a device: shapes in, buffers, grids and argument blocks out.

It allocates and launches nothing: whoever does (a test, benchmarks/cuda_table.py) hands in where
the buffers lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from opkiln.runtime import kernel as k
from opkiln.runtime.emit_cuda.text import is_scratch
from opkiln.runtime.folds import ACCUMULATORS
from opkiln.runtime.graph import Node
from opkiln.runtime.indexmap import AxisMap
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
        self.views = [b.view for b in lowered.buffers]
        self.items = [b.dtype.itemsize for b in lowered.buffers]
        maps = [o.axes for launch in launches for o in launch.kernel.operands]
        maps += [view.axes for view in self.views if view]
        moved = dict.fromkeys(n for axes in maps for m in axes for n in m[1:] if n is not None)
        moved.update(dict.fromkeys(n for view in self.views if view for n in view.space))
        wanted = [*sizes, *(launch.extents for launch in launches), tuple(moved)]
        roots = [node for nodes in wanted for node in nodes]
        roots += [node for node, _, _ in lowered.scalars]
        values = iter(evaluate_host(roots, shapes, weak))
        extents = [tuple(int(next(values)) for _ in nodes) for nodes in wanted]
        self.kernels = [launch.kernel for launch in launches]
        self.copied = [launch.view for launch in launches]
        self.value: dict[Node, int] = dict(zip(moved, extents.pop(), strict=True))
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
        places = [self.place(o.buffer, memory) for o in kernel.operands]
        mapped = zip(places, kernel.operands, strict=True)
        words = [self._start(place, o.axes) for place, o in mapped] or [0]
        for operand, place in zip(kernel.operands, places, strict=True):
            words += self._strides(kernel, operand, place) or [0]
        words += [] if kernel.operands else [0] * max(kernel.rank, 1)
        words += self.extents[index] or [0]
        words += self.scalars[index] or [0]
        return np.array([w % 2**64 for w in (*words, fault)], np.uint64).tobytes()

    def needed(self, index: int, memory: Sequence[Memory]) -> bool:
        """Whether a launch runs: always, but for copies that a view can do without."""
        view = self.copied[index]
        return view < 0 or self._view(view, memory) is None

    def place(self, buffer: int, memory: Sequence[Memory]) -> Memory:
        """Where a buffer lies; `memory` says nothing of views."""
        view = self.views[buffer]
        if view is None:
            return memory[buffer]
        return self._view(buffer, memory) or Memory(
            memory[view.copy].pointer,
            self.shapes[buffer],
            _dense(self.shapes[buffer], self.items[buffer]),
        )

    def _view(self, buffer: int, memory: Sequence[Memory]) -> Memory | None:
        """Where a view lies, if the strides allow one."""
        view = self.views[buffer]
        assert view is not None
        base = self.place(view.buffer, memory)
        space = [self.value[n] for n in view.space]
        strides = self._along(base, view.axes, len(space))
        place = as_strided(np.empty(0, np.uint8), space, strides)
        try:
            place = place.reshape(self.shapes[buffer], copy=False)
        except ValueError:
            return None
        return Memory(self._start(base, view.axes), place.shape, place.strides)

    def _start(self, place: Memory, axes: AxisMap) -> int:
        """The pointer to the first element that a map has."""
        starts = zip(place.strides[len(place.strides) - len(axes) :], axes, strict=True)
        return place.pointer + sum(s * self.value[m.start] for s, m in starts if m.start)

    def _along(self, place: Memory, axes: AxisMap, rank: int) -> list[int]:
        """Byte strides along the iteration axes."""
        steps = [0] * rank
        for m, extent, stride in zip(axes, place.shape, place.strides, strict=True):
            if m.axis >= 0:
                step = int(extent != 1) if m.step is None else self.value[m.step]
                steps[m.axis] += step * stride
        return steps

    def _strides(self, kernel: k.Kernel, operand: k.Operand, place: Memory) -> list[int]:
        if operand.buffer not in self.scratch:
            return self._along(place, operand.axes, kernel.rank)
        inner = Memory(place.pointer, place.shape[1:], place.strides[1:])
        steps = self._along(inner, operand.axes, kernel.rank)
        steps[next(i for i in range(kernel.rank) if i not in kernel.reduced)] = place.strides[0]
        return steps


def _dense(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Byte strides of C order."""
    return tuple(item * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _slot(value: int | float, dtype: k.DT, mode: str) -> int:
    """A scalar parameter's bits."""
    return int.from_bytes(from_host(value, dtype, mode).tobytes(), "little")
