"""Finding CUDA and cuDNN: which place wins, why the others lose, what is remembered."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import cuda_trees as trees

from opkiln.runtime import errors
from opkiln.runtime.config import Config, config
from opkiln.runtime.jit import spawn
from opkiln.runtime.toolchains import cudnn as cudnn_module
from opkiln.runtime.toolchains import toolkit
from opkiln.runtime.toolchains.cudnn import find_cudnn
from opkiln.runtime.toolchains.toolkit import CudaToolchain, find_cuda

HOMES = ("OPKILN_CUDA_HOME", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT_DIR")  # the first wins
SETTINGS = (*HOMES, *Config.nvcc.variables, *Config.cudnn_root.variables)


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No wheel, no nvcc on PATH, no toolkit of the system, an empty cache."""
    site = tmp_path / "site"
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(toolkit, "_system", lambda: iter([str(tmp_path / "system")]))
    for variable in SETTINGS:
        monkeypatch.delenv(variable, raising=False)
    config.reload()
    with config.scope(cache_dir=tmp_path / "cache"):
        yield site
    config.reload()


def says(found: CudaToolchain | errors.ToolchainNotFound) -> list[tuple[str, bool, str]]:
    return [(probe.source, probe.won, probe.why) for probe in found.probes]


def test_T39_which_place_wins(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All places at once; the winner goes, and the next one wins."""
    trees.toolkit(tmp_path / "system")
    trees.toolkit(tmp_path / "path")
    wrapper = trees.nvcc(tmp_path / "bin" / "nvcc", top=tmp_path / "path")
    split = trees.split_wheels(bare)
    trees.wheel(bare, 12)
    trees.wheel(bare, 13)
    for number, variable in enumerate(HOMES):
        monkeypatch.setenv(variable, str(trees.toolkit(tmp_path / f"env{number}")))
    monkeypatch.setenv("OPKILN_NVCC", str(trees.toolkit(tmp_path / "own") / "bin" / "nvcc"))
    argument = trees.toolkit(tmp_path / "argument")

    assert find_cuda(str(argument)).root == str(argument)
    assert find_cuda().root == str(tmp_path / "own")
    monkeypatch.delenv("OPKILN_NVCC")
    for number, variable in enumerate(HOMES):
        config.reload()
        found = find_cuda()
        assert found.root == str(tmp_path / f"env{number}")
        assert found.probes[-1].source == variable
        monkeypatch.delenv(variable)
    config.reload()
    assert find_cuda().root == str(bare / "nvidia" / "cu13")
    shutil.rmtree(bare / "nvidia" / "cu13")
    assert find_cuda().root == str(bare / "nvidia" / "cu12")
    shutil.rmtree(bare / "nvidia" / "cu12")
    found = find_cuda()
    parts = bare / "nvidia"
    assert found.root == str(split)
    assert found.headers == str(parts / "cuda_runtime" / "include")
    assert found.include_paths[1] == str(parts / "cuda_cccl" / "include")
    assert found.library_paths == (str(parts / "cuda_runtime" / "lib"),)
    shutil.rmtree(split)
    found = find_cuda()
    assert (found.nvcc, found.root) == (str(wrapper), str(tmp_path / "path"))
    assert found.library_paths == (str(tmp_path / "path" / "lib64"),)
    assert found.known == ("sm_80", "sm_90")
    wrapper.unlink()
    found = find_cuda()
    assert found.root == str(tmp_path / "system")
    assert says(found) == [
        ("PATH", False, "not found"),
        ("system", True, f"CUDA 12.4.131 in {found.root}"),
    ]


def test_a_link_to_nvcc_leads_to_its_root(tmp_path: Path) -> None:
    root = trees.toolkit(tmp_path / "real")
    (tmp_path / "bin" / "nvcc").symlink_to(root / "bin" / "nvcc")  # and it names no root itself
    assert find_cuda().root == str(root)


def test_T39_every_place_says_why_it_lost(bare: Path, tmp_path: Path) -> None:
    trees.nvcc(bare / "nvidia" / "cu13" / "bin" / "nvcc")  # no header
    trees.headers(bare / "nvidia" / "cu12" / "include")  # no nvcc
    trees.nvcc(tmp_path / "bin" / "nvcc", body="echo no licence >&2; exit 1")
    mixed = trees.toolkit(tmp_path / "system")
    trees.headers(mixed / "include", cudart=13000)
    with pytest.raises(errors.ToolchainNotFound) as caught:
        find_cuda()
    assert says(caught.value) == [
        ("wheel", False, "no include/cuda_runtime.h in it"),
        ("wheel", False, "no bin/nvcc in it"),
        ("PATH", False, "not a working nvcc: status 1: no licence"),
        (
            "system",
            False,
            f"nvcc is of CUDA 12.4.131 and {mixed}/include of CUDA 13.0: "
            "parts of different toolkits are mixed",
        ),
    ]
    text = str(caught.value)
    assert all(probe.place in text and probe.why in text for probe in caught.value.probes)
    assert "OPKILN_CUDA_HOME" in text
    assert "C++ sources need none" in text


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "OPKILN_NVCC"])
def test_F098_what_is_named_is_used_or_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    other = trees.toolkit(tmp_path / "system")
    monkeypatch.setenv(variable, "/bogus/nvcc")
    config.reload()
    with pytest.raises(errors.ToolchainNotFound) as caught:
        find_cuda()
    assert len(caught.value.probes) == 1
    assert f"/bogus/nvcc: no{'t found' if variable == 'OPKILN_NVCC' else ' such'}" in str(
        caught.value
    )
    assert f"unset {variable}, since there is {other}" in str(caught.value)
    with pytest.raises(errors.ToolchainNotFound, match=r"/nowhere: no such .*argument"):
        find_cuda("/nowhere")


def test_the_answer_is_kept_as_long_as_nvcc_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = trees.toolkit(tmp_path / "system")
    log = root / "bin" / "nvcc.log"
    first = find_cuda()
    parts = first.parts()
    assert len(log.read_text().splitlines()) == 3
    assert find_cuda() == first
    assert len(log.read_text().splitlines()) == 3
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-lineinfo")
    changed = find_cuda()  # the answer of a run without the flags does not count
    assert len(log.read_text().splitlines()) == 6
    assert changed.parts() != parts
    monkeypatch.delenv("NVCC_APPEND_FLAGS")
    os.utime(root / "bin" / "nvcc", (7, 7))
    assert find_cuda().parts() == parts
    assert len(log.read_text().splitlines()) == 9


def test_F105_what_nvcc_made_is_found_when_it_is_gone(tmp_path: Path) -> None:
    root = trees.toolkit(tmp_path / "system")
    before = find_cuda()
    shutil.rmtree(root)
    after = find_cuda()
    assert (after.nvcc, after.parts()) == ("", before.parts())
    assert says(after)[-1] == ("system", False, "no such directory")


def test_identity_is_not_the_place(tmp_path: Path) -> None:
    one, two = (trees.toolkit(tmp_path / name) for name in ("one", "two"))
    assert find_cuda(str(one)).parts() == find_cuda(str(two)).parts()
    (two / "include" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 12041\n")
    assert find_cuda(str(one)).parts() != find_cuda(str(two), fresh=True).parts()


def test_T39_an_interruption_is_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    trees.toolkit(tmp_path / "system")
    monkeypatch.setattr(spawn, "ask", interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_cuda()


def test_an_nvcc_that_hangs_or_is_no_program(tmp_path: Path) -> None:
    root = trees.toolkit(tmp_path / "system", body="sleep 60")
    with (
        config.scope(compile_timeout=0.3),
        pytest.raises(errors.ToolchainNotFound, match=r"0\.3 s"),
    ):
        find_cuda()
    (root / "bin" / "nvcc").write_bytes(b"\x7fELF")
    with pytest.raises(errors.ToolchainNotFound, match="could not be started"):
        find_cuda()
    (root / "bin" / "nvcc").chmod(0o644)
    with pytest.raises(errors.ToolchainNotFound, match="not executable"):
        find_cuda()


# ---- cuDNN ----


def test_K9_cudnn_is_found_or_every_place_is_named(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn_module, "_SYSTEM", (str(tmp_path / "usr"),))
    trees.libraries(bare / "nvidia" / "cudnn" / "lib", "libcudnn.so.9")  # no header
    cuda = tmp_path / "cuda"
    trees.headers(tmp_path / "usr" / "include", name="cudnn.h")  # no library
    with pytest.raises(errors.ToolchainNotFound) as caught:
        find_cudnn(toolkit=str(cuda))
    assert [(p.source, p.why) for p in caught.value.probes] == [
        ("wheel", "no include/cudnn.h in it"),
        ("CUDA toolkit", "no such directory"),
        ("system", "no libcudnn in its lib64 or lib"),
    ]
    assert "nvidia-cudnn" in str(caught.value)
    trees.cudnn(tmp_path / "usr", "lib64")
    assert find_cudnn(toolkit=str(cuda)).library_path == str(tmp_path / "usr" / "lib64")
    trees.cudnn(cuda)
    assert find_cudnn(toolkit=str(cuda)).root == str(cuda)
    shutil.rmtree(bare / "nvidia" / "cudnn")
    trees.cudnn(bare / "nvidia" / "cudnn")
    assert find_cudnn(toolkit=str(cuda)).root == str(bare / "nvidia" / "cudnn")
    monkeypatch.setenv("CUDNN_ROOT_DIR", str(tmp_path))
    config.reload()
    with pytest.raises(errors.ToolchainNotFound, match=r"no include/cudnn\.h in it .*CUDNN_ROOT"):
        find_cudnn(toolkit=str(cuda))
    assert find_cudnn(str(cuda)).root == str(cuda)
