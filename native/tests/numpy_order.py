"""Takes nothing; writes numpy_order.inc: layouts of two inputs and the strides of their sum."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np


def layout(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """Return an int32 array of the shape with permuted, reversed or broadcast axes."""
    order = list(range(len(shape)))
    rng.shuffle(order)
    base = np.zeros([shape[i] for i in order], np.int32)
    array = base.transpose(np.argsort(order))
    if rng.random() < 0.3:
        array = array[tuple(slice(None, None, rng.choice([1, -1])) for _ in shape)]
    if rng.random() < 0.3:
        axis = rng.randrange(len(shape))
        array = np.broadcast_to(array[(slice(None),) * axis + (slice(0, 1),)], shape)
    return array


def main() -> None:
    """Write 300 cases."""
    rng = random.Random(7)
    lines: list[str] = []
    for _ in range(300):
        rank = rng.randint(1, 6)
        shape = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rank))
        other = tuple(1 if rng.random() < 0.2 else n for n in shape)
        a, b = layout(rng, shape), layout(rng, other)
        rows = [a.shape, a.strides, b.shape, b.strides, np.add(a, b).strides]
        lines.append(
            f"{{{rank}, " + ", ".join("{" + ", ".join(map(str, r)) + "}" for r in rows) + "},"
        )
    Path(__file__).with_suffix(".inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
