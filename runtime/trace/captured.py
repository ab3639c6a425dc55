"""Captured arrays: where a function finds them, as the user writes it, and whether it still does.

Nothing here runs the user's code: attributes are read from the dictionaries of objects.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from opkiln.native import Compiled
from opkiln.runtime.trace.session import Place, place_text

_FUNCTIONS = 16  # that are looked through, of those that the traced function may call
_LEVELS = 2  # below a variable: model.w, model.layer.w, model.layers[0]
_ITEMS = 256  # of a container
_TRIES = 4096  # for one trace
_CONTAINERS: frozenset[type] = frozenset([dict, list, tuple])
_KEYS: frozenset[type] = frozenset([str, int])  # that a name can show
_MISSING: Any = object()


def _is(value: Any, *kinds: type) -> bool:
    """As isinstance, which would ask the value's __class__."""
    return issubclass(type(value), kinds)


class Captured:
    """One captured array: its name, and a look at what has that name now. It holds neither."""

    __slots__ = ("_look", "_place", "_was", "name")

    def __init__(
        self, name: str, owner: Any, place: Place | None, look: Callable[[], Any] | None
    ) -> None:
        self.name = name  # such as self.scale; "" where none was found
        self._look = look
        self._place = place
        self._was = _weak(owner)

    @property
    def place(self) -> str:
        """The user's line that took it."""
        return place_text(self._place)

    @property
    def rebound(self) -> bool:
        """Whether the name has come to mean another object."""
        if self._look is None or self._was is None:
            return False
        now = self._look()
        return now is not _MISSING and now is not self._was()


def _weak(value: Any) -> Callable[[], Any] | None:
    """A weak reference, or None where there can be none."""
    try:
        return weakref.ref(value)
    except TypeError:
        return None


Look = Callable[[], Any]  # gives _MISSING where the name has gone
Found = tuple[str, Any, Look | None]


def find(
    fn: Any, arguments: Iterable[tuple[str, Any]], owners: Iterable[tuple[Any, Place | None]]
) -> tuple[Captured, ...]:
    """Name the captured objects.

    They are looked for in the closures and globals of the function and of those that it calls, in
    the static arguments, and below: attributes that the code names, items of containers.
    """
    wanted = {id(owner): (owner, place) for owner, place in owners}
    bases = {id(base): key for key, (o, _) in wanted.items() if _is(base := _base(o), np.ndarray)}
    names: dict[int, Captured] = {}
    for name, value, look in islice(_candidates(fn, arguments), _TRIES) if wanted else ():
        at = id(value)
        if at in wanted:
            names[at] = names.get(at) or Captured(name, value, wanted[at][1], look)
        elif at in bases:
            view, place = bases[at], wanted[bases[at]][1]
            names[view] = names.get(view) or Captured(f"view of {name}", value, place, look)
        if len(names) == len(wanted):
            break
    return tuple(
        names.get(key) or Captured("", owner, place, None) for key, (owner, place) in wanted.items()
    )


def _base(owner: Any) -> Any:
    """The array that a view looks into."""
    return owner.base if _is(owner, np.ndarray) else None


def _candidates(fn: Any, arguments: Iterable[tuple[str, Any]]) -> Iterator[Found]:
    """What the captured objects may be, the nearest first."""
    given: list[Found] = [(name, value, _constant(value)) for name, value in arguments]
    receiver = fn.__self__ if type(fn) is MethodType else fn
    start = _plain(fn) or _plain(_attribute(fn, "__call__"))
    functions = [] if start is None else [start]
    if start is not None and start is not fn and start.__code__.co_argcount:
        given.append((start.__code__.co_varnames[0], receiver, _constant(receiver)))
    seen = set(map(id, functions))
    below: list[tuple[Found, tuple[str, ...]]] = []
    for function in functions:  # grows
        names = tuple(dict.fromkeys(_names(function.__code__)))
        variables = list(_variables(function, names))
        below += [(root, names) for root in [*given, *variables]]
        yield from variables
        held = [value for _, value, _ in [*given, *variables] if not _is_opaque(value)]
        held += [_attribute(value, name) for value in held for name in names]
        for other in map(_plain, held):
            if other is not None and id(other) not in seen and len(functions) < _FUNCTIONS:
                seen.add(id(other))
                functions.append(other)
    yield from given
    for _ in range(_LEVELS):
        above, below = below, []
        for root, names in above:
            for found in _below(*root, names):
                yield found
                below.append((found, names))


def _is_opaque(value: Any) -> bool:
    """Whether no arrays of the user's lie below: a number, an array, a module of ours or NumPy."""
    if not _is(value, ModuleType):
        return value is None or _is(value, np.ndarray, np.generic, int, float, str, bytes)
    return str(_attribute(value, "__name__")).partition(".")[0] in ("numpy", "opkiln")


def _plain(value: Any) -> FunctionType | None:
    """The Python function in a callable: a compiled one, a method, a partial."""
    for _ in range(_WRAPPERS):
        kind: Any = cast("Any", type(value))
        inner = _INNER.get(kind)
        if inner is None:
            break
        value = getattr(value, inner)
    return value if type(value) is FunctionType else None


_WRAPPERS = 8  # around one function
_INNER: dict[type, str] = {Compiled: "__wrapped__", MethodType: "__func__", partial: "func"}


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in a code object and those inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if _is(constant, CodeType):
            yield from _names(constant)


def _variables(function: FunctionType, names: Iterable[str]) -> Iterator[Found]:
    """What a function finds outside: its closure and the globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        value = _cell(cell)
        if value is not _MISSING:
            yield name, value, partial(_cell, cell)
    space = weakref.ref(function)
    for name in names:
        value = function.__globals__.get(name, _MISSING)
        if value is not _MISSING:
            yield name, value, partial(_global, space, name)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _MISSING


def _global(space: Callable[[], FunctionType | None], name: str) -> Any:
    function = space()
    return _MISSING if function is None else function.__globals__.get(name, _MISSING)


def _constant(value: Any) -> Look | None:
    held = _weak(value)
    return None if held is None else lambda: _alive(held())


def _alive(value: Any) -> Any:
    return _MISSING if value is None else value


def _below(name: str, value: Any, look: Look | None, attributes: Iterable[str]) -> Iterator[Found]:
    """One level below a value: items of a container, attributes of anything else."""
    if _is_opaque(value):
        return
    if type(value) in _CONTAINERS:
        for key in _keys(value)[:_ITEMS]:
            if type(key) in _KEYS:
                found = _item(value, key)
                yield f"{name}[{key!r}]", found, _step(look, _item, key)
        return
    for key in attributes:
        found = _attribute(value, key)
        if found is not _MISSING:
            yield f"{name}.{key}", found, _step(look, _attribute, key)


def _step(look: Look | None, take: Callable[[Any, Any], Any], key: Any) -> Look | None:
    if look is None:
        return None

    def then() -> Any:
        value = look()
        return _MISSING if value is _MISSING else take(value, key)

    return then


def _keys(container: Any) -> list[Any]:
    by_name = _is(container, dict)
    return list(container if by_name else range(len(container)))


def _item(value: Any, key: Any) -> Any:
    try:
        return value[key] if type(value) in _CONTAINERS else _MISSING
    except LookupError:
        return _MISSING


def _attribute(value: Any, name: str) -> Any:
    """An attribute, without any code of the user's: from the instance, a slot, or the class."""
    kind = cast("type", value if _is(value, type) else type(value))
    own: Any = _MISSING
    for base in type.__getattribute__(kind, "__mro__"):
        own = type.__getattribute__(base, "__dict__").get(name, _MISSING)
        if own is not _MISSING:
            break
    if kind is value:
        return own
    try:
        if type(own) is MemberDescriptorType:
            return own.__get__(value)
        held: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:  # an empty slot; an object without a dictionary
        return _MISSING if type(own) is MemberDescriptorType else own
    return held.get(name, own)
