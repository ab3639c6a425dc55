"""Reads handwritten digits with a nearest-mean classifier whose array code is compiled."""

import numpy as np

import opkiln as ok
from opkiln.runtime.cli.digits import load_digits


@ok.compile
def standardise(x, mean, scale):
    return (x - mean) / (scale + 1e-3)


@ok.compile
def probabilities(scores):
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def main() -> None:
    images, labels = load_digits()
    train, test = slice(0, 1200), slice(1200, None)  # two sizes, one trace
    mean, scale = images[train].mean(axis=0), images[train].std(axis=0)

    x = standardise(images[train], mean, scale)
    centres = np.stack([x[labels[train] == digit].mean(axis=0) for digit in range(10)])

    y = standardise(images[test], mean, scale)
    scores = y @ centres.T - 0.5 * (centres * centres).sum(axis=1)
    p = probabilities(scores)

    # The same code, run by NumPy: what a compiled function wraps.
    assert np.allclose(y, standardise.__wrapped__(images[test], mean, scale), rtol=1e-6, atol=1e-6)
    assert np.allclose(p, probabilities.__wrapped__(scores), rtol=1e-5, atol=1e-6)
    right = (p.argmax(axis=1) == labels[test]).mean()
    print(f"{len(y)} unseen digits, {right:.1%} right, mean confidence {p.max(axis=1).mean():.2f}")
    print(f"standardise: {standardise.info()}")


if __name__ == "__main__":
    main()
