"""Options of `ok.compile`: the user's keywords in, one checked, immutable value out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from opkiln.ops.record import record
from opkiln.runtime.errors import ArgumentError, NotYet
from opkiln.runtime.errstate import MODES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, TypedDict

    class Keywords(TypedDict, total=False):
        """The keywords of `ok.compile`, for type checkers."""

        name: str | None
        static: str | tuple[str, ...]
        opt_level: Literal[0, 1, 2]
        math: Literal["strict", "fast"]
        backend: Literal["auto", "cpu", "cuda"]
        mode: Literal["sync", "async"]
        errstate: Literal["ignore", "warn", "raise"]


# Options with a fixed choice: what works now, what is designed and not built yet.
_CHOICES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "opt_level": ((2, 1, 0), ()),
    "math": (("strict",), ("fast",)),
    "backend": (("auto", "cpu"), ("cuda",)),
    "mode": (("sync",), ("async",)),
    "errstate": (MODES, ()),
}


@record
class Options:
    """How a function is compiled."""

    name: str | None = None
    static: tuple[str, ...] = ()
    opt_level: int = 2
    errstate: str = "ignore"


def checked(keywords: dict[str, Any]) -> Options:
    """Options from the user's keywords.

    Raises:
        NotYet: an option value that is designed but not built yet.
        ArgumentError: an unknown option, or a value that no version accepts.
    """
    known = {"name", "static", *_CHOICES}
    unknown = sorted(set(keywords) - known)
    if unknown:
        raise ArgumentError(
            f"compile() has no option {unknown[0]!r}", fix=f"the options are {sorted(known)}"
        )
    for option, (now, later) in _CHOICES.items():
        value = keywords.get(option, now[0])
        if value in later:
            raise NotYet(f"{option}={value!r} is not built yet", fix=f"use {option}={now[0]!r}")
        if value not in now:
            raise ArgumentError(f"{option}: expected one of {[*now, *later]}, got {value!r}")
    return Options(
        _name(keywords.get("name")),
        _static(keywords.get("static", ())),
        keywords.get("opt_level", 2),
        keywords.get("errstate", MODES[0]),
    )


def _name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"name: expected a str, got {name!r}")
    return name


def _static(static: Any) -> tuple[str, ...]:
    if isinstance(static, str):
        return (static,)
    names = cast("Sequence[object]", static) if isinstance(static, (tuple, list)) else (None,)
    texts = tuple(n for n in names if isinstance(n, str))
    if len(texts) != len(names):
        raise ArgumentError(f"static: expected the names of parameters, got {static!r}")
    return texts
