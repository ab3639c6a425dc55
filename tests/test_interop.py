"""Arrays by DLPack, buffers and __array_interface__, NumPy's own kinds, and what is no array."""

from __future__ import annotations

import array
import ctypes
import decimal
import fractions
import gc
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interop import double, refused

import opkiln as ok
from opkiln.runtime import errors

Array = np.ndarray[Any, Any]


def f32(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# *** any exporter of DLPack ***


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """Exports float32 memory as DLPack by hand and counts the calls of its deleters."""

    device = (1, 0)

    def __init__(
        self, n: int = 3, *, version: int | None = 1, flags: int = 0, offset: int = 0,
        dtype: tuple[int, int, int] = (2, 32, 1), strides: tuple[int, ...] | None = (1,),
        shape: tuple[int, ...] | None = None, inner: int = 1,
    ) -> None:  # fmt: skip
        self.memory = (ctypes.c_float * (n + 8))(*range(n + 8))
        self.version, self.flags, self.offset, self.dtype = version, flags, offset, dtype
        self.shape = (n,) if shape is None else shape
        self.strides, self.inner = strides, inner
        self.exported = self.deleted = 0
        self.options: list[dict[str, Any]] = []
        self.keep: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def _delete(self, _: Any) -> None:
        self.deleted += 1

    def __dlpack__(self, **options: Any) -> Any:
        self.options.append(options)
        if self.version is None and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.exported += 1
        rank = len(self.shape)
        shape = (ctypes.c_int64 * max(rank, 1))(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * max(rank, 1))(*self.strides)
        tensor = Tensor(
            ctypes.addressof(self.memory), Device(self.inner, 0), rank, DataType(*self.dtype),
            shape, strides, self.offset,
        )  # fmt: skip
        deleter = DELETER(self._delete)
        if self.version is None:
            managed: Any = Managed(tensor, None, deleter)
        else:
            managed = Versioned(self.version, 0, None, deleter, self.flags, tensor)
        self.keep += [managed, shape, strides, deleter]
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return _new(ctypes.addressof(managed), name, None)


READ_ONLY, COPIED = 1, 2


@pytest.mark.parametrize("version", [1, None])
def test_F145_capsules_of_both_kinds(version: int | None) -> None:
    x = Producer(3, version=version)
    for _ in range(2):
        result = double(x)
        assert type(result) is np.ndarray
        assert result.tolist() == [0, 2, 4]
    assert double(Producer(3, version=version, offset=8)).tolist() == [4, 6, 8]
    assert double(Producer(version=version, shape=(2, 2), strides=None)).tolist() == [
        [0, 2],
        [4, 6],
    ]
    assert double(Producer(version=version, shape=(2, 2), strides=(1, 2))).tolist() == [
        [0, 4], [2, 6],
    ]  # fmt: skip
    assert double(Producer(version=version, shape=(), strides=())) == 0
    assert double(Producer(version=version, shape=(0, 2), strides=None)).shape == (0, 2)
    assert x.options[0] == {"max_version": (1, 0)}
    assert (len(x.options), x.exported) == ((4, 2) if version is None else (2, 2))
    assert x.deleted == x.exported


class ByNumpy:
    """Lends an ndarray by NumPy's own exporter."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.__dlpack__(**options)


@pytest.mark.parametrize("code", "?bhilBHILfd")
def test_F145_dtypes(code: str) -> None:
    x = np.array([0, 1, 1], code)
    x.flags.writeable = False
    for view in (x, x[:0], x[1, ...]):
        result = double(ByNumpy(view))
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(result, view + view)


def test_F047_negative_strides_by_dlpack() -> None:
    class Reversed(Producer):
        def __init__(self) -> None:
            super().__init__(3, strides=(-1,), offset=8)

    assert double(Reversed()).tolist() == [4, 2, 0]


def test_F145_a_refused_capsule_is_deleted_once() -> None:
    for x, kind, words in (
        (Producer(dtype=(2, 128, 1)), errors.UnsupportedDType, "float128"),
        (Producer(dtype=(5, 32, 1)), errors.UnsupportedDType, "complex32"),
        (Producer(dtype=(2, 32, 4)), errors.UnsupportedDType, "packs"),
        (Producer(dtype=(17, 4, 2)), errors.UnsupportedDType, "unknown"),
        (Producer(shape=(1,) * 17, strides=None), errors.ShapeError, "rank 17"),
        (Producer(inner=2), errors.DeviceMismatch, "device type 2"),
        (Producer(version=2), errors.ArgumentError, "version 2"),
    ):
        refused(x, kind, words)
        assert (x.exported, x.deleted) == (1, 1)


def test_F145_read_only_and_copies_are_not_written() -> None:
    x = f32(3)
    for flags, word in ((READ_ONLY, "read-only"), (COPIED, "copy"), (READ_ONLY | COPIED, "copy")):
        out = Producer(3, flags=flags)
        assert double(out).tolist() == [0, 2, 4]
        refused(x, errors.ReadOnlyError, word, out=out)
        assert out.memory[1] == 1
        assert out.exported == out.deleted == 2
    out = Producer(3)
    assert double(x, out=out) is out
    assert list(out.memory[:4]) == [0, 2, 4, 3]
    assert out.deleted == 1


def test_F145_the_memory_lives_as_long_as_it_is_needed() -> None:
    x = Producer(3)
    f = ok.compile(lambda y: y + x)
    f(np.zeros(3))
    assert (x.exported, x.deleted) == (1, 0)  # the capture holds it
    x.memory[0] = 7
    assert f(np.zeros(3)).tolist() == [7, 1, 2]
    assert x.exported == 1
    f.clear()
    gc.collect()
    assert (x.exported, x.deleted) == (1, 1)


def test_exporters_that_fail() -> None:
    class Failing(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            raise self.error

        error: BaseException = BufferError("busy\nsecond line")

    x = Failing()
    refused(x, errors.ArgumentError, "memory of a Failing cannot be used: busy", "np.asarray")
    for error in (RuntimeError("no"), ValueError(""), AttributeError("_x"), TypeError("t")):
        x.error = error
        refused(x, errors.ArgumentError, "memory of a Failing")
    for error in (KeyboardInterrupt(), MemoryError()):
        x.error = error
        with pytest.raises(type(error)):
            double(x)

    class Odd(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            return 3

    refused(Odd(), errors.ArgumentError, "did not return a DLPack capsule")
    far = Producer()
    far.device = (2, 1)
    refused(far, errors.DeviceMismatch, "DLPack device (2, 1)", "x.cpu()")
    far.device = (1,)  # type: ignore[assignment]
    refused(far, errors.ArgumentError, "must return a pair")
    assert far.exported == 0


def test_a_type_may_change_its_mind() -> None:
    """The way into a type is remembered only while the type stays as it is."""
    kind = type("Kind", (), {"__array_interface__": f32(3).__array_interface__})
    held = f32(3)
    kind.__array_interface__ = held.__array_interface__  # type: ignore[attr-defined]
    assert double(kind()).tolist() == [0, 2, 4]
    kind.__dlpack__ = lambda self, **options: f32(2).__dlpack__(**options)  # type: ignore[attr-defined]
    kind.__dlpack_device__ = lambda self: (1, 0)  # type: ignore[attr-defined]
    assert double(kind()).tolist() == [0, 2]
    del kind.__dlpack__, kind.__array_interface__  # type: ignore[attr-defined]
    refused(kind(), errors.ArgumentError, "cannot use an object of type")
    for i in range(200):  # the address of a dead type is used again
        made = type("Made", (), {"__array_interface__": held.__array_interface__} if i % 2 else {})
        if i % 2:
            assert double(made()).tolist() == [0, 2, 4]
        else:
            refused(made(), errors.ArgumentError, "cannot use")
        del made
        gc.collect(0)


def test_results_go_to_the_library_that_made_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        def __init__(self, memory: Array) -> None:
            self.memory = memory

        def __array_namespace__(self, **_: Any) -> Any:
            return library

        def __dlpack_device__(self) -> Any:
            return self.memory.__dlpack_device__()

        def __dlpack__(self, **options: Any) -> Any:
            return self.memory.__dlpack__(**options)

    library: Any = type(sys)("tests.mine")
    library.from_dlpack = lambda x: Mine(np.from_dlpack(x))
    monkeypatch.setitem(sys.modules, "tests.mine", library)
    result = double(Mine(f32(3)))
    assert isinstance(result, Mine)
    assert result.memory.tolist() == [0, 2, 4]
    assert isinstance(ok.compile(lambda x: x.sum())(Mine(f32(3))), Mine)


# *** buffers and __array_interface__ ***


def test_F139_buffers(tmp_path: Path) -> None:
    pages = mmap.mmap(-1, 4096)
    pages[:3] = b"\1\2\3"
    values = array.array("d", [1, 2, 3])
    for x, expected in (
        (values, [2.0, 4.0, 6.0]),
        (memoryview(values)[::-1], [6.0, 4.0, 2.0]),
        (memoryview(bytes([1, 2])), [2, 4]),
        (bytearray([1, 2]), [2, 4]),
        ((ctypes.c_int32 * 2 * 2)((1, 2), (3, 4)), [[2, 4], [6, 8]]),
        (memoryview(pages)[:3], [2, 4, 6]),
    ):
        result = double(x)
        assert type(result) is np.ndarray
        assert result.tolist() == expected
    assert double(ctypes.c_double(1.5)) == 3.0
    target = array.array("f", [0, 0, 0])
    assert double(f32(3), out=target) is target
    assert target.tolist() == [0, 2, 4]
    target.append(1)  # nothing holds the buffer any more
    refused(f32(3), errors.ReadOnlyError, "read-only", out=memoryview(bytes(12)).cast("f"))
    refused(memoryview(b"abc").cast("c"), errors.UnsupportedDType, "dtype")
    released = memoryview(b"abc")
    released.release()
    refused(released, errors.ArgumentError, "released")
    big = (ctypes.c_float.__ctype_be__ * 2)(1, 2)
    before = double.info().copies
    assert double(big).tolist() == [2, 4]
    assert double.info().copies == before + 1


class Interface:
    """What PIL, PyQt and old wrappers offer."""

    def __init__(self, memory: Array, name: str = "__array_interface__") -> None:
        self.memory = memory
        setattr(self, name, getattr(memory, name))


@pytest.mark.parametrize("name", ["__array_interface__", "__array_struct__"])
def test_array_interface(name: str) -> None:
    class Mine(Interface):
        pass

    x = f32(3, 4)
    for view in (x, x.T, x[::-1, ::2], x[:0], x[1, 1, ...]):
        result = double(Mine(view, name))
        assert type(result) is (np.ndarray if view.ndim else np.float32)
        np.testing.assert_array_equal(result, view + view)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(double(Mine(frozen, name)), x + x)
    refused(x, errors.ReadOnlyError, "read-only", out=Mine(frozen, name))
    out = Mine(np.zeros_like(x), name)
    assert double(x, out=out) is out
    np.testing.assert_array_equal(out.memory, x + x)
    refused(Mine(x.astype("g"), name), errors.UnsupportedDType, "128", "float64")
    references = sys.getrefcount(x)
    for _ in range(100):
        double(Mine(x, name))
    assert sys.getrefcount(x) == references
    weights = Mine(x, name)
    f = ok.compile(lambda y: y + weights)
    f(x)
    x[0] = 9
    np.testing.assert_array_equal(f(x), x + x)


def test_bad_array_interface() -> None:
    class Mine:
        def __init__(self, interface: Any) -> None:
            self.__array_interface__ = interface

    for bad in ({"shape": (3,), "typestr": "<f4", "version": 3, "data": 7}, {}, 7):
        refused(Mine(bad), errors.ArgumentError, "memory of a Mine")


# *** NumPy's own ***


def test_memmap(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    assert type(double(mapped)) is np.ndarray
    assert double(mapped).tolist() == [2, 4, 6]
    assert double(mapped, out=mapped) is mapped
    mapped.flush()
    again = np.memmap(tmp_path / "x", np.float32, "r")
    assert again.tolist() == [2, 4, 6]
    refused(again, errors.ReadOnlyError, "read-only", out=again)
    f = ok.compile(lambda x: x + again)
    assert f(f32(3)).tolist() == [2, 5, 8]


class Sub(np.ndarray[Any, Any]):
    pass


@pytest.mark.parametrize(
    "x",
    [
        np.ones((1, 1)).view(np.matrix),
        np.ma.array([1.0]),
        np.rec.array([(1.0,)], dtype=[("a", "f8")]),
        np.ones(3).view(Sub),
    ],
    ids=lambda x: type(x).__name__,
)
def test_subclasses_of_ndarray(x: Any) -> None:
    refused(x, errors.ArgumentError, f"the subclass {type(x).__name__}", "np.asarray(x)")
    refused(f32(1), errors.ArgumentError, type(x).__name__, out=x)


# *** what is no array ***


def capturing(w: Any) -> Any:
    return ok.compile(lambda x: x + w)


def test_tables_are_converted_by_their_owner() -> None:
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    frame = pandas.DataFrame({"a": [1.0, 2.0]})
    data = xarray.DataArray([1.0, 2.0])
    for x in (frame, frame["a"], frame.index, pandas.array([1, 2]), data, data.variable):
        refused(x, errors.ArgumentError, type(x).__name__, "x.to_numpy()")
        refused(f32(2), errors.ArgumentError, type(x).__name__, out=x)
        with pytest.raises(errors.ArgumentError, match=r"captured array(.|\n)*to_numpy"):
            capturing(x)(f32(2))
    assert double(frame["a"].to_numpy()).tolist() == [2, 4]


class Wrapped:
    def __array__(self, *args: Any, **options: Any) -> Array:
        return np.ones(3)


class OnGpu:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (3,), "typestr": "<f4", "data": (1, False), "version": 3}


@pytest.mark.parametrize(
    ("x", "kind", "advice"),
    [
        (Wrapped(), errors.ArgumentError, "np.asarray(x)"),
        (OnGpu(), errors.DeviceMismatch, "x.cpu() or x.get()"),
        ({1}, errors.ArgumentError, "np.array(list(x))"),
        (range(3), errors.ArgumentError, "np.array(list(x))"),
        ({1: 2}.values(), errors.ArgumentError, "np.array(list(x))"),
        (iter([1]), errors.ArgumentError, "np.array(list(x))"),
        (decimal.Decimal(1), errors.ArgumentError, "float(x)"),
        (fractions.Fraction(1, 2), errors.ArgumentError, "float(x)"),
        (object(), errors.ArgumentError, "static="),
        (len, errors.ArgumentError, "static="),
    ],
    ids=lambda value: type(value).__name__,
)
def test_strangers(x: Any, kind: type[Exception], advice: str) -> None:
    refused(x, kind, type(x).__name__, advice)


# *** lifetime ***


def test_nothing_leaks() -> None:
    x, buffer = Producer(3), array.array("f", [1, 2, 3])
    interface = Interface(f32(3))
    calls: list[Callable[[], Any]] = [
        lambda: double(buffer),
        lambda: double(interface),
        lambda: double(f32(3), out=buffer),
    ]
    for call in calls * 50:
        call()
    gc.collect()
    objects = buffer, interface, Interface, interface.memory
    before = [sys.getrefcount(o) for o in objects]
    blocks = sys.getallocatedblocks()
    for _ in range(10_000 // len(calls)):
        for call in calls:
            call()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500
    assert max(np.subtract([sys.getrefcount(o) for o in objects], before)) <= 0
    for _ in range(100):
        double(x)
    assert x.exported == x.deleted == 100


def test_threads(parallelize: Callable[..., list[object]]) -> None:
    def body(index: int) -> bool:
        buffer = array.array("d", [index] * 64)
        interface = Interface(np.full(64, float(index)))
        return all(
            double(x).tolist() == [2.0 * index] * 64
            for _ in range(100)
            for x in (buffer, interface)
        )

    assert parallelize(body, 8) == [True] * 8
