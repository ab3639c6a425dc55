"""Trains a two-layer network on handwritten digits: compiled forward, backward and update.

Each of the three is one program, called once a step. The pictures need matplotlib.

Run: python examples/train_digits.py [--epochs 60] [--out train_digits_out]
"""

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import opkiln as ok
from opkiln.runtime.cli.console import Console
from opkiln.runtime.cli.digits import load_digits

HIDDEN, BATCH, TRAINING = 64, 64, 1200
NO_GRADIENT = (None, None)  # of the hidden values and the probabilities


@ok.custom_gradient
def cross_entropy(scores, targets):
    """The mean loss and the probabilities; the gradient of both steps at once is a subtraction."""
    scores = scores - scores.max(axis=1, keepdims=True)
    e = np.exp(scores)
    total = e.sum(axis=1, keepdims=True)
    p = e / total
    loss = (np.log(total) - (scores * targets).sum(axis=1, keepdims=True)).mean()
    g, _ = yield loss, p
    yield g * (p - targets) / scores.shape[0], None


@ok.compile
def forward(parameters, x, targets):
    """The loss, and what the backward pass need not compute again."""
    w1, b1, w2, b2 = parameters
    hidden = ok.ops.relu(x @ w1 + b1)
    loss, p = cross_entropy(hidden @ w2 + b2, targets)
    return loss, (hidden, p)


@ok.compile
def update(parameters, means, squares, gradients, step):
    """Adam: D. P. Kingma, J. Ba, Adam: A Method for Stochastic Optimization, ICLR 2015."""
    means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
    squares = [0.999 * s + 0.001 * g * g for s, g in zip(squares, gradients, strict=True)]
    first, second = 1 - 0.9**step, 1 - 0.999**step
    parameters = [
        w - 3e-3 * (m / first) / (np.sqrt(s / second) + 1e-8)
        for w, m, s in zip(parameters, means, squares, strict=True)
    ]
    return parameters, means, squares


def backward_by_hand(parameters, x, targets, hidden, p):
    """What the backward program computes, in plain NumPy."""
    _, _, w2, _ = parameters
    ds = (p - targets) / np.float32(len(x))
    da = (ds @ w2.T) * (hidden > 0)
    return [x.T @ da, da.sum(axis=0), hidden.T @ ds, ds.sum(axis=0)]


EXPLAINED = {
    "forward": [
        "x @ w1",
        "hidden: the bias added, negative values cut off",
        "hidden @ w2",
        "each row of scores: the bias added, softmax, the two terms of its loss",
        "the mean of the losses",
    ],
    "backward": [
        "of the scores: (p - targets) / rows",
        "of the hidden values: that @ w2.T",
        "of what was cut off: 0 where hidden is 0",
        "of w1: x.T @ that",
        "of b1: its sum over the rows",
        "of w2: hidden.T @ that of the scores",
        "of b2: the sum of that of the scores over the rows",
    ],
    "update": [f"{name} with its mean and mean square" for name in ("w1", "b1", "w2", "b2")],
}


def explain(name, lowering):
    """One line per kernel; as many as there are lines in EXPLAINED, or an error."""
    print(f"{name}: {len(lowering.kernels)} kernels")
    for kernel, text in zip(lowering.kernels, EXPLAINED[name], strict=True):
        ops = [s.row for s in kernel.statements() if hasattr(s, "row")]
        print(f"  {text}  [{'matrix product' if kernel.product else ', '.join(ops)}]")


def starting(rng):
    """Weights, biases, and the zeros that Adam starts with."""
    shapes = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
    scales = [1 / 8, 0, HIDDEN**-0.5, 0]
    draws = zip(shapes, scales, strict=True)
    parameters = [rng.normal(0, scale, shape).astype(np.float32) for shape, scale in draws]
    return parameters, [0 * w for w in parameters], [0 * w for w in parameters]


def check(state, x, targets):
    """Explains the three programs, and compares one step with NumPy's."""
    parameters = state[0]
    (loss, saved), pull = ok.vjp(forward, parameters, x, targets, argnums=0)
    gradients = pull((1.0, NO_GRADIENT))
    explain("forward", forward.lower(parameters, x, targets))
    explain("backward", pull.func.lower(*pull.args, (1.0, NO_GRADIENT)))
    explain("update", update.lower(*state, gradients, 1.0))

    def same(got, want):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)

    p = saved[1]
    same(loss, -np.log((p * targets).sum(axis=1)).mean())
    same(p.sum(axis=1), 1)
    for got, want in zip(gradients, backward_by_hand(parameters, x, targets, *saved), strict=True):
        same(got, want)
    by_numpy = update.__wrapped__(*state, gradients, 1.0)
    for trees in zip(update(*state, gradients, 1.0), by_numpy, strict=True):
        for got, want in zip(*trees, strict=True):
            same(got, want)


def train(state, x, targets, held_out, epochs, rng):
    """Trained parameters, losses of each epoch (training, held out), seconds of all steps."""
    losses, step, seconds = [], 0, 0.0
    with Console().progress(epochs) as now:
        for epoch in range(epochs):
            now(f"epoch {epoch + 1}")
            order, sums = rng.permutation(len(x)), 0.0
            start = time.perf_counter()
            for begin in range(0, len(x), BATCH):
                rows = order[begin : begin + BATCH]
                result, pull = ok.vjp(forward, state[0], x[rows], targets[rows], argnums=0)
                gradients = pull((1.0, NO_GRADIENT))
                step += 1
                state = update(*state, gradients, float(step))
                sums += float(result[0]) * len(rows)
            seconds += time.perf_counter() - start
            losses.append((sums / len(x), float(forward(state[0], *held_out)[0])))
    return state[0], losses, seconds


def draw(out, losses, confusion):
    """The loss of each epoch, and how often which digit was read as which."""
    paths = [out / "loss.png", out / "confusion.png"]
    if find_spec("matplotlib") is None:
        print("pip install matplotlib to have", *paths)
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogy(range(1, len(losses) + 1), losses, label=["training", "test"])
    axes.set(xlabel="epoch", ylabel="cross-entropy")
    axes.legend()
    figure.savefig(paths[0], dpi=120)
    figure, axes = plt.subplots(figsize=(5, 5), layout="constrained")
    axes.imshow(np.sqrt(confusion), cmap="Blues")
    for (true, read), count in np.ndenumerate(confusion):
        if count:
            axes.text(read, true, count, ha="center", va="center", color="wk"[true != read])
    axes.set(xlabel="read as", ylabel="digit", xticks=range(10), yticks=range(10))
    figure.savefig(paths[1], dpi=120)
    print("drawn:", *paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("train_digits_out"), help="of pictures")
    given = parser.parse_args()

    images, labels = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    x, targets = images[order] / 16, np.eye(10, dtype=np.float32)[labels[order]]
    train_set, test_set = (x[:TRAINING], targets[:TRAINING]), (x[TRAINING:], targets[TRAINING:])
    state = starting(rng)
    check(state, *(a[:BATCH] for a in train_set))

    parameters, losses, seconds = train(state, *train_set, test_set, given.epochs, rng)
    steps = given.epochs * -(-TRAINING // BATCH)
    print(f"{steps} steps in {seconds:.2f} s, {seconds / steps * 1e6:.0f} us each")

    _, (_, p) = forward(parameters, *test_set)
    read, digits = p.argmax(axis=1), labels[order[TRAINING:]]
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (digits, read), 1)
    draw(given.out, losses, confusion)
    print(f"test accuracy {(read == digits).mean():.3f}")


if __name__ == "__main__":
    main()
