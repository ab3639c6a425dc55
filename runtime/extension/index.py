"""Which artifacts a name has had: in goes what was asked for, out come the places to look at.

Headers are known only after a build, so an artifact's key cannot be computed before it. The file
`.index-<name>` beside the artifacts of that name has one line for each, the newest first: the short
key of what was asked for, and that of what was built. It only saves builds: a line may be lost, or
name what is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opkiln.runtime.jit import store

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 64  # artifacts of one name
_WAIT = 5.0  # seconds


def _path(folder: str, name: str) -> str:
    return f"{folder}/{store.INDEX}{store.clean_name(name)}"


def _lines(folder: str, name: str, *, lower: bool) -> Iterator[tuple[str, str]]:
    try:
        data = store.read_owned(_path(folder, name), any_owner=lower)
    except (OSError, ValueError):
        return
    for line in data.decode("ascii", "replace").splitlines():
        asked, _, built = line.partition(" ")
        if store.is_short_key(asked) and store.is_short_key(built):
            yield asked, built


def entries(folder: str, name: str, asked: str | None, *, lower: bool) -> Iterator[store.Entry]:
    """The artifacts of a name, the newest first; with `asked`, only those for that key."""
    for key, built in _lines(folder, name, lower=lower):
        if asked is None or key == asked:
            yield store.Entry(folder, f"{store.clean_name(name)}-{built}", lower)


def add(folder: str, name: str, asked: str, built: str) -> None:
    """Put an artifact first."""
    from opkiln.runtime.jit.lock import ProcessLock

    lock = f"{folder}/.lock-index-{store.clean_name(name)}"
    with ProcessLock(lock, _WAIT, lambda _: None):
        known = list(_lines(folder, name, lower=False))
        first = (asked, built)
        if known[:1] != [first]:
            kept = [first, *(line for line in known if line != first)][:_MOST]
            text = "".join(f"{asked} {built}\n" for asked, built in kept)
            store.write_whole(_path(folder, name), text.encode())
