"""Does a CUDA op of the user's work on a GPU, and what does a call of it cost?

Builds examples/custom_op by `ok.load`, runs the op on torch tensors and CuPy arrays of several
dtypes, sizes and layouts, on several streams, differentiates it, and compares with torch.

Run, where there is a CUDA device:
    python benchmarks/custom_op_cuda.py --write benchmarks/results/custom_op_h200.md
Anywhere, on CPU tensors: python benchmarks/custom_op_cuda.py --device cpu
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import opkiln as ok

SOURCES = Path(__file__).resolve().parents[1] / "examples" / "custom_op"
SHAPES = [(1, 1), (7, 13), (64, 1000), (3, 5, 17), (4096, 512), (0, 4), (5,)]
K = 0.75


class Table:
    """Lines of (group, what, result), printed as they come."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.failed = 0

    def add(self, group: str, what: str, result: str) -> None:
        self.lines.append((group, what, result))
        print(f"{group:<14} {what:<58} {result}", flush=True)

    def check(self, group: str, what: str, run: Callable[[], str]) -> None:
        """A line of what `run` says; an exception is a line too, and the script goes on."""
        try:
            self.add(group, what, run())
        except Exception as error:
            traceback.print_exc()
            self.failed += 1
            self.add(group, what, f"FAILED: {type(error).__name__}: {str(error).splitlines()[0]}")

    def markdown(self, title: str) -> str:
        head = f"# A CUDA op built by `ok.load`\n\n{title}\n\n"
        head += "`python benchmarks/custom_op_cuda.py` wrote this page.\n\n"
        rows = [f"| {' | '.join(line)} |" for line in (("", "what", "result"), ("---",) * 3)]
        rows += [f"| {g} | {w} | {r} |" for g, w, r in self.lines]
        return head + "\n".join(rows) + "\n"


def expected(x: Any, k: float) -> Any:
    """The op by torch, one column after the other, in float64."""
    y = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    total = torch.zeros(x.shape[:-1], dtype=torch.float64, device=x.device)
    for t in range(x.shape[-1]):
        total = k * total + x[..., t]
        y[..., t] = total
    return y


def define(table: Table, device: str) -> tuple[ok.CustomOp, ok.CustomOp]:
    """The op and its gradient, each the other's derivative."""
    gpu = device == "cuda"
    sources = [SOURCES / "decay.cpp", *([SOURCES / "decay.cu"] if gpu else [])]
    start = time.perf_counter()
    library = ok.load("decay_bench", sources)
    first = time.perf_counter() - start
    again = []
    for _ in range(20):
        start = time.perf_counter()
        ok.load("decay_bench", sources)
        again.append(time.perf_counter() - start)
    table.add("build", f"ok.load of {len(sources)} sources ({library.hit})", f"{first:.2f} s")
    table.add("build", "ok.load again", f"{statistics.median(again) * 1e3:.2f} ms")
    code = {"cpu": "decay_cpu", **({"cuda": "decay_cuda"} if gpu else {})}
    code_grad = {"cpu": "decay_grad_cpu", **({"cuda": "decay_grad_cuda"} if gpu else {})}
    grad: ok.CustomOp = ok.custom_op(
        "bench::decay_grad(Tensor g, float k=0.9) -> Tensor dx", library=library, **code_grad,
        backward=lambda grad_dx, k: op(grad_dx, k=k),
    )  # fmt: skip
    op: ok.CustomOp = ok.custom_op(
        "bench::decay(Tensor x, float k=0.9) -> Tensor", library=library, **code,
        backward=lambda grad, k: grad_op(grad, k=k),
    )  # fmt: skip
    grad_op = grad
    return op, grad


def layouts(shape: tuple[int, ...], dtype: Any, device: str) -> Iterator[tuple[str, Any]]:
    """A tensor of the shape as it may lie in memory."""
    make = torch.Generator(device="cpu").manual_seed(1)
    base = torch.randn([2 * n for n in shape], generator=make, dtype=torch.float64)
    base = base.to(device=device, dtype=dtype)
    yield "contiguous", base[tuple(slice(0, n) for n in shape)].contiguous()
    yield "every other element", base[tuple(slice(0, 2 * n, 2) for n in shape)]
    if len(shape) > 1:
        source = torch.randn(shape[::-1], generator=make, dtype=torch.float64)
        turned = source.to(device=device, dtype=dtype)
        yield "transposed", turned.permute(*reversed(range(len(shape))))
        yield "expanded", base[:1, ..., : shape[-1]].expand(shape[0], *base.shape[1:-1], shape[-1])


def values(op: ok.CustomOp, dtype: Any, device: str) -> str:
    """The op on every shape and layout, against torch."""
    worst, count = 0.0, 0
    for shape in SHAPES:
        for what, x in layouts(shape, dtype, device):
            y = op(x, k=K)
            want = expected(x, K)
            assert (y.dtype, y.shape, y.device) == (x.dtype, x.shape, x.device), (shape, what)
            if y.numel():
                scale = want.abs().max().clamp(min=1)
                error = float(((y - want).abs().max() / scale).item())
                assert error < 100 * torch.finfo(dtype).eps, (shape, what, error)
                worst = max(worst, error)
            count += 1
    return f"{count} tensors, largest error {worst:.1e} of the largest value"


def streams(op: ok.CustomOp, device: str) -> str:
    """Work on side streams, each after the copy that feeds it on the same stream."""
    if device == "cpu":
        return "not on the CPU"
    source = torch.randn(2048, 256).pin_memory()
    want = expected(source, K)
    found = []
    for _ in range(8):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = source.to(device, non_blocking=True)
            for _ in range(4):  # keeps the stream busy, so that a wrong one would be seen
                x = x * 2 / 2
            found.append((stream, op(x, k=K)))
    for stream, y in found:
        stream.synchronize()
        assert (y.cpu() - want).abs().max() < 1e-4
    return "8 streams, results right"


def errors(op: ok.CustomOp, device: str) -> str:
    """Typed errors, after which the device still works."""
    said = []
    for bad in (
        torch.ones(3, dtype=torch.int32, device=device),
        torch.ones((), device=device),
    ):
        try:
            op(bad)
        except ok.errors.CustomOpError as error:
            said.append(str(error).split(" (")[0])
    assert len(said) == 2, said
    assert op(torch.ones(2, device=device), k=1.0).tolist() == [1, 2]
    return "; ".join(said)


def mixed(op: ok.CustomOp, device: str) -> str:
    """An op without code for the device."""
    if device == "cpu":
        return "not on the CPU"
    library = ok.load("decay_bench", [SOURCES / "decay.cpp"])
    alone = ok.custom_op("bench::cpu_only(Tensor x) -> Tensor", library=library, cpu="decay_cpu")
    try:
        alone(torch.ones(2, device=device))
    except ok.errors.DeviceMismatch as error:
        return str(error).split(" (")[0]
    raise AssertionError(f"{op.name} ran where it has no code")


def torch_gradients(op: ok.CustomOp, device: str) -> str:
    x = torch.randn(4, 9, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: op(v, k=K), x)
    assert torch.autograd.gradgradcheck(lambda v: op(v, k=K), x)
    z = torch.randn(64, 128, device=device, requires_grad=True)
    (op(z, k=K) ** 2).sum().backward()
    w = z.detach().double().requires_grad_()
    total, parts = torch.zeros(64, dtype=torch.float64, device=device), []
    for t in range(128):
        total = K * total + w[:, t]
        parts.append(total)
    (torch.stack(parts, 1) ** 2).sum().backward()
    error = float(((z.grad - w.grad).abs().max() / w.grad.abs().max()).item())
    assert error < 1e-5, error
    return f"gradcheck and gradgradcheck hold; error against torch's own {error:.1e}"


def own_gradients(op: ok.CustomOp) -> str:
    """`ok.grad` compiles for the CPU, so the same op runs there."""
    x = np.random.default_rng(0).standard_normal((16, 32))
    found = ok.grad(lambda v: (np.tanh(op(v * 2, k=K)) ** 2).sum())(x)
    w = torch.tensor(x, requires_grad=True)
    total, parts = torch.zeros(16, dtype=torch.float64), []
    for t in range(32):
        total = K * total + 2 * w[:, t]
        parts.append(total)
    (torch.tanh(torch.stack(parts, 1)) ** 2).sum().backward()
    error = np.abs(found - w.grad.numpy()).max()
    assert error < 1e-9, error
    return f"largest error {error:.1e}"


def with_cupy(op: ok.CustomOp) -> str:
    try:
        import cupy  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    except ImportError:
        return "CuPy is not installed"
    worst = 0.0
    drawn = cupy.random.standard_normal((33, 65))
    for x in (drawn, cupy.ones((8, 4), "f4").T, cupy.ones((4, 6))[::2]):
        y = op(x, k=K)
        assert isinstance(y, cupy.ndarray)
        want = expected(torch.tensor(cupy.asnumpy(x)), K).numpy()
        worst = max(worst, float(np.abs(cupy.asnumpy(y) - want).max()))
    with cupy.cuda.Stream() as stream:
        y = op(cupy.ones((4, 4)), k=1.0)
        stream.synchronize()
    assert cupy.asnumpy(y)[0].tolist() == [1, 2, 3, 4]
    assert worst < 1e-5, worst
    return f"largest error {worst:.1e}"


def microseconds(run: Callable[[], Any], device: str, count: int = 2000) -> float:
    """Of a call by the clock of the host, without waiting for the device."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count)
        if device == "cuda":
            torch.cuda.synchronize()
    return min(times) * 1e6


def overhead(table: Table, op: ok.CustomOp, device: str) -> None:
    x = torch.ones(2, 2, device=device)
    y = torch.ones(2, 2, device=device, requires_grad=True)

    def recorded() -> None:
        op(y, k=K)

    ways: dict[str, Callable[[], Any]] = {
        "x.mul(0.75) of torch": lambda: x.mul(0.75),
        "the op": lambda: op(x, k=K),
        "the op with a record for autograd": recorded,
    }
    for what, run in ways.items():
        table.add("call", f"{what}, 4 elements", f"{microseconds(run, device):.1f} us")


def throughput(op: ok.CustomOp) -> str:
    x = torch.randn(65536, 256, device="cuda")
    op(x, k=K)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(20):
        begin.record()
        op(x, k=K)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    best = min(times)
    rate = 2 * x.numel() * 4 / best / 1e6
    return f"{best:.2f} ms, {rate:.0f} GB/s"


def title(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
    return f"{name}; torch {torch.__version__}{cuda}; Python {platform.python_version()}."


def main() -> None:
    """All of it; a failure of one part is a line, and the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    device = options.device
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("this script needs a CUDA device that torch can use; or pass --device cpu")
    table = Table()
    print(title(device))
    op, _ = define(table, device)
    for dtype in (torch.float32, torch.float64):
        what = f"{str(dtype).removeprefix('torch.')}, {len(SHAPES)} shapes, 4 layouts"
        table.check("values", what, lambda dtype=dtype: values(op, dtype, device))
    table.check("values", "float32, side streams", lambda: streams(op, device))
    table.check("values", "CuPy arrays", lambda: with_cupy(op))
    table.check("errors", "int32; no axis", lambda: errors(op, device))
    table.check("errors", "no code for the device", lambda: mixed(op, device))
    table.check("gradients", "torch.autograd", lambda: torch_gradients(op, device))
    table.check("gradients", "ok.grad, on the CPU", lambda: own_gradients(op))
    overhead(table, op, device)
    if device == "cuda":
        what = "65536 x 256 float32, a thread per row"
        table.check("device", what, lambda: throughput(op))
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(table.markdown(title(device)), encoding="utf-8")
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
