"""Graphs for people: aligned text, Graphviz text, drawings."""

import re
import xml.etree.ElementTree as ET

import numpy as np

from opkiln.ops import primitives as p
from opkiln.runtime.cli.svg import to_svg
from opkiln.runtime.graph import Graph, Node, host_const, make
from opkiln.runtime.infer import graph_input
from opkiln.runtime.picture import picture, to_dot


def graph() -> Graph:
    x = graph_input(0, np.dtype("f4"), 2)
    peak = make(p.Reduce("max", (1,), True, x.dtype), x)
    total = make(p.Elementwise("subtract"), x, peak)
    wide = make(p.BroadcastTo(), total, host_const(2), *total.shape)
    return Graph((x,), (wide, x.shape[0]), {total: 'C:\\user "q".py:3'})


def test_dot() -> None:
    text = to_dot(graph())
    assert text.startswith("digraph opkiln {") and text.endswith("}\n")
    assert text.count(" -> ") == 8
    assert (
        'label="subtract\\nfloat32[arg0.shape[0], arg0.shape[1]]\\nC:\\\\user \\"q\\".py:3"' in text
    )
    assert text == to_dot(graph())


def test_dot_of_deep_graphs() -> None:
    node = graph_input(0, np.dtype("f4"), 1)
    for _ in range(5_000):
        node = make(p.Elementwise("negative"), node)
    assert to_dot(Graph((graph_input(0, np.dtype("f4"), 1),), (node,))).count(" -> ") == 5_001


def test_text() -> None:
    found = graph()
    names = {found.inputs[0]: "x", found.inputs[0].shape[0]: "n"}
    lines = found.text(names).splitlines()
    assert re.fullmatch(r"%0 = x +: float32\[n, arg0.shape\[1\]\]", lines[0])
    assert re.fullmatch(r"%1 = max %0 axes=\(1,\) keepdims=True +: float32\[n, 1\]", lines[1])
    assert len({line.index(" : ") for line in lines[:-1]}) == 1  # in columns
    assert lines[2].startswith("%2 = subtract %0 %1 ")
    assert lines[2].endswith('  # C:\\user "q".py:3')
    assert lines[-1].startswith("return %")


SVG = "{http://www.w3.org/2000/svg}"


def boxes_and_arrows(text: str) -> tuple[list[tuple[float, ...]], list[tuple[float, float]]]:
    root = ET.fromstring(text)
    boxes = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if "rx" in rect.attrib
    ]
    ends = []
    for path in root.iter(f"{SVG}path"):
        if "marker-end" in path.attrib:
            numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", path.attrib["d"])]
            ends.append((numbers[-2], numbers[-1]))
    return boxes, ends


def wide_graph() -> Graph:
    """Values that are used far below where they are made, twice in one op, and not at all."""
    x, y = graph_input(0, np.dtype("f4"), 2), graph_input(1, np.dtype("f4"), 2)
    layer: list[Node] = [x]
    for i in range(20):
        row = "add" if i % 3 else "multiply"
        layer.append(make(p.Elementwise(row), layer[-1], layer[i // 2]))
    square = make(p.Elementwise("multiply"), layer[-1], layer[-1])
    return Graph((x, y), (square, layer[5]))


def test_drawing() -> None:
    """Boxes do not touch, each arrow ends at the upper edge of its own target."""
    drawn = picture(wide_graph())
    boxes, ends = boxes_and_arrows(to_svg(drawn, "a < b"))
    assert len(boxes) == len(drawn.boxes) == 25
    for i, (x, y, w, h) in enumerate(boxes):
        for other_x, other_y, other_w, other_h in boxes[:i]:
            apart = x + w < other_x or other_x + other_w < x
            assert apart or y + h < other_y or other_y + other_h < y
    assert len(ends) == len(drawn.arrows) == 44
    assert len(set(ends)) == len(ends)  # both operands of a square are seen
    for (x, y), (source, target) in zip(ends, drawn.arrows, strict=True):
        left, top, width, _ = boxes[target]
        assert left < x < left + width and abs(y - top) < 0.2
        assert boxes[source][1] + boxes[source][3] < top  # arrows lead down


def test_drawing_of_deep_and_empty_graphs() -> None:
    node = graph_input(0, np.dtype("f4"), 1)
    for _ in range(2_000):
        node = make(p.Elementwise("negative"), node)
    text = to_svg(picture(Graph((graph_input(0, np.dtype("f4"), 1),), (node,))), "deep")
    assert len(boxes_and_arrows(text)[1]) == 2_001
    assert boxes_and_arrows(to_svg(picture(Graph((), ())), "nothing")) == ([], [])
