"""Parts of complex values: a traced array in, its real or imaginary part or its angle out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opkiln.runtime.trace.promote import cast, filled
from opkiln.runtime.trace.session import ArrayValue
from opkiln.runtime.trace.tracer import Tracer, call_row


def is_complex(x: Any) -> bool:
    """Whether a traced value is an array of complex numbers."""
    return isinstance(x, ArrayValue) and x.node.dtype.kind == "c"


def real(val: Any) -> Any:
    """np.real."""
    return call_row("real", val) if is_complex(val) else val


def imag(val: Any) -> Any:
    """np.imag: of a real array zeros."""
    if is_complex(val):
        return call_row("imag", val)
    return Tracer(val.session, filled(val.session, np.zeros((), val.dtype)[()], val.node))


def conjugate(x: Any) -> Any:
    """The method; unlike np.conjugate it leaves bool as it is."""
    return Tracer(x.session, x.node) if x.dtype == np.bool_ else call_row("conjugate", x)


def angle(z: Any, deg: Any = False) -> Any:
    """np.angle."""
    result = np.arctan2(imag(z) if is_complex(z) else 0, real(z))
    if deg:
        result *= 180 / math.pi
    return result


def isreal(x: Any) -> Any:
    """np.isreal."""
    return imag(x) == 0


def iscomplex(x: Any) -> Any:
    """np.iscomplex."""
    if is_complex(x):
        return imag(x) != 0
    return Tracer(x.session, filled(x.session, np.bool_(False), x.node))


def iscomplexobj(x: Any) -> bool:
    """np.iscomplexobj."""
    return is_complex(x)


def isrealobj(x: Any) -> bool:
    """np.isrealobj."""
    return not is_complex(x)


def by_parts(function: Callable[[Any], Any], x: Any) -> Any:
    """A function of real arrays on both parts of a complex one."""
    return call_row("from_parts", function(real(x)), function(imag(x)))


def into_parts(x: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The parts of a value cast to a complex dtype."""
    z = Tracer(x.session, cast(x.session, x.node, dtype))
    return real(z), imag(z)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.real: real,
    np.imag: imag,
    np.angle: angle,
    np.isreal: isreal,
    np.iscomplex: iscomplex,
    np.iscomplexobj: iscomplexobj,
    np.isrealobj: isrealobj,
}
METHODS: dict[str, Callable[..., Any]] = {"conj": conjugate, "conjugate": conjugate}
ATTRIBUTES: dict[str, Callable[[Any], Any]] = {"real": real, "imag": imag}
