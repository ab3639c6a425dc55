"""Nested arguments and results: a tree of leaves in, the same tree with other leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast


def mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same containers with `leaf(value)` for each leaf, in order."""
    kind: Any = cast("Any", type(tree))
    if kind is tuple or kind is list:
        items = cast("tuple[object, ...] | list[object]", tree)
        return type(items)(mapped(item, leaf) for item in items)
    if kind is dict:
        entries = cast("dict[object, object]", tree)
        return {key: mapped(item, leaf) for key, item in entries.items()}
    return leaf(tree)


def hashable(tree: Any) -> Any:
    """The tree as nested tuples that tell containers apart; the leaves must be hashable."""
    match tree:
        case tuple() | list():
            items = cast("tuple[object, ...] | list[object]", tree)
            return (type(items), *map(hashable, items))
        case dict():
            entries = cast("dict[object, object]", tree)
            return (dict, *((key, hashable(item)) for key, item in entries.items()))
        case _:
            return tree
