"""Linker options in one form: in go what users write for any driver, out come a driver's words.

Users write `-Wl,a,b`, `-Xlinker a` or a bare linker option, of which each driver takes only some:
nvcc refuses -Wl, a C++ driver a bare -rpath. Here a token is either for the driver (-L, -l, a file)
or for the linker, and each driver is handed the tokens in the order given, each once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opkiln.runtime.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Options that only a linker knows; those that take a word after them come first.
_LINKER_PAIRS = frozenset(["-rpath", "--rpath", "-rpath-link", "--rpath-link", "-soname"])
_LINKER_ONLY = frozenset(
    [
        *("--as-needed", "--no-as-needed", "--whole-archive", "--no-whole-archive"),
        *("--start-group", "--end-group", "--no-undefined", "--allow-shlib-undefined"),
        *("-Bsymbolic", "-Bstatic", "-Bdynamic", "--gc-sections", "--enable-new-dtags"),
        *("--disable-new-dtags",),
    ]
)
# Of these the driver, too, takes the value as the next word.
_DRIVER_PAIRS = frozenset(["-L", "-l", "-z", "-u", "-T", "-framework", "-arch"])


class Token(NamedTuple):
    """One word of a link command."""

    text: str
    linker: bool  # whether the linker, not the driver, is to read it


def tokens(words: Iterable[str]) -> tuple[Token, ...]:
    """The tokens of link options in the order given."""
    return tuple(_tokens(iter(words)))


def _tokens(rest: Iterator[str]) -> Iterator[Token]:
    for word in rest:
        if word.startswith("-Wl,"):
            yield from (Token(text, linker=True) for text in word[4:].split(",") if text)
        elif word == "-Xlinker":
            yield Token(_next(rest, word), linker=True)
        elif word in _LINKER_PAIRS:
            yield Token(word, linker=True)
            yield Token(_next(rest, word), linker=True)
        elif word in _LINKER_ONLY or word.partition("=")[0] in _LINKER_PAIRS:
            yield Token(word, linker=True)
        elif word in ("-L", "-l"):
            yield Token(word + _next(rest, word), linker=False)
        elif word in _DRIVER_PAIRS:
            yield Token(word, linker=False)
            yield Token(_next(rest, word), linker=False)
        else:
            yield Token(word, linker=False)


def _next(rest: Iterator[str], option: str) -> str:
    value = next(rest, None)
    if value is None:
        raise ArgumentError(
            f"link options: expected a value after {option!r}, got the end of the list",
            fix=f"write the value as the item after {option!r}",
        )
    return value


def of_driver(found: Iterable[Token]) -> list[str]:
    """The words for GCC or Clang; -Xlinker and not -Wl, because a token may hold a comma."""
    return [word for text, linker in found for word in (("-Xlinker", text) if linker else (text,))]


def of_nvcc(found: Iterable[Token]) -> list[str]:
    """The words for nvcc, which reads -L, -l and files itself and hands on what it is told to.

    It splits at commas and pastes what it hands on into a shell, so some tokens cannot be said.
    """
    words: list[str] = []
    for text, linker in found:
        if any(mark in text for mark in ", \t'\"$`\\"):
            raise ArgumentError(
                f"extra_ldflags: nvcc, which links device code here, cannot hand on {text!r}",
                fix="use paths without blanks, commas, quotes, dollars and backslashes",
            )
        own = not text.startswith("-") or text.startswith(("-L", "-l"))
        words += ["-Xlinker", text] if linker else [text] if own else ["-Xcompiler", text]
    return words
