"""How fast is a whole step of training, and how long does a large graph take to prepare?

The step is that of a network of 64, 64 and 10 values: forward, backward and Adam, one compiled
function, against the same by hand in NumPy and, if it is installed, jitted by JAX, all on one
thread; of each the fastest sample counts. The graph is a chain of products and tanh of the given
number of nodes; its time is the CPU's of trace, rewrite and lower, without the compiler's.

Run: python benchmarks/training.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import gc
import time
from typing import Any

import numpy as np
from _common import Timing, Way, arguments, banner, duration, goals, have, in_turns, table

import opkiln as ok
from opkiln.runtime.cli.digits import load_digits

SECONDS = 0.002  # a sample is short, so that the least of many finds the machine undisturbed
BATCHES = (32, 64, 128, 512)
# Of what the digits are trained by (64), and less; above, the products alone take NumPy a third.
TIMES_NUMPY = {32: 3.0, 64: 3.0, 128: 2.0, 512: 1.5}
NODES = (1000, 3000, 10_000)


def loss(parameters, x, targets):
    w1, b1, w2, b2 = parameters
    s = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    s = s - ok.stop_gradient(s.max(axis=1, keepdims=True))
    return (np.log(np.exp(s).sum(axis=1)) - (s * targets).sum(axis=1)).mean()


def adam(state, gradients, first, second, sqrt=np.sqrt):
    parameters, means, squares = state
    means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
    squares = [0.999 * s + 0.001 * g * g for s, g in zip(squares, gradients, strict=True)]
    parameters = [
        w - 1e-3 * (m / first) / (sqrt(s / second) + 1e-8)
        for w, m, s in zip(parameters, means, squares, strict=True)
    ]
    return parameters, means, squares


@ok.compile
def compiled(state, x, targets, first, second):
    value, gradients = ok.value_and_grad(loss)(state[0], x, targets)
    return value, adam(state, gradients, first, second)


def by_hand(state, x, targets, first, second):
    """The step as one writes it in NumPy."""
    w1, b1, w2, b2 = state[0]
    a = x @ w1 + b1
    h = np.maximum(a, 0)
    s = h @ w2 + b2
    s = s - s.max(axis=1, keepdims=True)
    e = np.exp(s)
    z = e.sum(axis=1, keepdims=True)
    value = (np.log(z) - (s * targets).sum(axis=1, keepdims=True)).mean()
    ds = (e / z - targets) / np.float32(len(x))
    da = (ds @ w2.T) * (a > 0)
    gradients = x.T @ da, da.sum(axis=0), h.T @ ds, ds.sum(axis=0)
    return value, adam(state, gradients, first, second)


def by_jax() -> Any:
    import jax
    import jax.numpy as jnp

    def value_of(parameters, x, targets):
        w1, b1, w2, b2 = parameters
        s = jnp.maximum(x @ w1 + b1, 0) @ w2 + b2
        s = s - jax.lax.stop_gradient(s.max(axis=1, keepdims=True))
        return (jnp.log(jnp.exp(s).sum(axis=1)) - (s * targets).sum(axis=1)).mean()

    @jax.jit
    def step(state, x, targets, first, second):
        value, gradients = jax.value_and_grad(value_of)(state[0], x, targets)
        return value, adam(state, gradients, first, second, jnp.sqrt)

    return lambda *args: jax.block_until_ready(step(*args))


def starting() -> Any:
    rng = np.random.default_rng(0)
    shapes = (64, 64), (64,), (64, 10), (10,)
    parameters = [(rng.normal(size=shape) / 8).astype(np.float32) for shape in shapes]
    return parameters, [w * 0 for w in parameters], [w * 0 for w in parameters]


def least(timing: Timing) -> float:
    """Seconds of the fastest sample: other work on the machine only ever adds to one."""
    return min(timing.samples)


def leaves(result: Any) -> list[Any]:
    value, (parameters, means, squares) = result
    return [value, *parameters, *means, *squares]


def steps(rounds: int) -> list[tuple[str, float, float, str]]:
    images, labels = load_digits()
    rows, checked = [], []
    for batch in BATCHES:
        x, targets = images[:batch] / 16, np.eye(10, dtype=np.float32)[labels[:batch]]
        names = {"s": starting(), "x": x, "t": targets, "hand": by_hand, "ours": compiled}
        ways = [Way("NumPy", "hand(s, x, t, 0.1, 0.001)", names)]
        ways.append(Way("opkiln", "ours(s, x, t, 0.1, 0.001)", names))
        if have("jax"):
            import jax

            ready = jax.tree.map(jax.numpy.asarray, {n: names[n] for n in "sxt"})
            ways.append(Way("JAX", "jitted(s, x, t, 0.1, 0.001)", {**ready, "jitted": by_jax()}))
        want = leaves(by_hand(names["s"], x, targets, 0.1, 0.001))
        for way in ways[1:]:
            got = leaves(eval(way.statement, dict(way.names)))
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-6)
        found = in_turns(ways, rounds, SECONDS)
        ratios = {name: least(t) / least(found["opkiln"]) for name, t in found.items()}
        cells = [f"{duration(least(t))} {ratios[name]:.2f}" for name, t in found.items()]
        rows.append([str(batch), *cells])
        checked.append(
            (f"batch of {batch}: NumPy / opkiln", ratios["NumPy"], TIMES_NUMPY[batch], ">=")
        )
        if "JAX" in found:
            checked.append((f"batch of {batch}: JAX / opkiln", ratios["JAX"], 1.0, ">="))
    table(["batch", *found], rows)
    return checked


def chain(nodes: int) -> Any:
    def function(x, y):
        for _ in range(nodes // 2):
            x = np.tanh(x * y)
        return x

    return function


def graphs() -> list[tuple[str, float, float, str]]:
    a = np.ones(8)
    ok.compile(chain(10)).lower(a, a)  # what the first one loads
    best: dict[int, float] = {}
    for nodes in NODES:
        samples = []
        for _ in range(3):
            function = ok.compile(chain(nodes))
            gc.collect()  # what the one before has left
            begin = time.process_time()
            function.lower(a, a)
            samples.append(time.process_time() - begin)
        best[nodes] = min(samples)
    table(
        ["nodes", "trace, rewrite, lower", "per node"],
        [[f"{n:,}", duration(t), duration(t / n)] for n, t in best.items()],
    )
    growth = best[NODES[-1]] / NODES[-1] / (best[NODES[0]] / NODES[0])
    return [
        ("1,000 nodes, seconds", best[1000], 0.5, "<="),
        ("time per node, of 10,000 over 1,000", growth, 1.5, "<="),
    ]


def main() -> None:
    given = arguments(__doc__)
    banner("Time of a large graph; time of a step, and that over opkiln's")
    checked = graphs()  # before JAX is loaded, whose objects Python's collector would visit too
    print()
    checked += steps(given.rounds)
    print()
    goals(checked)


if __name__ == "__main__":
    main()
