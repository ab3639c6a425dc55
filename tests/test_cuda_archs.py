"""GPU architectures: what people write, what nvcc is told, what a device runs."""

import pytest

from opkiln.runtime import errors
from opkiln.runtime.config import Config
from opkiln.runtime.jit import device
from opkiln.runtime.jit.device import Devices
from opkiln.runtime.toolchains import archs

KNOWN = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting, and no device whatever this machine has."""
    monkeypatch.setattr(device, "devices", lambda: Devices((), (0, 0), "no driver"))
    for variable in Config.cuda_archs.variables:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(archs, "config", Config())


def with_devices(monkeypatch: pytest.MonkeyPatch, *found: str, version: tuple[int, int]) -> None:
    monkeypatch.setattr(device, "devices", lambda: Devices(found, version, ""))


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("8.6", "sm_86 compute_86"),
        ("86", "sm_86 compute_86"),
        ("sm_86", "sm_86 compute_86"),
        ("compute_86", "sm_86 compute_86"),
        (" 8.6 ", "sm_86 compute_86"),
        ("9.0a", "sm_90a"),
        ("90a", "sm_90a"),
        ("12.0", "sm_120 compute_120"),
        ("7.5+PTX", "sm_75 compute_75"),
        ("8.0;9.0+PTX", "sm_80 sm_90 compute_90"),
        ("8.0;8.6+PTX;9.0", "sm_80 sm_86 sm_90 compute_86"),
        ("9.0 8.0,8.6", "sm_80 sm_86 sm_90 compute_90"),
        (["90", "8.0", "sm_90"], "sm_80 sm_90 compute_90"),
        ("80;90a", "sm_80 sm_90a compute_80"),
        ("80-real;90-virtual", "sm_80 compute_90"),
        ("Hopper+PTX", "sm_90 compute_90"),
        ("ampere", "sm_80 sm_86 compute_86"),
        ("All", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"),
        ("all-major", "sm_75 sm_80 sm_90 sm_100 sm_120 compute_120"),
    ],
)
def test_T40_what_people_write(text: object, resolved: str) -> None:
    assert " ".join(archs.resolve(text, KNOWN)) == resolved
    with archs.config.scope(cuda_archs=" ".join(text) if isinstance(text, list) else text):
        assert " ".join(archs.resolve(known=KNOWN)) == resolved


@pytest.mark.parametrize(
    "text", ["", "abc", "8", "sm_", "sm_86x", "8..6", "8.66", ["8.6", ""], "+"]
)
def test_T40_what_is_no_architecture(text: object) -> None:
    with pytest.raises(errors.ArgumentError, match=r"GPU architecture.* expected .*'8\.0;9"):
        archs.resolve(text, KNOWN)


@pytest.mark.parametrize("text", ["0.0", "1.0", "10"])
def test_T40_what_no_gpu_has(text: str) -> None:
    with pytest.raises(errors.UnsupportedArch, match=f"'{text}'"):
        archs.resolve(text, KNOWN)


@pytest.mark.parametrize("text", ["10.1", "3.5", "8.0;10.1+PTX"])
def test_F099_what_nvcc_does_not_know(text: str) -> None:
    with pytest.raises(errors.UnsupportedArch, match=r"sm_(101|35) .*knows sm_80, sm_90") as caught:
        archs.resolve(text, ("sm_80", "sm_90"))
    assert caught.value.stage == "find"
    assert "Volta" not in str(caught.value)


def test_T40_options_of_nvcc() -> None:
    assert archs.gencode(archs.resolve("86")) == [
        *("-gencode", "arch=compute_86,code=sm_86"),
        *("-gencode", "arch=compute_86,code=compute_86"),
    ]
    assert archs.gencode(archs.resolve("9.0;8.0"))[-1] == "arch=compute_90,code=compute_90"
    assert archs.gencode(("sm_90a",)) == ["-gencode", "arch=compute_90a,code=sm_90a"]
    with pytest.raises(errors.UnsupportedArch):
        archs.gencode(())


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.UnsupportedArch, match=r"no driver[^$]*OPKILN_CUDA_ARCHS"):
        archs.resolve()
    with_devices(monkeypatch, "sm_90", "sm_80", "sm_90", version=(13, 0))
    assert archs.resolve() == ("sm_80", "sm_90", "compute_90")  # of all devices, not the first
    assert archs.resolve((), KNOWN) == archs.resolve()
    assert archs.resolve("native") == ("sm_80", "sm_90", "compute_90")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    monkeypatch.setenv("CUDAARCHS", "80")
    for variable, first in (("", "sm_80"), ("CUDAARCHS", "sm_75")):
        monkeypatch.delenv(variable, raising=False)
        archs.config.reload()
        assert archs.resolve()[0] == first
    archs.config.cuda_archs = "8.6"
    assert archs.resolve()[0] == "sm_86"
    assert archs.resolve("12.0")[0] == "sm_120"


def test_F099_a_device_newer_than_nvcc_gets_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, "sm_103", version=(13, 0))
    assert archs.resolve((), ("sm_80", "sm_90")) == ("compute_90",)
    assert archs.archs_run_on(("compute_90",), "sm_103")
    with pytest.raises(errors.UnsupportedArch, match="knows sm_120"):
        archs.resolve((), ("sm_120",))


@pytest.mark.parametrize(
    ("built", "runs_on", "not_on"),
    [
        ("sm_80", "sm_80 sm_86 sm_89", "sm_75 sm_90 sm_87"),
        ("sm_87", "sm_87", "sm_86 sm_89"),
        ("compute_80", "sm_80 sm_87 sm_90 sm_120", "sm_75"),
        ("sm_90a", "sm_90", "sm_89 sm_100"),
        ("compute_90a", "sm_90", "sm_100"),
        ("sm_100f", "sm_100 sm_103", "sm_120 sm_90"),
        ("sm_86 compute_75", "sm_75 sm_86 sm_120", "sm_70"),
    ],
)
def test_what_a_device_runs(built: str, runs_on: str, not_on: str) -> None:
    for one in runs_on.split():
        assert archs.archs_run_on(built.split(), one), one
    for one in not_on.split():
        assert not archs.archs_run_on(built.split(), one), one


def test_O11_a_library_of_another_machine_is_refused_with_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archs.check_devices("op", ("sm_80",), (13, 0))  # no device: nothing to say
    with_devices(monkeypatch, "sm_90", "sm_75", version=(12, 4))
    archs.check_devices("op", ("sm_90",), (12, 9))
    archs.check_devices("op", ("compute_80",), (12, 4))
    with pytest.raises(
        errors.UnsupportedArch, match=r"op is built for sm_80; .* sm_90, sm_75"
    ) as e:
        archs.check_devices("op", ("sm_80",), (12, 4))
    assert e.value.stage == "load"
    for built, release in ((("sm_90",), (13, 0)), (("compute_80",), (12, 9))):
        with pytest.raises(errors.LoadFailed, match=r"CUDA 1\d.\d; the driver .* 12\.4 at most"):
            archs.check_devices("op", built, release)
