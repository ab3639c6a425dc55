"""C declarations: in go those of `functions=`, out comes the text of a module that knows them.

cffi reads the declarations once, when an extension is built; its module is kept in the artifact and
needs no parser, so that a later process has it in a millisecond.
"""

from __future__ import annotations

import io
from typing import Any, cast

from opkiln.runtime.errors import ExtensionError

_MODULE = "opkiln_extension"


def interface(functions: tuple[str, ...]) -> bytes:
    """The text of the module; ExtensionError names the declaration that cannot be read."""
    import cffi
    from cffi import recompiler

    write: Any = cast("Any", recompiler).make_py_source
    ffi = cffi.FFI()
    for text in functions:
        try:
            ffi.cdef(text)
        except Exception as error:
            raise _unreadable(text, error) from None
    out = io.StringIO()
    try:
        write(ffi, _MODULE, out)
    except Exception as error:
        raise _unreadable(" ".join(functions), error) from None
    return out.getvalue().encode()


def _unreadable(text: str, error: Exception) -> ExtensionError:
    said = " ".join(str(error).split()) or type(error).__name__
    return ExtensionError(
        f"functions: expected a C declaration, got {text!r} ({said})",
        fix="write it as in a C header, with fixed-size types such as int64_t, and no macros",
    )


def run(text: bytes) -> Any:
    """Execute such a module and return its `ffi`; raises whatever is wrong with it."""
    names: dict[str, Any] = {}
    exec(compile(text, _MODULE, "exec"), names)
    return names["ffi"]
