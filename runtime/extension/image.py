"""A loaded extension: in go a library and its interface, out come its functions.

What is loaded stays so, as a Python module does, until `unload`; that is refused while anything
registered with it lives, or while one of its functions is held.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from opkiln.runtime.errors import InUse, SymbolMissing
from opkiln.runtime.jit import store
from opkiln.runtime.jit.load import open_library
from opkiln.runtime.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opkiln.native import Library
    from opkiln.runtime.extension.headers import Headers
    from opkiln.runtime.jit.store import Entry
    from opkiln.runtime.key import KeyParts

_SOMEONE = "something registered with it"
_guard = ForkLock()
_images: dict[str, Image] = {}  # by the path of the artifact
_asked: dict[tuple[str, str], list[Image]] = {}  # by cache directory and key of what was asked for


class Image:
    """One library in this process, shared by all that `ok.load` returned for it."""

    def __init__(
        self, entry: Entry, parts: KeyParts, headers: Headers, library: Library, ffi: Any
    ) -> None:
        """Take the functions out of the library; SymbolMissing if one is not there."""
        self.entry = entry
        self.parts = parts
        self.headers = headers
        self.library: Library | None = library
        self.ffi = ffi
        self.lib = ffi.dlopen(ffi.cast("void *", library.handle))
        self.names: tuple[str, ...] = tuple(dir(self.lib))
        self.held: Counter[str] = Counter()
        for name in self.names:
            library.symbol(name)
        self._counts = self._references()

    def _references(self) -> dict[str, int]:
        return {name: sys.getrefcount(getattr(self.lib, name)) for name in self.names}

    def settle(self) -> None:
        """Name the library as it is published; it was loaded where it was built."""
        with _guard:
            if self.library is not None and self.library.path != self.entry.library:
                with contextlib.suppress(OSError):  # removed: only its name is lost
                    library = open_claimed(self.entry, self.entry.library)
                    if library.handle == self.library.handle:
                        self.library = library

    def in_use(self) -> Iterator[str]:
        """What keeps it from being unloaded."""
        yield from (who for who, count in self.held.items() if count > 0)
        if self.library is not None and self.library.users and not any(self.held.values()):
            yield "programs with a custom op of it"
        now = self._references()
        yield from (f"function {n!r}" for n in self.names if now[n] > self._counts[n])


def open_claimed(entry: Entry, path: str) -> Library:
    """Load the library of an artifact, and tell whoever prunes the cache that it is in use."""
    library: Library = open_library(path, ()).library
    if not entry.lower:
        library.claim(store.claims_file(os.path.dirname(entry.folder)), entry.claim)
    return library


def shared(image: Image, base: str, asked: str) -> Image:
    """The image to use for an artifact: the first that was loaded."""
    with _guard:
        known = _images.setdefault(image.entry.path, image)
        variants = _asked.setdefault((base, asked), [])
        if known not in variants:
            variants.insert(0, known)
        return known


def loaded(base: str, asked: str) -> Image | None:
    """The image of an artifact whose headers are still the same."""
    for image in list(_asked.get((base, asked), ())):
        if image.headers.fresh():
            return image
    return None


class Extension:
    """What `ok.load` returns: the declared functions as attributes, and what is known of them."""

    __slots__ = ("__name__", "_image", "hit")

    def __init__(self, name: str, image: Image, hit: str) -> None:
        """Name an image; `hit` says where it came from: "memory", "disk" or "built"."""
        self.__name__ = name
        self._image = image
        self.hit = hit

    @property
    def path(self) -> str:
        """The shared library on disk."""
        return self._image.entry.library

    @property
    def parts(self) -> KeyParts:
        """What the artifact depends on, by name; its digest identifies the content."""
        return self._image.parts

    @property
    def library(self) -> Library:
        """The loaded library: `library.symbol(name)` is the address of any exported function."""
        return self._loaded().library  # type: ignore[return-value]

    @property
    def ffi(self) -> Any:
        """Cffi's object for the declarations: `ffi.new`, `ffi.cast`, `ffi.from_buffer`."""
        return self._loaded().ffi

    @property
    def lib(self) -> Any:
        """Cffi's object with the functions, whatever their names."""
        return self._loaded().lib

    def _loaded(self) -> Image:
        if self._image.library is None:
            raise InUse(
                f"extension {self.__name__!r} was unloaded",
                fix="load it again, and use what ok.load returns then",
            )
        return self._image

    def hold(self, who: str = _SOMEONE) -> None:
        """Refuse `unload` until `release(who)`: an op or an executor uses an address of it."""
        with _guard:
            self._loaded().held[who] += 1

    def release(self, who: str = _SOMEONE) -> None:
        """End one `hold(who)`."""
        with _guard:
            if self._image.held[who] <= 0:
                raise InUse(f"extension {self.__name__!r} is not held by {who}")
            self._image.held[who] -= 1

    def unload(self) -> None:
        """Close the library; InUse while anything that needs it lives. Twice is once."""
        image = self._image
        with _guard:
            if image.library is None:
                return
            users = list(image.in_use())
            if users:
                raise InUse(
                    f"extension {self.__name__!r} cannot be unloaded: {', '.join(users)} in use",
                    fix="drop what uses it first",
                )
            _images.pop(image.entry.path, None)
            for variants in _asked.values():
                if image in variants:
                    variants.remove(image)
            image.lib = image.library = None

    def __getattr__(self, name: str) -> Any:
        """Return a declared function; a name that this class has itself is found in `lib`."""
        if name.startswith("__"):
            raise AttributeError(name)
        image = self._loaded()
        if name in image.names:
            return getattr(image.lib, name)
        declared = ", ".join(image.names) or "none"
        raise SymbolMissing(
            f"extension {self.__name__!r} has no function {name!r}; declared: {declared}",
            fix="add its declaration to functions=",
        )

    def __dir__(self) -> list[str]:
        """The functions, and what every extension has."""
        return sorted({*super().__dir__(), *self._image.names})

    def __eq__(self, other: object) -> bool:
        """Whether both are the same loaded library."""
        return isinstance(other, Extension) and other._image is self._image

    def __hash__(self) -> int:
        """Hash of the loaded library."""
        return id(self._image)

    def __repr__(self) -> str:
        """Name, functions and file."""
        state = "" if self._image.library is not None else "unloaded, "
        names = ", ".join(self._image.names)
        return f"<extension {self.__name__!r}: {names} ({state}{self.path})>"
