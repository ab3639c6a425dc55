"""What does a warm call cost at n = 16, against NumPy and the peers that are installed?

Three float32 inputs, one output. Run: python benchmarks/warm_call.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Timing, Way, arguments, banner, duration, goals, have, in_turns, table

import opkiln as ok

RNG = np.random.default_rng(0)
X, Y, Z = (RNG.uniform(0.1, 1.0, 16).astype(np.float32) for _ in range(3))
OUT = np.empty_like(X)


def add(x, y, z):
    return x + y


def four(x, y, z):
    return np.tanh(x * y + z) * x - y


def ten(x, y, z):
    return ((np.tanh(x * y + z) * x - y) * z + x) * y - z * x + y


FUNCTIONS = {"1 op": add, "4 ops": four, "10 ops": ten}
EXPRESSIONS = {
    "1 op": "x + y",
    "4 ops": "tanh(x * y + z) * x - y",
    "10 ops": "((tanh(x * y + z) * x - y) * z + x) * y - z * x + y",
}


def numpy_out() -> dict[str, Way]:
    names = {"np": np, "x": X, "y": Y, "z": Z, "o": np.empty_like(X)}
    first = "np.multiply(x, y, out=o); np.add(o, z, out=o); np.tanh(o, out=o);"
    first += "np.multiply(o, x, out=o); np.subtract(o, y, out=o)"
    return {
        "1 op": Way("NumPy out=", "np.add(x, y, out=o)", names),
        "4 ops": Way("NumPy out=", first, names),
    }


def with_numexpr(case: str) -> Callable[..., Any]:
    import numexpr

    names = {"x": X, "y": Y, "z": Z}
    numexpr.set_num_threads(1)
    numexpr.evaluate(EXPRESSIONS[case], names)
    return lambda x, y, z: numexpr.re_evaluate(names)


def with_numba(case: str) -> Callable[..., Any]:
    import numba

    return numba.njit(FUNCTIONS[case])


def with_jax(case: str) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    scope = {"tanh": jnp.tanh}
    compiled = jax.jit(eval(f"lambda x, y, z: {EXPRESSIONS[case]}", scope))
    return lambda x, y, z: compiled(x, y, z).block_until_ready()


def with_torch(case: str) -> Callable[..., Any]:
    import torch

    torch.set_num_threads(1)
    function = eval(f"lambda x, y, z: {EXPRESSIONS[case]}", {"tanh": torch.tanh})
    arrays = [torch.from_numpy(a) for a in (X, Y, Z)]
    return lambda x, y, z: function(*arrays).numpy()


PEERS = {"numexpr": with_numexpr, "numba": with_numba, "jax": with_jax, "torch": with_torch}


def checked(way: Callable[..., Any], case: str) -> Callable[..., Any]:
    np.testing.assert_allclose(
        np.asarray(way(X, Y, Z)), FUNCTIONS[case](X, Y, Z), rtol=2e-6, atol=1e-6
    )
    return way


def ways_of(case: str, peers: bool) -> list[Way]:
    compiled = checked(ok.compile(FUNCTIONS[case]), case)
    names = {"x": X, "y": Y, "z": Z}
    call = "f(x, y, z)"
    ways = [
        Way("NumPy", call, {**names, "f": FUNCTIONS[case]}),
        Way("opkiln", call, {**names, "f": compiled}),
        Way("opkiln out=", "f(x, y, z, out=o)", {**names, "f": compiled, "o": OUT}),
    ]
    if case == "1 op":  # the bare operator: the ratio that is asked for has no Python call in it
        ways[0] = Way("NumPy", "x + y", names)
    if case in numpy_out():
        ways.append(numpy_out()[case])
    if peers:
        for name, make in PEERS.items():
            if have(name):
                ways.append(Way(name, call, {**names, "f": checked(make(case), case)}))
    return ways


def main() -> None:
    options = arguments(__doc__, no_peers="leave out numexpr, numba, jax and torch")
    banner("Warm call: n = 16, float32, three inputs, one output; time and ratio to NumPy")
    # All cases in one set of rounds, so that ratios across cases hold too.
    cases = {case: ways_of(case, not options.no_peers) for case in FUNCTIONS}
    flat = [
        Way(f"{case}|{way.name}", way.statement, way.names)
        for case, ways in cases.items()
        for way in ways
    ]
    timings = in_turns(flat, options.rounds)
    order = ["NumPy", "NumPy out=", "opkiln", "opkiln out=", *PEERS]

    def cell(case: str, name: str) -> str:
        timing: Timing | None = timings.get(f"{case}|{name}")
        if timing is None:
            return "-"
        return f"{duration(timing.seconds)} ({timing.ratio(timings[f'{case}|NumPy']):.2f}x)"

    rows = [[name, *(cell(case, name) for case in FUNCTIONS)] for name in order]
    table(["way", *FUNCTIONS], [row for row in rows if set(row[1:]) != {"-"}])
    one = timings["1 op|NumPy"]
    ten_ops = timings["10 ops|opkiln"].ratio(timings["10 ops|NumPy"])
    with_out = timings["4 ops|opkiln out="].ratio(timings["1 op|NumPy out="])
    goals(
        [
            ("4 ops / NumPy's x + y", timings["4 ops|opkiln"].ratio(one), 0.40, "<="),
            ("10 ops / NumPy's 10 ops", ten_ops, 0.06, "<="),
            ("4 ops with out= / np.add(x, y, out=z)", with_out, 0.30, "<="),
        ]
    )


if __name__ == "__main__":
    main()
