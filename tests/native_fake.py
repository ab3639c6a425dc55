"""A frontend made by hand for the native call path, with kernels compiled by hand."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opkiln import native
from opkiln.native import MISSING, Compiled, Library, Plan, Slot

HERE = Path(__file__).parent
CODES = {
    np.dtype(name): code
    for code, name in enumerate(["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"])
}
F32, F64, I64, U8 = CODES[np.dtype("f4")], CODES[np.dtype("f8")], CODES[np.dtype("i8")], 5
Array = np.ndarray[Any, Any]


@dataclass
class Record:
    plan: Plan
    out_tree: Any
    captures: tuple[Array, ...] = ()
    kernels: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    divides: bool = False


Maker = Callable[["Fake", Any, list[Any], str], Record]


@dataclass
class Fake:
    """Hooks that call `make` for a trace and load every kernel from one library."""

    make: Maker
    library: Library
    log: list[tuple[Any, ...]] = field(default_factory=list)
    told: list[tuple[int, Any]] = field(default_factory=list)  # by the hook `missed`
    on_trace: Callable[[], None] | None = None
    on_build: Callable[[], None] | None = None
    fallback: bool = False

    def __post_init__(self) -> None:
        self.__qualname__ = "f"

    def trace(self, tree: Any, leaves: list[Any], kinds: str) -> Record:
        self.log.append(("trace", tree, leaves, kinds))
        if self.on_trace:
            self.on_trace()
        return self.make(self, tree, leaves, kinds)

    def build(self, record: Record, requests: list[tuple[int, str]]) -> None:
        self.log.append(("build", requests))
        if self.on_build:
            self.on_build()
        if self.fallback:
            record.plan.set_fallback()
            return
        for kernel, letters in requests:
            address = self.library.symbol(record.kernels[kernel])
            record.plan.add_variant(kernel, letters, address, self.library)

    def interpret(self, record: Record, leaves: list[Any]) -> tuple[Any, ...]:
        return (leaves[0] * leaves[1] + leaves[2],)

    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return ("inlined", args, kwargs)

    def host_error(self, record: Record, kind: str, register: int, values: Any) -> None:
        raise (OverflowError if kind == "range" else ValueError)(f"{kind} {register} {values}")

    def missed(self, record: Record, number: int, built: Any) -> None:
        self.told.append((number, built))

    def fault(self, record: Record, bits: int, raises: bool) -> None:
        raise ValueError(f"fault {bits}")

    def export(self, library: str, array: Array) -> Any:
        if library != "torch":
            return (library, array)
        import torch

        return torch.from_numpy(array)

    def __reduce__(self) -> Any:
        return "module_level"

    def count(self, what: str) -> int:
        return sum(entry[0] == what for entry in self.log)


def whole(*axes: int) -> list[tuple[int, int, int]]:
    """An operand's axes, each following all of an iteration axis."""
    return [(axis, -1, -1) for axis in axes]


def elementwise(
    plan: Plan, ranks: list[int], codes: list[int], outs: list[int],
    scalars: list[int] | None = None, captures: list[int] | None = None, **options: Any,
) -> None:  # fmt: skip
    """One elementwise kernel over all array leaves (and captures) with broadcasting."""
    if captures is None:
        captures = []
    if scalars is None:
        scalars = []
    rank = max([*ranks, 0])
    inputs = [
        plan.buffer("capture" if i in captures else "arg", code, rank=r)
        for i, (r, code) in enumerate(zip(ranks, codes, strict=True))
    ]
    extents = []
    for axis in range(rank):
        register = None
        for buffer, r in zip(inputs, ranks, strict=True):
            if axis >= rank - r:
                one = plan.host("extent", buffer, ival=axis - (rank - r))
                register = one if register is None else plan.host("bcast", register, one)
        assert register is not None
        extents.append(register)
    operands = [
        (buffer, whole(*range(rank - r, rank)), False)
        for buffer, r in zip(inputs, ranks, strict=True)
    ]
    results = [plan.buffer("out", code, extents) for code in outs]
    operands += [(b, whole(*range(rank)), True) for b in results]
    plan.kernel(extents, 0, operands, scalars, **options)
    for b in results:
        plan.output_buffer(b)
    plan.finish()


def array_leaves(leaves: list[Any], kinds: str) -> list[Array]:
    return [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind == "a"]


def simple(kernel: str, n_outs: int = 1, **options: Any) -> Maker:
    """A maker for one kernel over all array leaves, outputs of the first leaf's dtype."""

    def make(fake: Fake, tree: Any, leaves: list[Any], kinds: str) -> Record:
        arrays = array_leaves(leaves, kinds)
        codes = [CODES[a.dtype] for a in arrays]
        plan = Plan()
        elementwise(plan, [a.ndim for a in arrays], codes, [codes[0]] * n_outs, **options)
        slots = tuple(Slot(i) for i in range(n_outs))
        return Record(plan, slots[0] if n_outs == 1 else slots, (), (kernel,))

    return make


def weak_maker(kernel: str, code: int, mode: str = "check") -> Maker:
    """x (array), weak scalars -> kernel with one scalar slot per weak scalar."""

    def make(fake: Fake, tree: Any, leaves: list[Any], kinds: str) -> Record:
        (x,) = array_leaves(leaves, kinds)
        plan = Plan()
        buffer = plan.buffer("arg", CODES[x.dtype], rank=x.ndim)
        slots = []
        weak = [kind for kind in kinds if kind in "iuf"]
        for i, kind in enumerate(weak):
            slots.append(plan.scalar(plan.host(f"arg_{kind}", i), code, mode))
        extents = [plan.host("extent", buffer, ival=i) for i in range(x.ndim)]
        axes = whole(*range(x.ndim))
        out = plan.buffer("out", code, extents)
        plan.kernel(extents, 0, [(buffer, axes, False), (out, axes, True)], slots)
        plan.output_buffer(out)
        plan.finish()
        return Record(plan, Slot(0), (), (kernel,))

    return make


def make_sum(fake: Fake, tree: Any, leaves: list[Any], kinds: str) -> Record:
    """Sum of all elements, its count as a host number, and a constant."""
    (x,) = array_leaves(leaves, kinds)
    plan = Plan()
    buffer = plan.buffer("arg", F64, rank=x.ndim)
    extents = [plan.host("extent", buffer, ival=i) for i in range(x.ndim)]
    count = extents[0]
    for e in extents[1:]:
        count = plan.host("mul_i", count, e)
    out = plan.buffer("out", F64, [])
    operands = [(buffer, whole(*range(x.ndim)), False), (out, [], True)]
    plan.kernel(extents, (1 << x.ndim) - 1, operands)
    plan.output_buffer(out)
    plan.output_host(count)
    plan.finish()
    return Record(plan, {"sum": Slot(0), "n": [Slot(1), "const"]}, (), ("sum_f64",))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    target = tmp_path_factory.mktemp("face") / "libkernels.so"
    command = ["g++", "-O2", "-shared", "-fPIC", "-fno-strict-aliasing"]
    command += [f"-I{native.include_dir()}", str(HERE / "native_kernels.cpp"), "-o", str(target)]
    subprocess.run(command, check=True)
    return Library(target)


Factory = Callable[..., tuple[Compiled, Fake]]


@pytest.fixture
def compiled(library: Library) -> Iterator[Factory]:
    """compiled(maker, "x y", kinds=..., defaults=..., static=...) -> (function, frontend)."""

    def make(
        maker: Maker, names: str = "x y z", kinds: list[int] | None = None,
        defaults: dict[str, Any] | None = None, static: str = "", **options: Any,
    ) -> tuple[Compiled, Fake]:  # fmt: skip
        parameters = tuple(names.split())
        fake = Fake(maker, library, **options)
        default = tuple((defaults or {}).get(name, MISSING) for name in parameters)
        fixed = tuple(name in static.split() for name in parameters)
        f = Compiled(fake, parameters, bytes(kinds or [1] * len(parameters)), default, fixed)
        return f, fake

    yield make
    native.use_stream(None)


def f32(*shape: int) -> Array:
    n = int(np.prod(shape))
    return (np.arange(n, dtype=np.float32) + 1).reshape(shape)


def eventually(holds: Callable[[], bool]) -> bool:
    for _ in range(200):
        if holds():
            return True
        time.sleep(0.01)
    return False
