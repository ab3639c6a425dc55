"""GPU architectures: in goes what people and tools write, out come nvcc's names, checked.

`sm_90` stands for machine code of one architecture, `compute_90` for PTX, which a driver turns into
the machine code of any later GPU. Precedence: an argument, then OPKILN_CUDA_ARCHS (and what CMake
and PyTorch read), then the devices of this machine; nothing is guessed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from opkiln.runtime.config import config
from opkiln.runtime.errors import ArgumentError, LoadFailed, UnsupportedArch
from opkiln.runtime.jit import device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FORM = re.compile(
    r"(?:(?P<kind>sm|compute|lto)_)?(?P<major>\d{1,2}?)(?:\.?(?P<minor>\d))(?P<only>[af]?)"
    r"(?P<ptx>\+ptx)?(?P<part>-real|-virtual)?",
    re.IGNORECASE,
)
# PyTorch's and NVIDIA's names of generations.
_NAMES = {
    "volta": "7.0",
    "turing": "7.5",
    "ampere": "8.0;8.6",
    "ada": "8.9",
    "hopper": "9.0",
    "blackwell": "10.0;12.0",
}
_ALL = ("all", "all-major", "native")
_OLDEST = 20  # what came before never had the ABI of any nvcc that reads C++17
_EMBEDDED = frozenset([53, 62, 72, 87, 101, 110])  # run machine code of themselves only
_ACCEPTED = "such as 8.6, 86, sm_86, compute_86, 90a, '8.0;9.0+PTX', Hopper, native or all"


class Arch(NamedTuple):
    """One architecture: its number (86), and "a" or "f" if the code runs on no later one."""

    number: int
    only: str
    machine: bool  # machine code is wanted
    ptx: bool

    @property
    def name(self) -> str:
        """The part after sm_ and compute_."""
        return f"{self.number}{self.only}"


def resolve(
    explicit: str | Iterable[str] | None = None, known: Sequence[str] = ()
) -> tuple[str, ...]:
    """The architectures of a build: machine code (`sm_86`), rising, then PTX (`compute_86`).

    Machine code of each, and PTX of the highest unless the list itself says `+PTX`. Of the devices
    of this machine, one newer than all that nvcc knows gets the PTX of the newest.

    Args:
        explicit: a text or texts; None or nothing: the settings, then the devices.
        known: the names that nvcc knows (`sm_90`, ...); none: anything goes.

    Raises:
        ArgumentError: a text that names no architecture.
        UnsupportedArch: one that nvcc does not know, or none is named and there is no device.
    """
    words = _words(explicit)
    source = "the architectures of the call"
    if not words and config.cuda_archs is not None:
        words, source = _words(config.cuda_archs), "OPKILN_CUDA_ARCHS (or CUDAARCHS)"
    if not words:
        return _render(_of_devices(known))
    found: list[Arch] = []
    for word in words:
        found += _read(word, known, source)
    _check_known(found, known, source)
    return _render(found)


def _words(value: str | Iterable[str] | None) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str) and not value.strip():
        raise ArgumentError(f"GPU architectures: expected a list {_ACCEPTED}, got {value!r}")
    texts = [value] if isinstance(value, str) else list(value)
    for text in texts:
        if not isinstance(text, str) or not text.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"GPU architectures: expected texts {_ACCEPTED}, got {text!r}")
    return [word for text in texts for word in re.split(r"[;,\s]+", text.strip()) if word]


def _read(word: str, known: Sequence[str], source: str) -> list[Arch]:
    lower = word.lower()
    if lower in _ALL:
        return _of_devices(()) if lower == "native" else _every(lower, known, source)
    stem, plus, _ = lower.partition("+")
    if stem in _NAMES:
        listed = [normal(one) for one in _NAMES[stem].split(";")]
        last = listed.pop()
        return [*listed, last._replace(ptx=bool(plus))]
    return [normal(word)]


def normal(word: str) -> Arch:
    """Read one architecture; ArgumentError if it is none, UnsupportedArch if no GPU has it now."""
    found = _FORM.fullmatch(word.strip())
    if found is None:
        raise ArgumentError(f"GPU architecture: expected one {_ACCEPTED}, got {word!r}")
    number = int(found["major"] + found["minor"])
    if number < _OLDEST:
        raise UnsupportedArch(
            f"GPU architecture {word!r}: no GPU that CUDA still runs on has it",
            fix="write 10.0 or sm_100 for a major version of two digits",
        )
    only, part = found["only"].lower(), (found["part"] or "").lower()
    ptx = bool(found["ptx"]) or part == "-virtual"
    return Arch(number, only, machine=part != "-virtual", ptx=ptx)


def _every(word: str, known: Sequence[str], source: str) -> list[Arch]:
    """`all` and `all-major`, of what this nvcc knows."""
    if not known:
        raise UnsupportedArch(
            f"GPU architectures: {source} says {word!r}, and nvcc did not list what it knows",
            fix="name the architectures, such as '8.0;9.0'",
        )
    every = [normal(name) for name in known]
    plain = sorted({a for a in every if not a.only})
    if word == "all":
        return plain
    majors = {a.number // 10: a for a in reversed(plain)}
    return list(majors.values())


def _of_devices(known: Sequence[str]) -> list[Arch]:
    found = device.devices()
    if not found.archs:
        raise UnsupportedArch(
            f"GPU architecture: none is named and there is no device to ask: {found.why}",
            fix="name one in the call, or set OPKILN_CUDA_ARCHS, for example to 9.0",
        )
    newest = max((normal(name) for name in known if not normal(name).only), default=None)
    archs = [normal(name) for name in dict.fromkeys(found.archs)]
    numbers = {normal(name).number for name in known}
    out: list[Arch] = []
    for arch in archs:
        if newest is None or arch.number in numbers:
            out.append(arch)
            continue
        # nvcc is older than the device, or never knew it: PTX of the nearest one below.
        below = max(n for n in (*numbers, 0) if n <= arch.number)
        if not below:
            raise _unknown(arch, known, "a device of this machine")
        out.append(Arch(below, "", machine=False, ptx=True))
    return out


def _check_known(found: Iterable[Arch], known: Sequence[str], source: str) -> None:
    names = {name.partition("_")[2] for name in known}
    for arch in found:
        # nvcc lists sm_90, and takes sm_90a as well.
        if known and arch.name not in names and str(arch.number) not in names:
            raise _unknown(arch, known, source)


def _unknown(arch: Arch, known: Sequence[str], source: str) -> UnsupportedArch:
    return UnsupportedArch(
        f"GPU architecture sm_{arch.name} ({source}): this nvcc knows {', '.join(known)}",
        fix="name one of these, or install a CUDA toolkit that knows it",
    )


def _render(found: Iterable[Arch]) -> tuple[str, ...]:
    archs = list(found)
    machine = sorted({(a.number, a.only) for a in archs if a.machine})
    ptx = sorted({(a.number, a.only) for a in archs if a.ptx})
    generic = [pair for pair in machine if not pair[1]]
    if not ptx and generic:  # code of sm_90a runs on 9.0 only, and so would its PTX
        ptx = generic[-1:]
    return (
        *(f"sm_{number}{only}" for number, only in machine),
        *(f"compute_{number}{only}" for number, only in ptx),
    )


def gencode(archs: Sequence[str]) -> list[str]:
    """Options of nvcc for a resolved list, one pair each: machine code first, PTX last."""
    if not archs:
        raise UnsupportedArch(
            "GPU architecture: none was resolved", fix="pass `archs.resolve()` to the options"
        )
    return [
        word
        for name in archs
        for word in ("-gencode", f"arch=compute_{name.partition('_')[2]},code={name}")
    ]


def archs_run_on(archs: Iterable[str], device_arch: str) -> bool:
    """Whether code for `archs`, as `resolve` names them, runs on a device such as "sm_90"."""
    here = normal(device_arch).number
    return any(_runs(name, here) for name in archs)


def _runs(name: str, here: int) -> bool:
    kind, _, _ = name.partition("_")
    arch = normal(name)
    if arch.only == "a":
        return arch.number == here
    if arch.only == "f" or kind == "sm":
        if not {arch.number, here}.isdisjoint(_EMBEDDED):
            return arch.number == here
        return arch.number // 10 == here // 10 and arch.number <= here
    return arch.number <= here


def check_devices(name: str, archs: Sequence[str], release: tuple[int, int]) -> None:
    """Before loading a library `name` of CUDA `release`: can the devices of this machine run it?

    Without a device there is nothing to say: a library may be loaded to be looked at.

    Raises:
        UnsupportedArch: no visible device runs any of the architectures.
        LoadFailed: the driver is older than the toolkit.
    """
    found = device.devices()
    if not found.archs:
        return
    here = ", ".join(dict.fromkeys(found.archs))
    if not any(archs_run_on(archs, one) for one in found.archs):
        raise UnsupportedArch(
            f"{name} is built for {', '.join(archs)}; the devices here are {here}",
            fix=f"build it again with OPKILN_CUDA_ARCHS={normal(found.archs[0]).name}",
            stage="load",
        )
    machine = [one for one in archs if one.startswith("sm_")]
    needs_ptx = not any(archs_run_on(machine, one) for one in found.archs)
    # Within a major version an older driver runs machine code, but does not read newer PTX.
    if found.version[0] < release[0] or (needs_ptx and found.version < release):
        driver, toolkit = (".".join(map(str, pair)) for pair in (found.version, release))
        raise LoadFailed(
            f"{name} is built by CUDA {toolkit}; the driver here knows CUDA {driver} at most",
            fix="install a newer NVIDIA driver, or build with an older toolkit (OPKILN_CUDA_HOME)",
        )
