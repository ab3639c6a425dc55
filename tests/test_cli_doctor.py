"""`opkiln doctor`: well on a machine that can build, and a mending line for each that cannot."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import cuda_trees as trees

import opkiln as ok
from opkiln.runtime.cli import probes


def doctor(*options: str, **environment: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "opkiln", "doctor", "--json", *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def problems(report: dict[str, Any]) -> list[dict[str, str]]:
    return [check for check in report["checks"] if check["state"] == "PROBLEM"]


def texts(report: dict[str, Any], section: str) -> str:
    found = [c for c in report["checks"] if c["section"] == section]
    return "\n".join(f"{c['state']} {c['name']}: {c['text']}" for c in found)


def test_all_is_well(cache_dir: Path) -> None:
    status, report = doctor(OPKILN_CASHE_DIR="x", OPKILN_MAX_JOBS="3")
    assert (status, report["ok"], problems(report)) == (0, True, [])
    assert "ok kernel: compiled, kept and loaded in" in texts(report, "build")
    assert f"ok directory: {cache_dir} (OPKILN_CACHE_DIR): 0 kernels" in texts(report, "cache")
    assert "in use: the first that works" in texts(report, "compiler")
    assert "-ffp-contract=off" in texts(report, "compiler")
    assert "did you mean OPKILN_CACHE_DIR?" in texts(report, "settings")
    assert "ok OPKILN_MAX_JOBS: 3" in texts(report, "settings")
    assert {"versions", "CUDA", "packages"} <= {c["section"] for c in report["checks"]}
    assert not list(cache_dir.rglob("kernel.so"))  # the trial leaves nothing


def test_no_compiler(cache_dir: Path) -> None:
    status, report = doctor(OPKILN_CXX="/nowhere/c++")
    assert (status, report["ok"]) == (1, False)
    (problem,) = problems(report)
    assert problem["section"] == "compiler" and "apt install g++" in problem["fix"]
    assert "note /nowhere/c++: not found on PATH" in texts(report, "compiler")


def test_each_place_of_a_toolchain_says_why_it_won_or_lost(cache_dir: Path, tmp_path: Path) -> None:
    root = trees.toolkit(tmp_path / "cuda")
    named = {"OPKILN_CUDA_HOME": str(root), "OPKILN_CUDNN_ROOT": str(tmp_path)}
    status, report = doctor("--toolchain", OPKILN_CUDA_ARCHS="8.0", **named)
    assert (status, report["ok"], problems(report)) == (0, True, [])
    assert "in use: the first that works" in texts(report, "compiler")
    assert "ok of this process: libstdc++, C++11 strings" in texts(report, "C++ library")
    won = f"ok OPKILN_CUDA_HOME: {root} won: CUDA 12.4.131 in {root}"
    assert won in texts(report, "CUDA toolkit")
    assert "sm_80, sm_90" in texts(report, "CUDA toolkit")
    assert f"{tmp_path} lost: no include/cudnn.h in it" in texts(report, "cuDNN")
    assert texts(report, "GPU architectures") == "ok sources: sm_80, compute_80"
    status, report = doctor(
        "--toolchain",
        OPKILN_CXX="/nowhere/c++",
        OPKILN_CUDA_HOME="/nowhere",
        OPKILN_CACHE_DIR=str(tmp_path / "fresh"),
    )
    assert (status, len(problems(report))) == (1, 1)
    assert "note OPKILN_CUDA_HOME: /nowhere lost: no such directory" in texts(
        report, "CUDA toolkit"
    )
    assert "unset OPKILN_CUDA_HOME" in texts(report, "CUDA toolkit") or not shutil.which("nvcc")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_compiler_that_knows_itself_but_cannot_compile(cache_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "half-cxx"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *-dM*|*-###*) exec g++ "$@";; esac\necho "no space" >&2; exit 1\n'
    )
    script.chmod(0o755)
    status, report = doctor(OPKILN_CXX=str(script))
    assert status == 1
    (problem,) = problems(report)
    assert (problem["section"], problem["name"]) == ("build", "CompileFailed")
    assert "no space" in problem["text"]
    assert "in use: OPKILN_CXX names it" in texts(report, "compiler")


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, report = doctor(OPKILN_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert status == 1
    (problem,) = problems(report)
    assert problem["section"] == "cache" and "set OPKILN_CACHE_DIR" in problem["text"]
    assert "ok kernel" in texts(report, "build")  # in the private directory, said so above


def test_setting_that_cannot_be_read(cache_dir: Path) -> None:
    status, report = doctor(OPKILN_DEBUG="9")
    assert status == 1
    (problem,) = problems(report)
    assert "OPKILN_DEBUG: expected a whole number" in problem["text"] and "unset" in problem["fix"]


def test_disabled(cache_dir: Path) -> None:
    status, report = doctor(OPKILN_DISABLE="1", OPKILN_ASSERT_CACHED="1")
    assert status == 1
    (problem,) = problems(report)
    assert problem["fix"] == "unset OPKILN_DISABLE"
    assert "ok kernel" in texts(report, "build")


def test_kernel_with_wrong_results(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile = ok.compile

    class Broken:
        """Compiled, but the last bit of what it returns is wrong."""

        def __init__(self, function) -> None:
            self.inner = compile(function)
            self.lower, self.info = self.inner.lower, self.inner.info

        def __call__(self, *arrays):
            return np.nextafter(self.inner(*arrays), 0)

    monkeypatch.setattr(ok, "compile", Broken)
    (problem,) = (c for c in probes.run(probes.build, "build") if c.state == probes.PROBLEM)
    assert "not NumPy's" in problem.text and "OPKILN_CXX" in problem.fix


def test_report_in_words(cache_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "opkiln", "doctor"],
        env={**os.environ, "OPKILN_CXX": "/nowhere/c++"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    *_, count, problem, fix = done.stdout.splitlines()
    assert count == "1 problem:"
    assert problem.startswith("  !!  compiler  no compiler works")
    assert fix.strip().startswith("how to fix: install a C++ compiler")
