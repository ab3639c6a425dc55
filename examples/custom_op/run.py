"""Native code of your own as an op: eager, inside a compiled function, differentiated, on a GPU.

Run: python examples/custom_op/run.py [--no-cuda]
"""

import argparse
from pathlib import Path

import numpy as np

import opkiln as ok

HERE = Path(__file__).resolve().parent
SIGNATURE = "(Tensor x, float k=0.9) -> Tensor"
GRADIENT = "(Tensor grad, float k=0.9) -> Tensor"


def build(cuda):
    """The library, and whether the CUDA code is in it."""
    sources = [HERE / "decay.cpp", HERE / "decay.cu"]
    if not cuda:
        return ok.load("decay", sources[0]), False
    try:
        return ok.load("decay", sources), True
    except ok.errors.UnsupportedArch:  # there is no GPU here to build for
        with ok.config.scope(cuda_archs="9.0"):
            return ok.load("decay", sources), True
    except ok.errors.ToolchainNotFound as error:
        print(f"without CUDA: {str(error).splitlines()[0]}\n")
        return ok.load("decay", sources[0]), False


def define(cuda):
    """The op and its gradient, from C++, and from CUDA too where there is a CUDA compiler."""
    library, built = build(cuda)
    code, code_grad = {"cpu": "decay_cpu"}, {"cpu": "decay_grad_cpu"}
    if built:
        code["cuda"], code_grad["cuda"] = "decay_cuda", "decay_grad_cuda"
    ok.custom_op(f"demo::decay_grad{GRADIENT}", library=library, **code_grad)
    op = ok.custom_op(
        f"demo::decay{SIGNATURE}", library=library, **code, backward="demo::decay_grad"
    )
    return op, built


def by_numpy(x, k):
    """What the op computes, one column after the other."""
    y = np.empty_like(x)
    total = np.zeros_like(x[..., 0])
    for t in range(x.shape[-1]):
        y[..., t] = total = x.dtype.type(k) * total + x[..., t]
    return y


def row(what, error):
    """A line of the table."""
    print(f"{what:<44} {error:10.2e}")
    assert error < 1e-5, what


def on_gpu(decay, built):
    """The CUDA code on a tensor of torch, where there is a GPU."""
    try:
        import torch
    except ImportError:
        torch = None
    if not built or torch is None or not torch.cuda.is_available():
        why = "built, not run: torch sees no GPU" if built else "not built"
        print(f"{'on a torch.cuda tensor':<44} {why}")
        return
    x = torch.randn(1000, 200, device="cuda", requires_grad=True)
    y = decay(x, k=0.5)
    y.sum().backward()
    want = by_numpy(x.detach().cpu().numpy(), 0.5)
    row("on a torch.cuda tensor", np.abs(y.detach().cpu().numpy() - want).max())
    ones = np.ones(x.shape, np.float32)
    want = by_numpy(ones, 0.5)[:, ::-1]
    row("differentiated by torch on the GPU", np.abs(x.grad.cpu().numpy() - want).max())


def main():
    """Each use, against NumPy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-cuda", action="store_true", help="leave the CUDA code out")
    decay, built = define(cuda=not parser.parse_args().no_cuda)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 200)).astype(np.float32)

    print(f"{decay.schema}\n\n{'use':<44} largest error against NumPy")
    row("called on an array", np.abs(decay(x, k=0.5) - by_numpy(x, 0.5)).max())
    row("on a transposed view", np.abs(decay(x.T, k=0.5) - by_numpy(x.T, 0.5)).max())

    @ok.compile
    def smooth(x, k):
        return np.tanh(decay(x * 2 - 1, k=k) * (1 - k))

    want = np.tanh(by_numpy(x * 2 - 1, 0.5) * np.float32(0.5))
    row("between fused kernels, in ok.compile", np.abs(smooth(x, 0.5) - want).max())
    for size in (10, 100):  # one trace serves every size and every k
        smooth(x[:size], 0.25)
    print(f"{'':<44} traces: {smooth.info().traces}, kernels built: {smooth.info().builds}")

    gradient = ok.grad(lambda x: (decay(x, k=0.5) ** 2).sum())
    want = 2 * by_numpy(by_numpy(x, 0.5)[:, ::-1], 0.5)[:, ::-1]
    row("differentiated by ok.grad", np.abs(gradient(x) - want).max())
    on_gpu(decay, built)


if __name__ == "__main__":
    main()
