"""A picture in, SVG text out: layers from top to bottom, few crossings, straight long arrows.

The steps of Sugiyama's method: layers by the longest path, a stand-in wherever an arrow passes a
layer, an order within each layer by the mean place of the neighbours, then positions that are as
near to those means as the widths allow. It draws graphs of up to some hundreds of boxes well;
Graphviz, which `--dot` writes for, is a large program that most machines lack.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from opkiln.runtime.picture import FILLS, LINE, Box, Picture

SWEEPS = 12
CHAR, ROW = 7.2, 15.0  # of 12 pixel monospace text
GAP_X, GAP_Y, MARGIN, PORT = 22.0, 34.0, 16.0, 12.0


class _Layout:
    """Places of all boxes. Numbers beyond the boxes' are stand-ins of arrows that pass a layer."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        layers = _layers(picture)
        self.widths = [_width(box) for box in picture.boxes]
        self.rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
        for number, layer in enumerate(layers):
            self.rows[layer].append(number)
        self.routes: list[list[int]] = []  # per arrow: source, stand-ins, target
        for source, target in picture.arrows:
            route = [source]
            for layer in range(layers[source] + 1, layers[target]):
                route.append(len(self.widths))
                self.rows[layer].append(len(self.widths))
                self.widths.append(0.0)
            self.routes.append([*route, target])
        self.above: list[list[int]] = [[] for _ in self.widths]
        self.below: list[list[int]] = [[] for _ in self.widths]
        for route in self.routes:
            for upper, lower in pairwise(route):
                self.above[lower].append(upper)
                self.below[upper].append(lower)
        self._order()
        self.x = self._positions()
        heights = [max((_height(b) for b in self._boxes(row)), default=0.0) for row in self.rows]
        self.top = [MARGIN + sum(heights[:i]) + GAP_Y * i for i in range(len(heights) + 1)]
        self.heights = heights
        self.layers = {number: layer for layer, row in enumerate(self.rows) for number in row}

    def _boxes(self, row: Sequence[int]) -> list[Box]:
        return [self.picture.boxes[n] for n in row if n < len(self.picture.boxes)]

    def _order(self) -> None:
        """Sort each layer by the mean place of its neighbours; keep what crosses least."""
        best, fewest = [list(row) for row in self.rows], self._crossings()
        place = [0.0] * len(self.widths)
        for row in self.rows:
            for i, number in enumerate(row):
                place[number] = i
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            near = self.above if down else self.below
            for row in self.rows if down else self.rows[::-1]:
                means = {n: _mean(place, near[n], place[n]) for n in row}
                row.sort(key=means.__getitem__)
                for i, number in enumerate(row):
                    place[number] = i
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def _crossings(self) -> int:
        total = 0
        for upper, lower in pairwise(self.rows):
            place = {n: i for i, n in enumerate(lower)}
            seen: list[int] = []
            for number in upper:
                ends = sorted(place[m] for m in self.below[number])
                total += sum(len(seen) - bisect(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return total

    def _positions(self) -> list[float]:
        """Centres: each as near to the mean of its neighbours as the order and widths allow."""
        x = [0.0] * len(self.widths)
        for row in self.rows:
            _spread(row, [0.0] * len(row), [1.0] * len(row), self.widths, x)
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            near = self.above if down else self.below
            for row in self.rows if down else self.rows[::-1]:
                wanted = [
                    sum(x[m] for m in near[n]) / len(near[n]) if near[n] else x[n] for n in row
                ]
                # A stand-in moves last: long arrows stay straight.
                weights = [8.0 if n >= len(self.picture.boxes) else len(near[n]) + 0.1 for n in row]
                _spread(row, wanted, weights, self.widths, x)
        left = min((c - w / 2 for c, w in zip(x, self.widths, strict=True)), default=0.0)
        return [c - left + MARGIN for c in x]


def _layers(picture: Picture) -> list[int]:
    """The longest way from the top; values without operands stand just above their first use."""
    layers = [0] * len(picture.boxes)
    for source, target in picture.arrows:  # in topological order of their targets
        layers[target] = max(layers[target], layers[source] + 1)
    fed = {target for _, target in picture.arrows}
    first: dict[int, int] = {}
    for source, target in picture.arrows:
        first[source] = min(first.get(source, layers[target]), layers[target])
    for number in first.keys() - fed:
        layers[number] = first[number] - 1
    return layers


def _mean(values: Sequence[float], members: Sequence[int], otherwise: float) -> float:
    return sum(values[m] for m in members) / len(members) if members else otherwise


def _spread(
    row: Sequence[int],
    wanted: Sequence[float],
    weights: Sequence[float],
    widths: Sequence[float],
    x: list[float],
) -> None:
    """Set x to the least-squares places that keep order and distances: pool adjacent violators."""
    shifts, shift = [0.0] * len(row), 0.0
    for i in range(1, len(row)):
        shift += (widths[row[i - 1]] + widths[row[i]]) / 2 + GAP_X
        shifts[i] = shift
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for want, weight, own in zip(wanted, weights, shifts, strict=True):
        mean, total, count = want - own, weight, 1
        while pools and pools[-1][0] >= mean:
            other, mass, members = pools.pop()
            mean = (mean * total + other * mass) / (total + mass)
            total, count = total + mass, count + members
        pools.append((mean, total, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    for number, mean, own in zip(row, means, shifts, strict=True):
        x[number] = mean + own


def _width(box: Box) -> float:
    return max(len(line) for line in box.lines) * CHAR + 20


def _height(box: Box) -> float:
    return len(box.lines) * ROW + 10


def to_svg(picture: Picture, title: str) -> str:
    """The drawing, on a white ground so that it can be read anywhere."""
    layout = _Layout(picture)
    right = max((c + w / 2 for c, w in zip(layout.x, layout.widths, strict=True)), default=0.0)
    width, height = right + MARGIN, layout.top[-1] - GAP_Y + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *_arrows(layout),
        *(_drawn(layout, number) for number in range(len(picture.boxes))),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _arrows(layout: _Layout) -> list[str]:
    """One curve an arrow; those of one target arrive side by side in the order of the operands."""
    arriving: dict[int, int] = {}
    count = Counter(target for _, target in layout.picture.arrows)
    paths: list[str] = []
    for route in layout.routes:
        source, target = route[0], route[-1]
        nth = arriving[target] = arriving.get(target, -1) + 1
        step = min(PORT, (layout.widths[target] - 16) / count[target])
        x, y = layout.x[source], _bottom(layout, source)
        path = f"M{x:.1f} {y:.1f}"
        for number in route[1:]:
            to_y = layout.top[layout.layers[number]] if number != target else _top(layout, number)
            to_x = layout.x[number]
            if number == target:
                to_x += (nth - (count[target] - 1) / 2) * step
            middle = (y + to_y) / 2
            path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
            x, y = to_x, to_y
            if number != target:
                y = layout.top[layout.layers[number]] + layout.heights[layout.layers[number]]
                path += f"V{y:.1f}"
        paths.append(f'<path d="{path}" fill="none" stroke="{LINE}" marker-end="url(#arrow)"/>')
    return paths


def _top(layout: _Layout, number: int) -> float:
    """Boxes stand in the middle of their layer."""
    layer = layout.layers[number]
    return layout.top[layer] + (layout.heights[layer] - _height(layout.picture.boxes[number])) / 2


def _bottom(layout: _Layout, number: int) -> float:
    return _top(layout, number) + _height(layout.picture.boxes[number])


def _drawn(layout: _Layout, number: int) -> str:
    box = layout.picture.boxes[number]
    x, y, wide = layout.x[number], _top(layout, number), layout.widths[number]
    parts = [
        f'<rect x="{x - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{_height(box):.1f}" '
        f'rx="6" fill="{FILLS[box.kind]}" stroke="{LINE}"/>'
    ]
    for i, line in enumerate(box.lines):
        style = 'font-weight="bold"' if i == 0 else 'fill="#475569" font-size="11"'
        parts.append(
            f'<text x="{x:.1f}" y="{y + ROW * (i + 1):.1f}" text-anchor="middle" {style}>'
            f"{escape(line)}</text>"
        )
    return "".join(parts)
