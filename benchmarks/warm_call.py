"""What does a warm call cost at n = 16, against NumPy and the peers that are installed?

Three float32 inputs, one output. Run: python benchmarks/warm_call.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from _common import Timing, Way, arguments, banner, duration, goals, in_turns, table

from opkiln.runtime.cli.peers import (
    NUMPY,
    PEERS,
    Formula,
    error,
    installed,
    numpy_way,
    opkiln_ways,
)

RNG = np.random.default_rng(0)
X, Y, Z = (RNG.uniform(0.1, 1.0, 16).astype(np.float32) for _ in range(3))


CASES = {
    "1 op": Formula(("x + y",), 2),
    "4 ops": Formula(("tanh(x * y + z) * x - y",), 3),
    "10 ops": Formula(("((tanh(x * y + z) * x - y) * z + x) * y - z * x + y",), 3),
}


def numpy_out() -> dict[str, Way]:
    names = {"np": np, "x": X, "y": Y, "z": Z, "o": np.empty_like(X)}
    first = "np.multiply(x, y, out=o); np.add(o, z, out=o); np.tanh(o, out=o);"
    first += "np.multiply(o, x, out=o); np.subtract(o, y, out=o)"
    return {
        "1 op": Way("NumPy out=", "np.add(x, y, out=o)", names),
        "4 ops": Way("NumPy out=", first, names),
    }


def ways_of(case: str, peers: Sequence[str]) -> list[Way]:
    formula = CASES[case]
    arrays = [X, Y, Z][: formula.operands]
    ways = [numpy_way(formula, arrays), *opkiln_ways(formula, arrays)[:2]]
    bound = ways[1].names["f"].bind(*arrays)
    ways.append(Way("opkiln bind", "g()", {"g": bound}))
    ways += [way for name in peers if (way := PEERS[name](formula, arrays)) is not None]
    exact = formula.function(NUMPY)(*(a.astype(np.float64) for a in arrays))
    for way in ways:
        assert error(way, exact) < 2e-6, way.name
    if case == "1 op":  # the bare operator: the ratio that is asked for has no Python call in it
        ways[0] = Way("NumPy", "x + y", ways[0].names)
    if case in numpy_out():
        ways.append(numpy_out()[case])
    return ways


def main() -> None:
    options = arguments(__doc__, no_peers="leave out numexpr, numba, jax and torch")
    banner("Warm call: n = 16, float32, three inputs, one output; time and ratio to NumPy")
    # All cases in one set of rounds, so that ratios across cases hold too.
    peers = () if options.no_peers else installed()
    cases = {case: ways_of(case, peers) for case in CASES}
    flat = [
        Way(f"{case}|{way.name}", way.statement, way.names)
        for case, ways in cases.items()
        for way in ways
    ]
    timings = in_turns(flat, options.rounds)
    order = ["NumPy", "NumPy out=", "opkiln", "opkiln out=", "opkiln bind", *PEERS]

    def cell(case: str, name: str) -> str:
        timing: Timing | None = timings.get(f"{case}|{name}")
        if timing is None:
            return "-"
        return f"{duration(timing.seconds)} ({timing.ratio(timings[f'{case}|NumPy']):.2f}x)"

    rows = [[name, *(cell(case, name) for case in CASES)] for name in order]
    table(["way", *CASES], [row for row in rows if set(row[1:]) != {"-"}])
    one = timings["1 op|NumPy"]
    ten_ops = timings["10 ops|opkiln"].ratio(timings["10 ops|NumPy"])
    with_out = timings["4 ops|opkiln out="].ratio(timings["1 op|NumPy out="])
    bound = timings["4 ops|opkiln bind"].ratio(timings["4 ops|opkiln"])
    goals(
        [
            ("4 ops / NumPy's x + y", timings["4 ops|opkiln"].ratio(one), 0.40, "<="),
            ("10 ops / NumPy's 10 ops", ten_ops, 0.06, "<="),
            ("4 ops with out= / np.add(x, y, out=z)", with_out, 0.30, "<="),
            ("4 ops bound / called", bound, 0.60, "<="),
        ]
    )


if __name__ == "__main__":
    main()
