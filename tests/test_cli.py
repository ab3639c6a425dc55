"""The `opkiln` command: version, help, mistakes, and the demo from a fresh process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opkiln.runtime.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("opkiln 0.")


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "demo" in capsys.readouterr().out


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["cook"])
    assert left.value.code == 2
    assert "cook" in capsys.readouterr().err


def test_demo_from_a_cold_cache(cache_dir: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OPKILN_CACHE_DIR": str(cache_dir)}
    done = subprocess.run(
        [sys.executable, "-m", "opkiln", "demo", "--plain"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1797 handwritten digits" in done.stdout
    assert done.stdout.count("first call") == 4
    assert "with out=" in done.stdout
    assert "\x1b" not in done.stdout
