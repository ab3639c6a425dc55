"""What may be an argument of a native call: statics, numbers, awkward arrays, other libraries."""

from __future__ import annotations

import enum
import gc
import sys
import weakref
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.native_fake import (
    F64,
    U8,
    Array,
    Factory,
    compiled,
    f32,
    library,
    simple,
    weak_maker,
)

from opkiln.runtime import errors

__all__ = ["compiled", "library"]
HERE = Path(__file__).parent


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


@pytest.mark.parametrize("static", ["", "self"])
def test_self_is_static_by_identity_and_weak(compiled: Factory, static: str) -> None:
    f, fake = compiled(simple("mad_f32"), "self x y z", static=static)
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
    del one, two, model
    gc.collect()
    assert gone() is None
    for _ in range(200):
        Model().call(x, x, x)
        assert fake.count("trace") == 1
        fake.log.clear()
    assert f._counters()["signatures"] < 150  # dead objects take their records with them


def test_any_object_can_be_self(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "self x y z")
    x = f32(3)

    class Equal(dict[str, int]):
        call = f
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    class NoWeak:
        __slots__ = ()
        call = f

    kept = [Equal(), Equal(), NoWeak(), NoWeak()]
    for _ in range(2):
        for one in kept:
            np.testing.assert_array_equal(one.call(x, x, x), x * x + x)
            entry = [e for e in fake.log if e[0] == "trace"][-1]
            assert entry[3] == "saaa"
    assert fake.count("trace") == len(kept)
    assert all(e[2][0] is k for e, k in zip(fake.log[::2], kept, strict=True))
    ids = [f._static_id(one) for one in kept]
    assert len(set(ids)) == len(kept)
    assert ids == [f._static_id(one) for one in kept]
    for nested in ([object()], (Equal(),)):
        with pytest.raises(errors.ArgumentError, match="argument 'self'"):
            f(nested, x, x, x)
    with pytest.raises(errors.ArgumentError, match="argument 'x'"):
        f(kept[0], object(), x, x)


def test_static_id(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    values = [None, True, False, 1, 1.0, "1", slice(1, 2), slice(1, 3), (1, slice(2)), -0.0, 0.0]
    ids = [f._static_id(v) for v in values]
    assert len(set(ids)) == len(values)
    assert [f._static_id(v) for v in (np.int8(1), slice(np.int64(1), 2))] == [ids[3], ids[6]]
    f._clear()
    assert set(ids[3:]).isdisjoint(f._static_id(v) for v in values[3:])
    assert f._static_id(None) == ids[0]
    with pytest.raises(TypeError):
        f._static_id([1])


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
    for s, t in ((2.0, 3.0), (0.5, -1.0), (1e300, float("nan"))):
        np.testing.assert_array_equal(f(x, s, t), x * s + t)
    assert fake.count("trace") == 1
    np.testing.assert_array_equal(f(x, 1e3, 1e-3), x * 1e3 + 1e-3)

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
    Pair = namedtuple("Pair", "a b")
    refused: list[tuple[Any, type[Exception], str]] = [
        (np.ma.masked_array(x), TypeError, "MaskedArray"),
        (x.view(np.recarray), TypeError, "plain ndarray"),
        (x.astype(object), errors.UnsupportedDType, "object"),
        (
            x.astype(ml_dtypes.float8_e5m2),
            errors.UnsupportedDType,
            "expected a supported dtype, got float8_e5m2(.|\n)*bfloat16",
        ),
        (x.astype("G"), errors.UnsupportedDType, "np.complex128"),
        (x.astype("g"), errors.UnsupportedDType, "np.float64"),
        (x.astype("U3"), errors.UnsupportedDType, "U"),
        (np.zeros(2, [("a", "f4")]), errors.UnsupportedDType, "a"),
        (np.longdouble(1), errors.UnsupportedDType, "float128|longdouble"),
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


def test_memmap(compiled: Factory, tmp_path: Path) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(4, 3)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 3))
    mapped[...] = x
    for view in (mapped, mapped[::2], mapped.T):
        result = f(view, view, view)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, np.asarray(view) * np.asarray(view) + view)
    assert f._counters()["copies"] == 0
    assert f(x, x, x, out=mapped) is mapped
    np.testing.assert_array_equal(mapped, x * x + x)
    frozen = np.memmap(tmp_path / "x", np.float32, "r", shape=(4, 3))
    with pytest.raises(errors.ReadOnlyError):
        f(x, x, x, out=frozen)

    class Sub(np.memmap):
        pass

    with pytest.raises(errors.ArgumentError, match="subclass"):
        f(mapped.view(Sub), x, x)


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
    kind, args, kwargs = f(t, x, z=x, out=None)
    assert kind == "inlined"
    assert args[0] is t
    assert kwargs == {"z": x}
    with pytest.raises(errors.TraceError, match=r"out=.*traced(.|\n)*returned value"):
        f(t, x, z=x, out=x)
    assert f(x, {"a": (t,)}, x)[0] == "inlined"
    assert not fake.log
    with pytest.raises(TypeError):
        f(t)


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
    f, _fake = compiled(simple("mad_f32"))
    x = f32(4, 3)
    expected = x * x + x
    for legacy in (False, True):
        for view in (x, x.T, x[::-1]):
            y = np.ascontiguousarray(view)
            array = f(Exporter(view, legacy), y, y)
            assert type(array) is np.ndarray
            np.testing.assert_array_equal(array, y * y + y)
    scalar = f(Exporter(x[0, 0, ...]), Exporter(x[1, 1, ...]), Exporter(x[0, 0, ...]))
    assert type(scalar) is np.float32
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(f(Exporter(frozen), x, x), expected)
    out = Exporter(np.zeros((4, 3), "f4"))
    assert f(x, x, x, out=out) is out
    np.testing.assert_array_equal(out.array, expected)
    with pytest.raises(errors.ReadOnlyError):
        f(x, x, x, out=Exporter(frozen))
    with pytest.raises(errors.DeviceMismatch):
        f(Exporter(x, device=2), x, x)
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
    negated = torch._neg_view(torch.ones(3))
    with pytest.raises(TypeError, match="resolve_neg"):
        f(negated, negated, negated)
    for bad in (torch.ones(3).to_sparse(), torch.ones(3, device="meta")):
        with pytest.raises(errors.OpkilnError, match="Tensor"):
            f(bad, bad, bad)
    for bad in (torch.ones(2, 3).to(torch.float8_e5m2), torch.ones(2, 3).requires_grad_()):
        with pytest.raises(errors.OpkilnError, match=r"^f\(\): argument 'y': ") as caught:
            f(torch.ones(3), bad, x)
        assert "lanes" not in str(caught.value)
        with pytest.raises(errors.OpkilnError, match=r"^out: "):
            f(out, out, out, out=bad)

    with pytest.raises(errors.UnsupportedDType, match="complex32"):
        f(*[torch.ones(3, dtype=torch.complex32)] * 3)
    assert f(*[torch.ones(0)] * 3).shape == (0,)
    interpreted, _ = compiled(simple("mad_f32"), fallback=True)
    for _ in range(2):
        result = interpreted(one := torch.ones(3), one, one)
        assert type(result) is torch.Tensor
        assert torch.equal(result, torch.full((3,), 2.0))
    into = torch.zeros(3)
    assert interpreted(one, one, one, out=into) is into
    assert torch.equal(into, result)
    y = torch.ones(3)
    references = sys.getrefcount(y)
    for _ in range(100):
        f(y, y, y)
    assert sys.getrefcount(y) == references
