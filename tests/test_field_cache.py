"""What users met: scrubbed environments, read-only packages, several versions of Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import jit_child as child

WRITES = """
import os, sys
written = report["written"] = []
paths = {"os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.utime": 1,
         "os.chmod": 1, "os.link": 2, "os.symlink": 2}
def note(event, args):
    if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
        written.append(str(args[0]))
    for path in args[: paths.get(event, 0)]:
        written.append(str(path))
sys.addaudithook(note)
sys.dont_write_bytecode = True
"""


def test_F114_a_build_writes_below_the_cache_only(cache_dir: Path) -> None:
    report = child.run_child({"before": WRITES, "times": 2})
    assert report["loaded"] == ["built", "disk"]
    written = [path for path in report["written"] if path != os.devnull]
    assert len(written) > 5
    outside = [path for path in written if not path.startswith(f"{cache_dir}/")]
    assert set(outside) <= {str(cache_dir), str(cache_dir.parent)}


VERSIONS = """
import sys, numpy, platform, importlib.metadata
sys.version, sys.version_info, sys.hexversion = "3.99.0 (other)", (3, 99, 0, "final", 0), 0x036300F0
platform.python_version = lambda: "3.99.0"
numpy.__version__ = "9.9.9"
importlib.metadata.version = lambda _: "9.9.9"
sys.executable = sys.prefix = "/elsewhere"
"""


@pytest.mark.parametrize("order", ["", "reverse"])
def test_F118_F063_one_entry_for_all_versions_of_python_and_numpy(
    cache_dir: Path, order: str
) -> None:
    first, second = ("", VERSIONS) if not order else (VERSIONS, "")
    assert child.run_child({"before": first})["loaded"] == ["built"]
    assert child.run_child({"before": second})["loaded"] == ["disk"]
    assert len(child.entries(cache_dir)) == 1


F121 = """
import numpy as np, opkiln as ok
f = ok.compile(lambda x: np.tanh(x) * 2)
print(f(np.zeros(3)).tolist(), f.info().builds, f.info().fallbacks)
"""


@pytest.mark.parametrize("compiler", ["direct", "by its driver"])
def test_F121_an_empty_environment(tmp_path: Path, compiler: str) -> None:
    """No PATH, no HOME, no LANG: the interpreter by its full path, as a service calls it."""
    environment = {"OPKILN_CACHE_DIR": str(tmp_path / "cache")}
    if compiler != "direct":  # a script is never bypassed
        environment["OPKILN_CXX"] = str(child.stub(tmp_path / "cxx", 'exec "$G" "$@"'))
    script = tmp_path / "script.py"
    script.write_text(F121, encoding="utf-8")
    for builds in (1, 0):
        done = subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"[0.0, 0.0, 0.0] {builds} 0\n"
        assert done.stderr == ""
