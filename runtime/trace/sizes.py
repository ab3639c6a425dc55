"""Size arithmetic: extents and literal offsets in, host nodes in one canonical form out.

Extents that are equal for every input become one node wherever that is known, so x[1:] and x[:-1]
fuse without a check at run time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from opkiln.ops import primitives as p
from opkiln.runtime.errors import BoundsError, ShapeError
from opkiln.runtime.graph import Node, const_value, host_const, make
from opkiln.runtime.reference import evaluate_host
from opkiln.runtime.trace.session import Session, failure

ZERO, ONE = host_const(0), host_const(1)
BEYOND = 2**62  # more elements than any axis has


def host(fn: str, *src: Node) -> Node:
    """Arithmetic on sizes, done now where all of them are known."""
    node = make(p.HostOp(fn), *src)
    if all(const_value(s) is not None for s in src):
        return host_const(evaluate_host([node], ())[0])
    return node


def known(node: Node) -> int | None:
    """The value of a size that is known while tracing."""
    value = const_value(node)
    return None if value is None else int(value)


def _is(node: Node, fn: str) -> bool:
    return isinstance(node.op, p.HostOp) and node.op.fn == fn


def is_natural(node: Node) -> bool:
    """Whether a size is known never to be negative."""
    stack = [node]
    while stack:
        n = stack.pop()
        value = const_value(n)
        if value is not None:
            if value < 0:
                return False
        elif isinstance(n.op, p.HostOp):
            fn, src = n.op.fn, n.src
            if fn in ("bcast", "nonempty", "index"):
                continue
            if fn == "max" and any((known(s) or 0) >= 0 and known(s) is not None for s in src):
                continue
            if fn in ("floordiv", "mod") and (known(src[1]) or 0) > 0:
                stack += src[:1] if fn == "floordiv" else ()
            elif fn in ("add", "mul", "max", "min", "same"):
                stack += src
            else:
                return False
        elif not isinstance(n.op, p.Dim):
            return False
    return True


def _terms(node: Node) -> tuple[int, list[Node]]:
    """A sum as its known part and its other terms."""
    constant, symbols, stack = 0, list[Node](), [node]
    while stack:
        n = stack.pop()
        value = known(n)
        if value is not None:
            constant += value
        elif _is(n, "add"):
            stack += n.src
        elif _is(n, "sub") and known(n.src[1]) is not None:
            constant -= known(n.src[1]) or 0
            stack.append(n.src[0])
        else:
            symbols.append(n)
    return constant, symbols


def total(*sizes: Node | int) -> Node:
    """The sum; that of equal terms in any order is one node."""
    constant, symbols = 0, list[Node]()
    for size in sizes:
        more, others = (size, []) if isinstance(size, int) else _terms(size)
        constant += more
        symbols += others
    if not symbols:
        return host_const(constant)
    symbols.sort(key=lambda n: n.digest)
    result = symbols[0]
    for symbol in symbols[1:]:
        result = make(p.HostOp("add"), result, symbol)
    if constant:
        result = make(p.HostOp("add" if constant > 0 else "sub"), result, host_const(abs(constant)))
    return result


def difference(a: Node, b: Node) -> Node:
    """The first without the second."""
    value = known(b)
    if value is not None:
        return total(a, -value)
    return ZERO if a is b else host("sub", a, b)


def at_least_zero(size: Node) -> Node:
    """The size, or 0 where it is negative."""
    return size if is_natural(size) else host("max", size, ZERO)


def shrunk(size: Node, by: int) -> Node:
    """What is left of an extent without `by` elements."""
    if not by:
        return size
    if _is(size, "max") and size.src[1] is ZERO:  # shrunk before
        size = size.src[0]
    return at_least_zero(total(size, -by))


def clipped(size: Node, most: int) -> Node:
    """An extent, or `most` where it is longer."""
    if most <= 0:
        return ZERO
    if most >= BEYOND:
        return size
    if _is(size, "min") and known(size.src[1]) is not None:
        size, most = size.src[0], min(most, known(size.src[1]) or 0)
    return host("min", size, host_const(most))


def ceil_divided(size: Node, by: int) -> Node:
    """An extent over `by`, rounded up."""
    return size if by == 1 else host("floordiv", total(size, by - 1), host_const(by))


def same(session: Session, a: Node, b: Node, message: str = "") -> Node:
    """An extent that two arrays must share: a check at run time unless it is settled now.

    Raises:
        ShapeError: both are known and differ.
    """
    if a is b:
        return a
    have, want = known(a), known(b)
    if have is not None and have == want:
        return a
    if have is not None and want is not None:
        text = message or f"an extent does not fit its target: expected {have}, got {want}"
        raise failure(ShapeError, text)
    return session.make(p.HostOp("same"), a, b)


# ---- slices ----


class _Place(NamedTuple):
    """A bound of a slice: `offset` elements from the start or from the end, or a size."""

    side: str  # "start", "end", or "" for `size`
    offset: int
    size: Node

    def within(self, n: Node) -> Node:
        """As a position from 0 to n."""
        if self.side == "start":
            return clipped(n, self.offset)
        return shrunk(n, self.offset) if self.side == "end" else self.size


def _place(bound: Node, n: Node) -> _Place:
    """Where a bound lies, as Python has it: negative ones count from the end."""
    value = known(bound)
    if value is not None:
        return _Place("start", value, n) if value >= 0 else _Place("end", -value, n)
    constant, symbols = _terms(bound)
    if symbols == _terms(n)[1] and constant - _terms(n)[0] in (0, -1):  # n itself; n - 1 is as -1
        return _Place("end", _terms(n)[0] - constant, n)
    if not is_natural(bound):
        negative = host("max", host("min", bound, ZERO), host_const(-1))  # -1 if it is, else 0
        bound = at_least_zero(host("sub", bound, host("mul", n, negative)))
    return _Place("", 0, host("min", bound, n))


def _span(start: _Place, stop: _Place, n: Node) -> Node:
    """How many elements lie between two bounds."""
    if start.side == stop.side == "start":
        return clipped(shrunk(n, start.offset), stop.offset - start.offset)
    if start.side == stop.side == "end":
        return clipped(shrunk(n, stop.offset), start.offset - stop.offset)
    if start.side == "start" and stop.side == "end":
        return shrunk(n, start.offset + stop.offset)
    low, high = start.within(n), stop.within(n)
    if low is ZERO:
        return high
    between = difference(high, low)
    return between if high is n else at_least_zero(between)


def slice_of(start: Node | None, stop: Node | None, step: int, n: Node) -> tuple[Node, Node]:
    """First element and number of elements of start:stop:step over n elements, as Python has them.

    A negative step is the positive one over the reversed axis, on which bound b is -1 - b.
    """
    if step < 0:
        start, stop = (None if b is None else _mirrored(b) for b in (start, stop))
    first = _Place("start", 0, n) if start is None else _place(start, n)
    last = _Place("end", 0, n) if stop is None else _place(stop, n)
    count = ceil_divided(_span(first, last, n), abs(step))
    position = first.within(n)
    return (total(difference(n, position), -1) if step < 0 else position), count


def _mirrored(bound: Node) -> Node:
    value = known(bound)
    return host("sub", host_const(-1), bound) if value is None else host_const(-1 - value)


def element(session: Session, index: Any, n: Node, axis: int) -> Node:
    """The position that an index, an int or a size, names; it is checked when the program runs."""
    length = known(n)
    if isinstance(index, int):
        if length is not None and not -length <= index < length:
            raise failure(
                BoundsError, f"index {index} is out of bounds for axis {axis} with size {length}"
            )
        if length is not None:
            return host_const(index % length)
        index = host_const(index)
    return session.make(p.HostOp("index"), index, n)
