"""Compiler flags by group: in goes what a kernel asks for, out come flags and key parts."""

from __future__ import annotations

import sys

from opkiln.ops.record import record
from opkiln.runtime.errors import ConfigError

# Same bits with and without fusion, on every machine (FIELD-CASES F020, F029): no contraction, no
# fast-math even if the user's CXX asks for it. The errno and trapping switches only drop side
# effects that nobody reads.
NUMERIC = (
    "-fno-fast-math",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-strict-aliasing",
)
CODE = (
    "-std=c++17",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-fvisibility=hidden",
)
# No start files and no libraries: they cost half of a build, and a kernel needs none. -nostdlib
# also keeps crtfastmath.o out, which would switch denormals off for the whole process.
LINK = ("-shared", "-nostdlib")
if sys.platform == "darwin":  # untested
    LINK = ("-shared", "-undefined", "dynamic_lookup")
GCC_LINK = ("-fno-use-linker-plugin",)

# The same of NVRTC, which fuses by default. Subnormals stay.
DEVICE_NUMERIC = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
DEVICE_CODE = (
    "--std=c++17",
    "--device-as-default-execution-space",
    "--device-int128",
    "--diag-suppress=177",  # a body that is pasted and not used
)

_FORBIDDEN = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-mdaz-ftz")


@record
class Flags:
    """What one kernel may choose; the groups above are always added.

    Kernels are written with explicit vectors, so little is left for the optimiser: -O1 with -fgcse
    gives the speed of -O2 (tanh chain 0.509 and 0.513 ns per element, plain -O1 0.532) and builds
    in the time of -O1 (44 ms against 58).
    """

    optimize: tuple[str, ...] = ("-O1", "-fgcse")
    extra: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def compile_flags(self) -> tuple[str, ...]:
        """All flags of the compile step, in order."""
        return (*self.optimize, *CODE, *self.extra, *NUMERIC)

    def checked(self) -> Flags:
        """Return self, or raise ConfigError if a flag would change numeric results."""
        for flag in (*self.optimize, *self.extra):
            if flag in _FORBIDDEN:
                raise ConfigError(
                    f"compiler flags: expected none that changes numeric results, got {flag!r}",
                    fix="remove it; math='fast' is the supported way",
                )
        return self

    def parts(self) -> list[tuple[str, tuple[str, ...]]]:
        """Key parts, one per group, so that a flag moved between groups changes the key."""
        return [
            ("flags.optimize", self.optimize),
            ("flags.code", CODE),
            ("flags.numeric", NUMERIC),
            ("flags.extra", self.extra),
            ("flags.link", (*LINK, *self.libraries)),
        ]


@record
class DeviceFlags:
    """What one kernel of a GPU may choose; the groups of devices are always added."""

    extra: tuple[str, ...] = ()

    def compile_flags(self) -> tuple[str, ...]:
        """All flags but the architecture."""
        return (*DEVICE_CODE, *self.extra, *DEVICE_NUMERIC)

    def parts(self) -> list[tuple[str, tuple[str, ...]]]:
        """Key parts, one per group."""
        return [
            ("flags.code", DEVICE_CODE),
            ("flags.numeric", DEVICE_NUMERIC),
            ("flags.extra", self.extra),
        ]
