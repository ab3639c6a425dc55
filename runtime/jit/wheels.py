"""NVIDIA's wheels: in goes sys.path, out come their directories in site-packages, best first."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def consolidated() -> Iterator[str]:
    """The directories `nvidia/cuNN`, which hold a whole toolkit; the highest number first."""
    found: list[tuple[int, int, str]] = []
    for rank, base in enumerate(dict.fromkeys(sys.path)):
        try:
            names = os.listdir(f"{base or '.'}/nvidia")
        except OSError:
            continue
        numbers = [match for name in names if (match := re.fullmatch(r"cu(\d+)", name))]
        found += [(-int(m[1]), rank, f"{base}/nvidia/{m[0]}") for m in numbers]
    yield from (path for _, _, path in sorted(found))


def split(package: str) -> Iterator[str]:
    """The directories `nvidia/<package>` of older wheels, which hold one part of a toolkit."""
    for base in dict.fromkeys(sys.path):
        path = f"{base}/nvidia/{package}"
        if os.path.isdir(path):
            yield path
