"""The dtypes opkiln computes in: NumPy dtype in, its `DType` row out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np


class DType(NamedTuple):
    """One element type.

    Values of half types live in registers as float32 that the half type holds exactly, times as
    int64, complex values as two vectors of their parts.
    """

    name: str
    kind: str  # b bool, i signed, u unsigned, f float, c complex, M datetime64, m timedelta64
    size: int  # bytes in memory
    cxx: str  # scalar type of its values in registers, as emitted text names it
    memory: str  # suffix of the functions that read and write it where memory differs from that
    supported: bool
    digits: int = 0  # bits of a float's significand
    exponent: int = 0  # bits of its exponent

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype, in native byte order.

        Raises:
            TypeError: bfloat16, and ml_dtypes is not installed.
        """
        if self.name != "bfloat16":
            return np.dtype(self.name)
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError("bfloat16 needs ml_dtypes (pip install ml_dtypes)") from None
        found: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
        return found

    @property
    def lane(self) -> int:
        """Bytes of a lane in registers; the parts of complex numbers have vectors of their own."""
        return int(self.cxx.lstrip("biucf")) // 8

    @property
    def is_half(self) -> bool:
        """Whether values are wider in registers, and so are rounded to what memory holds."""
        return self.kind == "f" and self.lane > self.size


_ROWS = (
    DType("bool", "b", 1, "u8", "_bool", True),
    DType("int8", "i", 1, "i8", "", True),
    DType("int16", "i", 2, "i16", "", True),
    DType("int32", "i", 4, "i32", "", True),
    DType("int64", "i", 8, "i64", "", True),
    DType("uint8", "u", 1, "u8", "", True),
    DType("uint16", "u", 2, "u16", "", True),
    DType("uint32", "u", 4, "u32", "", True),
    DType("uint64", "u", 8, "u64", "", True),
    DType("float32", "f", 4, "f32", "", True, 24, 8),
    DType("float64", "f", 8, "f64", "", True, 53, 11),
    DType("float16", "f", 2, "f32", "_f16", True, 11, 5),
    DType("bfloat16", "f", 2, "f32", "_bf16", True, 8, 8),
    DType("complex64", "c", 8, "cf32", "_complex<cf32>", True),
    DType("complex128", "c", 16, "cf64", "_complex<cf64>", True),
    DType("datetime64", "M", 8, "i64", "", True),
    DType("timedelta64", "m", 8, "i64", "", True),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
# Those that rows compute in; times are int64 to them.
SUPPORTED: tuple[DType, ...] = tuple(row for row in _ROWS if row.supported and row.kind not in "mM")


@lru_cache(maxsize=256)
def find_row(dtype: np.dtype[np.generic]) -> DType | None:
    """The row of a NumPy dtype that opkiln computes in; every unit of time has the same."""
    row = DTYPES.get(dtype.name if dtype.kind not in "mM" else dtype.type.__name__)
    return row if row is not None and row.supported else None


def part_of(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype of the real and imaginary parts; of a real dtype the dtype itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def as_dtype(dtype: Any) -> np.dtype[np.generic]:
    """What np.dtype makes of it, and "bfloat16" whether or not ml_dtypes has been imported.

    Raises:
        TypeError: it names no dtype, or one that is not installed.
    """
    named = isinstance(dtype, str) and dtype == "bfloat16"
    return DTYPES["bfloat16"].numpy if named else np.dtype(dtype)


@lru_cache(maxsize=256)
def kind_of(dtype: np.dtype[np.generic]) -> str:
    """The kind of a dtype: NumPy's, but of bfloat16, which calls itself void, "f"."""
    if dtype.kind != "V":
        return dtype.kind
    row = DTYPES.get(dtype.name)
    return row.kind if row else "V"


@lru_cache(maxsize=256)
def is_half(dtype: np.dtype[np.generic]) -> bool:
    """Whether it is float16 or bfloat16, which round after every op."""
    row = DTYPES.get(dtype.name)
    return row is not None and row.is_half


def lossless(source: np.dtype[np.generic], target: np.dtype[np.generic]) -> bool:
    """Whether every value of `source` is a value of `target`, so that casting there loses nothing.

    Narrower than NumPy's "safe", which lets int64 become float64.
    """
    a, b = dtype_row(source), dtype_row(target)
    if source == target or a.kind == "b":
        return True
    if b.kind == "b" or (a.kind == "c" and b.kind != "c"):
        return False
    a, b = dtype_row(part_of(source)), dtype_row(part_of(target))
    if a.kind == "f":
        return b.kind == "f" and b.digits >= a.digits and b.exponent >= a.exponent
    bits = 8 * a.size - (a.kind == "i")
    if b.kind == "f":
        return bits <= b.digits
    if a.kind == "i":
        return b.kind == "i" and b.size >= a.size
    return a.kind == "u" and b.kind in "iu" and b.size > a.size


def dtype_row(dtype: np.dtype[np.generic]) -> DType:
    """The row of a NumPy dtype.

    Raises:
        TypeError: the dtype is none that opkiln computes in; the text lists those it does.
    """
    row = find_row(dtype)
    if row is None:
        accepted = ", ".join(r.name for r in SUPPORTED)
        raise TypeError(
            f"dtype {dtype.name} is not supported yet; expected one of {accepted}. "
            f"Convert first, for example with .astype(np.float32)"
        )
    return row
