"""From disk to functions: in goes what is asked for, out comes a loaded image, or a miss.

This is all that a later process runs, so it imports nothing that only a build needs.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from opkiln.ops.record import record
from opkiln.runtime.extension import declare, files, headers, image, index
from opkiln.runtime.extension.image import Image
from opkiln.runtime.jit import store
from opkiln.runtime.jit.load import usable
from opkiln.runtime.key import KeyParts, sha256

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opkiln.runtime.extension.spec import Spec
    from opkiln.runtime.extension.tools import Tools
    from opkiln.runtime.jit.store import Entry, Layer

ABI = "1"  # of what an artifact holds; raise it with each change there


@record
class Asked:
    """What is asked for, of which compilers, in which caches."""

    spec: Spec
    digests: tuple[str, ...]  # of the sources
    tools: Tools
    parts: KeyParts  # all that is known before a build
    layers: Sequence[Layer]

    def within(self, layers: Sequence[Layer]) -> Asked:
        """The same, in other caches."""
        return Asked(self.spec, self.digests, self.tools, self.parts, layers)

    def entry(self, layer: Layer) -> Entry:
        """The place that bears the key of what is asked for."""
        target = store.EXTENSION + self.tools.compiler.target
        return store.entry_for(layer, target, self.spec.name, self.parts)


def asked(spec: Spec, digests: tuple[str, ...], tools: Tools, layers: Sequence[Layer]) -> Asked:
    """Name all that decides the machine code, but for headers."""
    parts = KeyParts(
        [
            ("schema", store.SCHEMA),
            ("extension.abi", ABI),
            ("sources", spec.sources),
            ("source.digests", digests),
            ("inline", [f"{name} {sha256(_encoded(text))}" for name, text in spec.inline]),
            ("functions", spec.functions),
            ("directory", os.getcwd() if _relative(spec) else ""),
            ("link.files", [f"{files.read(path).digest} {path}" for path in _linked(spec)]),
            *tools.parts(),
        ]
    )
    return Asked(spec, digests, tools, parts, layers)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _relative(spec: Spec) -> bool:
    """Whether a flag may name a file relative to the working directory."""
    options = spec.options
    link = (token.text for token in options.ldflags)
    for flag in (*options.cflags, *options.cuda_cflags, *link):
        if not flag.startswith("-"):
            if not os.path.isabs(flag):
                return True
        elif flag.startswith(("-I", "-L", "-i", "-B")) and "/" not in flag[:12]:
            return True
    return False


def _linked(spec: Spec) -> list[str]:
    """The objects and libraries of the user that link options name, as far as they are there."""
    texts = [token.text for token in spec.options.ldflags if not token.linker]
    folders = [text[2:] for text in texts if text.startswith("-L")]
    found = [text for text in texts if not text.startswith("-")]
    for name in (text[2:] for text in texts if text.startswith("-l")):
        found += [f"{folder}/lib{name}{end}" for folder in folders for end in (".so", ".a")]
    return [path for path in found if os.path.isfile(path)]


def final_parts(parts: KeyParts, found: headers.Headers) -> KeyParts:
    """The key of an artifact: what was asked for, and the headers that were read, or were not."""
    return KeyParts([*parts, ("headers", found.digests()), ("headers.others", found.others)])


def on_disk(wanted: Asked, *, heal: bool) -> Image | None:
    """The newest artifact whose headers are as they are now."""
    short = wanted.parts.short
    for layer in wanted.layers:
        folder = wanted.entry(layer).folder
        for entry in index.entries(folder, wanted.spec.name, short, lower=layer.lower):
            found = usable(entry, partial(_load, wanted, entry), heal=heal)
            if found is not None:
                return image.shared(found, wanted.layers[0].base, wanted.parts.hexdigest)
    return None


def _load(wanted: Asked, entry: Entry) -> Image | None:
    features = wanted.tools.compiler.features
    record = store.check(entry, wanted.parts.hexdigest, features, field="asked")
    if record is None:
        return None
    found = headers.of_record(record)
    if not found.fresh():
        return None
    parts = final_parts(wanted.parts, found)
    if parts.hexdigest != record.text("key"):
        raise store.Damaged("its manifest belongs to another key")
    text = store.read_owned(entry.source, any_owner=entry.lower)
    check_devices(wanted)
    return opened(entry, entry.library, text, parts, found)


def check_devices(wanted: Asked) -> None:
    """Raise UnsupportedArch or LoadFailed if no GPU of this machine can run what was compiled."""
    tools = wanted.tools
    if tools.cuda and tools.archs:
        from opkiln.runtime.toolchains import archs

        archs.check_devices(wanted.spec.name, tools.archs, tools.cuda.toolchain.release)


def opened(entry: Entry, path: str, text: bytes, parts: KeyParts, found: headers.Headers) -> Image:
    """Load a library, and the module that knows its functions."""
    try:
        ffi = declare.run(text)
    except Exception as error:
        raise store.Damaged(f"{os.path.basename(entry.source)} does not run ({error})") from None
    return Image(entry, parts, found, image.open_claimed(entry, path), ffi)


def source_digests(spec: Spec) -> tuple[str, ...]:
    """The content of each source file."""
    return tuple(files.read(path).digest for path in spec.sources)
