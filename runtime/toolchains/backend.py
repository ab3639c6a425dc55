"""What a compiler is to the loader: in go sources and options, out come commands and key parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from opkiln.runtime.errors import ArgumentError, CompileFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opkiln.runtime.toolchains.options import CompileOptions

Parts = list[tuple[str, str | tuple[str, ...]]]


class CompilerBackend(ABC):
    """One compiler that turns the user's sources into a shared library."""

    suffixes: ClassVar[tuple[str, ...]]  # of the sources that it compiles
    platform_name: ClassVar[str]

    @abstractmethod
    def compile_command(
        self, source: str, obj: str, depfile: str, options: CompileOptions
    ) -> list[str]:
        """The command from one source to one object, which also writes the depfile."""

    @abstractmethod
    def link_command(
        self, objects: Sequence[str], library: str, options: CompileOptions
    ) -> list[str]:
        """The command from objects to a shared library."""

    @abstractmethod
    def parts(self, options: CompileOptions) -> Parts:
        """Key parts: who the compiler is, not where it lies, and all that it is told."""

    @abstractmethod
    def features(self, options: CompileOptions) -> tuple[str, ...]:
        """What a CPU must have to run the result, in the names of the compiler's macros."""

    def owns(self, header: str) -> bool:
        """Whether a header of a depfile belongs to the compiler, whose identity covers it."""
        return False

    def failure(
        self, stage: str, command: Sequence[str] | str, code: int, output: str, log: str
    ) -> CompileFailed:
        """The error of a command that failed; `stage` is "compile" or "link"."""
        from pathlib import Path

        from opkiln.runtime.jit import report  # here: its patterns cost a millisecond

        text = command if isinstance(command, str) else report.shell(command)
        return CompileFailed(
            f"{self.platform_name}: the {stage} step failed (exit code {code})\n"
            f"  command: {text}\n  log: {log}\n{report.shown(output)}",
            fix="mend the first error above; the log has the whole output",
            command=text,
            stage=stage,
            exit_code=code,
            output=output,
            log_path=Path(log),
        )


def refuse(options: CompileOptions, names: Sequence[str], backend: str, fix: str) -> None:
    """Raise ArgumentError if one of the options, which the backend does not take, is given."""
    for name in names:
        value = getattr(options, name)
        if value:
            raise ArgumentError(f"extra_{name}: {backend} takes none, got {list(value)!r}", fix=fix)
