"""What the tests of `ok.load` share."""

import time
from pathlib import Path
from typing import Any

import opkiln as ok
from opkiln.runtime.extension import Extension, files, image

ANSWER = "int answer(void)"


def answer(value: object, before: str = "") -> str:
    return f'{before}\nextern "C" int answer() {{ return {value}; }}\n'


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(*sources: Path, **options: Any) -> Extension:
    return ok.load("answer", sources, functions=[ANSWER], **options)


def settle(*paths: Path) -> None:
    """Let files count as older than the clock's tick."""
    for path in paths:
        while time.time_ns() - path.stat().st_ctime_ns < 20_000_000:
            time.sleep(0.005)


def forget() -> None:
    """Know no more than a new process does."""
    image._images.clear()
    image._asked.clear()
    files._seen.clear()
