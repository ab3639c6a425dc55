"""`@record`: a class of annotated fields in, an immutable value class out.

Records are compared, hashed and matched by their fields. That is what a frozen dataclass gives, in
30 microseconds a class instead of 600: dataclasses print and compile source per class, and the
import of opkiln is on a budget.
"""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T", bound=type)


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    cls: type[Any] = self.__class__
    names: tuple[str, ...] = cls.__match_args__
    values = self.__dict__
    if len(args) > len(names):
        raise TypeError(f"{cls.__name__}() takes {len(names)} fields but {len(args)} were given")
    values.update(zip(names, args))  # noqa: B905  the shorter one decides
    for name in names[len(args) :]:
        if name in kwargs:
            values[name] = kwargs.pop(name)
        elif not hasattr(cls, name):
            raise TypeError(f"{cls.__name__}() misses the field {name!r}")
        else:
            values[name] = getattr(cls, name)
    if kwargs:
        raise TypeError(f"{cls.__name__}() has no field {next(iter(kwargs))!r}, or got it twice")


def _set(self: Any, name: str, value: Any) -> None:
    raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")


def _delete(self: Any, name: str) -> None:
    raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name!r}")


def _equal(self: Any, other: object) -> bool:
    return self is other or (type(self) is type(other) and fields_of(self) == fields_of(other))


def _hash(self: Any) -> int:
    return hash((type(self).__name__, fields_of(self)))


def _repr(self: Any) -> str:
    body = ", ".join(f"{n}={getattr(self, n)!r}" for n in self.__match_args__)
    return f"{type(self).__name__}({body})"


def fields_of(value: Any) -> tuple[Any, ...]:
    """The field values of a record, in declared order."""
    values = value.__dict__
    return tuple([values[name] for name in value.__match_args__])


_METHODS: dict[str, Any] = {
    "__init__": _init,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__eq__": _equal,
    "__repr__": _repr,
    "__hash__": _hash,
}


@dataclass_transform(frozen_default=True)
def record(cls: T) -> T:
    """Make the class a record; methods that the class defines itself are kept."""
    inherited: tuple[str, ...] = getattr(cls, "__match_args__", ())
    own = tuple(
        name
        for name, kind in cls.__annotations__.items()  # the class's own, never a base's
        if not str(kind).startswith("ClassVar")
    )
    members: dict[str, Any] = {
        name: method
        for name, method in _METHODS.items()
        # `__hash__` is None in a class that defines __eq__ alone.
        if cls.__dict__.get(name) is None
        and (name not in ("__eq__", "__hash__") or not _user_defined(cls, name))
    }
    members["__match_args__"] = inherited + tuple(n for n in own if n not in inherited)
    for name, member in members.items():
        setattr(cls, name, member)
    return cls


def _user_defined(cls: type, name: str) -> bool:
    """Whether a base class brings its own comparison, which subclasses must keep."""
    return getattr(cls, name) is not getattr(object, name) and getattr(cls, name) is not None
