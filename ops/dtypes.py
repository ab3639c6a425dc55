"""The dtypes opkiln computes in: NumPy dtype in, its `DType` row of native code and C name out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class DType(NamedTuple):
    """One element type. `code` is the native core's number for it and never changes meaning."""

    name: str
    code: int
    kind: str  # b bool, i signed, u unsigned, f float
    size: int  # bytes
    cxx: str  # scalar type name in emitted text
    supported: bool

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype, in native byte order."""
        return np.dtype(self.name)


_ROWS = (
    DType("bool", 0, "b", 1, "u8", True),
    DType("int8", 1, "i", 1, "i8", True),
    DType("int16", 2, "i", 2, "i16", True),
    DType("int32", 3, "i", 4, "i32", True),
    DType("int64", 4, "i", 8, "i64", True),
    DType("uint8", 5, "u", 1, "u8", True),
    DType("uint16", 6, "u", 2, "u16", True),
    DType("uint32", 7, "u", 4, "u32", True),
    DType("uint64", 8, "u", 8, "u64", True),
    DType("float32", 9, "f", 4, "f32", True),
    DType("float64", 10, "f", 8, "f64", True),
    # Reserved: the codes are fixed, the bodies come with the full elementwise table.
    DType("float16", 11, "f", 2, "f16", False),
    DType("complex64", 13, "c", 8, "c64", False),
    DType("complex128", 14, "c", 16, "c128", False),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
SUPPORTED: tuple[DType, ...] = tuple(row for row in _ROWS if row.supported)
BY_CODE: dict[int, DType] = {row.code: row for row in _ROWS}


def dtype_row(dtype: np.dtype[np.generic]) -> DType:
    """The row of a NumPy dtype.

    Raises:
        TypeError: the dtype is none that opkiln computes in; the text lists those it does.
    """
    row = DTYPES.get(dtype.name)
    if row is None or not row.supported:
        accepted = ", ".join(r.name for r in SUPPORTED)
        raise TypeError(
            f"dtype {dtype.name} is not supported yet; expected one of {accepted}. "
            f"Convert first, for example with .astype(np.float32)"
        )
    return row
