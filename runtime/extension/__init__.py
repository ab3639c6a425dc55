"""Native sources of a user: in go C++ files or texts, out come their functions, built once.

An artifact is looked up by content: the sources, the headers that they include, the flags, the
compiler. Only what is on no disk is built, once, whatever the number of threads and processes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from opkiln.runtime import jit
from opkiln.runtime.config import config
from opkiln.runtime.errors import ArgumentError, CacheError, CompileFailed, ExtensionError
from opkiln.runtime.extension import find, image, spec, tools
from opkiln.runtime.extension.image import Extension
from opkiln.runtime.extension.spec import Spec
from opkiln.runtime.jit import store
from opkiln.runtime.toolchains import CompileOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opkiln.runtime.jit.store import Layer

    Text = str | os.PathLike[str]
    Flags = str | Sequence[str]
    Paths = Text | Sequence[Text]

__all__ = ["Extension", "load", "load_inline"]

T = TypeVar("T")
_ATTEMPTS = 4  # for sources that are written while they are compiled


def load(
    name: str,
    sources: Paths,
    *,
    functions: str | Sequence[str] = (),
    extra_cflags: Flags = (),
    extra_cuda_cflags: Flags = (),
    extra_ldflags: Flags = (),
    extra_include_paths: Paths = (),
    with_cuda: bool | None = None,
    build_directory: Text | None = None,
    verbose: bool = False,
    timeout: float | None = None,
    keep: bool = False,
) -> Extension:
    """Build C++ and CUDA sources into a library, or find it built, and return its functions.

    Args:
        name: what it is called in messages and in the cache.
        sources: files to compile; names ending in `.cu` are CUDA.
        functions: C declarations of the functions to return, such as `"int answer(void)"`; the
            sources define them as `extern "C"`.
        extra_cflags: arguments for the C++ compiler. A string is split as a shell would do; each
            item of a sequence is one argument. The same for the other flags.
        extra_cuda_cflags: arguments for the CUDA compiler.
        extra_ldflags: arguments for the linker, after the objects.
        extra_include_paths: directories to search for headers.
        with_cuda: whether CUDA is needed; default: if a source is CUDA.
        build_directory: where to keep what is built, in place of the cache directory.
        verbose: show what the compilers say.
        timeout: seconds after which a build is stopped; default: `OPKILN_COMPILE_TIMEOUT`.
        keep: keep the objects and the build file beside the library.

    Raises:
        errors.ExtensionError: an argument cannot be used.
        errors.CompileFailed: the compiler refused a source; holds its output.
        errors.SymbolMissing: a declared function is not in the library.
        errors.ToolchainNotFound: no compiler was found.
    """
    found, cuda = spec.sources(sources, with_cuda)
    wanted = Spec(
        name=spec.named(name),
        sources=found,
        inline=(),
        functions=spec.functions(functions),
        options=_options(extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths),
        with_cuda=cuda,
    )
    return _load(wanted, build_directory, verbose=verbose, timeout=timeout, keep=keep)


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str] = (),
    cuda_sources: str | Sequence[str] = (),
    *,
    functions: str | Sequence[str] = (),
    extra_cflags: Flags = (),
    extra_cuda_cflags: Flags = (),
    extra_ldflags: Flags = (),
    extra_include_paths: Paths = (),
    with_cuda: bool | None = None,
    build_directory: Text | None = None,
    verbose: bool = False,
    timeout: float | None = None,
    keep: bool = False,
) -> Extension:
    """Do as `load` does, for sources that are given as text."""
    cpp = spec.texts("cpp_sources", cpp_sources)
    cuda = spec.texts("cuda_sources", cuda_sources)
    if not cpp + cuda:
        raise ExtensionError("cpp_sources: expected at least one text, got none")
    inline = [
        *((f"source{i}.cpp", text) for i, text in enumerate(cpp)),
        *((f"source{i}.cu", text) for i, text in enumerate(cuda)),
    ]
    wanted = Spec(
        name=spec.named(name),
        sources=(),
        inline=tuple(inline),
        functions=spec.functions(functions),
        options=_options(extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths),
        with_cuda=spec.cuda_wanted(with_cuda, [name for name, _ in inline]),
    )
    return _load(wanted, build_directory, verbose=verbose, timeout=timeout, keep=keep)


def _options(cflags: object, cuda: object, ldflags: object, paths: object) -> CompileOptions:
    return CompileOptions.of(
        cflags=spec.flags("extra_cflags", cflags),
        cuda_cflags=spec.flags("extra_cuda_cflags", cuda),
        ldflags=spec.flags("extra_ldflags", ldflags),
        include_paths=spec.paths("extra_include_paths", paths),
    )


def _load(
    wanted: Spec,
    build_directory: Text | None,
    *,
    verbose: bool,
    timeout: float | None,
    keep: bool,
) -> Extension:
    seconds = config.compile_timeout if timeout is None else _seconds(timeout)
    folder = None if build_directory is None else spec.paths("build_directory", build_directory)[0]
    with config.scope(compile_timeout=seconds):
        if folder is None:
            return jit.placed(lambda: _find(wanted, store.layers(), verbose, keep))
        try:
            store.usable_root(folder)
            return _find(wanted, [store.Layer(folder)], verbose, keep)
        except CacheError as error:
            raise CacheError(f"build_directory: {error}") from None
        except OSError as error:
            raise jit.typed(error) from error


def _seconds(timeout: object) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ArgumentError(f"timeout: expected seconds, got {timeout!r}")
    if not 0 < timeout < float("inf"):
        raise ExtensionError(f"timeout: expected seconds above 0, got {timeout!r}")
    return float(timeout)


def _find(wanted: Spec, layers: list[Layer], verbose: bool, keep: bool) -> Extension:
    """From memory, from disk, or from a build; again if files change meanwhile."""
    before: dict[str, str] = {}
    for _ in range(_ATTEMPTS):
        digests = find.source_digests(wanted)
        orders: list[find.Asked] = []
        for compiler in jit.compilers():
            order = find.asked(wanted, digests, tools.pick(wanted, compiler), layers)
            known = image.loaded(layers[0].base, order.parts.hexdigest)
            if known is not None:
                return Extension(wanted.name, known, "memory")
            known = find.on_disk(order, heal=False)
            if known is not None:
                return Extension(wanted.name, known, "disk")
            orders.append(order)
        if layers[0].lower:  # the first cache cannot be used: build in the one that replaces it
            layers = [store.Layer(store.root()), *layers]
            orders[0] = orders[0].within(layers)
        jit.import_builder()
        from opkiln.runtime.extension.make import Build, Changed
        from opkiln.runtime.jit.flight import build_once

        try:
            built, hit, _ = build_once(Build(orders[0], before, verbose, keep))
        except Changed as changed:
            before = changed.digests
            continue
        built.settle()
        return Extension(wanted.name, built, hit)
    raise CompileFailed(
        f"extension {wanted.name!r}: its files changed while they were compiled, each time",
        fix="call ok.load when nothing writes to the sources and their headers",
    )
