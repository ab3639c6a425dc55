"""The C++ compiler of the user's sources: the one of the kernels, with flags for code of people."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from opkiln.ops.record import record
from opkiln.runtime import jit
from opkiln.runtime.config import config
from opkiln.runtime.errors import ArgumentError, Probe, ToolchainNotFound
from opkiln.runtime.jit import toolchain
from opkiln.runtime.jit.toolchain import HOW_TO_INSTALL
from opkiln.runtime.toolchains.backend import CompilerBackend, Parts, refuse
from opkiln.runtime.toolchains.options import CompileOptions, standard
from opkiln.runtime.toolchains.tokens import of_driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opkiln.runtime.jit.toolchain import Compiler
    from opkiln.runtime.toolchains.abi import Abi

_COMPILE = ("-O2", "-fPIC")  # the user's flags come after them and win
# At the link step these switch denormals off for the whole process (GCC before 13).
_FAST_MATH = frozenset(["-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-mdaz-ftz"])
_ARCH = ("-m", "/arch:")  # how a flag begins that lets the code use more of the CPU


@record
class CppToolchain:
    """The C++ compiler in use, and how it was found."""

    compiler: Compiler
    probes: tuple[Probe, ...]


def find_cpp(cxx: str | None = None) -> CppToolchain:
    """The compiler that an argument names, else OPKILN_CXX, CXX, conda's, the first on PATH.

    It is asked once per machine, then read from the cache. Raises ToolchainNotFound, which lists
    every place and why it lost.
    """
    with config.scope(cxx=cxx) if cxx is not None else contextlib.nullcontext():
        compiler = jit.compiler()
        source = "argument" if cxx is not None else toolchain.source()
        probes: list[Probe] = []
        for request in toolchain.requests():
            if request.words == compiler.words:
                break
            why = "does not work" if request.program else "not found"
            probes.append(toolchain.lost(request, why))
    place = " ".join(compiler.words) or "(gone)"
    said = f"{compiler.version}, {compiler.target}"
    return CppToolchain(compiler, (*probes, Probe("C++", source, place, won=True, why=said)))


@record
class CppBackend(CompilerBackend):
    """GCC or Clang; on Windows clang-cl, untested."""

    suffixes = (".cpp", ".cc", ".cxx", ".c++")
    platform_name = "C++"
    compiler: Compiler

    @classmethod
    def find(cls, cxx: str | None = None) -> CppBackend:
        """The backend of the compiler in use, see `find_cpp`."""
        return cls(find_cpp(cxx).compiler)

    def compile_command(
        self, source: str, obj: str, depfile: str, options: CompileOptions
    ) -> list[str]:
        """See the base class."""
        self._check(options)
        std = standard(options, options.cflags)
        if sys.platform == "win32":  # untested
            std = tuple(flag.replace("-std=", "/std:") for flag in std)
            paths = [f"/I{path}" for path in options.include_paths]
            deps = ["/clang:-MD", f"/clang:-MF{depfile}"]
            words = ["/nologo", "/O2", "/EHsc", *std, *paths, *options.cflags, *deps]
            return [*self._words(), *words, "/c", source, f"/Fo{obj}"]
        paths = [word for path in options.include_paths for word in ("-I", path)]
        deps = ["-MD", "-MF", depfile]
        words = [*_COMPILE, *std, *paths, *options.cflags, *deps]
        return [*self._words(), *words, "-c", source, "-o", obj]

    def link_command(
        self, objects: Sequence[str], library: str, options: CompileOptions
    ) -> list[str]:
        """See the base class."""
        self._check(options)
        from opkiln.runtime.toolchains import abi

        abi.compare(self.abi(options))
        words = [word for word in self._words() if word not in _FAST_MATH]
        told = of_driver(options.ldflags)
        if sys.platform == "win32":  # untested
            return [*words, "/nologo", "/LD", *objects, f"/Fe{library}", "/link", *told]
        shared = ["-shared"]
        if sys.platform == "darwin":  # untested
            shared = ["-dynamiclib", "-undefined", "dynamic_lookup"]
        return [*words, *shared, *objects, "-o", library, *told]

    def parts(self, options: CompileOptions) -> Parts:
        """See the base class."""
        self._check(options)
        return [
            *self.compiler.parts(),
            ("cpp.flags", (*_COMPILE, *standard(options, options.cflags), *options.cflags)),
            ("cpp.include_paths", options.include_paths),
            ("cpp.link", tuple(of_driver(options.ldflags))),
            ("cpp.library", self.compiler.library),
        ]

    def features(self, options: CompileOptions) -> tuple[str, ...]:
        """See the base class."""
        flags = (*self.compiler.flags, *options.cflags)
        return self.compiler.features if _names_arch(flags) else ()

    def abi(self, options: CompileOptions) -> Abi:
        """The facts of the C++ library that sources with these options use."""
        from opkiln.runtime.toolchains import abi

        std = standard(options, options.cflags)
        return abi.of_compiler(self.compiler, options.cflags, std[0][5:] if std else "")

    def _words(self) -> tuple[str, ...]:
        if not self.compiler.words:
            raise ToolchainNotFound(
                f"the C++ compiler {self.compiler.version!r} is gone, and this is not in the cache",
                fix=HOW_TO_INSTALL,
            )
        return self.compiler.words

    def _check(self, options: CompileOptions) -> None:
        fix = "give the flag to a build that has a CUDA source (.cu), or remove it"
        refuse(options, ("cuda_cflags", "archs"), "a build of C++ sources only", fix)
        for token in options.ldflags:
            if token.text in _FAST_MATH:
                raise ArgumentError(
                    f"extra_ldflags: expected none that changes other code of the process, got "
                    f"{token.text!r}, which would switch denormal numbers off",
                    fix="give it to extra_cflags, which concerns these sources only",
                )


def _names_arch(flags: Iterable[str]) -> bool:
    return any(flag.startswith(_ARCH) for flag in flags)
