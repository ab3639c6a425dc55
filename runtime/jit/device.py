"""The GPUs of this machine, by the driver's own library: in goes nothing, out come architectures.

It starts no process and makes no context: three calls and two attributes of each device.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

_MAJOR, _MINOR = 75, 76  # CUdevice_attribute, of the compute capability


class Devices(NamedTuple):
    """What the driver says, once per process; a fork keeps it."""

    archs: tuple[str, ...]  # of each visible device, such as ("sm_90", "sm_90")
    version: tuple[int, int]  # the newest CUDA that the driver knows; (0, 0) without a driver
    why: str  # there are no devices; "" if there are


@cache
def devices() -> Devices:
    """The visible devices in the driver's order, or why there are none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Devices((), (0, 0), f"no NVIDIA driver ({error})")
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    known = version.value // 1000, version.value % 1000 // 10
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return Devices((), known, f"the driver found no device (cuInit: error {code})")
    archs = tuple(_arch(driver, index) for index in range(count.value))
    return Devices(archs, known, "" if archs else "no device is visible (CUDA_VISIBLE_DEVICES)")


def _arch(driver: ctypes.CDLL, index: int) -> str:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    for number, attribute in ((major, _MAJOR), (minor, _MINOR)):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return f"sm_{major.value}{minor.value}"
