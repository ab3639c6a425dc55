"""CUDA sources: nvcc compiles them, the C++ driver links them; commands, key parts, failures."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from opkiln.runtime.config import config
from opkiln.runtime.errors import (
    ArgumentError,
    CompileFailed,
    HostCompilerIncompatible,
    ToolchainNotFound,
    UnsupportedArch,
)
from opkiln.runtime.toolchains.archs import gencode
from opkiln.runtime.toolchains.backend import CompilerBackend, Parts, refuse
from opkiln.runtime.toolchains.cpp import CppBackend
from opkiln.runtime.toolchains.cudnn import Cudnn, find_cudnn
from opkiln.runtime.toolchains.options import CompileOptions, standard
from opkiln.runtime.toolchains.tokens import Token, of_driver, of_nvcc, tokens
from opkiln.runtime.toolchains.toolkit import HOW_TO_INSTALL, CudaToolchain, find_cuda

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_COMPILE = ("-O2",)  # of the host's half; ptxas optimises the device's in any case
_HOST = () if sys.platform == "win32" else ("-Xcompiler", "-fPIC")
_ALLOW = "-allow-unsupported-compiler"
# nvcc's own refusal, and no other text that says "unsupported".
_INCOMPATIBLE = re.compile(r"\bhost_config\.h\b.*\berror\b.*-- unsupported (.*?version)!([^!]*)")
_ARCH_REFUSED = re.compile(r"^nvcc fatal\s*: (Unsupported gpu architecture '[^']*')", re.MULTILINE)
_RELOCATABLE = re.compile(r"-dc|--device-c|-?-r(?:elocatable-)?d(?:evice-)?c(?:ode)?=true")
_CUDART = re.compile(r"-?-cudart(?:=(\w+))?")
_ODD = "\"'$`\\"  # nvcc pastes paths into a shell


@dataclass(frozen=True)
class CudaBackend(CompilerBackend):
    """nvcc of one toolkit, with the C++ compiler of `host` for the other half and the link."""

    suffixes = (".cu", ".cuh")
    platform_name = "CUDA"
    toolchain: CudaToolchain
    host: CppBackend

    @classmethod
    def find(cls, host: CppBackend | None = None, home: str | None = None) -> CudaBackend:
        """The backend of the toolkit in use; raise ToolchainNotFound if there is none."""
        return cls(find_cuda(home), host or CppBackend.find())

    # ---- commands ----

    def compile_command(
        self, source: str, obj: str, depfile: str, options: CompileOptions
    ) -> list[str]:
        """See the base class."""
        self._check(options)
        for path in (source, obj, depfile, *options.include_paths):
            _refuse_odd(path, _ODD + "," * (path in options.include_paths))
        include_paths = [*self.toolchain.include_paths, *options.include_paths]
        if _asks_for_cudnn(options):
            include_paths.append(self.cudnn.include_path)
        return [
            *self._words(),
            *gencode(options.archs),
            *self._told(options),
            *(word for path in include_paths for word in ("-I", path)),
            *options.cuda_cflags,
            *("-MD", "-MF", depfile, "-MT", _of_make(obj)),
            *("-x", "cu", "-c", source, "-o", obj),
        ]

    def link_command(
        self, objects: Sequence[str], library: str, options: CompileOptions
    ) -> list[str]:
        """See the base class; nvcc links only where device code has to be linked as well."""
        self._check(options)
        if not any(_RELOCATABLE.fullmatch(flag) for flag in options.cuda_cflags):
            return self.host.link_command(objects, library, self.for_host(options))
        for path in (*objects, library):
            _refuse_odd(path, _ODD)
        told = of_nvcc(self._linked(options, driver=False))
        words = [*self._words(), *gencode(options.archs), *_HOST, *self._cudart_words(options)]
        return [*words, "-shared", *objects, "-o", library, *told]

    def for_host(self, options: CompileOptions) -> CompileOptions:
        """The options of C++ sources that use CUDA, and of the link by the C++ driver."""
        paths = (*options.include_paths, self.toolchain.headers, *self.toolchain.include_paths)
        if _asks_for_cudnn(options):
            paths = (*paths, self.cudnn.include_path)
        return options.for_cpp()._replace(
            include_paths=tuple(dict.fromkeys(paths)),
            ldflags=self._linked(options, driver=True),
        )

    @cached_property
    def cudnn(self) -> Cudnn:
        """CuDNN, which is looked for where link options ask for it."""
        return find_cudnn(toolkit=self.toolchain.root)

    def _words(self) -> list[str]:
        if not self.toolchain.nvcc:
            lines = "".join(f"\n  tried {probe}" for probe in self.toolchain.probes)
            raise ToolchainNotFound(
                f"nvcc {self.toolchain.version} is gone, and this is not in the cache{lines}",
                fix=HOW_TO_INSTALL,
                probes=self.toolchain.probes,
            )
        compiler = self.host.compiler
        passed = [word for flag in compiler.flags for word in ("-Xcompiler", flag)]
        return [self.toolchain.nvcc, "-ccbin", compiler.program, *passed]

    def _told(self, options: CompileOptions) -> list[str]:
        allow = [_ALLOW] if config.cuda_allow_unsupported else []
        return [*_COMPILE, *_HOST, *standard(options, options.cuda_cflags), *allow]

    def _linked(self, options: CompileOptions, *, driver: bool) -> tuple[Token, ...]:
        """The user's tokens; where CUDA's libraries are, for linker and loader; its runtime."""
        folders = list(self.toolchain.library_paths)
        if _asks_for_cudnn(options):
            folders.append(self.cudnn.library_path)
        words = [f"-L{folder}" for folder in folders]
        if sys.platform != "win32":
            # As RPATH, which holds for the libraries of these libraries, too; RUNPATH does not.
            words += ["-Wl,--disable-new-dtags"]
            words += [w for folder in folders for w in ("-Xlinker", "-rpath", "-Xlinker", folder)]
        if driver:
            words += self._cudart(_cudart_choice(options.cuda_cflags))
        return (*self._exact(options.ldflags), *tokens(words))

    def _cudart(self, choice: str) -> list[str]:
        if choice == "none":
            return []
        if choice == "static" and self._file("libcudart_static.a"):
            return ["-lcudart_static", "-lrt", "-lpthread", "-ldl"]
        return [self._named("cudart")]

    def _cudart_words(self, options: CompileOptions) -> list[str]:
        return ["-cudart", _cudart_choice(options.cuda_cflags)]

    def _exact(self, found: Iterable[Token]) -> tuple[Token, ...]:
        """Wheels have libcublas.so.13 without the link libcublas.so that -lcublas looks for."""
        return tuple(
            Token(self._named(text[2:]), linker=False)
            if text.startswith("-l") and not text.startswith("-l:") and not linker
            else Token(text, linker)
            for text, linker in found
        )

    def _named(self, name: str) -> str:
        if not any(self._file(f"lib{name}{end}") for end in (".so", ".a")):
            for folder in self._folders():
                pattern = re.compile(rf"lib{re.escape(name)}\.so\.\d+")
                exact = sorted(filter(pattern.fullmatch, _listed(folder)), key=len)
                if exact:
                    return f"-l:{exact[-1]}"
        return f"-l{name}"

    def _file(self, name: str) -> bool:
        return any(os.path.exists(f"{folder}/{name}") for folder in self._folders())

    def _folders(self) -> tuple[str, ...]:
        known = self.__dict__.get("cudnn")
        return (*self.toolchain.library_paths, *((known.library_path,) if known else ()))

    # ---- what the loader asks ----

    def parts(self, options: CompileOptions) -> Parts:
        """See the base class; the host compiler is a part, the architectures are, all flags are."""
        self._check(options)
        host = self.host.parts(CompileOptions())
        return [
            *self.toolchain.parts(),
            ("cuda.archs", options.archs),
            ("cuda.flags", (*self._told(options), *options.cuda_cflags)),
            ("cuda.include_paths", options.include_paths),
            ("cuda.link", tuple(of_driver(options.ldflags))),
            *((f"cuda.host.{name}", value) for name, value in host),
        ]

    def features(self, options: CompileOptions) -> tuple[str, ...]:
        """See the base class."""
        told = [flag for flag in options.cuda_cflags if "-march=" in flag or "-mcpu=" in flag]
        passed = [flag[flag.index("-m") :] for flag in told]
        return self.host.features(CompileOptions(cflags=tuple(passed)))

    def owns(self, header: str) -> bool:
        """See the base class."""
        real = os.path.realpath(header)
        folders = (self.toolchain.root, *self.toolchain.include_paths)
        return any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders)

    def failure(
        self, stage: str, command: Sequence[str] | str, code: int, output: str, log: str
    ) -> CompileFailed:
        """See the base class; nvcc's refusals of the host compiler and of a GPU are types."""
        error = super().failure(stage, command, code, output, log)
        incompatible = _INCOMPATIBLE.search(output)
        refused = _ARCH_REFUSED.search(output)
        if incompatible:
            return _retyped(
                error,
                HostCompilerIncompatible,
                f"CUDA {self.toolchain.version} does not support {self.host.compiler.program} "
                f"({self.host.compiler.version}):{incompatible[2]}",
                "set OPKILN_CXX to a compiler that it supports, or "
                "OPKILN_CUDA_ALLOW_UNSUPPORTED=1 to let it try",
            )
        if refused:
            return _retyped(
                error,
                UnsupportedArch,
                f"{refused[1]} by CUDA {self.toolchain.version}",
                f"name one that it knows ({', '.join(self.toolchain.known)}), or install a CUDA "
                "toolkit that knows it",
            )
        return error

    def _check(self, options: CompileOptions) -> None:
        fix = "give extra_cuda_cflags (host flags after -Xcompiler), or add a C++ source"
        refuse(options, ("cflags",), "a build of CUDA sources only", fix)


def _retyped(error: CompileFailed, cls: type[CompileFailed], head: str, fix: str) -> CompileFailed:
    body = str(error).partition("\n  how to fix: ")[0]
    return cls(
        f"{head}\n{body}",
        fix=fix,
        command=error.command,
        stage=error.stage,
        exit_code=error.exit_code,
        output=error.output,
        log_path=error.log_path,
    )


def _cudart_choice(flags: Sequence[str]) -> str:
    """What the user's flags say of CUDA's runtime; "static", as nvcc has it, if nothing."""
    choice = "static"
    for flag, after in zip(flags, [*flags[1:], ""], strict=False):
        found = _CUDART.fullmatch(flag)
        if found:
            choice = found[1] or after
    if choice not in ("static", "shared", "none"):
        raise ArgumentError(
            f"extra_cuda_cflags: expected -cudart=static, shared or none, got {choice!r}"
        )
    return choice


def _asks_for_cudnn(options: CompileOptions) -> bool:
    return any("cudnn" in token.text for token in options.ldflags)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _refuse_odd(path: str, marks: str) -> None:
    odd = next((mark for mark in marks if mark in path), None)
    if odd is not None:
        raise ArgumentError(
            f"path {path!r}: nvcc cannot take a path with {odd!r} in it, because it hands paths to "
            "a shell",
            fix="move the file to a directory without quotes, dollars, commas and backslashes; "
            "of a file in the cache, set OPKILN_CACHE_DIR to one",
        )


def _of_make(path: str) -> str:
    """A path as the target of a make rule, which nvcc writes as it is given."""
    return path.replace(" ", "\\ ").replace("#", "\\#")
