"""The shared fixtures do what they promise."""

import os
import threading
from pathlib import Path

import pytest


def test_cache_is_private() -> None:
    folder = Path(os.environ["OPKILN_CACHE_DIR"])
    assert folder.is_dir()
    assert folder.name.startswith("opkiln-tests-")


def test_golden_missing_fails_with_advice(golden: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        assert golden == "anything"


def test_golden_written_then_compared(tmp_path: Path, golden: str) -> None:
    make = type(golden)
    path = tmp_path / "sub" / "text.cpp"
    assert make(path, True) == "int x;\n"
    assert path.read_text() == "int x;\n"
    assert make(path, False) == "int x;\n"
    assert make(path, False) != "int y;\n"
    assert "int x;\n" == make(path, False)  # noqa: SIM300 - str on the left is how tests write it


def test_golden_names(golden: "pytest.FixtureRequest") -> None:
    assert golden.path.parts[-3:] == ("golden", "conftest", "golden_names.cpp")
    assert golden.ext("dot").path.name == "golden_names.dot"
    assert golden.part("a b").path.name == "golden_names.a_b.cpp"


def test_parallelize_runs_together(parallelize) -> None:
    meeting = threading.Barrier(4)
    assert parallelize(lambda i: (meeting.wait(30), i)[1], 4) == [0, 1, 2, 3]


def test_parallelize_raises_the_error_of_a_thread(parallelize) -> None:
    def fail(i: int) -> None:
        if i == 1:
            raise KeyError("from thread 1")

    with pytest.raises(KeyError, match="from thread 1"):
        parallelize(fail, 3)
