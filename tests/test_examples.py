"""The programs in examples/: each runs alone, checks itself against NumPy, and says what it did."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = {p.name for p in (ROOT / "examples").glob("*.py")}


def output(name: str, *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *argv],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracy(text: str) -> float:
    (found,) = re.findall(r"^test accuracy (\d\.\d{3})$", text, flags=re.MULTILINE)
    return float(found)


def test_all_are_listed_and_tested() -> None:
    listed = re.findall(r"^\| `(\w+\.py)`", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
    assert set(listed) == EXAMPLES == {"digits.py", "train_digits.py", "framework.py"}


def test_digits() -> None:
    assert "597 unseen digits" in output("digits.py")


def test_train_digits(tmp_path: Path) -> None:
    text = output("train_digits.py", "--epochs", "20", "--out", str(tmp_path / "pictures"))
    assert accuracy(text) >= 0.95
    counts = re.findall(r"^(\w+): (\d+) kernels$", text, flags=re.MULTILINE)
    assert counts == [("forward", "5"), ("backward", "7"), ("update", "4")]
    pytest.importorskip("matplotlib")
    for name in ("loss.png", "confusion.png"):
        assert (tmp_path / "pictures" / name).read_bytes().startswith(b"\x89PNG")


def test_custom_op() -> None:
    text = output("custom_op/run.py", "--no-cuda")
    assert "demo::decay(Tensor x, float k=0.9) -> Tensor" in text
    assert re.search(r"^between fused kernels, in ok.compile .* [\d.e-]+$", text, re.MULTILINE)
    assert "traces: 1" in text
    assert "differentiated by ok.grad" in text
    assert re.search("on a torch.cuda tensor +not built", text)


def test_framework() -> None:
    text = output("framework.py", "--epochs", "5")
    assert accuracy(text) >= 0.9
    assert "6 graphs of gradients" in text
    assert "builds after the first epoch: 0" in text
