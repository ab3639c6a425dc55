"""Builds benchmarks/native/ulp.cpp and prints each function's largest error and its speed."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from opkiln.runtime.bodies import every_body, head

TOOL = Path(__file__).parent / "native" / "ulp.cpp"
UNARY = [
    *["exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "cbrt"],
    *["sin", "cos", "tan", "arcsin", "arccos", "arctan"],
    *["sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"],
    *["erf", "erfc", "erfinv", "lgamma", "digamma", "trigamma", "sinc"],
    *["expit", "logit", "softplus", "log_sigmoid", "gelu", "gelu_tanh", "silu", "hard_swish"],
]
BINARY = ["power", "arctan2", "hypot", "logaddexp", "logaddexp2"]
LANES = {"f32": 16, "f64": 8}
FLAGS = [
    "-std=gnu++17",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-Wno-psabi",
]


def build(folder: Path, dtype: str) -> Path:
    """Compile the measuring program for one dtype."""
    text = every_body()
    tool = TOOL.read_text()
    source = folder / f"{dtype}.cpp"
    # The tool's headers come first: the bodies' short type names are not for them.
    source.write_text(head(LANES[dtype]) + weave(tool, text))
    program = source.with_suffix("")
    libraries = ["-lmvec", "-lm"] if dtype == "f32" else ["-lm"]
    subprocess.run(
        ["g++", *FLAGS, f"-I{TOOL.parent}", str(source), "-o", str(program), *libraries], check=True
    )
    return program


def weave(tool: str, bodies: str) -> str:
    """The tool's text with the bodies between its includes and its code."""
    head, mark, rest = tool.partition("namespace {")
    return head + bodies + mark + rest


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all 2^32 values of float32 functions")
    parser.add_argument("--every", type=int, default=1, help="of those only every EVERY-th")
    parser.add_argument("--only", nargs="*", default=[*UNARY, *BINARY], help="names of functions")
    options = parser.parse_args()
    mode = str(options.every) if options.full else "sample"
    every = "all" if options.every == 1 else f"every {options.every}th"
    print("| function | dtype | values | max ulp | at | ns per element |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        programs = {dtype: build(Path(folder), dtype) for dtype in LANES}
        for name in options.only:
            for dtype, program in programs.items():
                words = [str(program), name, mode]
                done = subprocess.run(words, check=True, capture_output=True, text=True)
                ulp, at, wrong, ns = done.stdout.split()
                whole = options.full and dtype == "f32" and name in UNARY
                values = every if whole else "sample"
                note = f" ({wrong} wrong)" if wrong != "0" else ""
                row = f"{name} | {dtype} | {values} | {ulp}{note} | {at} | {ns}"
                print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
