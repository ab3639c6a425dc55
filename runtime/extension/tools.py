"""The compilers of one extension: in go its sources and options, out come commands and key parts.

C++ sources go to the C++ compiler, CUDA sources to nvcc; a flag that no source takes is an error.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opkiln.native import include_dir
from opkiln.ops.record import record
from opkiln.runtime.extension.spec import CUDA
from opkiln.runtime.toolchains.cpp import CppBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opkiln.runtime.extension.spec import Spec
    from opkiln.runtime.jit.toolchain import Compiler
    from opkiln.runtime.toolchains import CompileOptions, CompilerBackend
    from opkiln.runtime.toolchains.cuda import CudaBackend

    Parts = list[tuple[str, str | tuple[str, ...]]]

_SYSTEM = ("/usr/include/", "/usr/lib/", "/usr/lib64/", "/Library/Developer/", "/Applications/")
_BELOW = ("include/", "lib/", "lib64/", "sysroot/")


@record
class Tools:
    """The compilers, and what each is told."""

    cpp: CppBackend
    cuda: CudaBackend | None  # also where C++ sources are to find CUDA
    for_cpp: CompileOptions | None  # None: there is no such source
    for_cuda: CompileOptions | None

    @property
    def compiler(self) -> Compiler:
        """Who the C++ compiler is."""
        return self.cpp.compiler

    @property
    def archs(self) -> tuple[str, ...]:
        """The GPU architectures that CUDA sources are compiled for."""
        return self.for_cuda.archs if self.for_cuda else ()

    def parts(self) -> Parts:
        """Key parts: who the compilers are, and each group of options."""
        found: Parts = []
        if self.cuda and self.for_cuda:
            found += self.cuda.parts(self.for_cuda)
        elif self.cuda:
            found += self.cuda.toolchain.parts()
        if self.for_cpp:
            found += self.cpp.parts(self.for_cpp)
        return found

    def features(self) -> tuple[str, ...]:
        """What a CPU must have to run the result."""
        cpp = self.cpp.features(self.for_cpp) if self.for_cpp else ()
        cuda = self.cuda.features(self.for_cuda) if self.cuda and self.for_cuda else ()
        return tuple(dict.fromkeys((*cpp, *cuda)))

    def compile_command(self, source: str, obj: str, depfile: str) -> list[str]:
        """From one source to one object."""
        if source.endswith(CUDA):
            assert self.cuda
            assert self.for_cuda
            return self.cuda.compile_command(source, obj, depfile, _with_ours(self.for_cuda))
        assert self.for_cpp
        options = self.cuda.for_host(self.for_cpp) if self.cuda else self.for_cpp
        return self.cpp.compile_command(source, obj, depfile, _with_ours(options))

    def link_command(self, objects: Sequence[str], library: str) -> list[str]:
        """From objects to a shared library."""
        if self.cuda and self.for_cuda:
            return self.cuda.link_command(objects, library, self.for_cuda)
        assert self.for_cpp
        options = self.cuda.for_host(self.for_cpp) if self.cuda else self.for_cpp
        return self.cpp.link_command(objects, library, options)

    def backend(self, source: str | None) -> CompilerBackend:
        """Who compiles a source; None: who links."""
        device = self.for_cuda is not None if source is None else source.endswith(CUDA)
        return self.cuda if device and self.cuda else self.cpp

    def of_user(self, headers: Iterable[str], search: Sequence[str]) -> set[str]:
        """Those of the headers that belong to the user, not to a compiler or the system.

        What lies in a directory that the user named is the user's.
        """
        named = tuple(f"{folder}/" for folder in search)
        program = os.path.realpath(self.compiler.words[0])
        root = os.path.dirname(os.path.dirname(program))
        below = () if root == "/usr" else tuple(f"{root}/{part}" for part in _BELOW)
        system = (*_SYSTEM, *below)
        backends = (self.cpp, self.cuda) if self.cuda else (self.cpp,)
        return {
            header
            for header in headers
            if header.startswith(named)
            or not (header.startswith(system) or any(b.owns(header) for b in backends))
        }


def pick(spec: Spec, compiler: Compiler) -> Tools:
    """The compilers that the sources need; CUDA is looked for only where it is wanted.

    Raises:
        ToolchainNotFound: CUDA is wanted and nowhere.
        UnsupportedArch, ArgumentError: see `archs.resolve` and the backends.
    """
    cpp, options = CppBackend(compiler), spec.options
    if not spec.with_cuda:
        return Tools(cpp, None, options, None)
    from opkiln.runtime.toolchains import archs
    from opkiln.runtime.toolchains.cuda import CudaBackend

    cuda = CudaBackend.find(cpp)
    device = [name for name in spec.files if name.endswith(CUDA)]
    if not device:
        return Tools(cpp, cuda, options, None)
    wanted = options._replace(archs=archs.resolve(None, cuda.toolchain.known))
    if len(device) == len(spec.files):
        return Tools(cpp, cuda, None, wanted)
    return Tools(cpp, cuda, wanted.for_cpp(), wanted.for_cuda())


def _with_ours(options: CompileOptions) -> CompileOptions:
    """Where `opkiln/op.h` is found; no part of the key, since its content is."""
    return options._replace(include_paths=(*options.include_paths, include_dir()))
