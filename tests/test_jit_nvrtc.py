"""GPU code from NVRTC in the artifact cache: found, built once, checked, refused with a reason."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cuda_host import needs_nvrtc

from opkiln.runtime import errors, jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import inventory, nvrtc, store
from opkiln.runtime.jit.flags import DeviceFlags

TEXT = """extern "C" __global__ void answer(int *p) {
  *p = 42;
}
"""


@pytest.fixture
def scoped(tmp_path: Path) -> Iterator[Path]:
    with config.scope(cache_dir=tmp_path / "cache", cuda_arch="sm_90"):
        yield tmp_path / "cache"


def load(text: str = TEXT, **options: Any) -> jit.Loaded:
    return nvrtc.cubin(text, ["answer"], name="answer", **options)


@needs_nvrtc
def test_build_then_load(scoped: Path) -> None:
    first, second = load(), load()
    assert (first.hit, second.hit) == ("built", "disk")
    assert first.library == second.library == Path(first.path).read_bytes()
    entry = Path(first.path).parent
    assert entry.parent == scoped / "cuda-sm_90"
    assert sorted(p.name for p in entry.iterdir()) == sorted([*store.DEVICE_FILES, store.MANIFEST])
    assert (entry / "kernel.cu").read_text(encoding="utf-8") == TEXT
    manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["key"] == first.parts.hexdigest
    assert not [p for p in entry.parent.iterdir() if p.name.startswith(".build")]
    assert not inventory.verify()
    (kernel,) = inventory.entries()
    assert (kernel.target, kernel.functions, kernel.in_use) == ("cuda-sm_90", 1, False)
    assert kernel.compiler.startswith("NVRTC ")


@needs_nvrtc
def test_what_the_key_holds(scoped: Path) -> None:
    keys = {
        load().parts.hexdigest,
        load(TEXT.replace("42", "43")).parts.hexdigest,
        load(arch="sm_80").parts.hexdigest,
        load(flags=DeviceFlags(("--maxrregcount=32",))).parts.hexdigest,
    }
    assert len(keys) == 4
    log = (Path(load().path).parent / "build.log").read_text(encoding="utf-8")
    for flag in ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "=sm_90"):
        assert flag in log


@needs_nvrtc
def test_floats_are_not_fused(scoped: Path) -> None:
    fma = load(TEXT.replace("int *p", "float *p").replace("42", "p[1] * p[2] + p[3]")).library
    fused = load(TEXT.replace("int *p", "float *p").replace("42", "__fmaf_rn(p[1], p[2], p[3])"))
    assert len(fma) != len(fused.library) or fma != fused.library


@needs_nvrtc
@pytest.mark.parametrize("name", [*store.DEVICE_FILES, store.MANIFEST])
def test_damage_is_seen_and_built_again(scoped: Path, name: str) -> None:
    entry = Path(load().path).parent
    (entry / name).write_bytes(b"x")
    (damage,) = inventory.verify()
    assert damage.path == str(entry)
    with pytest.warns(errors.OpkilnWarning, match="is built again"):
        assert load().hit == "built"
    assert not inventory.verify()


@needs_nvrtc
def test_threads_build_once(parallelize: Callable[..., list[object]]) -> None:
    hits = parallelize(lambda _: load(arch="sm_90").hit, 6)
    assert sorted(map(str, hits)) == ["built", *["disk"] * 5]


@needs_nvrtc
def test_a_refused_text_names_kernel_and_line(scoped: Path) -> None:
    with pytest.raises(errors.CompileFailed) as caught:
        load(TEXT.replace("42", "no_such_name"))
    error = caught.value
    assert 'kernel.cu(2): error: identifier "no_such_name" is undefined' in error.output
    assert 'in extern "C" __global__ void answer(int *p)' in str(error)
    assert error.log_path is not None and error.log_path.is_file()
    assert error.source_path is not None and "no_such_name" in error.source_path.read_text("utf-8")
    assert "--fmad=false" in error.command


@needs_nvrtc
def test_a_kernel_that_is_not_there(scoped: Path) -> None:
    with pytest.raises(errors.SymbolMissing, match="no kernel 'answers'"):
        nvrtc.cubin(TEXT, ["answers"], name="answer")
    assert not list(scoped.glob("cuda-sm_90/[!.]*"))


@needs_nvrtc
def test_assert_cached(scoped: Path) -> None:
    with config.scope(assert_cached=True), pytest.raises(errors.NotCached):
        load()


@needs_nvrtc
def test_explicit_then_config_then_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_device_arch", lambda: "sm_89")
    assert nvrtc.compiler().arch == "sm_89"
    with config.scope(cuda_arch="sm_80"):
        assert nvrtc.compiler().arch == "sm_80"
        assert nvrtc.compiler("sm_90").arch == "sm_90"


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_1", "compute_90", "90", "sm_90 -G"])
def test_an_unknown_architecture_is_refused(arch: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"NVRTC .* knows \(sm_.*got"):
        nvrtc.compiler(arch)


@needs_nvrtc
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a device")  # noqa: PTH110
def test_no_architecture_and_no_device() -> None:
    with pytest.raises(errors.ConfigError, match="OPKILN_CUDA_ARCH"):
        nvrtc.compiler()


def test_without_nvrtc_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["/nowhere/libnvrtc.so.13"]))
    monkeypatch.setattr(nvrtc, "_load", nvrtc._load.__wrapped__)
    with pytest.raises(errors.ToolchainNotFound, match=r"tried /nowhere[^$]*pip install"):
        nvrtc.compiler("sm_90")


@pytest.mark.parametrize(
    ("layout", "name"),
    [("nvidia/cu13/lib", "libnvrtc.so.13"), ("nvidia/cuda_nvrtc/lib", "libnvrtc.so.12")],
)
def test_the_layouts_of_wheels(
    layout: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / layout).mkdir(parents=True)
    (tmp_path / layout / name).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert next(nvrtc._candidates()) == f"{tmp_path}/{layout}/{name}"


def test_a_toolkit_is_found_by_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.12").touch()
    monkeypatch.setattr(sys, "path", [])
    with config.scope(cuda_home=tmp_path):
        assert next(nvrtc._candidates()) == f"{tmp_path}/lib64/libnvrtc.so.12"
