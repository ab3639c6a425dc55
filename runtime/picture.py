"""A graph in, boxes and arrows out; and those as Graphviz text."""

from __future__ import annotations

from opkiln.ops.primitives import FromHost, Input, Reduce, op_text
from opkiln.ops.record import record
from opkiln.runtime.graph import Graph, Names, Node, size_text, topological, type_text

# What a box stands for, and how it is filled.
FILLS = {
    "input": "#dbeafe",
    "number": "#f1f5f9",
    "op": "#ffffff",
    "reduction": "#fde8cd",
    "output": "#d6f0db",
}
LINE = "#64748b"


@record
class Box:
    """One value: its op, its type and the user's line; `kind` is one of FILLS."""

    kind: str
    lines: tuple[str, ...]


@record
class Picture:
    """Boxes in topological order, and arrows between their numbers in the order of the operands."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int], ...]


def picture(graph: Graph, names: Names | None = None) -> Picture:
    """The graph without its sizes, which are labels and not boxes."""
    known = names or {}
    numbers: dict[Node, int] = {}
    boxes: list[Box] = []
    arrows: list[tuple[int, int]] = []
    for node in topological([*graph.inputs, *graph.outputs]):
        if node.is_host and node not in graph.outputs:
            continue
        arrows += [(numbers[s], len(boxes)) for s in node.src if s in numbers]
        numbers[node] = len(boxes)
        boxes.append(_box(node, known, graph.where.get(node, "")))
    for i, node in enumerate(graph.outputs):
        arrows.append((numbers[node], len(boxes)))
        boxes.append(Box("output", (f"output {i}" if len(graph.outputs) > 1 else "output",)))
    return Picture(tuple(boxes), tuple(arrows))


def _box(node: Node, names: Names, where: str) -> Box:
    name, props = op_text(node.op)
    if isinstance(node.op, FromHost):
        name, props = size_text(node.src[0], names), ""
    sizes = " ".join(size_text(s, names) for s in node.src if s.is_host)
    leaf = not node.src or isinstance(node.op, FromHost)
    what = names.get(node, name) if leaf else f"{name} {sizes}".strip()
    if isinstance(node.op, Input):
        return Box("input", (what, type_text(node, names)))
    if leaf or node.is_host:
        return Box("number", (what, type_text(node, names)))
    kind = "reduction" if isinstance(node.op, Reduce) else "op"
    place = where.rsplit("/", 1)[-1]
    return Box(kind, tuple(filter(None, (what, props, type_text(node, names), place))))


def to_dot(graph: Graph, names: Names | None = None) -> str:
    """The graph as Graphviz text."""
    drawn = picture(graph, names)
    lines = [
        "digraph opkiln {",
        f'  node [shape=box style="rounded,filled" color="{LINE}" fontname=monospace fontsize=11];',
        f'  edge [color="{LINE}" arrowsize=0.7];',
    ]
    for number, box in enumerate(drawn.boxes):
        label = "\\n".join(map(_quoted, box.lines))
        lines.append(f'  n{number} [label="{label}" fillcolor="{FILLS[box.kind]}"];')
    lines += [f"  n{source} -> n{target};" for source, target in drawn.arrows]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
