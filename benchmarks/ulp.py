"""Builds benchmarks/native/ulp.cpp and prints each function's largest error and its speed."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from opkiln.runtime.bodies import every_body, head

ROOT = Path(__file__).parents[1]
UNARY = [
    *["exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "cbrt"],
    *["sin", "cos", "tan", "arcsin", "arccos", "arctan"],
    *["sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "erf"],
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
    tool = (ROOT / "benchmarks" / "native" / "ulp.cpp").read_text()
    source = folder / f"{dtype}.cpp"
    # The tool's headers come first: the bodies' short type names are not for them.
    source.write_text(head(LANES[dtype]) + weave(tool, text))
    program = source.with_suffix("")
    libraries = ["-lmvec", "-lm"] if dtype == "f32" else ["-lm"]
    subprocess.run(["g++", *FLAGS, str(source), "-o", str(program), *libraries], check=True)
    return program


def weave(tool: str, bodies: str) -> str:
    """The tool's text with the bodies between its includes and its code."""
    head, mark, rest = tool.partition("namespace {")
    return head + bodies + mark + rest


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all 2^32 values of float32 functions")
    parser.add_argument("--only", nargs="*", default=[*UNARY, *BINARY], help="names of functions")
    options = parser.parse_args()
    mode = "full" if options.full else "sample"
    print("| function | dtype | values | max ulp | at | ns per element |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        programs = {dtype: build(Path(folder), dtype) for dtype in LANES}
        for name in options.only:
            for dtype, program in programs.items():
                words = [str(program), name, mode]
                done = subprocess.run(words, check=True, capture_output=True, text=True)
                ulp, at, wrong, ns = done.stdout.split()
                values = "all" if options.full and dtype == "f32" and name in UNARY else "sample"
                note = f" ({wrong} wrong)" if wrong != "0" else ""
                row = f"{name} | {dtype} | {values} | {ulp}{note} | {at} | {ns}"
                print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
