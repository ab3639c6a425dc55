"""The `opkiln` command as a process: version, help, mistakes, pipes, terminals, locales."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opkiln.runtime.cli import main
from opkiln.runtime.cli.console import Cell, Console, aligned

COMMAND = [sys.executable, "-m", "opkiln"]


def opkiln(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *argv],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def on_a_terminal(code: str, **environment: str) -> str:
    """What a process with this code writes to a terminal that is its output and error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TERM": "xterm-256color", **environment},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not more:
            break
        written += more
    os.close(ours)
    assert process.wait(60) == 0, written
    return written.decode()


TABLE = """
from opkiln.runtime.cli.console import Cell, Console
console = Console()
console.title("[bold]heading[/]")
with console.progress(2) as now:
    now("first")
    now("second")
console.table(["name", "time"], [["\u00e4 [red]", Cell("12 ms", "good")]])
"""


def test_terminal_gets_colours_and_boxes() -> None:
    text = on_a_terminal(TABLE)
    assert "[bold]heading[/]" in text  # the user's brackets are no markup
    assert "\x1b[32m12 ms" in text
    assert "\u00e4 [red]" in text and "\u2500\u2500" in text
    assert "second" in text  # the progress bar


def test_command_on_a_terminal(tmp_path: Path) -> None:
    """Colours of the language, and a file of the user's whose brackets are no markup."""
    file = tmp_path / "f.py"
    file.write_text("def f(x):\n    return x + 1  # [red]\n")
    argv = ["show", f"{file}:f", "--shapes", "float32[3,4]"]
    text = on_a_terminal(f"from opkiln.runtime.cli import main; raise SystemExit(main({argv}))")
    assert "\x1b[1m1. Python" in text
    assert re.search(r"\x1b\[\d+m?;?[\d;]*m?return\x1b", text)
    assert "[red]" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "%0 = x " in plain and 'extern "C"' in plain


def test_no_color() -> None:
    text = on_a_terminal(TABLE, NO_COLOR="1")
    assert "\u00e4 [red]" in text and "\u2500\u2500" in text
    assert "\x1b[32m" not in text


def test_dumb_terminal_is_plain() -> None:
    text = on_a_terminal(TABLE, TERM="dumb")
    assert "\x1b" not in text and "\u2500" not in text
    assert "12 ms" in text


def test_terminal_without_utf8() -> None:
    text = on_a_terminal(
        "from opkiln.runtime.cli.console import escaped; import sys; escaped(sys.stdout)" + TABLE,
        PYTHONIOENCODING="ascii",
    )
    assert "\\xe4 [red]" in text
    assert text.isascii()


@pytest.mark.parametrize("columns", ["24", "40", "60"])
def test_narrow_terminal_cuts_nothing(columns: str) -> None:
    code = """
from opkiln.runtime.cli.console import Console
names = ["formula", *(f"library{i}" for i in range(4))]
Console().table(names, [["a long formula in words", *(f"{i}.25 us" for i in range(4))]])
"""
    text = on_a_terminal(code, COLUMNS=columns)
    words = ["a", "long", "formula", "words", *(f"{i}.25 us" for i in range(4)), "library3"]
    assert not [word for word in words if word not in text]


@pytest.mark.parametrize("columns", ["0", "1", "20", "30"])
def test_narrow_terminal_cuts_no_item(columns: str) -> None:
    code = """
from opkiln.runtime.cli.console import Console
console = Console()
console.title("versions")
console.item("ok", "good", "OPKILN_CACHE_DIR", "a long text of many words")
"""
    text = re.sub(r"\x1b\[\d*m", "", on_a_terminal(code, COLUMNS=columns)).split()
    assert "".join(text).count("OPKILN_CACHE_DIR") == 1
    words = ["versions", "ok", "a", "long", "text", "of", "many", "words"]
    assert not [word for word in words if word not in text]


def test_table_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    Console().table(["name", "time"], [["short", "1 s"], ["a longer one", Cell("100 s", "bad")]])
    assert capsys.readouterr().out.splitlines() == [
        "name           time",
        "short           1 s",
        "a longer one  100 s",
    ]
    assert aligned([["a"], ["bc"]]) == ["a", "bc"]


def test_version_needs_no_numpy(tmp_path: Path) -> None:
    code = "import sys; from opkiln.runtime.cli import main; main(['--version']); "
    code += "print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    version, numpy = done.stdout.splitlines()
    assert version.startswith("opkiln 0.")
    assert numpy == "False"


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["demo", "show", "cache ls"])
def test_unknown_option_shows_the_usage_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), "model.py:f"] if command == "show" else command.split()
    with pytest.raises(SystemExit) as left:
        main([*words, "--shpes"])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith(f"usage: opkiln {command} ")
    assert "unrecognized arguments: --shpes" in said


def test_unknown_command(tmp_path: Path) -> None:
    done = opkiln("cook", cwd=tmp_path)
    assert done.returncode == 2
    assert "cook" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("argv", [[], ["--help"], ["demo", "--help"]], ids=str)
def test_broken_pipe_is_quiet(argv: list[str], unbuffered: str, tmp_path: Path) -> None:
    """Nobody reads: as a process that SIGPIPE ended, and without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *argv],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_an_error(unbuffered: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            COMMAND,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "opkiln: [Errno 28] No space left on device\n"


def test_closed_output(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *COMMAND, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C while a command runs: 130 and one line."""
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},  # its first line shows that it runs
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert "handwritten digits" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "opkiln: interrupted\n"


def test_demo_from_a_cold_cache(cache_dir: Path, tmp_path: Path) -> None:
    done = opkiln("demo", cwd=tmp_path, OPKILN_CACHE_DIR=str(cache_dir))
    assert "opkiln show FILE.py:FUNC" in done.stdout  # what to do next
    assert done.returncode == 0, done.stderr
    assert "1797 handwritten digits" in done.stdout
    assert done.stdout.count("first call") == 4
    assert "with out=" in done.stdout
    assert "\x1b" not in done.stdout


def test_warning_is_one_line(tmp_path: Path) -> None:
    """A cache on a disk that cannot be written: the work is done, and standard error says so."""
    (tmp_path / "file").write_text("")
    (tmp_path / "f.py").write_text("def f(x):\n    return x + 1\n")
    words = ("show", "f.py:f", "--shapes", "float32[3]")
    done = opkiln(*words, cwd=tmp_path, OPKILN_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("opkiln: warning: cache directory ") and "set OPKILN_CACHE_DIR" in line
