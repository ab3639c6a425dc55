"""The C++ library behind a compiler: in go its macros and flags, out come facts to compare.

Functions of `extern "C"` over plain C types, which is all that opkiln itself calls, do not care for
these facts. They matter where a source hands std::string and the like to another library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opkiln.native import CXX_LIBRARY
from opkiln.runtime.config import config
from opkiln.runtime.errors import AbiMismatch, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opkiln.runtime.jit.toolchain import Compiler

_STRINGS = "-D_GLIBCXX_USE_CXX11_ABI="


class Abi(NamedTuple):
    """What two libraries that share C++ types must agree on, and what is good to know."""

    library: str  # "libstdc++", "libc++", "MSVC"; "" if the compiler does not say
    strings: str  # "C++11 strings" or "old strings" of libstdc++, else ""
    release: str  # of the library, as it says itself
    standard: str  # such as "c++17": what the sources are written in

    @property
    def name(self) -> str:
        """The facts that must agree."""
        return ", ".join(filter(None, (self.library, self.strings)))


def of_compiler(compiler: Compiler, flags: Iterable[str] = (), standard: str = "") -> Abi:
    """The facts of what a compiler makes with these flags; no state is shared between calls."""
    said = dict(fact.split("=", 1) for fact in compiler.library)
    told = (*compiler.flags, *flags)
    strings = said.get("_GLIBCXX_USE_CXX11_ABI", "")
    for flag in told:
        if flag.startswith(_STRINGS):
            strings = flag.removeprefix(_STRINGS)
        elif flag.startswith(("-std=", "--std=")):
            standard = flag.partition("=")[2]
    if "-stdlib=libc++" in told or "_LIBCPP_VERSION" in said:
        return Abi("libc++", "", said.get("_LIBCPP_VERSION", ""), standard)
    if "__GLIBCXX__" in said:
        which = "C++11 strings" if strings == "1" else "old strings"
        return Abi("libstdc++", which, said["__GLIBCXX__"], standard)
    if "_MSC_VER" in said:  # untested
        return Abi("MSVC", "", said["_MSC_VER"], standard)
    return Abi("", "", "", standard)


def of_process() -> str:
    """The facts of this process, those that must agree; "" if unknown."""
    if CXX_LIBRARY == "libstdc++":
        return "libstdc++, old strings"
    return CXX_LIBRARY


def compare(abi: Abi, here: str | None = None) -> None:
    """Warn, or raise AbiMismatch with OPKILN_ABI_CHECK=strict, if a library would not fit here."""
    here = of_process() if here is None else here
    if config.abi_check == "off" or not here or not abi.library or abi.name == here:
        return
    message = f"the compiler's C++ library is {abi.name}, that of this process is {here}"
    fix = f'build with the same ({_how(here)}), or keep to extern "C" functions over C types'
    if config.abi_check == "strict":
        raise AbiMismatch(message, fix=fix, stage="find")
    warn(f'{message}: extern "C" functions work, C++ types cannot be shared; {fix}')


def _how(here: str) -> str:
    if here.startswith("libstdc++"):
        return f"{_STRINGS}{int('C++11' in here)}, or a compiler that uses libstdc++"
    return f"a compiler that uses {here}"
