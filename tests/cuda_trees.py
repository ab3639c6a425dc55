"""Toolkits of CUDA that are shell scripts and empty files, for the tests that look for them."""

from pathlib import Path

VERSION = "Cuda compilation tools, release 12.4, V12.4.131"


def nvcc(path: Path, *, top: Path | None = None, body: str = "", version: str = VERSION) -> Path:
    """An nvcc that answers the questions of the probe and logs each start beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    named = f'echo "#$ TOP={top}/bin/.." >&2' if top else "exit 1"
    path.write_text(
        f"#!/bin/sh\necho \"$@\" >> '{path}.log'\n{body}\n"
        f'case "$*" in\n*--version*) echo "{version}";;\n'
        f"*--list-gpu-code*) printf 'sm_80\\nsm_90\\n';;\n*--dryrun*) {named};;\nesac\n"
    )
    path.chmod(0o755)
    return path


def headers(folder: Path, cudart: int = 12040, name: str = "cuda_runtime.h") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {cudart}\n")


def libraries(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def toolkit(root: Path, **given: object) -> Path:
    """A whole toolkit."""
    nvcc(root / "bin" / "nvcc", **given)
    headers(root / "include")
    libraries(root / "lib64", "libcudart.so", "libcudart.so.12", "libcudart_static.a")
    return root


def wheel(site: Path, number: int, **given: object) -> Path:
    """The consolidated layout, whose libraries have no link without a number."""
    root = site / "nvidia" / f"cu{number}"
    nvcc(root / "bin" / "nvcc", version=VERSION.replace("12.4", f"{number}.0"), **given)
    headers(root / "include", number * 1000)
    libraries(root / "lib", f"libcudart.so.{number}", f"libcublas.so.{number}")
    return root


def split_wheels(site: Path) -> Path:
    """The layout of older wheels: one directory for each part."""
    parts = site / "nvidia"
    nvcc(parts / "cuda_nvcc" / "bin" / "nvcc")
    headers(parts / "cuda_runtime" / "include")
    (parts / "cuda_cccl" / "include").mkdir(parents=True)
    libraries(parts / "cuda_runtime" / "lib", "libcudart.so.12", "libcudart_static.a")
    return parts / "cuda_nvcc"


def cudnn(root: Path, lib: str = "lib") -> Path:
    headers(root / "include", name="cudnn.h")
    libraries(root / lib, "libcudnn.so.9")
    return root
