"""Emitted CUDA text compiled as C++ and run here: see cuda_shim.h."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cuda_cases import jobs

from opkiln.runtime.emit_cuda import emit
from opkiln.runtime.emit_cuda.launch import Call, Memory
from opkiln.runtime.errors import ToolchainNotFound
from opkiln.runtime.jit import nvrtc
from opkiln.runtime.kernel import Lowered

SHIM = Path(__file__).with_name("cuda_shim.h")
FLAGS = ["-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-w"]
Array = np.ndarray[Any, np.dtype[Any]]

# The shim's launch of one kernel: `block` is 1 where no thread needs another.
_RUN = """
static const void *args_{0};
template <class A> static void call_{0}(void (*kernel)(A)) {{ kernel(*(const A *)args_{0}); }}
extern "C" void run_{0}(const void *args, unsigned blocks, unsigned threads) {{
  args_{0} = args;
  shim_launch(blocks, threads, threads > 1, [] {{ call_{0}({0}); }});
}}
"""


def has_nvrtc() -> bool:
    """Whether a test may compile for a GPU."""
    try:
        return bool(nvrtc.compiler("sm_90"))
    except ToolchainNotFound:
        return False


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="nvidia-cuda-nvrtc is not installed")


class Host:
    """A program whose CUDA kernels run on the CPU."""

    def __init__(self, lowered: Lowered, folder: Path) -> None:
        self.lowered = lowered
        wanted = jobs(lowered)
        runs = "".join(_RUN.format(job.symbol) for job in wanted)
        source, library = folder / "kernel.cpp", folder / "kernel.so"
        source.write_text(SHIM.read_text() + emit(wanted) + runs)
        command = ["g++", *FLAGS, "-fPIC", "-shared", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(library))

    def __call__(
        self, arrays: Sequence[Array], weak: Sequence[int | float] = ()
    ) -> tuple[list[Array], int]:
        """The values of the program's outputs, and the fault bits."""
        call = Call(self.lowered, [a.shape for a in arrays], weak)
        memory = list(arrays)
        for i, buffer in enumerate(self.lowered.buffers[len(arrays) :], len(arrays)):
            memory.append(np.zeros(call.shapes[i], buffer.dtype))
        places = [Memory(m.ctypes.data, m.shape, m.strides) for m in memory]
        fault = np.zeros(1, np.uint64)
        for i, launch in enumerate(self.lowered.launches):
            blocks, threads = call.grid(i)
            if blocks and call.needed(i, places):
                kernel = launch.kernel
                warps = bool(kernel.reduced) and not kernel.product
                threads, blocks = (threads, blocks) if warps else (1, 1)
                run = self.library[f"run_ok_k{i}"]
                run(call.arguments(i, places, fault.ctypes.data), blocks, threads)
        values = [memory[place] for kind, place in self.lowered.outputs if kind == "buffer"]
        return [values[slot] for slot in self.lowered.slots], int(fault[0])
