#!/usr/bin/env bash
# Builds and runs the core's C++ tests three times: plain (with the benchmark), ASAN+UBSAN, TSAN.
# Usage: native/tests/run.sh [NAME_PART]      build folders are kept under build/native-tests
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
builds="$here/../../build/native-tests"
jobs=$(nproc)
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi

run() {  # name, value of -fsanitize=
  local name=$1 sanitize=$2
  shift 2
  cmake -S "$here" -B "$builds/$name" "${generator[@]}" -DOPKILN_SANITIZE="$sanitize" >/dev/null
  cmake --build "$builds/$name" -j "$jobs" >"$builds/$name.log" 2>&1 || { cat "$builds/$name.log"; exit 1; }
  echo "== $name"
  "$builds/$name/core_tests" "$@" | { grep -v '^ok' || true; }
}

mkdir -p "$builds"
# One run at a time: two builds in one folder link each other's half-written objects.
exec 9>"$builds/.lock"
if command -v flock >/dev/null; then flock 9; fi
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0
run plain "" "$@"
"$builds/plain/core_bench"
run asan address,undefined "$@"
run tsan thread "$@"
