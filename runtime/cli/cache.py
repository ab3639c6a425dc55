"""`opkiln cache`: list, check, shrink and empty the directories that keep compiled kernels."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from opkiln.runtime.cli.command import command
from opkiln.runtime.cli.console import Cell, Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opkiln.runtime.cli.command import Subparsers
    from opkiln.runtime.jit.inventory import Damage, Kernel, Removal

TEXT = """\
The kernels on disk: those of OPKILN_CACHE_DIR and, only to be read, of OPKILN_CACHE_LOWER.
`opkiln cache ACTION --help` explains an action."""
EXAMPLES = """\
  opkiln cache ls
  opkiln cache verify --repair
  opkiln cache prune --max-size 500M --older-than 30d --dry-run
  opkiln cache info --json"""

_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_OPERATIONS = 6  # shown in `ls`; --long and --json have all


def add(subparsers: Subparsers) -> None:
    """Declare the command and its actions."""
    parser = subparsers.add_parser(
        "cache",
        help="list, check, shrink or empty the kernels on disk",
        description=TEXT,
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    ls = command(
        actions,
        "ls",
        _ls,
        summary="each kernel: operations, dtypes, size, last use",
        text="Lists the entries, those used last first.",
    )
    ls.add_argument("--long", action="store_true", help="compiler, flags and path, too")
    info = command(
        actions,
        "info",
        _info,
        summary="each directory: size, limit, what is in use, left-overs",
        text="Describes each cache directory in a few lines.",
    )
    verify = command(
        actions,
        "verify",
        _verify,
        summary="compare every file with its checksum",
        text="Reads all entries. The exit status is 1 if something is damaged and stays so.",
    )
    verify.add_argument(
        "--repair", action="store_true", help="remove what is damaged, to be built again"
    )
    prune = command(
        actions,
        "prune",
        _prune,
        summary="remove what was used longest ago, and left-overs",
        text="Removes entries until none is too old and the rest fits, and what killed processes\n"
        "left; without options down to OPKILN_CACHE_MAX_BYTES. What a living process has loaded\n"
        "stays, and so does the lower cache.",
    )
    prune.add_argument(
        "--max-size", type=_size, metavar="SIZE", help="such as 500M or 2GiB; 0 is all"
    )
    prune.add_argument(
        "--older-than", type=_age, metavar="AGE", help="such as 90m, 12h, 30d or 4w since last use"
    )
    prune.add_argument("--dry-run", action="store_true", help="say what would go, remove nothing")
    clear = command(
        actions,
        "clear",
        _clear,
        summary="remove everything that no living process uses",
        text="Empties the cache, but for what living processes have loaded. The lower cache stays.",
    )
    clear.set_defaults(dry_run=False)
    for action in (ls, info, verify, prune, clear):
        action.add_argument("--json", action="store_true", help="the result as JSON")


# ---- arguments ----


def _size(text: str) -> int:
    from opkiln.runtime.config import Config

    try:
        return Config.cache_max_bytes.read(text)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a size such as 500M, got {text!r}") from None


def _age(text: str) -> float:
    try:
        seconds = float(text[:-1]) * _AGES[text[-1:].lower()]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected an age such as 12h or 30d, got {text!r}")
    return seconds


# ---- words ----


def _bytes(size: int) -> str:
    for unit, scale in _SIZES:
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"


def _ago(seconds: float) -> str:
    if seconds < 60:
        return "just now"
    for unit, name in (("w", "weeks"), ("d", "days"), ("h", "hours"), ("m", "min")):
        if seconds >= 2 * _AGES[unit] or unit == "m":
            return f"{seconds / _AGES[unit]:.0f} {name} ago"
    raise AssertionError


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _say_absent(console: Console) -> None:
    from opkiln.runtime.jit import inventory

    for layer in inventory.layers():
        if inventory.problem_of(layer) == inventory.ABSENT:
            console.line(f"{layer.base} {inventory.ABSENT}", "warn")


def _json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2))


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a record."""
    return {name: getattr(value, name) for name in value.__match_args__}


# ---- ls ----


def _ls(arguments: argparse.Namespace) -> int:
    from opkiln.runtime.jit import inventory

    console = Console(plain=arguments.plain)
    kernels = inventory.entries()
    if arguments.json:
        _json([_fields(kernel) for kernel in kernels])
        return 0
    _say_absent(console)
    if not kernels:
        console.line("no kernels")
        return 0
    if arguments.long:
        for kernel in kernels:
            _long(kernel, console)
    else:
        _table(kernels, console)
    console.line()
    size = _bytes(sum(kernel.size for kernel in kernels))
    console.line(f"{_count(len(kernels), 'entry', 'entries')}, {size}")
    return 0


def _table(kernels: Sequence[Kernel], console: Console) -> None:
    now = time.time()
    rows: list[list[str | Cell]] = []
    for kernel in kernels:
        what = Cell(kernel.problem, "bad") if kernel.problem else _operations(kernel, _OPERATIONS)
        used = "in use" if kernel.in_use else _ago(now - kernel.used)
        row = [_name(kernel), what, " ".join(kernel.dtypes), _bytes(kernel.size), used]
        rows.append([*row, "lower" if kernel.lower else ""])
    header = ["entry", "operations", "dtypes", "size", "last use", ""]
    if not any(kernel.lower for kernel in kernels):
        header, rows = header[:-1], [row[:-1] for row in rows]
    console.table(header, rows)


def _name(kernel: Kernel) -> str:
    return kernel.path.rpartition("/")[2][:-16]  # 8 digits of the key tell entries apart


def _operations(kernel: Kernel, most: int) -> str:
    shown = " ".join(kernel.operations[:most]) or "-"
    if kernel.kind == "extension":
        shown = f"extension: {shown}"
    more = len(kernel.operations) - most
    return f"{shown} +{more}" if more > 0 else shown


def _long(kernel: Kernel, console: Console) -> None:
    now = time.time()
    console.line(kernel.path, "title")
    if kernel.problem:
        console.line(f"  {kernel.problem}", "bad")
        return
    in_use = {True: ", in use", False: "", None: ""}[kernel.in_use]
    lines = {
        "operations": _operations(kernel, len(kernel.operations)),
        "dtypes": " ".join(kernel.dtypes) or "-",
        "functions": str(kernel.functions),
        "size": _bytes(kernel.size),
        "used": f"{_ago(now - kernel.used)}{in_use}",
        "built": _ago(now - kernel.made),
        "compiler": f"{kernel.compiler}, {kernel.target}",
        "flags": kernel.flags,
        "layer": "OPKILN_CACHE_LOWER" if kernel.lower else "OPKILN_CACHE_DIR",
    }
    for name, text in lines.items():
        console.line(f"  {name:10}  {text}")


# ---- info ----


def _info(arguments: argparse.Namespace) -> int:
    from opkiln.runtime.config import config
    from opkiln.runtime.jit import inventory

    console = Console(plain=arguments.plain)
    found = inventory.summary()
    limit = config.cache_max_bytes
    if arguments.json:
        _json({"limit": limit, "directories": [_fields(one) for one in found]})
        return 0
    for one in found:
        what = "lower cache, only read" if one.lower else "cache"
        console.line(f"{one.path}  ({what})", "title")
        if one.problem:
            console.line(f"  {one.problem}", "warn")
        if one.problem == inventory.ABSENT:
            continue
        console.line(f"  {_count(one.entries, 'entry', 'entries')}, {_bytes(one.size)}")
        if not one.lower:
            most = _bytes(limit) if limit else "no limit"
            console.line(f"  limit: {most} (OPKILN_CACHE_MAX_BYTES)")
            console.line(f"  in use by living processes: {one.in_use}")
        if one.leftovers:
            what = _count(one.leftovers, "left-over")
            console.line(f"  {what} of failed or killed builds, {_bytes(one.leftover_size)}")
        console.line(f"  targets: {', '.join(one.targets) or 'none'}")
        console.line(f"  compilers: {', '.join(one.compilers) or 'none'}")
    return 0


# ---- verify ----


def _verify(arguments: argparse.Namespace) -> int:
    from opkiln.runtime.jit import inventory

    console = Console(plain=arguments.plain)
    damages = inventory.verify()
    removed = inventory.repair(damages) if arguments.repair else []
    left = [damage for damage in damages if damage.path not in removed]
    if arguments.json:
        found = [_fields(d) | {"removed": d.path in removed} for d in damages]
        _json({"ok": not left, "damages": found})
        return 1 if left else 0
    for damage in damages:
        console.line(f"{damage.path}: {damage.reason}", "bad")
    _say_absent(console)
    if not damages:
        console.line("Every entry is whole.", "good")
    elif removed:
        console.line(f"Removed {len(removed)} of {len(damages)}; they are built again when needed.")
    if left:
        console.line(_advice(left, repair=arguments.repair))
    return 1 if left else 0


def _advice(left: Sequence[Damage], *, repair: bool) -> str:
    if all(damage.lower for damage in left):
        return "how to fix: fill the lower cache anew; nothing is ever removed from it"
    if repair:
        return "how to fix: remove these by hand; chmod go-w where others may write"
    return "how to fix: opkiln cache verify --repair removes them, to be built again when needed"


# ---- prune and clear ----


def _prune(arguments: argparse.Namespace) -> int:
    from opkiln.runtime.config import config
    from opkiln.runtime.jit import inventory

    limit, age = arguments.max_size, arguments.older_than
    if limit is None and age is None:
        limit = config.cache_max_bytes or None  # 0 in the setting is no limit
    done = inventory.prune(max_bytes=limit, older_than=age, dry_run=arguments.dry_run)
    return _report(done, arguments)


def _clear(arguments: argparse.Namespace) -> int:
    from opkiln.runtime.jit import inventory

    return _report(inventory.clear(), arguments)


def _report(done: Removal, arguments: argparse.Namespace) -> int:
    console = Console(plain=arguments.plain)
    if arguments.json:
        _json(_fields(done) | {"dry_run": bool(arguments.dry_run)})
        return 0
    _say_absent(console)
    if arguments.dry_run:
        for path in (*done.removed, *done.leftovers):
            console.line(path)
    verb = "would remove" if arguments.dry_run else "removed"
    what = _count(len(done.removed), "entry", "entries")
    console.line(f"{verb} {what}, {_bytes(done.size)}; {_bytes(done.left)} stay")
    if done.leftovers:
        console.line(f"{verb} {_count(len(done.leftovers), 'left-over')} of killed builds")
    if done.in_use:
        what = _count(len(done.in_use), "entry", "entries")
        console.line(f"kept {what} that living processes use; they can go when those have ended")
    return 0
