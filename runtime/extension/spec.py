"""What a user asks to be built: in go the arguments of `ok.load`, out comes one checked value.

A plain string of flags is split as a shell would; what an item of a sequence means is said at
`CompileOptions.of`. No list of a caller is changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from opkiln.ops.record import record
from opkiln.runtime.errors import ArgumentError, ExtensionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opkiln.runtime.toolchains import CompileOptions

CPP = (".cpp", ".cc", ".cxx", ".c++", ".C")
CUDA = (".cu", ".cuh")


@record
class Spec:
    """One extension."""

    name: str
    sources: tuple[str, ...]  # absolute paths
    inline: tuple[tuple[str, str], ...]  # name of the file to be written, text
    functions: tuple[str, ...]
    options: CompileOptions
    with_cuda: bool

    @property
    def files(self) -> tuple[str, ...]:
        """All sources, for a message."""
        return (*self.sources, *(name for name, _ in self.inline))


def named(name: object) -> str:
    """Check the name of an extension."""
    if not isinstance(name, str):
        raise ArgumentError(f"name: expected a string, got {type(name).__name__}")
    if not name.strip():
        raise ExtensionError("name: expected some letters, got an empty string")
    return name


def flags(argument: str, value: object) -> object:
    """Arguments of a command line: a string as a list, anything else as it is."""
    if not isinstance(value, str):
        return value
    import shlex

    try:
        return shlex.split(value)
    except ValueError as error:
        raise ExtensionError(
            f"{argument}: expected a string that a shell can split, got {value!r} ({error})",
            fix="close the quotation, or pass a list with one argument each",
        ) from None


def paths(argument: str, value: object) -> tuple[str, ...]:
    """Absolute paths from one path or a sequence of them; a string is one path, never split."""
    if value is None:
        return ()
    if isinstance(value, (str, os.PathLike)):
        return (_path(argument, cast("object", value)),)
    items = _items(argument, value, "a path or a sequence of paths")
    return tuple(_path(argument, item) for item in items)


def _path(argument: str, item: object) -> str:
    if not isinstance(item, (str, os.PathLike)):
        raise ArgumentError(f"{argument}: expected paths, got {type(item).__name__} {item!r}")
    text = os.fspath(cast("str | os.PathLike[str]", item))
    if not text or "\0" in text:
        raise ExtensionError(f"{argument}: expected a path, got {text!r}")
    return os.path.abspath(os.fsdecode(text))


def _items(argument: str, value: object, expected: str) -> tuple[object, ...]:
    if not _is_sequence(value):
        raise ArgumentError(f"{argument}: expected {expected}, got {type(value).__name__}")
    return tuple(cast("Iterable[object]", value))


def _is_sequence(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (bytes, dict))


def sources(value: object, with_cuda: bool | None) -> tuple[tuple[str, ...], bool]:
    """The files to compile, and whether CUDA is needed."""
    found = paths("sources", value)
    if not found:
        raise ExtensionError("sources: expected at least one file, got none")
    repeated = sorted({path for path in found if found.count(path) > 1})
    if repeated:
        raise ExtensionError(f"sources: expected each file once, got {repeated[0]!r} twice")
    for path in found:
        suffix = os.path.splitext(path)[1]
        if suffix not in CPP + CUDA:
            raise ExtensionError(
                f"sources: expected names that end in one of {' '.join(CPP + CUDA)}, got {path!r}"
            )
        if not os.path.isfile(path):
            what = "is a directory" if os.path.isdir(path) else "does not exist"
            raise ExtensionError(f"sources: {path!r} {what}", fix="check the path")
    return found, cuda_wanted(with_cuda, found)


def cuda_wanted(with_cuda: object, files: Sequence[str]) -> bool:
    """Whether CUDA is needed: told, or as the names of the files say."""
    if with_cuda is not None and not isinstance(with_cuda, bool):
        raise ArgumentError(f"with_cuda: expected True, False or None, got {with_cuda!r}")
    device = [path for path in files if path.endswith(CUDA)]
    if device and with_cuda is False:
        raise ExtensionError(
            f"with_cuda: {device[0]!r} is a CUDA source, which a C++ compiler would ignore",
            fix="leave with_cuda out, or take the file out of sources",
        )
    return bool(device) if with_cuda is None else with_cuda


def texts(argument: str, value: object) -> tuple[str, ...]:
    """Source texts from one string or a sequence of them."""
    if value is None:
        return ()
    items = (value,) if isinstance(value, str) else _items(argument, value, "source text")
    for item in items:
        if not isinstance(item, str):
            raise ArgumentError(f"{argument}: expected source text, got {type(item).__name__}")
    return cast("tuple[str, ...]", items)


def functions(value: object) -> tuple[str, ...]:
    """C declarations, each with its semicolon."""
    items: object = (value,) if isinstance(value, str) else value
    if value is None:
        items = ()
    if not _is_sequence(items):
        raise _bad_functions(value)
    found: list[str] = []
    for item in cast("Iterable[object]", items):
        if not isinstance(item, str):
            raise _bad_functions(item)
        text = item.strip()
        if text:
            found.append(text if text.endswith((";", "}")) else f"{text};")
    return tuple(found)


def _bad_functions(value: object) -> ExtensionError:
    return ExtensionError(
        f"functions: expected C declarations as strings, got {type(value).__name__} {value!r}",
        fix='write functions=["int answer(void)"]',
    )
