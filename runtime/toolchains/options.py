"""Options of a build of the user's sources: in goes what was written, out comes a frozen value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from opkiln.runtime.errors import ArgumentError
from opkiln.runtime.toolchains.tokens import Token, tokens

# Options whose value people write after a blank, in one item.
_WITH_VALUE = (
    *("-I", "-L", "-l", "-D", "-U", "-isystem", "-iquote", "-idirafter", "-include"),
    *("-Xlinker", "-Xcompiler", "-Xptxas", "-Xclang", "-framework", "-rpath", "-gencode", "-arch"),
)


class CompileOptions(NamedTuple):
    """What a user may say about a build; `of` makes one from any lists.

    A backend raises ArgumentError for an option that it cannot follow. A build with sources of both
    kinds hands `for_cpp` and `for_cuda` to its two backends.
    """

    cflags: tuple[str, ...] = ()  # of the C++ compiler
    cuda_cflags: tuple[str, ...] = ()  # of nvcc
    ldflags: tuple[Token, ...] = ()
    include_paths: tuple[str, ...] = ()  # absolute, in the order of the search
    archs: tuple[str, ...] = ()  # of CUDA devices, as `archs.resolve` gives them
    std: str | None = None  # such as "c++20"; None: what the flags say, else c++17

    @staticmethod
    def of(
        *,
        cflags: object = (),
        cuda_cflags: object = (),
        ldflags: object = (),
        include_paths: object = (),
        archs: Iterable[str] = (),
        std: str | None = None,
    ) -> CompileOptions:
        """Take lists of texts (None is an empty one); blanks and line breaks around are dropped.

        One item is one argument, blanks included, except where that cannot be meant: line breaks
        separate arguments, and so do blanks before words that all begin with "-".
        """
        paths = _texts("extra_include_paths", include_paths)
        return CompileOptions(
            tuple(_flags("extra_cflags", cflags)),
            tuple(_flags("extra_cuda_cflags", cuda_cflags)),
            tokens(_flags("extra_ldflags", ldflags)),
            tuple(os.path.abspath(path.strip()) for path in paths if path.strip()),
            tuple(archs),
            std,
        )

    def for_cpp(self) -> CompileOptions:
        """What concerns the C++ sources of a build that has CUDA sources, too."""
        return self._replace(cuda_cflags=(), archs=())

    def for_cuda(self) -> CompileOptions:
        """What concerns the CUDA sources of a build that has C++ sources, too."""
        return self._replace(cflags=())


def standard(options: CompileOptions, flags: Iterable[str]) -> tuple[str, ...]:
    """The option of the language standard, () where the user's flags name one."""
    if options.std is not None:
        return (f"-std={options.std}",)
    named = any(flag.startswith(("-std=", "--std", "-ansi", "/std:")) for flag in flags)
    return () if named else ("-std=c++17",)


def _texts(name: str, value: object) -> list[str]:
    if value is None:
        return []
    items = list(cast("Sequence[object]", value)) if isinstance(value, (list, tuple)) else None
    if items is None or not all(isinstance(item, (str, os.PathLike)) for item in items):
        raise ArgumentError(
            f"{name}: expected a list of texts, got {value!r}",
            fix="write a list, for example ['-O3', '-DSIZE=8']",
        )
    return [os.fspath(cast("str | os.PathLike[str]", item)) for item in items]


def _flags(name: str, value: object) -> list[str]:
    lines = [line.strip() for item in _texts(name, value) for line in item.splitlines()]
    return [word for line in lines if line for word in _arguments(line)]


def _arguments(line: str) -> list[str]:
    words = line.split()
    quoted = any(mark in line for mark in "'\"\\")
    if len(words) > 1 and words[0] in _WITH_VALUE:
        return [words[0], line[len(words[0]) :].strip()]
    if not quoted and all(word.startswith("-") for word in words):
        return words
    return [line]
