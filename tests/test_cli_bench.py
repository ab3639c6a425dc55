"""`opkiln bench`: what is compared, what is refused, what is written. No test asserts a time."""

import json
import os
import signal
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import opkiln as ok
from opkiln.runtime.cli import cases, chart, main, peers
from opkiln.runtime.cli.cases import Case, Outcome, Result, measure
from opkiln.runtime.cli.peers import NUMPY, PEERS, Formula, installed
from opkiln.runtime.cli.timing import Timing, Way, in_turns

SMALL = Case("softmax", cases.SOFTMAX, (3, 4))


@pytest.mark.parametrize("name", [n for n in ("numexpr", "numba", "jax", "torch") if find_spec(n)])
def test_peers_compute_the_formulas(name: str) -> None:
    """Each in its own names, or says that it cannot."""
    unable = []
    for case in (cases.CASES[3], cases.CASES[5]):  # all names but sum
        small = Case(case.name, case.formula, (3, 4), case.tolerance)
        arrays = small.arrays()
        exact = np.asarray(case.formula.function(NUMPY)(*(a.astype("f8") for a in arrays)))
        way = PEERS[name](case.formula, arrays)
        if way is None:
            unable.append(small.title)
        else:
            assert peers.error(way, exact) <= small.tolerance, case.title
    assert unable == (["softmax of each row [3, 4]"] if name == "numexpr" else [])


@pytest.mark.skipif(find_spec("numexpr") is None, reason="no numexpr")
def test_each_numexpr_way_is_its_own() -> None:
    """re_evaluate() would run the last expression of the thread for all of them."""
    arrays = [np.full(4, 2, np.float32), np.full(4, 3, np.float32)]
    first = PEERS["numexpr"](Formula(("x + y",), 2), arrays)
    PEERS["numexpr"](Formula(("x * y",), 2), arrays)
    assert first is not None
    assert peers.error(first, np.full(4, 5.0)) == 0


def test_wrong_or_broken_peer_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(formula, arrays):
        return Way("wrong", "x * 1.01", {"x": formula.function(NUMPY)(*arrays)})

    def misshapen(formula, arrays):
        return Way("misshapen", "1.0", {})

    def broken(formula, arrays):
        raise ImportError("libfoo.so is missing\nmore")

    def leaves(formula, arrays):
        print("chatter")
        raise SystemExit(5)

    made = {"wrong": wrong, "misshapen": misshapen, "broken": broken, "leaves": leaves}
    monkeypatch.setattr(cases, "PEERS", made)
    said: list[str] = []
    outcome = measure(SMALL, tuple(made), 2, 1e-4, said.append)
    assert len(said) == cases.steps([SMALL], tuple(made), 2)
    notes = {r.name: r.note for r in outcome.results}
    assert notes["wrong"].startswith("wrong by 1.0e-02")
    assert notes["misshapen"] == "wrong by inf"
    assert notes["broken"] == "ImportError: libfoo.so is missing"
    assert notes["leaves"] == "SystemExit: 5"
    assert capsys.readouterr() == ("", "chatter\n")  # not into the answer, which may be JSON
    for name in made:
        assert outcome.ratio(name) is None
    for name in ("NumPy", "opkiln", "opkiln out=", "opkiln uncached"):
        assert outcome.ratio(name) is not None and notes[name] == ""


def test_interrupt_that_a_callback_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python calls from C, as the finaliser here, cannot raise."""

    class Finalised:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def losing(formula, arrays):
        Finalised()

    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    monkeypatch.setattr(cases, "PEERS", {"losing": losing})
    monkeypatch.setattr(peers, "installed", lambda: ("losing",))
    usual = signal.getsignal(signal.SIGINT)
    assert main(["bench", "--quick"]) == 130
    assert lost == [KeyboardInterrupt]
    assert signal.getsignal(signal.SIGINT) is usual


def test_ratios_are_of_one_round() -> None:
    """A slow moment of the machine hits both sides of a ratio."""
    base, own = Timing((1.0, 10.0, 2.0)), Timing((0.5, 5.0, 1.0))
    assert own.ratio(base) == 0.5
    log: list[str] = []
    ways = [Way(n, f"log.append({n!r})", {"log": log}) for n in "ab"]
    timings = in_turns(ways, rounds=3, seconds=0, each_round=lambda: log.append("|"))
    assert "".join(log).split("|")[1:] == ["ab"] * 3
    assert len(timings["a"].samples) == 3


def test_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "opkiln", "bench", "--quick", "--no-peers", "--json", "f.json"],
        env={**os.environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "load " in done.stdout.splitlines()[0]
    assert "uncached / cached" in done.stdout and "wrote f.json" in done.stdout
    document = json.loads((tmp_path / "f.json").read_text())
    assert len(document["load"]) == 2
    assert [c["title"] for c in document["cases"]] == [c.title for c in cases.CASES]
    for case in document["cases"]:
        assert [w["name"] for w in case["ways"]] == [
            "NumPy", "opkiln", "opkiln out=", "opkiln uncached",
        ]  # fmt: skip
        assert all(len(w["samples"]) == 5 and w["ratio to NumPy"] > 0 for w in case["ways"])


def outcomes() -> list[Outcome]:
    names = ("NumPy", "opkiln", "opkiln out=", "opkiln uncached", *PEERS)
    results = tuple(Result(n, 0.0, Timing((1.0 + i,))) for i, n in enumerate(names))
    bare = tuple(r for r in results if r.name in {"NumPy", "opkiln"})  # nothing else took part
    return [Outcome(cases.CASES[0], results), Outcome(cases.CASES[1], bare)]


def test_chart() -> None:
    pytest.importorskip("matplotlib")
    data = chart.chart(outcomes(), {**cases.machine(), "load": [0.1, 0.2]})
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1800 and height > 400


def test_png_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before the work, with what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "--png", "x.png"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "not installed" in err and "pip install 'opkiln[bench]'" in err


def test_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "no" / "x.json", tmp_path):
        assert main(["bench", "--json", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and f"--json {path}: cannot be written" in err


def test_nothing_is_timed_under_a_wrong_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without kernels the figures would be those of the plain function."""
    with ok.config.scope(disable=True):
        for command in ("bench", "demo"):
            assert main([command]) == 1
            assert "nothing to time" in capsys.readouterr().err


def test_installed_names_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: name == "numba" or None)
    assert installed() == ("numba",)
