"""The dtypes opkiln computes in: NumPy dtype in, its `DType` row out."""

from __future__ import annotations

from typing import NamedTuple

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
    memory: str  # suffix of the functions that load and store it where memory differs from that
    supported: bool

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype, in native byte order."""
        return np.dtype(self.name)


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
    DType("float32", "f", 4, "f32", "", True),
    DType("float64", "f", 8, "f64", "", True),
    DType("float16", "f", 2, "f32", "_f16", False),
    DType("bfloat16", "f", 2, "f32", "_bf16", False),
    DType("complex64", "c", 8, "cf32", "_complex<cf32>", True),
    DType("complex128", "c", 16, "cf64", "_complex<cf64>", True),
    DType("datetime64", "M", 8, "i64", "", True),
    DType("timedelta64", "m", 8, "i64", "", True),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
# Those that rows compute in; times are int64 to them.
SUPPORTED: tuple[DType, ...] = tuple(row for row in _ROWS if row.supported and row.kind not in "mM")


def find_row(dtype: np.dtype[np.generic]) -> DType | None:
    """The row of a NumPy dtype that opkiln computes in; every unit of time has the same."""
    row = DTYPES.get(dtype.name if dtype.kind not in "mM" else dtype.type.__name__)
    return row if row is not None and row.supported else None


def part_of(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype of the real and imaginary parts; of a real dtype the dtype itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


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
