"""Pages of documentation: Markdown in; its fences, links, headings and code spans out.

Python fences of a page run in order, in one namespace, as if pasted into `<page>.py`. A fence of
another language right below one is what it prints: it is compared (`...` stands for anything), and
`pytest --update-golden` writes it. A Python fence that raises prints the error. An HTML comment in
the line above a fence says what is special:

    <!-- not run: why -->         it does not run
    <!-- from ops/table.py -->    it does not run; the file has these very lines
    <!-- on COMPILER, TARGET -->  output that differs by machine: compared on that one only
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import opkiln as ok
from opkiln.runtime import jit

ROOT = Path(__file__).resolve().parent.parent
PEERS = {"jax", "torch"}  # shown in pages, and no dependencies of the tests
_FENCE = re.compile(r"^( *)(```+|~~~+) *(\w*)")
_COMMENT = re.compile(r"^ *<!-- (.*) -->$")


@dataclass(frozen=True)
class Fence:
    """A block of code; `line` is that of its first line, from 1."""

    language: str
    body: str
    line: int
    comment: str  # of the line above, without its marks

    @property
    def end(self) -> int:
        return self.line + self.body.count("\n")


@dataclass(frozen=True)
class Page:
    """One Markdown file of the repository."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path, path.read_text(encoding="utf-8"))

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"

    @cached_property
    def fences(self) -> tuple[Fence, ...]:
        return tuple(_fences(self.text.splitlines()))

    @cached_property
    def prose(self) -> str:
        """The text with fences and comments blank, so that line numbers hold."""
        lines = self.text.splitlines()
        for fence in self.fences:
            for i in range(fence.line - 2, fence.end):
                lines[i] = ""
        return re.sub(
            r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), "\n".join(lines), flags=re.S
        )

    @cached_property
    def code(self) -> list[tuple[int, str]]:
        """(line, text) of each code span."""
        return [(n, m) for n, line in _numbered(self.prose) for m in re.findall(r"`([^`]+)`", line)]

    @cached_property
    def links(self) -> list[tuple[int, str]]:
        """(line, target) of each link and picture."""
        found = re.compile(r"\]\(<?([^()\s>]+)>?(?: \"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
        text = re.sub(r"`[^`\n]+`", "", self.prose)
        return [(n, m[1] or m[2]) for n, line in _numbered(text) for m in found.finditer(line)]

    @cached_property
    def anchors(self) -> list[str]:
        """The anchors of the headings, named as GitHub names them."""
        seen: dict[str, int] = {}
        out: list[str] = []
        for title in re.findall(r"^#{1,6} (.*)$", self.prose, flags=re.M):
            slug = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).strip().lower())
            slug = slug.replace(" ", "-")
            seen[slug] = seen.get(slug, -1) + 1
            out.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        return out


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), 1)


def _fences(lines: list[str]) -> Iterator[Fence]:
    i = 0
    while i < len(lines):
        start = _FENCE.match(lines[i])
        i += 1
        if start is None:
            continue
        indent, mark, language = start.groups()
        first = i
        while i < len(lines) and lines[i].strip() != mark:
            i += 1
        body = "".join(line.removeprefix(indent) + "\n" for line in lines[first:i])
        above = _COMMENT.match(lines[first - 2]) if first > 1 else None
        yield Fence(language, body, first + 1, above[1] if above else "")
        i += 1


# *** running ***


def machine() -> str:
    """The compiler and target whose output may differ from another's."""
    made_by = jit.compiler()
    return f"{made_by.version}, {made_by.target}, {made_by.digest[:8]}"


@dataclass(frozen=True)
class Step:
    """A Python fence of a page, what it must print (None: anything), what it printed and made."""

    fence: Fence
    shown: Fence | None
    printed: str
    names: dict[str, Any]


def runs(fence: Fence) -> bool:
    return fence.language == "python" and not fence.comment.startswith(("not run: ", "from "))


def output_of(page: Page, index: int) -> Fence | None:
    """The fence that shows what Python fence `index` prints: nothing stands between the two."""
    if index + 1 == len(page.fences):
        return None
    fence, following = page.fences[index : index + 2]
    between = page.text.splitlines()[fence.end : following.line - 2]
    plain = all(not line.strip() or _COMMENT.match(line) for line in between)
    return following if plain and following.language not in {"python", "sh", ""} else None


def run(page: Page) -> tuple[list[Step], str]:
    """Run the Python fences of a page in order; an error that the page does not show is raised.

    Where one imports a peer that is not installed, the page ends; its name is the second result.
    """
    name = f"{page.path.stem}.py"
    names: dict[str, Any] = {"__name__": page.path.stem}
    steps: list[Step] = []
    source = ""
    for index, fence in enumerate(page.fences):
        if not runs(fence):
            continue
        shown = output_of(page, index)
        offset = source.count("\n")
        source += fence.body
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        printed = io.StringIO()
        try:
            tree = ast.increment_lineno(ast.parse(fence.body, name), offset)
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, name, "exec"), names)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name in PEERS:
                return steps, str(error.name)
            # Only an error that the page shows is part of the page.
            name_shown = rf"^{type(error).__name__}\b"
            if shown is None or not re.search(name_shown, shown.body, re.M):
                raise AssertionError(f"{page.at(fence.line)}: {error!r}") from error
            printed.write(f"{type(error).__name__}: {error}\n")
        steps.append(Step(fence, shown, printed.getvalue().replace(str(Path.cwd()), "."), names))
    return steps, ""


def renewed(page: Page, steps: list[Step], *, update: bool) -> str:
    """The page's text with the outputs of this run, where they differ from what is shown."""
    lines = page.text.splitlines()
    same = doctest.OutputChecker().check_output
    for step in reversed(steps):
        shown = step.shown
        if shown is None or same(shown.body, step.printed, doctest.ELLIPSIS):
            continue
        if shown.comment.startswith("on "):
            if shown.comment[3:] != machine() and not update:
                continue
            lines[shown.line - 3] = f"<!-- on {machine()} -->"
        lines[shown.line - 1 : shown.end - 1] = step.printed.splitlines()
    return "\n".join(lines) + "\n"


# *** names ***


def resolve(text: str) -> bool:
    """Whether a code span that names something public, such as `ok.config.scope(...)`, is right."""
    value: object = ok
    for part in text.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            # Fields of a record without a default are annotations only.
            return part in getattr(value, "__match_args__", ())
    return True
