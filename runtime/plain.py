"""A compiled function under OPKILN_DISABLE=1: the plain function in, the same methods out."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from opkiln import native
from opkiln.runtime.errors import NotYet, ShapeError
from opkiln.runtime.executor import Info
from opkiln.runtime.explain import Explanation
from opkiln.runtime.spec import Warmed
from opkiln.runtime.stages import Lowering
from opkiln.runtime.tree import mapped

P = ParamSpec("P")
R = TypeVar("R")


def _settled(value: Any) -> Any:
    return value.result() if isinstance(value, native.Future) else value


class Plain(Generic[P, R]):
    """A function under OPKILN_DISABLE=1: itself, by NumPy, with the methods of a compiled one."""

    def __init__(self, fn: Callable[P, R]) -> None:
        self.fn: Callable[..., Any] = fn
        self.calls = 0
        functools.update_wrapper(cast("Any", self), fn)

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the function as it is; results go to `out` by np.copyto.

        On a stream too, whose calls give futures.
        """
        with native.Stream.inline():
            values = {name: _settled(value) for name, value in kwargs.items()}
            result = self._run(tuple(map(_settled, args)), values, out)
        return native.answer(result)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        self.calls += 1
        result = self.fn(*args, **kwargs)
        if out is None:
            return result
        targets: list[Any] = [*out] if isinstance(out, tuple) else [out]
        arrays: list[Any] = []
        mapped(result, lambda v: arrays.append(v) if hasattr(v, "__array__") else None)
        if len(targets) != len(arrays):
            raise ShapeError(
                f"out: expected {len(arrays)} entries, one per array, got {len(targets)}"
            )
        left = iter(targets)

        def stored(value: Any) -> Any:
            target = next(left) if hasattr(value, "__array__") else None
            if target is None:
                return value
            np.copyto(np.asarray(target), value, casting="same_kind")
            return target

        return mapped(result, stored)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind as a method."""
        return self if instance is None else types.MethodType(self, instance)

    def info(self) -> Info:
        """All zeros but `calls` and `fallbacks`."""
        return Info(
            **dict.fromkeys(Info.__match_args__, 0) | {"calls": self.calls, "fallbacks": self.calls}
        )

    def explain(self) -> Explanation:
        """Nothing misses: each call is NumPy's."""
        name: str = getattr(self.fn, "__qualname__", type(self.fn).__name__)
        return Explanation(name, (), 0, (f"OPKILN_DISABLE is set: {self.calls} plain calls",))

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowering:
        """Nothing is lowered while opkiln is disabled."""
        raise NotYet("OPKILN_DISABLE is set, so nothing is lowered", fix="unset OPKILN_DISABLE")

    def bind(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Callable[[], Any]:
        """Repeats the call, with results in the arrays of the first one."""
        if out is None:
            arrays: list[Any] = []
            result = self.fn(*args, **kwargs)
            mapped(result, lambda v: arrays.append(v) if hasattr(v, "__array__") else None)
            out = tuple(v if type(v) is np.ndarray else None for v in arrays)
        return functools.partial(self, *args, out=out or None, **kwargs)

    def warmup(self, /, *args: Any, **kwargs: Any) -> Warmed:
        """Nothing is built while opkiln is disabled."""
        del args, kwargs
        return Warmed(getattr(self, "__qualname__", "function"), 0, "disabled", 0.0)

    def clear(self) -> None:
        """Forget the count of calls."""
        self.calls = 0
