"""Messages and dumped stages."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opkiln.runtime import debug
from opkiln.runtime.config import config


@pytest.fixture(autouse=True)
def fresh_logger() -> Iterator[None]:
    """Each test starts with an unused logger, as a new process does."""
    found = logging.getLogger(debug.NAME)
    kept = found.level, found.handlers[:], found.propagate, debug._handler
    found.handlers.clear()
    found.setLevel(logging.NOTSET)
    found.propagate, debug._handler = True, None
    yield
    found.setLevel(kept[0])
    found.handlers[:], found.propagate, debug._handler = kept[1], kept[2], kept[3]


def test_ladder(capsys: pytest.CaptureFixture[str]) -> None:
    for level in range(6):
        with config.scope(debug=level):
            for message in range(1, 6):
                debug.log(message, "message %d at level %d", message, level)
                assert debug.enabled(message) == (message <= level)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 15
    assert lines[0] == "opkiln: message 1 at level 1"


def test_quiet_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """F133: nothing is printed, and nothing is even formatted."""

    class Loud:
        def __str__(self) -> str:
            raise AssertionError

    with config.scope(debug=0):
        debug.log(1, "%s", Loud())
    assert capsys.readouterr() == ("", "")


def test_the_programs_own_logging(caplog: pytest.LogCaptureFixture) -> None:
    with config.scope(debug=0):
        assert not debug.enabled(1)
        logging.getLogger(debug.NAME).setLevel(logging.INFO)
        assert debug.enabled(1) and not debug.enabled(2)
        debug.log(1, "a miss")
        debug.log(2, "a launch")
    assert caplog.messages == ["a miss"]


def test_logging_is_not_imported_for_nothing() -> None:
    probe = (
        "import sys; from opkiln.runtime import debug; debug.log(1, 'x'); "
        "assert 'logging' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_dump(tmp_path: Path) -> None:
    with config.scope(dump_dir=str(tmp_path)):
        path = debug.dump("graph.txt", "my/fun <lambda>", "text\n")
        assert path == tmp_path / "my_fun_lambda" / "graph.txt"
        assert path.read_text() == "text\n"
        assert debug.dump("kernel.o", "my/fun <lambda>", b"\0") is not None
        assert debug.dump("graph.txt", "../..", "x") == tmp_path / "function" / "graph.txt"
    assert sorted(f.name for f in path.parent.iterdir()) == ["graph.txt", "kernel.o"]
    with config.scope(dump_dir=None):
        assert debug.dump("graph.txt", "f", "text") is None


def test_a_bad_directory_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with config.scope(dump_dir=str(file)):
        assert debug.dump("graph.txt", "f", "text") is None
        assert debug.dump("graph.txt", "f", "text") is None
    assert len(caplog.messages) == 1 and "OPKILN_DUMP_DIR" in caplog.messages[0]
