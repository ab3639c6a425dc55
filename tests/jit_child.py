"""What the loader's tests share: a program that loads one kernel and reports, and compiler stubs.

Run as a program it takes a JSON specification and prints one JSON line.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

GXX = shutil.which("g++") or "g++"
TEXT = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


def call(address: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def stub(path: Path, body: str) -> Path:
    """A compiler that is a shell script; `$G` is the real one, `$LOG` a file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    quoted = str(log).replace("'", "'\\''")
    path.write_text(f"#!/bin/sh\nG='{GXX}'\nLOG='{quoted}'\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


# Questions (-E, -###) are answered by the real compiler; what follows is done for builds only.
PROBES = 'case " $* " in *" -E "*|*" -### "*) exec "$G" "$@";; esac\n'
LOGGING = PROBES + 'echo build $$ >> "$LOG"\nexec "$G" "$@"'
BROKEN = 'echo start "$@" >> "$LOG"\nexit 3'


# A kernel whose answer stands in its data, so that a copy with other digits is another kernel.
MOULD = """extern "C" __attribute__((visibility("default"))) int answer() {
  static const volatile char digits[] = "@@@@";
  int n = 0;
  for (int i = 0; i < 4; ++i) n = n * 10 + (digits[i] - '0');
  return n;
}
"""
POUR = r"""
while [ $# -gt 1 ]; do case "$1" in -o) out=$2;; *.cpp) text=$1;; esac; shift; done
n=$(sed -n 's/.*return \([0-9]*\);.*/\1/p' "$text")
LC_ALL=C sed "s/@@@@/$(printf %04d "$n")/" "$LOG.so" > "$out"
"""


def fast_compiler(path: Path, pour: str = 'echo build >> "$LOG"\n' + POUR) -> Path:
    """A compiler for `text_of(0)` to `text_of(9999)` that takes 5 ms: where only the store counts.

    It is the real one for whoever asks who it is; each build adds a line to its log.
    """
    cxx = stub(path, PROBES + pour)
    mould = path.with_suffix(".log.so")
    command = [GXX, "-shared", "-fPIC", "-O1", "-nostdlib", "-x", "c++", "-", "-o", str(mould)]
    subprocess.run(command, input=MOULD, text=True, check=True)
    return cxx


POUR_EXTENSION = r"""
case " $* " in *" -c "*)
  echo "build" >> "$LOG"
  while [ $# -gt 1 ]; do case "$1" in -MF) dep=$2;; -c) text=$2;; -o) out=$2;; esac; shift; done
  printf '%s: %s\n' "$out" "$text" > "$dep"
  exec cat "$text" > "$out";;
esac
while [ $# -gt 1 ]; do case "$1" in -o) out=$2;; *.o) text=$1;; esac; shift; done
n=$(sed -n 's/.*return \([0-9]*\);.*/\1/p' "$text")
LC_ALL=C sed "s/@@@@/$(printf %04d "$n")/" "$LOG.so" > "$out"
"""


def fast_extension_compiler(path: Path) -> Path:
    """The same for extensions of one source: it compiles and links apart, and logs the first."""
    return fast_compiler(path, POUR_EXTENSION)


def text_of(number: int) -> str:
    return TEXT.replace("42", str(number))


def starts(path: Path) -> int:
    log = path.with_suffix(".log")
    return len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0


def start_child(spec: dict[str, Any] | None = None, **env: str | Path | None) -> subprocess.Popen:
    """Start a child; None as a value removes the variable."""
    full = {k: v for k, v in os.environ.items() if k not in {"CXX", "MAX_JOBS"}}
    for name, value in env.items():
        if value is None:
            full.pop(name, None)
        else:
            full[name] = str(value)
    return subprocess.Popen(
        [sys.executable, __file__, json.dumps(spec or {})],
        env=full,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def finish(child: subprocess.Popen, timeout: float = 60) -> dict[str, Any]:
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        raise AssertionError(f"child still runs after {timeout} s: {out} {err}") from None
    assert child.returncode == 0, (child.returncode, out, err)
    return json.loads(out.splitlines()[-1]) | {"stderr": err}


def run_child(spec: dict[str, Any] | None = None, **env: str | Path | None) -> dict[str, Any]:
    return finish(start_child(spec, **env))


def entries(cache: Path) -> list[Path]:
    return sorted(p for p in cache.glob("*/*-*") if p.parent.name != "compilers" and _public(p))


def _public(path: Path) -> bool:
    return not path.name.startswith(".")


def private_files(cache: Path) -> list[Path]:
    kept = (".failed-", ".index-")
    return sorted(p for p in cache.glob("*/.*") if not p.name.startswith(kept))


def main(spec: dict[str, Any]) -> None:
    report: dict[str, Any] = {"value": None, "error": None, "errors": [], "loaded": []}
    names: dict[str, Any] = {"report": report, "spec": spec}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from opkiln.runtime import errors, jit

        names["jit"] = jit
        exec(spec.get("before", ""), names)
        for _ in range(spec.get("times", 1)):
            try:
                loaded = jit.build_or_load(
                    spec.get("text", TEXT),
                    spec.get("symbols", ["answer"]),
                    name=spec.get("name", "answer"),
                    flags=jit.Flags(extra=tuple(spec.get("extra", ()))),
                )
            except (errors.OpkilnError, KeyboardInterrupt) as error:
                report["error"] = type(error).__name__
                report["message"] = str(error)
                report["errors"].append(type(error).__name__)
            else:
                report["error"] = None
                report["loaded"].append(loaded.hit)
                report["path"] = loaded.path
                report["key"] = loaded.parts.hexdigest
                report["seconds"] = loaded.seconds
                report["value"] = call(loaded.addresses[spec.get("symbols", ["answer"])[0]])
            exec(spec.get("between", ""), names)
        exec(spec.get("after", ""), names)
    report["warnings"] = [str(w.message) for w in caught]
    report["modules"] = sorted(sys.modules)
    print(json.dumps(report))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
