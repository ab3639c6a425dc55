"""Does a GPU give the bits of the CPU kernels, for every row of the op table and for folds?

Launches what `emit_cuda` makes of the cases of tests/cuda_cases.py through the CUDA driver, and
compares the results with those of the CPU kernels and with NumPy. Writes the table of docs/cuda.md.

Run, where there is a CUDA device: python benchmarks/cuda_table.py --write docs/cuda.md
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the cases of the tests
PICKS = 150  # values of a row compared with true ones
MARKS = ("<!-- table -->", "<!-- end of table -->")
Array = np.ndarray[Any, np.dtype[Any]]


class Device:
    """The first GPU, through the driver's C interface."""

    def __init__(self) -> None:
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            sys.exit("this script needs a CUDA device: there is no libcuda.so.1")
        self.held: list[ctypes.c_uint64] = []
        device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        name = ctypes.create_string_buffer(128)
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDeviceGetName", name, len(name), device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        major, minor = divmod(version.value // 10, 100)
        self.title = f"{name.value.decode()}, CUDA driver {major}.{minor}"

    def call(self, name: str, *args: Any) -> None:
        code = self.driver[name](*args)
        if code:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(code, ctypes.byref(text))
            sys.exit(f"{name}: {(text.value or b'?').decode()} ({code})")

    def load(self, code: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        return module

    def put(self, array: Array) -> int:
        """A copy in the GPU's memory, in C order; held until `release`."""
        place, data = ctypes.c_uint64(), np.ascontiguousarray(array)
        self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(max(data.nbytes, 1)))
        self.held.append(place)
        if data.nbytes:
            source, size = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)
            self.call("cuMemcpyHtoD_v2", place, source, size)
        return place.value

    def get(self, place: int, into: Array) -> Array:
        if into.nbytes:
            target, size = ctypes.c_void_p(into.ctypes.data), ctypes.c_size_t(into.nbytes)
            self.call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(place), size)
        return into

    def launch(
        self, module: ctypes.c_void_p, name: str, grid: tuple[int, int], args: bytes
    ) -> None:
        function, size = ctypes.c_void_p(), ctypes.c_size_t(len(args))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        block = ctypes.create_string_buffer(args, len(args))
        extra = (ctypes.c_void_p * 5)(  # CU_LAUNCH_PARAM: 1 the block of arguments, 2 its size
            1, ctypes.addressof(block), 2, ctypes.addressof(size), None
        )
        blocks, threads = grid
        shape = (blocks, 1, 1, threads, 1, 1)
        self.call("cuLaunchKernel", function, *shape, 0, None, None, extra)
        self.call("cuCtxSynchronize")

    def release(self) -> None:
        while self.held:
            self.call("cuMemFree_v2", self.held.pop())


def run(device: Device, module: Any, lowered: Any, arrays: Sequence[Array], weak: Any) -> Any:
    """One call of a lowered program on the GPU: its results, and the fault bits."""
    from opkiln.runtime.emit_cuda.launch import Call, Memory

    call = Call(lowered, [a.shape for a in arrays], weak)
    rest = zip(lowered.buffers[len(arrays) :], call.shapes[len(arrays) :], strict=True)
    host = [*map(np.ascontiguousarray, arrays), *(np.zeros(s, b.dtype) for b, s in rest)]
    host = [a.reshape(s) for a, s in zip(host, call.shapes, strict=True)]  # 0-d stays 0-d
    memory = [Memory(device.put(a), a.shape, a.strides) for a in host]
    fault = device.put(np.zeros(1, np.uint64))
    for i in range(len(lowered.launches)):
        if call.grid(i)[0] and call.needed(i, memory):
            device.launch(module, f"ok_k{i}", call.grid(i), call.arguments(i, memory, fault))
    places = [place for _, place in lowered.outputs]
    found = {p: device.get(memory[p].pointer, host[p]) for p in places}
    bits = device.get(fault, np.zeros(1, np.uint64))
    device.release()
    return [found[places[slot]] for slot in lowered.slots], int(bits[0])


@dataclass
class Line:
    """What was found of one row, or of one result of a program, on all its dtypes."""

    equal: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)  # dtypes whose bits are not the CPU's, and how
    values: int = 0
    numpys: list[str] = field(default_factory=list)  # dtypes with NumPy's bits
    ulp: dict[str, float] = field(default_factory=dict)

    def cells(self) -> list[str]:
        dtypes = [*self.equal, *(text.split()[0] for text in self.other)]
        ulps = ", ".join(f"{name} {error:.2f} ulp" for name, error in self.ulp.items())
        unlike = [name for name in dtypes if name not in self.numpys]
        unlike = [name for name in unlike if name not in self.ulp]
        rest = f"not NumPy's: {' '.join(unlike)}" if unlike and not ulps else ""
        numpy = ulps or rest or "equal"
        return [short(dtypes), f"{self.values:,}", "; ".join(self.other) or "equal", numpy]


def short(names: list[str]) -> str:
    """The dtypes, with the integers of both signs in one word."""
    ints = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
    for first, word in ((0, "integers"), (2, "integers of 16 bits and more")):
        if set(names) >= set(ints[first:]):
            rest = [name for name in names if name not in ints]
            return " ".join(
                [*(n for n in rest if n == "bool"), word, *(n for n in rest if n != "bool")]
            )
    return " ".join(names)


def differing(got: Array, want: Array) -> Array:
    """Which elements have other bits; any NaN is a NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    a, b = (np.ascontiguousarray(v).reshape(-1) for v in (got, want))
    if a.dtype.kind == "c":  # by parts
        a, b = (v.view(v.real.dtype) for v in (a, b))
    x, y = (v.view(np.uint8).reshape(a.size, a.itemsize) for v in (a, b))
    unlike = (x != y).any(1)
    return unlike & ~(np.isnan(a) & np.isnan(b)) if a.dtype.kind not in "biu" else unlike


def compare(line: Line, dtype: str, got: Array, cpu: Array, numpy: Array, zeros: bool) -> None:
    """Note the bits of one result; `zeros`: NumPy leaves the sign of a zero open."""
    odd = differing(got, cpu)
    line.values += odd.size
    if odd.any():
        at = int(np.flatnonzero(odd)[0])
        parts = odd.size // max(np.size(got), 1) or 1
        values = f"{np.ravel(got)[at // parts]!r} for {np.ravel(cpu)[at // parts]!r}"
        line.other.append(f"{dtype} differs in {odd.sum()} of {odd.size}, first {values}")
    else:
        line.equal.append(dtype)
    if zeros:
        got, numpy = got + 0, numpy + 0
    if numpy.dtype == got.dtype and not differing(got, numpy).any():
        line.numpys.append(dtype)


def rows(device: Device, n: int, arch: str | None) -> dict[str, Line]:
    """Every row of the table on every dtype."""
    from tests import cuda_cases, truth
    from tests.values import DTYPES, function_of, is_rounded, leaves_zero_sign

    from opkiln.ops.table import ELEMENTWISE

    lines: dict[str, Line] = defaultdict(Line)
    for dtype in DTYPES:
        program, names = cuda_cases.table(dtype, n, cast=True)
        (call,) = program.calls
        ((cpu, lowered, module, _),) = prepared(device, program, arch)
        got, _ = run(device, module, lowered, cuda_cases.leaves(call), ())
        want = cpu(*call)
        for name, value in zip(names, got, strict=True):
            row, operands = ELEMENTWISE[name], call[0][name]
            with np.errstate(all="ignore"):
                numpy = np.asarray(function_of(row)(*operands))
            zeros = leaves_zero_sign(row, value.dtype)
            compare(lines[name], dtype.name, value, want[name], numpy, zeros)
            own = all(a.dtype == value.dtype for a in operands)
            if own and value.dtype.kind == "f" and is_rounded(row, value.dtype):
                picks = np.arange(value.size)[-n:][:PICKS]
                lines[name].ulp[dtype.name] = truth.worst(row, value, operands, picks)[0]
        print(f"{dtype.name}: {len(names)} rows", flush=True)
    return lines


def programs(device: Device, arch: str | None) -> dict[str, Line]:
    """Folds and kernels of several loops; also on shapes that fill the device."""
    from tests import cuda_cases

    lines: dict[str, Line] = defaultdict(Line)
    large = (*cuda_cases.SHAPES, (3000, 700), (5, 100_003), (20_011, 40))
    made = {name: make() for name, make in cuda_cases.PROGRAMS.items()}
    made["folds"], made["rows"] = cuda_cases.folds(large), cuda_cases.rows(large)
    for name, program in made.items():
        found = prepared(device, program, arch)
        for cpu, lowered, module, call in [(*rest, c) for *rest, calls in found for c in calls]:
            got, _ = run(device, module, lowered, call, program.weak)
            want = cpu(*call, *program.weak)
            with np.errstate(all="ignore"):
                numpy = program.fn(*call, *program.weak)
            for (what, value), mine in zip(want.items(), got, strict=True):
                shape = " x ".join(map(str, np.shape(call[0])))
                line = lines[name if name == "casts" else what.partition(" over ")[0]]
                compare(line, f"{what} {shape}", mine, value, np.asarray(numpy[what]), False)
        print(f"{name}: {len(program.calls)} calls", flush=True)
    return lines


def prepared(device: Device, program: Any, arch: str | None) -> list[Any]:
    """The function compiled for the CPU, kernels, their code on the GPU, and calls of them."""
    from tests import cuda_cases

    from opkiln.runtime.emit_cuda import emit
    from opkiln.runtime.jit import nvrtc

    made: list[Any] = []
    for cpu, lowered, calls in cuda_cases.lowered(program):
        jobs = cuda_cases.jobs(lowered)
        code = nvrtc.cubin(emit(jobs), [job.symbol for job in jobs], name="table", arch=arch)
        made.append((cpu, lowered, device.load(code.library), calls))
    return made


def markdown(title: str, lines: dict[str, Line], folds: dict[str, Line], n: int) -> str:
    text = [
        f"{title}; NumPy {np.__version__}, CPU kernels on {platform.machine()}. Of each row all",
        f"pairs of special values and {n:,} ordinary ones, on every dtype that it takes.",
        "",
        "| row | dtypes | values | bits of the CPU kernels | NumPy's bits, or ulp of true values |",
        "|---|---|---|---|---|",
        *(f"| {name} | {' | '.join(line.cells())} |" for name, line in lines.items()),
        "",
        "| fold or program | calls | values | bits of the CPU kernels |",
        "|---|---|---|---|",
    ]
    for name, line in folds.items():
        calls = len(line.equal) + len(line.other)
        text.append(f"| {name} | {calls} | {line.values:,} | {line.cells()[2]} |")
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="ordinary values of each row")
    parser.add_argument("--arch", help="architecture to compile for; default: the device's")
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    options = parser.parse_args()
    device = Device()
    lines = rows(device, options.n, options.arch)
    folds = programs(device, options.arch)
    text = markdown(device.title, lines, folds, options.n)
    print(text)
    if options.write:
        head, _, rest = options.write.read_text(encoding="utf-8").partition(MARKS[0])
        tail = rest.partition(MARKS[1])[2]
        page = f"{head}{MARKS[0]}\n{text}\n{MARKS[1]}{tail}"
        options.write.write_text(page, encoding="utf-8")
    return int(any(line.other for line in (*lines.values(), *folds.values())))


if __name__ == "__main__":
    sys.exit(main())
