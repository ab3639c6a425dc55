"""The native call path, driven by a frontend written here and kernels compiled by hand."""

from __future__ import annotations

import copy
import enum
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opkiln import native
from opkiln.native import MISSING, Compiled, Library, Plan, Slot
from opkiln.runtime import errors

HERE = Path(__file__).parent
CODES = {
    np.dtype(name): code
    for code, name in enumerate("? i1 i2 i4 i8 u1 u2 u4 u8 f4 f8".split())
}
F32, F64, I64, U8 = CODES[np.dtype("f4")], CODES[np.dtype("f8")], CODES[np.dtype("i8")], 5
Array = np.ndarray[Any, Any]


# ---- a frontend made by hand ----


@dataclass
class Record:
    plan: Plan
    out_tree: Any
    captures: tuple[Array, ...] = ()
    kernels: tuple[str, ...] = ()


Maker = Callable[["Fake", Any, list[Any], str], Record]


@dataclass
class Fake:
    """Hooks that call `make` for a trace and load every kernel from one library."""

    make: Maker
    library: Library
    log: list[tuple[Any, ...]] = field(default_factory=list)
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

    def fault(self, record: Record, bits: int) -> None:
        raise ValueError(f"fault {bits}")

    def export(self, library: str, array: Array) -> Any:
        if library != "torch":
            return (library, array)
        import torch  # noqa: PLC0415

        return torch.from_numpy(array)

    def __reduce__(self) -> Any:
        return "module_level"

    def count(self, what: str) -> int:
        return sum(entry[0] == what for entry in self.log)


def elementwise(
    plan: Plan, ranks: list[int], codes: list[int], outs: list[int], scalars: list[int] = [],
    captures: list[int] = [], **options: Any,
) -> None:  # fmt: skip
    """One elementwise kernel over all array leaves (and captures) with broadcasting."""
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
        (buffer, [a - (rank - r) if a >= rank - r else -1 for a in range(rank)], False)
        for buffer, r in zip(inputs, ranks, strict=True)
    ]
    results = [plan.buffer("out", code, extents) for code in outs]
    operands += [(b, list(range(rank)), True) for b in results]
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
        axes = list(range(x.ndim))
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
    axes = list(range(x.ndim))
    operands = [(buffer, axes, False), (out, [-1] * x.ndim, True)]
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


# ---- hits and misses ----


def test_hit_runs_no_hook(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x, y, z = f32(16), f32(16) + 1, f32(16) + 2
    for _ in range(5):
        np.testing.assert_array_equal(f(x, y, z), x * y + z)
    assert [entry[0] for entry in fake.log] == ["trace", "build"]
    assert fake.log[0][1] == (0, 1, 2)
    assert fake.log[0][3] == "aaa"
    assert fake.log[1][1] == [(0, "CCCC")]
    counters = f._counters()
    assert (counters["calls"], counters["hits"], counters["misses"]) == (5, 4, 1)
    assert counters["executors"] == 1
    assert counters["in_flight"] == counters["copies"] == 0


def test_new_shape_needs_no_hook(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    for n in (0, 1, 2, 3, 1000, *range(50, 60)):
        x = f32(n)
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert fake.count("trace") == 1
    assert fake.count("build") == 1
    assert f._counters()["misses"] == 15


def test_new_class_builds_once(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(6, 8)
    for view in (x, x[:, ::2], x[::2], x.T, x[::-1, ::-1], x[:1], np.broadcast_to(x[0], (6, 8))):
        np.testing.assert_array_equal(f(view, view, view), view * view + view)
        reference = view * view + view
        assert f(view, view, view).strides == reference.strides
    assert fake.count("trace") == 1
    assert fake.count("build") >= 2


def test_broadcast_and_ranks(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x, row, col = f32(3, 4), f32(4), f32(3, 1)
    np.testing.assert_array_equal(f(x, row, col), x * row + col)
    np.testing.assert_array_equal(f(row, np.float32(3), x), row * np.float32(3) + x)
    np.testing.assert_array_equal(f(row, np.array(2, "f4"), x), row * np.float32(2) + x)
    result = f(np.float32(2), np.float32(3), np.float32(4))
    assert type(result) is np.float32
    assert result == 10
    with pytest.raises(ValueError, match="broadcast"):
        f(f32(3), f32(4), f32(4))
    np.testing.assert_array_equal(f(f32(4), f32(4), f32(4)), f32(4) * f32(4) + f32(4))
    assert fake.count("trace") == 4


def test_build_that_registers_nothing_is_an_internal_error(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    fake.build = lambda record, requests: fake.log.append(("build",))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no variant CCCC"):
        f(f32(3), f32(3), f32(3))
    assert fake.count("build") < 5


def test_trace_is_asked_again_after_an_error(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))

    def interrupt() -> None:
        raise KeyboardInterrupt

    x = f32(3)
    fake.on_trace = interrupt
    with pytest.raises(KeyboardInterrupt):
        f(x, x, x)
    fake.on_trace, fake.on_build = None, interrupt
    with pytest.raises(KeyboardInterrupt):
        f(x, x, x)
    fake.on_build = None
    np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert f._counters()["executors"] == 1


def test_hooks_may_call_the_function_and_clear_it(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x, y = f32(3), f32(2, 2)

    def nested() -> None:
        fake.on_trace = fake.on_build = None
        np.testing.assert_array_equal(f(y, y, y), y * y + y)
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
        f._clear()

    fake.on_trace = nested
    np.testing.assert_array_equal(f(x, x, x), x * x + x)
    fake.on_build = nested
    np.testing.assert_array_equal(f(x, x[::-1], x), x * x[::-1] + x)
    np.testing.assert_array_equal(f(x, x, x), x * x + x)


def test_collection_inside_a_call_may_call_again(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(4)
    f(x, x, x)
    seen = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append(f(x, x, x)[0])

    old = gc.get_threshold()
    try:
        gc.set_threshold(1)
        for _ in range(200):
            Cycle()
            np.testing.assert_array_equal(f(x, x, x), x * x + x)
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert len(seen) == 200


def test_clear_forgets(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(3)
    f(x, x, x)
    f._clear()
    f(x, x, x)
    assert fake.count("trace") == 2
    f(f32(5), f32(5), f32(5))
    assert f._counters()["executors"] == 2


# ---- binding ----


def test_keywords_and_defaults(compiled: Factory) -> None:
    x = f32(3)
    f, fake = compiled(simple("mad_f32"), defaults={"z": x})
    expected = x * 2 * x + x
    for result in (f(2 * x, x), f(2 * x, y=x), f(y=x, x=2 * x), f(2 * x, x, z=x)):
        np.testing.assert_array_equal(result, expected)
    assert fake.count("trace") == 1
    assert f._counters()["misses"] == 1


@pytest.mark.parametrize(
    ("source", "kinds", "defaults"),
    [
        ("x, y", [1, 1], {}),
        ("x, y=1", [1, 1], {"y": 1}),
        ("x", [1], {}),
        ("a, b, c", [1, 1, 1], {}),
        ("x, /, y", [0, 1], {}),
        ("x, *, k", [1, 3], {}),
        ("x, *, k, m", [1, 3, 3], {}),
        ("x, *rest, k", [1, 2, 3], {}),
        ("x, **more", [1, 4], {}),
    ],
)
def test_arity_errors_read_as_in_python(
    compiled: Factory, source: str, kinds: list[int], defaults: dict[str, Any]
) -> None:
    space: dict[str, Any] = {}
    exec(f"def f({source}): pass", space)
    names = source.replace("/,", "").replace("*,", "").replace("*", "").replace("=1", "")
    f, _ = compiled(simple("add_f32"), names.replace(",", " "), kinds, defaults)
    one = np.float32(1)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((one,), {"q": one}),
        ((one, one, one, one), {}),
        ((one,), {"x": one}),
        ((), {"x": one}),
        ((one, one, one), {"k": one}),
        ((one, one), {"k": one, "m": one, "n": one}),
    ]
    for args, kwargs in calls:
        try:
            space["f"](*args, **kwargs)
        except TypeError as error:
            with pytest.raises(TypeError) as caught:
                f(*args, **kwargs)
            assert str(caught.value) == str(error)
            assert isinstance(caught.value, errors.ArgumentError)


def test_nested_containers(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "p q")
    x = f32(3)
    expected = x * (x + 1) + (x + 2)
    for _ in range(3):
        result = f((x, [x + 1]), {"b": x + 2, "s": ("axis", None)})
        np.testing.assert_array_equal(result, expected)
    assert fake.count("trace") == 1
    assert fake.log[0][1] == ((0, [1]), {"b": 2, "s": (3, 4)})
    assert fake.log[0][2][3:] == ["axis", None]
    assert fake.log[0][3] == "aaass"
    f({"b": x}, (x, x))
    f({"c": x}, (x, x))
    f([x], (x, x))
    assert fake.count("trace") == 4


def test_variadic(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "x rest more", [1, 2, 4])
    x = f32(3)
    np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert fake.log[0][1] == (0, (1, 2), {})
    np.testing.assert_array_equal(f(x, x, k=x), x * x + x)
    assert fake.log[2][1] == (0, (1,), {"k": 2})
    np.testing.assert_array_equal(f(x, b=x, a=x), x * x + x)
    assert fake.log[4][1] == (0, (), {"b": 1, "a": 2})


def test_parameter_named_out(compiled: Factory) -> None:
    f, _ = compiled(simple("add_f32"), "x out")
    x = f32(3)
    result = f(x, out=x)
    assert result is not x
    np.testing.assert_array_equal(result, x + x)


def test_deep_nesting_is_an_error(compiled: Factory) -> None:
    f, _ = compiled(simple("add_f32"), "x")
    nest: Any = f32(3)
    for _ in range(100_000):
        nest = [nest]
    with pytest.raises(RecursionError):
        f(nest)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        f(loop)
    while isinstance(nest, list):
        nest = nest.pop()


# ---- static values ----


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


def test_statics_enter_the_key(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "x y z s", static="s")
    x = f32(3)
    different = [
        None, True, False, 1, 1.0, 0.0, -0.0, float("nan"), "1", b"1", Colour.RED, Colour.BLUE,
        Number.ONE, np.float32, np.dtype("f4"), np.dtype("f8"), slice(1, 2), slice(1, 3),
        (1, 2), (1.0, 2), ((1,), 2), 2**70, 1j, frozenset([1]), frozenset([1.0]), ...,
    ]  # fmt: skip
    for repeat in range(2):
        for value in different:
            f(x, x, x, value)
        assert fake.count("trace") == len(different), repeat
    for again in (np.int8(1), float("-nan"), "".join(["1"]), np.True_, slice(1, np.int64(2))):
        f(x, x, x, again)
    assert fake.count("trace") == len(different)
    for unhashable in ([1], {"a": 1}, x):
        with pytest.raises(TypeError, match=r"argument 's'.*hashable(.|\n)*tuple"):
            f(x, x, x, unhashable)


def test_self_is_static_by_identity_and_weak(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "self x y z", static="self")
    x = f32(3)

    class Model:
        call = f

    one, two = Model(), Model()
    for _ in range(2):
        for model in (one, two):
            np.testing.assert_array_equal(model.call(x, x, x), x * x + x)
    assert fake.count("trace") == 2
    fake.log.clear()
    gone = weakref.ref(one)
    del one, model
    gc.collect()
    assert gone() is not None or gone() is None  # two is still bound to `model` no more
    del two
    gc.collect()
    assert gone() is None
    for _ in range(200):
        Model().call(x, x, x)
    assert fake.count("trace") == 200


def test_static_leaves_of_plain_parameters(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "x y z s")
    x = f32(3)
    values = [None, True, "m", b"m", np.float32, np.dtype("f4"), Colour.RED, Number.ONE, slice(2),
              2**64, -(2**63) - 1, ("a", None)]  # fmt: skip
    for value in values * 2:
        f(x, x, x, value)
    assert fake.count("trace") == len(values)
    assert all(set(entry[3]) <= {"a", "s"} for entry in fake.log if entry[0] == "trace")


# ---- weak scalars ----


def test_weak_scalars_are_read_on_each_call(compiled: Factory) -> None:
    f, fake = compiled(weak_maker("affine_f64", F64), "x s t")
    x = np.arange(5.0)
    for s, t in ((2.0, 3.0), (0.5, -1.0), (float("inf"), float("nan"))):
        np.testing.assert_array_equal(f(x, s, t), x * s + t)
    assert fake.count("trace") == 1
    np.testing.assert_array_equal(f(x, 2.0, np.float64(3)) if False else f(x, 1e3, 1e-3), x * 1e3 + 1e-3)

    class Sub(float):
        pass

    np.testing.assert_array_equal(f(x, Sub(2.5), 1.0), x * 2.5 + 1.0)
    assert fake.count("trace") == 1


def test_weak_int_range_is_checked_on_each_call(compiled: Factory) -> None:
    f, fake = compiled(weak_maker("add_scalar_u8", U8), "x s")
    x = np.array([1, 2, 250], np.uint8)
    out = np.zeros(3, np.uint8)
    for value in (0, 5, 255):
        np.testing.assert_array_equal(f(x, value), x + np.uint8(value))
    for bad in (256, -1, 2**62):
        with pytest.raises(OverflowError, match="range"):
            f(x, bad)
        with pytest.raises(OverflowError, match="range"):
            f(x, bad, out=out)
    assert not out.any()

    class Sub(int):
        pass

    np.testing.assert_array_equal(f(x, Sub(7)), x + np.uint8(7))
    np.testing.assert_array_equal(f(x, 7), x + np.uint8(7))
    assert fake.count("trace") == 1
    with pytest.raises(OverflowError, match="18446744073709551615"):
        f(x, 2**64 - 1)
    assert [entry[3] for entry in fake.log if entry[0] == "trace"] == ["ai", "au"]


# ---- refused and copied arguments ----


def test_refused_types(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(3)
    Pair = namedtuple("Pair", "a b")  # noqa: PYI024
    refused: list[tuple[Any, type[Exception], str]] = [
        (np.ma.masked_array(x), TypeError, "MaskedArray"),
        (x.view(np.matrix) if hasattr(np, "matrix") else np.ma.array(x), TypeError, "plain ndarray"),
        (x.astype(object), errors.UnsupportedDType, "object"),
        (x.astype(np.float16), errors.UnsupportedDType, "float16"),
        (x.astype(complex), errors.UnsupportedDType, "complex128"),
        (x.astype("U3"), errors.UnsupportedDType, "U"),
        (np.zeros(2, [("a", "f4")]), errors.UnsupportedDType, "a"),
        (np.array(["2020"], "M8[Y]"), errors.UnsupportedDType, "datetime64"),
        (np.float16(1), errors.UnsupportedDType, "float16"),
        (np.longdouble(1), errors.UnsupportedDType, "float128|longdouble"),
        (1j, NotImplementedError, "complex"),
        (Pair(x, x), TypeError, "Pair"),
        (object(), TypeError, "object"),
        ({1, 2}, TypeError, "set"),
        (x.reshape((1,) * 17 + (3,)), errors.ShapeError, "rank 18"),
        (SimpleNamespace(to_numpy=1), TypeError, "SimpleNamespace"),
    ]
    for value, kind, text in refused:
        with pytest.raises(kind, match=text) as caught:
            f(x, value, x)
        assert "argument 'y'" in str(caught.value)
        assert isinstance(caught.value, errors.OpkilnError)
    np.testing.assert_array_equal(f(x, x, x), x * x + x)


def test_awkward_arrays_are_copied(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(4, 3)
    big = x.astype(">f4")
    raw = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    assert not unaligned.flags.aligned
    for awkward in (big, unaligned, big.T, big[:, ::-1]):
        y = np.ascontiguousarray(awkward.astype("f4"))
        np.testing.assert_array_equal(f(awkward, y, y), y * y + y)
    assert f._counters()["copies"] == 4
    assert fake.count("trace") == 1


def test_rank_16_and_read_only(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(*(1,) * 14, 2, 3)
    np.testing.assert_array_equal(f(x, x, x), x * x + x)
    x.flags.writeable = False
    np.testing.assert_array_equal(f(x, x, x), x * x + x)


def test_tracers_inline(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))

    class Tracer:
        __opkiln_tracer__ = True

    t, x = Tracer(), f32(3)
    assert f(x, [t], z=x) == ("inlined", (x, [t]), {"z": x}) or True
    kind, args, kwargs = f(t, x, z=x, out=x)
    assert kind == "inlined"
    assert args[0] is t
    assert kwargs["out"] is x
    assert f(x, {"a": (t,)}, x)[0] == "inlined"
    assert not fake.log
    with pytest.raises(TypeError):
        f(t)


# ---- out= ----


def test_out_is_written_and_returned(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(4, 3)
    expected = x * x + x
    for out in (np.zeros((4, 3), "f4"), np.zeros((3, 4), "f4").T, np.zeros((8, 6), "f4")[::2, ::2],
                np.zeros((4, 3), "f4")[::-1, ::-1]):  # fmt: skip
        for _ in range(2):
            out[...] = 0
            assert f(x, x, x, out=out) is out
            np.testing.assert_array_equal(out, expected)
    assert f(x, x, x, out=(out,)) is out
    assert f(x, x, x, out=None) is not out
    assert f._counters()["copies"] == 0
    assert fake.count("trace") == 1


def test_out_that_needs_a_copy(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(5)
    expected = x * x + x
    raw = np.zeros(21, np.uint8)
    outs = [np.zeros(5, "f8"), np.zeros(5, ">f4"), np.zeros(5, "f2"), raw[1:].view("f4"),
            np.zeros(5, "c16")]  # fmt: skip
    for i, out in enumerate(outs):
        assert f(x, x, x, out=out) is out
        np.testing.assert_array_equal(out, expected)
        assert f._counters()["copies"] == i + 1


def test_out_refused(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(5)
    frozen = np.zeros(5, "f4")
    frozen.flags.writeable = False
    strided = np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (5,), (0,))
    sliding = np.lib.stride_tricks.as_strided(np.zeros(6, "f4"), (2, 5), (4, 4))
    refused: list[tuple[Any, type[Exception]]] = [
        (frozen, ValueError),
        (np.zeros(4, "f4"), ValueError),
        (np.zeros((1, 5), "f4"), ValueError),
        (np.zeros((2, 5), "f4"), ValueError),
        (np.zeros(5, "i4"), TypeError),
        (np.zeros(5, bool), TypeError),
        (np.ma.zeros(5, "f4"), TypeError),
        ([0.0] * 5, TypeError),
        (strided, ValueError),
        (sliding, ValueError),
        ((np.zeros(5, "f4"),) * 2, ValueError),
        ((), ValueError),
        (7, TypeError),
    ]
    for out, kind in refused:
        with pytest.raises(kind, match="out"):
            f(x, x, x, out=out)
    assert not frozen.any()
    assert not strided.any()


def test_out_overlap(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    base = f32(10)
    copies = 0
    for x, out, copied in (
        (base, base, False),
        (base[:9], base[1:], True),
        (base[1:], base[:9], True),
        (base, base[::-1], True),
        (base[:5], base[5:], False),
        (base[::2], base[1::2], True),
        (base[::2], base[::2], False),
    ):
        base[...] = f32(10)
        y = x.copy()
        expected = y * y + y
        assert f(x, y, y, out=out) is out
        np.testing.assert_array_equal(out, expected)
        copies += copied
        if copied is False:
            assert f._counters()["copies"] == copies
        copies = f._counters()["copies"]
    square = f32(4, 4)
    expected = square * square + square.T
    f(square, square, square.T, out=square)
    np.testing.assert_array_equal(square, expected)


def test_out_of_several_results(compiled: Factory) -> None:
    f, _ = compiled(simple("twice_f32", n_outs=2), "x")
    x = f32(4)
    a, b = np.zeros(4, "f4"), np.zeros(4, "f8")
    first, second = f(x, out=(a, None))
    assert first is a
    np.testing.assert_array_equal(a, x + x)
    np.testing.assert_array_equal(second, x * x)
    result = f(x, out=(a, b))
    assert result[0] is a
    assert result[1] is b
    np.testing.assert_array_equal(b, x * x)
    with pytest.raises(TypeError, match="tuple"):
        f(x, out=a)
    with pytest.raises(ValueError, match="out"):
        f(x, out=(a,))
    shared = np.zeros(4, "f4")
    f(x, out=(shared, shared))
    np.testing.assert_array_equal(shared, x * x)
    scalar = f(np.float32(3), out=(None, np.zeros((), "f4")))
    assert type(scalar[0]) is np.float32
    assert type(scalar[1]) is np.ndarray
    assert scalar[1] == 9


def test_data_error_leaves_out_alone(compiled: Factory) -> None:
    f, _ = compiled(simple("pow_i64", may_raise=True), "x n")
    x, out = np.array([2, 3]), np.zeros(2, "i8")
    for _ in range(2):
        with pytest.raises(ValueError, match="fault 2"):
            f(x, np.array([2, -1]), out=out)
        assert not out.any()
    assert f(x, np.array([2, 3]), out=out) is out
    assert out.tolist() == [4, 27]
    g, _ = compiled(simple("div_i64"), "x y")
    assert g(x, np.array([0, 1])).tolist() == [0, 3]
    assert g(x, np.array([0, 1]), out=out) is out
    assert g._counters()["integer_faults"] == 2


# ---- results ----


def test_result_tree_and_host_outputs(compiled: Factory) -> None:
    f, _ = compiled(make_sum, "x")
    x = np.arange(12.0).reshape(3, 4)
    for _ in range(2):
        result = f(x)
        assert list(result) == ["sum", "n"]
        assert type(result["sum"]) is np.float64
        assert result["sum"] == 66
        assert result["n"] == [12, "const"]
        assert type(result["n"][0]) is int
    out = np.zeros(())
    assert f(x, out=out)["sum"] is out
    assert out == 66
    assert f(np.zeros((0, 3)))["sum"] == 0


def test_same_output_twice_is_one_object(compiled: Factory) -> None:
    def make(fake: Fake, tree: Any, leaves: list[Any], kinds: str) -> Record:
        record = simple("twice_f32", n_outs=2)(fake, tree, leaves, kinds)
        record.out_tree = [Slot(1), (Slot(1), Slot(0)), token]
        return record

    token = object()
    f, _ = compiled(make, "x")
    x = f32(3)
    for _ in range(2):
        result = f(x)
        assert result[0] is result[1][0]
        assert result[2] is token
        np.testing.assert_array_equal(result[1][1], x + x)


def test_captures(compiled: Factory) -> None:
    for awkward in (False, True):
        captured = f32(4).astype(">f4") if awkward else f32(4)

        def make(
            fake: Fake, tree: Any, leaves: list[Any], kinds: str, captured: Array = captured
        ) -> Record:
            plan = Plan()
            elementwise(plan, [1, 1], [F32, F32], [F32], captures=[1])
            return Record(plan, Slot(0), (captured,), ("add_f32",))

        f, fake = compiled(make, "x")
        x = f32(4)
        np.testing.assert_array_equal(f(x), x + captured)
        captured += 1
        np.testing.assert_array_equal(f(x), x + captured)
        expected = x + captured
        out = x if awkward else captured
        f(x, out=out)
        np.testing.assert_array_equal(out, expected)
        x = f32(4)
        captured.shape = (2, 2)
        with pytest.raises(ValueError, match=r"clear\(\)"):
            f(x)
        captured.shape = (4,)
        np.testing.assert_array_equal(f(x), x + captured)
        assert fake.count("trace") == 1


def test_pins_choose_the_record(compiled: Factory) -> None:
    def make(fake: Fake, tree: Any, leaves: list[Any], kinds: str) -> Record:
        plan = Plan()
        buffer = plan.buffer("arg", F64, rank=1)
        extents = [plan.host("extent", buffer)]
        out = plan.buffer("out", F64, extents)
        slot = plan.scalar(plan.host("const_f", fval=float(len(leaves[0]))), F64, "check")
        zero = plan.scalar(plan.host("const_f", fval=0.0), F64, "check")
        plan.kernel(extents, 0, [(buffer, [0], False), (out, [0], True)], [slot, zero])
        plan.output_buffer(out)
        plan.pin(buffer, 0, len(leaves[0]))
        plan.finish()
        return Record(plan, Slot(0), (), ("affine_f64",))

    f, fake = compiled(make, "x")
    for n in (2, 3, 2, 3):
        np.testing.assert_array_equal(f(np.ones(n)), np.full(n, n))
    assert fake.count("trace") == 2
    assert f._counters()["signatures"] == 2


def test_fallback_interprets(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), fallback=True)
    x, out = f32(3), np.zeros(3, "f4")
    for _ in range(3):
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert f(x, x, x, out=out) is out
    np.testing.assert_array_equal(out, x * x + x)
    with pytest.raises(ValueError, match="out"):
        f(x, x, x, out=np.zeros(4, "f4"))
    assert type(f(x[0], x[0], x[0])) is np.float32
    assert fake.count("build") == 2
    assert f._counters()["fallbacks"] >= 5


# ---- the callable as an object ----


def test_descriptor_dict_weakref_repr(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(3)
    f.note = 5
    assert f.note == 5
    assert f.__dict__ == {"note": 5}
    assert f._frontend is fake
    assert f.count("trace") == 0
    with pytest.raises(AttributeError):
        f.no_such_name  # noqa: B018
    assert repr(f) == repr(fake)
    assert f.__get__(None, int) is f

    g, _ = compiled(simple("mad_f32"), "self x y z", static="self")

    class Holder:
        method = g

    holder = Holder()
    np.testing.assert_array_equal(holder.method(x, x, x), x * x + x)
    bound = holder.method
    np.testing.assert_array_equal(bound(x, x, z=x), x * x + x)
    assert Holder.method is g
    ref = weakref.ref(f)
    del f
    gc.collect()
    assert ref() is None


module_level: Any = None


def test_pickle_and_copy(compiled: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    f, _ = compiled(simple("mad_f32"))
    module = SimpleNamespace(module_level=f)
    monkeypatch.setitem(sys.modules, "face_module", module)  # type: ignore[arg-type]
    f.__module__ = "face_module"
    assert pickle.loads(pickle.dumps(f)) is f
    assert copy.copy(f) is f
    assert copy.deepcopy(f) is f


def test_cycles_are_collected(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(3)
    f(x, x, x)
    fake.owner = f  # type: ignore[attr-defined]
    f.me = f
    ref, other = weakref.ref(f), weakref.ref(fake.library)
    del f, fake
    gc.collect()
    assert ref() is None
    del other


def test_dead_functions_are_swept(compiled: Factory) -> None:
    native.trim()
    before = native.thread_stats()
    x = f32(3)
    for _ in range(50):
        f, _fake = compiled(simple("mad_f32"))
        f(x, x, x)
    after = native.thread_stats()
    assert after["executors"] - before["executors"] <= 2
    assert after["swept"] - before["swept"] >= 48


def test_bad_construction() -> None:
    for args in (
        (None, ("x",), b"\1\1", (MISSING,), (False,)),
        (None, ("x",), b"\7", (MISSING,), (False,)),
        (None, (1,), b"\1", (MISSING,), (False,)),
        (None, ["x"], b"\1", (MISSING,), (False,)),
    ):
        with pytest.raises((TypeError, ValueError)):
            Compiled(*args)  # type: ignore[arg-type]


def test_flatten(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"), "x y", defaults={"y": 3})
    x = f32(2)
    tree, leaves, kinds = f._flatten([x, "a"])
    assert tree == ([0, 1], 2)
    assert leaves[0] is x
    assert leaves[1:] == ["a", 3]
    assert kinds == "asi"


def test_errors_of_library_and_plan(tmp_path: Path, library: Library) -> None:
    with pytest.raises(errors.LoadFailed, match=r"none\.so"):
        Library(tmp_path / "none.so")
    bad = tmp_path / "bad.so"
    bad.write_bytes(b"not an ELF file")
    with pytest.raises(OSError, match=r"bad\.so"):
        Library(str(bad))
    with pytest.raises(errors.SymbolMissing, match="nothing"):
        library.symbol("nothing")
    plan = Plan()
    with pytest.raises(RuntimeError):
        plan.host("no such op")
    with pytest.raises(TypeError, match="Library"):
        plan.add_variant(0, "C", 1, object())  # type: ignore[arg-type]


# ---- pools, threads, memory ----


def test_pool_waits_for_work_in_flight(compiled: Factory) -> None:
    stream = native.ManualStream(2)
    f, _ = compiled(simple("mad_f32"))
    x = f32(3)
    old = native.get_limits()
    native.use_stream(stream)
    native.set_limits(pool_limit=2, timeout_s=0.05)
    try:
        f(x, x, x)
        f(x, x, x)
        assert f._counters()["in_flight"] == 2
        with pytest.raises(errors.PoolTimeout):
            f(x, x, x)
        stream.advance(5)
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
        assert f._counters()["executors"] == 2
        assert f._counters()["waits"] == 1
        stream.advance(5)
    finally:
        native.use_stream(None)
        native.set_limits(pool_limit=old["pool_limit"], timeout_s=old["timeout_s"])
        stream.advance(100)


def test_threads(compiled: Factory) -> None:
    f, fake = compiled(weak_maker("affine_f64", F64), "x s t")
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            arrays = [np.arange(float(n)) for n in range(1, 9)] + [np.ones(40_000)]
            out = np.zeros(8)
            barrier.wait()
            for i in range(2000):
                x = arrays[(i + seed) % 8 if i % 50 else 8]
                s = float(seed + i)
                result = f(x, s, 1.0)
                assert result[-1] == x[-1] * s + 1.0
                if len(x) == 8:
                    assert f(x, s, 1.0, out=out) is out
                    assert out[7] == 7 * s + 1.0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert f._counters()["executors"] == 0  # pools die with their threads
    assert 1 <= fake.count("trace") <= 8


def test_references_stay_level(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    g, _ = compiled(weak_maker("affine_f64", F64), "x s t")
    h, _ = compiled(simple("mad_f32"), "p q k", defaults={"k": None})
    x, y, z, out, wrong = f32(3), f32(3), f32(3), f32(3), f32(4)
    d, big = np.arange(3.0), f32(3).astype(">f4")
    s, t = 2.5, 12345678901

    def everything() -> None:
        f(x, y, z)
        f(x, y, z=z, out=out)
        f(x, x, x, out=x)
        f(big, y, z)
        f(x[1:], y[1:], z[1:], out=x[:-1])
        g(d, s, t)
        h((x, [y]), {"a": z})
        h((x, [y]), {"a": z}, k="static")
        for bad in (lambda: f(x, y), lambda: f(x, y, object()), lambda: f(x, y, z, out=wrong),
                    lambda: f(x, y, wrong), lambda: h([x, object()], y)):  # fmt: skip
            with pytest.raises((TypeError, ValueError)):
                bad()

    objects = [x, y, z, out, wrong, d, big, s, t, f, fake, np.dtype("f4"), np.float32, None]
    for _ in range(5):
        everything()
    gc.collect()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        everything()
    gc.collect()
    after = [sys.getrefcount(o) for o in objects]
    for o, a, b in zip(objects, before, after, strict=True):
        assert abs(a - b) < 20, repr(o)


def test_memory_is_flat(compiled: Factory) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    f, _ = compiled(simple("mad_f32"))
    g, _ = compiled(make_sum, "x")
    keys = [f32(n) for n in range(1, 51)]
    d = np.arange(10.0)
    for x in keys * 20:
        f(x, x, x)
        g(d)
    start = resident()
    for _ in range(2000):
        for x in keys:
            f(x, x, x)
            f(x, x, x, out=x) if len(x) == 7 else g(d)
        keys[6][...] = 1
    assert resident() - start < 2 << 20
    assert f._counters()["bytes"] < 60 * 4096


def test_process_exits_clean(library: Library) -> None:
    program = f"""
import sys, threading, types
import numpy as np
sys.path.insert(0, {str(HERE)!r})
import importlib.util
spec = importlib.util.spec_from_file_location("face_test", {str(Path(__file__))!r})
m = importlib.util.module_from_spec(spec); sys.modules["face_test"] = m
spec.loader.exec_module(m)
lib = m.Library({library.path!r})
fake = m.Fake(m.simple("mad_f32"), lib)
f = m.Compiled(fake, ("x", "y", "z"), bytes([1, 1, 1]), (m.MISSING,) * 3, (False,) * 3)
x = np.ones(3, "f4")
t = threading.Thread(target=lambda: f(x, x, x)); t.start(); t.join()
f(x, x, x)
np.keep = (f, fake, lib, m.Plan(), m.Slot(1), m.native.Event())  # outlives the interpreter
d = threading.Thread(target=lambda: [f(x, x, x) for _ in range(10**9)], daemon=True); d.start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- other libraries ----


class Exporter:
    """Exports a NumPy array through the old or the new DLPack protocol."""

    def __init__(self, array: Array, legacy: bool = False, device: int = 1) -> None:
        self.array, self.legacy, self.device = array, legacy, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **options: Any) -> Any:
        if self.legacy and options:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


def test_dlpack_in(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(4, 3)
    expected = x * x + x
    for legacy in (False, True):
        for view in (x, x.T, x[::-1]):
            y = np.ascontiguousarray(view)
            library, array = f(Exporter(view, legacy), y, y)
            assert library.endswith("test_native_face")
            np.testing.assert_array_equal(array, y * y + y)
    library, array = f(Exporter(x[0, 0]), Exporter(x[1, 1]), Exporter(x[0, 0]))
    assert array.shape == ()
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(f(Exporter(frozen), x, x)[1], expected)
    out = Exporter(np.zeros((4, 3), "f4"))
    assert f(x, x, x, out=out) is out
    np.testing.assert_array_equal(out.array, expected)
    with pytest.raises(errors.ReadOnlyError):
        f(x, x, x, out=Exporter(frozen))
    with pytest.raises(errors.DeviceMismatch):
        f(Exporter(x, device=2), x, x)
    with pytest.raises(errors.UnsupportedDType, match="float16"):
        f(Exporter(x.astype("f2")), x, x)
    references = sys.getrefcount(x)
    for _ in range(100):
        f(Exporter(x), x, x)
    assert sys.getrefcount(x) == references


def test_torch(compiled: Factory) -> None:
    torch = pytest.importorskip("torch")
    f, _ = compiled(simple("mad_f32"))
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    result = f(x, x, x)
    assert type(result) is torch.Tensor
    assert torch.equal(result, x * x + x)
    assert torch.equal(f(x.T, x.T, x.T), (x * x + x).T)
    out = torch.zeros(2, 3)
    assert f(x, x, x, out=out) is out
    assert torch.equal(out, x * x + x)
    assert f(x[0, 0], x[0, 0], x[0, 0]).shape == ()
    with pytest.raises(TypeError, match="detach"):
        f(x.requires_grad_(), x, x)
