"""An eager framework in a hundred lines: tensors, a tape and training, on opkiln's op definitions.

Every operation is an op (a frozen value) that is compiled once for all equal ops; what its results
look like, and the graph of its gradients, come from caches that are found by the op.

Run: python examples/framework.py [--epochs 20]
"""

import argparse
from functools import lru_cache

import numpy as np

import opkiln as ok
from opkiln.runtime.cli.digits import load_digits

TAPE = []  # in the order in which they were applied: (graph of gradients, what it reads, ins, outs)
ASKED = {"ops": 0, "graphs of gradients": set()}


class Tensor:
    """An array, its description, and what has flowed back to it so far."""

    def __init__(self, data, *, trained=False, desc=None):
        self.data, self.trained, self.grad = data, trained, None
        self.desc = ok.TensorDesc.of(data) if desc is None else desc

    shape = property(lambda self: self.desc.shape)
    dtype = property(lambda self: self.desc.dtype)

    def __add__(self, other):
        return apply("+", self, other)

    def __sub__(self, other):
        return apply("-", self, other)

    def __mul__(self, other):
        return apply("*", self, other)

    def __matmul__(self, other):
        return apply("matmul", self, other)

    def tanh(self):
        return apply("tanh", self)

    def mean(self):
        return apply("mean", self)

    def backward(self):
        """Let 1 flow back from this tensor to all that it was made of; the tape is used up."""
        self.grad = np.ones_like(self.data)
        while TAPE:
            graph, kept, inputs, outputs = TAPE.pop()
            flowed = [out.grad for out in outputs]
            if all(g is None for g in flowed):
                continue
            flowed = [np.zeros_like(o.data) if g is None else g
                      for g, o in zip(flowed, outputs, strict=True)]  # fmt: skip
            for tensor, g in zip(inputs, graph.apply(*kept, *flowed), strict=True):
                if g is not None:
                    tensor.grad = g if tensor.grad is None else add(tensor.grad, g)[0]


@lru_cache
def named(name, arity, **options):
    """The op of a name, compiled; equal ops share programs whoever makes them."""
    return ok.CompiledOp(ok.find_op(name, arity, options))


add = named("+", 2).apply


def apply(op, *inputs, **options):
    """Apply an op, or the op of a name, to tensors; the tape keeps what its gradients read."""
    op = named(op, len(inputs), **options) if isinstance(op, str) else op
    descs, _ = op.infer([t.desc for t in inputs])  # raises what is wrong before anything runs
    results = op.apply(*(t.data for t in inputs))
    trained = any(t.trained for t in inputs)
    outputs = [Tensor(r, trained=trained, desc=d) for r, d in zip(results, descs, strict=True)]
    ASKED["ops"] += 1
    if trained:
        need, has = [t.trained for t in inputs], [True] * len(outputs)
        graph = op.backward_graph([t.desc for t in inputs], need, has)
        ASKED["graphs of gradients"].add(graph)
        values = [t.data for t in (*inputs, *outputs)]
        kept = [v if read else None for v, read in zip(values, graph.input_mask, strict=False)]
        TAPE.append((graph, kept, inputs, outputs))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


@ok.subgraph("cross_entropy", np.float32, "cpu", nr_inputs=2, opt_level=2, custom_grad=True)
def cross_entropy(inputs, f, c):
    """An op of many, fused, with a gradient of its own: the loss of each row."""
    scores, targets = inputs
    scores = f("-", scores, f("reduce_max", scores, axis=1, keepdims=True))
    e = f("exp", scores)
    total = f("sum", e, axis=1, keepdims=True)
    dz = yield f("-", f("log", total), f("sum", f("*", scores, targets), axis=1, keepdims=True))
    yield f("*", dz, f("-", f("/", e, total), targets)), None


@ok.subgraph("descend", np.float32, "cpu", nr_inputs=2, opt_level=2)
def descend(inputs, f, c):
    """A step against the gradient."""
    w, g = inputs
    return (f("-", w, f("*", g, c(0.5))),), (False,)


def network(parameters, x):
    w1, b1, w2, b2 = parameters
    return (x @ w1 + b1).tanh() @ w2 + b2


def gradients_by_hand(parameters, x, targets):
    """Of the mean loss, in plain NumPy."""
    w1, b1, w2, b2 = (p.data for p in parameters)
    h = np.tanh(x @ w1 + b1)
    e = np.exp(h @ w2 + b2)
    ds = (e / e.sum(axis=1, keepdims=True) - targets) / len(x)
    da = ds @ w2.T * (1 - h * h)
    return x.T @ da, da.sum(axis=0), h.T @ ds, ds.sum(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs

    images, labels = load_digits()
    rng = np.random.default_rng(0)
    x, targets = images / 16, np.eye(10, dtype=np.float32)[labels]
    order = rng.permutation(len(x))
    shapes = [(64, 32), (32,), (32, 10), (10,)]
    parameters = [
        Tensor((rng.normal(size=shape) / 8).astype(np.float32), trained=True) for shape in shapes
    ]
    for epoch in range(epochs):
        for begin in range(0, 1200, 50):
            rows = order[begin : begin + 50]
            scores = network(parameters, Tensor(x[rows]))
            loss = apply(cross_entropy, scores, Tensor(targets[rows])).mean()
            loss.backward()
            if epoch == begin == 0:
                by_hand = gradients_by_hand(parameters, x[rows], targets[rows])
                for p, want in zip(parameters, by_hand, strict=True):
                    np.testing.assert_allclose(p.grad, want, rtol=1e-4, atol=1e-6)
            parameters = [Tensor(*descend.apply(p.data, p.grad), trained=True) for p in parameters]
        if epoch == 0:
            warm = ok.runtime_info().totals
    TAPE.clear()
    test = order[1200:]
    read = network(parameters, Tensor(x[test])).data.argmax(axis=1)
    print(f"test accuracy {(read == labels[test]).mean():.3f}")
    info = ok.runtime_info().totals
    graphs = len(ASKED["graphs of gradients"])
    print(f"{ASKED['ops']} ops on the tape or off it, {graphs} graphs of gradients for all of them")
    print(f"{info.calls} compiled calls, {info.hits} of them hits; {info.traces} traces")
    print(f"builds after the first epoch: {info.builds - warm.builds}")


if __name__ == "__main__":
    main()
