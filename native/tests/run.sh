#!/usr/bin/env bash
# Builds and runs the core's C++ tests: plain (with the benchmark) and under each sanitizer.
# Usage: native/tests/run.sh [--only plain|asan|ubsan|tsan] [NAME_PART]
# Build folders are kept under build/native-tests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
builds="$here/../../build/native-tests"
jobs=$(nproc)
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
only=
if [ "${1:-}" = --only ]; then
  only=${2:?--only needs plain, asan, ubsan or tsan}
  shift 2
fi

run() {  # name, value of -fsanitize=
  local name=$1 sanitize=$2
  shift 2
  cmake -S "$here" -B "$builds/$name" "${generator[@]}" -DOPKILN_SANITIZE="$sanitize" >/dev/null
  cmake --build "$builds/$name" -j "$jobs" >"$builds/$name.log" 2>&1 || { cat "$builds/$name.log"; exit 1; }
  echo "== $name"
  "$builds/$name/core_tests" "$@" | { grep -v '^ok' || true; }
  if [ -z "$sanitize" ]; then "$builds/$name/core_bench"; fi
}

mkdir -p "$builds"
# One run at a time: two builds in one folder link each other's half-written objects.
exec 9>"$builds/.lock"
if command -v flock >/dev/null; then flock 9; fi
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0
case "$only" in
  plain) run plain "" "$@" ;;
  asan) run asan address "$@" ;;
  ubsan) run ubsan undefined "$@" ;;
  tsan) run tsan thread "$@" ;;
  "") run plain "" "$@"; run asan-ubsan address,undefined "$@"; run tsan thread "$@" ;;
  *) echo "run.sh: no variant $only: plain, asan, ubsan or tsan" >&2; exit 2 ;;
esac
