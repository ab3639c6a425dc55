"""A build of an extension: in goes what is asked for, out come commands, and a loaded image."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from opkiln.runtime.config import config
from opkiln.runtime.errors import SymbolMissing
from opkiln.runtime.extension import declare, depfile, find, headers, image, index
from opkiln.runtime.extension.progress import Progress
from opkiln.runtime.jit import build, nearest, ninja, store
from opkiln.runtime.jit.build import Made
from opkiln.runtime.jit.ninja import Step

if TYPE_CHECKING:
    from opkiln.runtime.extension.find import Asked
    from opkiln.runtime.extension.headers import Headers
    from opkiln.runtime.extension.image import Image
    from opkiln.runtime.jit.nearest import Difference
    from opkiln.runtime.jit.store import Entry
    from opkiln.runtime.key import KeyParts


class Changed(Exception):
    """A file was written while it was compiled; holds what the headers were after that."""

    def __init__(self, digests: dict[str, str]) -> None:
        """Keep the digests for the next attempt."""
        super().__init__("a file was written while it was compiled")
        self.digests = digests


class Build(NamedTuple):
    """The work of an extension, see `jit.build.Work`."""

    asked: Asked
    before: dict[str, str]  # what headers held before this attempt, as far as that is known
    verbose: bool
    keep: bool

    @property
    def entry(self) -> Entry:
        """The place that bears the key of what is asked for."""
        return self.asked.entry(self.asked.layers[0])

    def look_up(self, *, heal: bool) -> Image | None:
        """Load it from disk."""
        return find.on_disk(self.asked, heal=heal)

    def why(self) -> tuple[Difference, ...]:
        """The parts in which its key differs from the newest of the same name."""
        entry = self.entry
        name = self.asked.spec.name
        newest = next(index.entries(entry.folder, name, None, lower=False), None)
        found = nearest.differences(self.asked.parts, newest) if newest else None
        return found or (("extension", "", f"{name} is new to the cache"),)

    def make(self, private: str) -> Made[Image]:
        """Compile, link, look the functions up, and write the manifest."""
        spec = self.asked.spec
        start = os.stat(private).st_ctime_ns  # by the clock of the file system
        for name, text in spec.inline:
            store.write_file(f"{private}/{name}", text.encode("utf-8", "surrogateescape"))
        library = f"{private}/{store.EXTENSION_FILES[1]}"
        steps = self._steps(private, library)
        with Progress(spec.name, len(steps), f"{private}/{store.LOG}") as progress:
            log, module = self._run(steps, private, progress)
        if self.verbose:
            print(log.decode("utf-8", "replace"), file=sys.stderr, flush=True)
        found = self._headers(steps, private, start)
        parts = find.final_parts(self.asked.parts, found)
        entry = store.entry_for(
            store.Layer(os.path.dirname(self.entry.folder)),
            os.path.basename(self.entry.folder),
            spec.name,
            parts,
        )
        opened = self._open(entry, library, module, parts, found)
        self._tidy(steps, private)
        store.write_file(f"{private}/{store.EXTENSION_FILES[0]}", module)
        store.write_file(f"{private}/{store.LOG}", log)
        build.show(log)
        contents = (module, store.read_owned(library), log)
        manifest = store.manifest(
            parts,
            self.asked.tools.features(),
            opened.names,
            dict(zip(store.EXTENSION_FILES, contents, strict=True)),
            {
                "asked": self.asked.parts.hexdigest,
                "name": spec.name,
                "archs": list(self.asked.tools.archs),
                **found.fields(),
            },
        )
        store.write_file(f"{private}/{store.MANIFEST}", manifest)
        index.add(entry.folder, spec.name, self.asked.parts.short, parts.short)
        shared = image.shared(opened, self.asked.layers[0].base, self.asked.parts.hexdigest)
        return Made(shared, entry)

    def _sources(self, private: str) -> list[str]:
        spec = self.asked.spec
        return [*spec.sources, *(f"{private}/{name}" for name, _ in spec.inline)]

    def _steps(self, private: str, library: str) -> list[Step]:
        tools = self.asked.tools
        steps: list[Step] = []
        for source in self._sources(private):
            obj = f"{private}/{ninja.object_name(source)}"
            command = tools.compile_command(source, obj, f"{obj}.d")
            steps.append(Step(tuple(command), (source,), obj, f"{obj}.d"))
        objects = [step.output for step in steps]
        link = tools.link_command(objects, library)
        steps.append(Step(tuple(link), tuple(objects), library))
        return steps

    def _run(self, steps: list[Step], private: str, progress: Progress) -> tuple[bytes, bytes]:
        """Run the commands and read the declarations meanwhile; return the log and the module."""
        spec = self.asked.spec
        texts: list[bytes] = []

        def tick() -> None:
            if not texts:
                texts.append(declare.interface(spec.functions))
            progress.update()

        def refused(command: list[str], log: str, code: int) -> Exception:
            source = next((s for s in self._sources(private) if s in command), None)
            kept, output = build.keep_failure(log)
            backend = self.asked.tools.backend(source)
            stage = "compile" if source else "link"
            return backend.failure(stage, command, code, output, kept)

        deadline = time.monotonic() + config.compile_timeout
        log = ninja.run(steps, private, deadline, refused, tick)
        return log, texts[0] if texts else declare.interface(spec.functions)

    def _headers(self, steps: list[Step], private: str, start: int) -> Headers:
        """What the compilers have read; raises Changed if that was written meanwhile."""
        spec = self.asked.spec
        read = depfile.read(step.depfile for step in steps if step.depfile)
        read.difference_update(self._sources(private))
        ours = [os.path.dirname(path) for path in spec.sources]
        search = [*ours, *spec.options.include_paths, *_include_flags(spec.options.cflags)]
        others = (path for path in read if not path.startswith(f"{private}/"))
        user = self.asked.tools.of_user(others, search)
        search = list(dict.fromkeys([*search, *map(os.path.dirname, sorted(user))]))
        names = {
            name for path in read for name in depfile.names(path, search, system=path not in user)
        }
        found = headers.seen(user, names, search)
        now = {path: seen.digest for path, seen in found.files}
        young = [path for path in user if os.stat(path).st_ctime_ns >= start]
        if any(now[path] != self.before.get(path) for path in young) or (
            find.source_digests(spec) != self.asked.digests
        ):
            raise Changed(now)
        return found

    def _open(
        self, entry: Entry, library: str, module: bytes, parts: KeyParts, found: Headers
    ) -> Image:
        try:
            return find.opened(entry, library, module, parts, found)
        except SymbolMissing as error:
            name = str(error).split(" to export ", 1)[-1].split(",", 1)[0]
            mangled = f"_Z{len(name)}{name}".encode() in store.read_owned(library)
            fix = f'write extern "C" in front of the definition of {name}'
            if not mangled:
                fix += f", and define it in one of {', '.join(self.asked.spec.files)}"
            raise SymbolMissing(
                f"extension {self.asked.spec.name!r}: functions= declares {name!r}, which the "
                f"library does not export{' as a C function' if mangled else ''}",
                fix=fix,
            ) from None

    def _tidy(self, steps: list[Step], private: str) -> None:
        """Remove what served only the build."""
        if self.keep:
            return
        for step in steps[:-1]:
            store.remove(step.output)
            store.remove(step.depfile)
        for name in (ninja.BUILD_FILE, ".ninja_log", ".ninja_deps"):
            store.remove(f"{private}/{name}")


def _include_flags(flags: tuple[str, ...]) -> list[str]:
    """Directories that flags name for the search of includes."""
    found: list[str] = []
    words = iter(flags)
    for word in words:
        for option in ("-isystem", "-iquote", "-idirafter", "-I"):
            if word == option:
                found.append(next(words, ""))
                break
            if word.startswith(option):
                found.append(word.removeprefix(option).removeprefix("="))
                break
    return [os.path.abspath(folder) for folder in found if folder]
