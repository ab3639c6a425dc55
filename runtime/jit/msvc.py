"""The MSVC environment on Windows: in goes an installation, out come its variables. Untested there.

cl and clang-cl find headers, libraries and the linker by variables that vcvarsall.bat sets; a
developer prompt has them already.
"""

from __future__ import annotations

import functools
import os
import platform

# platform.machine() -> what vcvarsall.bat calls it
_TARGETS = {"amd64": "x64", "x86_64": "x64", "x86": "x86", "i386": "x86", "arm64": "arm64"}
_WHERE = r"Microsoft Visual Studio\Installer\vswhere.exe"
_NEEDED = ("INCLUDE", "LIB", "LIBPATH", "PATH")


def target(machine: str) -> str:
    """What vcvarsall.bat calls a machine."""
    return _TARGETS.get(machine.lower(), "x64")


def parse(text: str) -> dict[str, str]:
    """The variables that compilers need of the output of `set`."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    found = {name.upper(): value for name, value in pairs}
    return {name: found[name] for name in _NEEDED if name in found}


@functools.cache
def environment() -> dict[str, str]:
    """The variables of the newest installation; {} in a developer prompt, or if there is none."""
    import subprocess

    if os.environ.get("VCINSTALLDIR"):
        return {}
    base = os.environ.get("PROGRAMFILES(X86)", r"C:\Program Files (x86)")
    finder = os.path.join(base, _WHERE)
    if not os.path.exists(finder):
        return {}
    question = [finder, "-latest", "-products", "*", "-property", "installationPath"]
    root = subprocess.run(question, capture_output=True, text=True, check=False).stdout.strip()
    script = os.path.join(root, "VC", "Auxiliary", "Build", "vcvarsall.bat")
    if not root or not os.path.exists(script):
        return {}
    command = f'cmd /s /c ""{script}" {target(platform.machine())} >nul && set"'
    said = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return parse(said.stdout)
