"""What does a warm call cost on torch tensors and JAX arrays, against those libraries themselves?

Two float32 inputs of 16 elements, x + y. Run: python benchmarks/interop.py
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import numpy as np
from _common import Way, arguments, banner, duration, goals, in_turns, table

import opkiln as ok


@ok.compile
def add(x, y):
    return x + y


# Of each row the first way is what the second is measured against.
STATEMENTS = {
    "NumPy": ("x + y", "f(x, y)"),
    "torch": ("x + y", "f(x, y)"),
    "torch, out=": ("torch.add(x, y, out=o)", "f(x, y, out=o)"),
    "jax": ("x + y", "f(x, y)"),
    "jax.jit": ("g(x, y)", "f(x, y)"),
}


def names_of(library: str) -> dict[str, Any]:
    """What the statements use, with arrays of the library."""
    if library == "torch":
        import torch

        torch.set_num_threads(1)
        return {"torch": torch, "x": torch.ones(16), "y": torch.ones(16), "o": torch.zeros(16)}
    if library == "jax":
        import jax

        x = jax.numpy.ones(16)
        return {"x": x, "y": x + 1, "g": jax.jit(lambda x, y: x + y)}
    return {"x": np.ones(16, np.float32), "y": np.ones(16, np.float32)}


def main() -> None:
    options = arguments(__doc__)
    banner("Warm call of x + y, n = 16, float32: the library's own, and opkiln on its arrays")
    library = {row: re.split(r"[.,]", row)[0] for row in STATEMENTS}
    rows = [row for row in STATEMENTS if find_spec(library[row].lower())]
    ways = [
        Way(f"{row}|{i}", statement, {**names_of(library[row]), "f": add})
        for row in rows
        for i, statement in enumerate(STATEMENTS[row])
    ]
    timings = in_turns(ways, options.rounds)
    found = {row: (timings[f"{row}|0"], timings[f"{row}|1"]) for row in rows}
    table(
        ["arrays", "their own", "opkiln", "ratio"],
        [
            [row, duration(own.seconds), duration(ours.seconds), f"{ours.ratio(own):.2f}x"]
            for row, (own, ours) in found.items()
        ],
    )
    if "torch" in found:
        own, ours = found["torch"]
        goals([("a torch call / torch's x + y", ours.ratio(own), 1.2, "<=")])


if __name__ == "__main__":
    main()
