"""Builds under kill, timeout, interruption and competition: one build, nothing half-written."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import jit_child as child

from opkiln.runtime import errors, jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import build, flight, lock, spawn, store


@pytest.fixture
def scoped(tmp_path: Path) -> Iterator[Path]:
    """The cache of this process, for one test."""
    with config.scope(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def text_of(number: int) -> str:
    return child.TEXT.replace("42", str(number))


def load(number: int = 42, flags: jit.Flags | None = None) -> jit.Loaded:
    return jit.build_or_load(text_of(number), ["answer"], name="answer", flags=flags)


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)


def test_build_then_load(scoped: Path) -> None:
    first, second = load(), load()
    assert (first.hit, second.hit) == ("built", "disk")
    assert child.call(first.addresses["answer"]) == child.call(second.addresses["answer"]) == 42
    entry = Path(first.path).parent
    assert sorted(p.name for p in entry.iterdir()) == sorted([*store.FILES, store.MANIFEST])
    assert (entry / "kernel.cpp").read_text(encoding="utf-8") == child.TEXT
    manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["key"] == first.parts.hexdigest
    assert entry.name == f"answer-{first.parts.short}"
    assert entry.parent.parent == scoped
    assert not child.private_files(scoped)
    assert entry.stat().st_mode & 0o777 == 0o700


def test_the_direct_steps_work_here(scoped: Path) -> None:
    before = dict(build.counters)
    load(1000)
    assert build.counters["direct"] == before["direct"] + 1
    assert build.counters["direct_failed"] == before["direct_failed"]


def test_direct_steps_that_fail_leave_it_to_the_driver(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(build.counters)

    def broken(*_: object) -> list[list[str]]:
        return [["/bin/false"], ["/bin/false"], ["/bin/false"]]

    monkeypatch.setattr(build, "_direct_steps", broken)
    monkeypatch.setattr(build, "_direct_off", set())
    loaded = load(1001)
    assert child.call(loaded.addresses["answer"]) == 1001
    assert build.counters["direct_failed"] == before["direct_failed"] + 1
    assert "direct steps failed" in Path(loaded.path).with_name("build.log").read_text("utf-8")


def test_both_ways_give_the_same_machine_code(
    scoped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "k.cpp"
    source.write_text(text_of(7), encoding="utf-8")
    compiler, flags = jit.compiler(), jit.Flags()
    assert compiler.direct
    made = []
    for name, chosen in (("a", compiler), ("b", compiler._replace(direct=()))):
        library = tmp_path / f"{name}.so"
        build.compile_library(chosen, flags, str(source), str(library), str(tmp_path / "log"))
        made.append(library.read_bytes())
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump")
    listed = [
        subprocess.run(
            [objdump, "-d", tmp_path / f"{n}.so"], capture_output=True, text=True, check=True
        ).stdout.split("Disassembly", 1)[1]
        for n in "ab"
    ]
    assert listed[0] == listed[1]


def test_F065_flags_give_their_own_entry(scoped: Path) -> None:
    plain = load()
    other = load(flags=jit.Flags(optimize=("-O1",)))
    macro = load(flags=jit.Flags(extra=("-DA=1",)))
    assert len({plain.path, other.path, macro.path}) == 3
    assert "-DA=1" in Path(macro.path).with_name("build.log").read_text("utf-8")
    assert plain.parts.diff(macro.parts) == [("flags.extra", "-DA=1", "")]


def test_fast_math_is_refused_and_neutralised(scoped: Path) -> None:
    with pytest.raises(errors.ConfigError, match="-ffast-math"):
        load(flags=jit.Flags(extra=("-ffast-math",)))
    text = """extern "C" __attribute__((visibility("default"))) int answer() {
    #ifdef __FAST_MATH__
      return 1;
    #else
      return 0;
    #endif
    }"""
    with config.scope(cxx="g++ -ffast-math"):
        loaded = jit.build_or_load(text, ["answer"], name="answer")
    assert child.call(loaded.addresses["answer"]) == 0


def test_F069_new_text_under_the_old_name(scoped: Path) -> None:
    first, second = load(1), load(2)
    assert child.call(first.addresses["answer"]) == 1
    assert child.call(second.addresses["answer"]) == 2
    assert first.path != second.path


def test_K3_a_failed_build_fails_again_then_works(scoped: Path) -> None:
    for _ in range(2):
        with pytest.raises(errors.CompileFailed):
            jit.build_or_load("int answer( {", ["answer"], name="answer")
    assert load().hit == "built"
    assert len(child.entries(scoped)) == 1


def test_K3_a_failure_is_not_remembered_for_its_key(scoped: Path, tmp_path: Path) -> None:
    body = child.PROBES + '[ -e "$LOG.broken" ] && exit 1\nexec "$G" "$@"'
    cxx = child.stub(tmp_path / "cxx", body)
    broken = tmp_path / "cxx.log.broken"
    broken.touch()
    with config.scope(cxx=str(cxx)):
        for _ in range(2):
            with pytest.raises(errors.CompileFailed):
                load()
        broken.unlink()
        loaded = load()
        assert child.call(loaded.addresses["answer"]) == 42


def test_F097_error_shows_lines_command_and_kept_log(scoped: Path) -> None:
    with pytest.raises(errors.CompileFailed) as caught:
        jit.build_or_load("// Ω\nint f() { return zz; }\n", ["answer"], name="answer")
    error = caught.value
    assert "zz" in str(error)
    assert "kernel.cpp:2" in str(error)
    assert "-ffp-contract=off" in error.command
    assert error.exit_code == 1
    assert error.log_path is not None
    assert "zz" in error.log_path.read_text(encoding="utf-8")
    assert error.source_path is not None
    assert "Ω" in error.source_path.read_text(encoding="utf-8")
    assert str(error.log_path) in str(error)
    assert not child.private_files(scoped)


def test_F097_five_megabytes_of_bytes_that_are_not_utf8(scoped: Path, tmp_path: Path) -> None:
    body = child.PROBES + (
        r"""printf 'k.cpp:1: error: \377\376 bad\n'; head -c 5000000 /dev/zero | tr '\0' '\351'"""
        "\nexit 1"
    )
    cxx = child.stub(tmp_path / "cxx", body)
    with config.scope(cxx=str(cxx)), pytest.raises(errors.CompileFailed) as caught:
        load()
    assert "error: \ufffd\ufffd bad" in str(caught.value)
    assert len(str(caught.value)) < 50_000
    assert len(caught.value.output) <= 64 * 1024


def test_a_missing_symbol_is_not_published(scoped: Path) -> None:
    with pytest.raises(errors.SymbolMissing):
        jit.build_or_load(child.TEXT, ["answer", "question"], name="answer")
    assert not child.entries(scoped)
    assert not child.private_files(scoped)


def test_F100_a_library_that_cannot_load_is_not_kept(scoped: Path) -> None:
    text = """extern "C" int nowhere_to_be_found();
    extern "C" __attribute__((visibility("default"))) int answer() {return nowhere_to_be_found();}
    """
    with pytest.raises(errors.LoadFailed, match="undefined symbol"):
        jit.build_or_load(text, ["answer"], name="answer")
    assert not child.entries(scoped)


def test_NotCached_names_what_changed(scoped: Path) -> None:
    load()
    with config.scope(assert_cached=True):
        assert load().hit == "disk"
        with pytest.raises(errors.NotCached, match=r"flags\.extra: absent -> -DA=1"):
            load(flags=jit.Flags(extra=("-DA=1",)))
    assert len(child.entries(scoped)) == 1


def test_F129_a_build_says_what_changed(scoped: Path) -> None:
    ((part, old, new),) = load().why
    assert (part, old) == ("cache directory", "") and "no kernels yet" in new
    assert load().why == ()
    changed = load(flags=jit.Flags(extra=("-DA=1",)))
    assert (changed.hit, changed.why) == ("built", (("flags.extra", "", "-DA=1"),))


# ---- one build ----


def test_F140_threads_that_ask_for_one_key_build_once(
    scoped: Path, tmp_path: Path, parallelize: Callable[..., list[jit.Loaded]]
) -> None:
    cxx = child.stub(tmp_path / "cxx", child.LOGGING)
    with config.scope(cxx=str(cxx)):
        jit.compiler()

        def ask(_: int) -> jit.Loaded:
            # Without the lock between processes, which would keep threads apart too.
            with config.scope(cxx=str(cxx), cache_dir=scoped, lock_wait=0):
                return load()

        results = parallelize(ask, 16)
    assert child.starts(cxx) == 1
    assert sorted(r.hit for r in results) == ["built"] + ["disk"] * 15
    assert {child.call(r.addresses["answer"]) for r in results} == {42}


def test_a_build_within_a_build_of_the_same_key(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal's handler or a finaliser: it cannot wait for the thread it runs in."""
    real = build._build_in
    inner: list[Any] = []

    def interrupted(*args: Any) -> Any:
        if not inner:
            inner.append(None)
            inner[:] = [load(9)]
        return real(*args)

    monkeypatch.setattr(build, "_build_in", interrupted)
    assert load(9).hit == "disk"
    assert inner[0].hit == "built"
    assert child.call(inner[0].addresses["answer"]) == 9
    assert not flight._flights
    assert not child.private_files(scoped)


def test_threads_with_keys_of_their_own(
    scoped: Path, parallelize: Callable[..., list[jit.Loaded]]
) -> None:
    def ask(index: int) -> jit.Loaded:
        with config.scope(cache_dir=scoped):
            return load(index)

    results = parallelize(ask, 16)
    assert [child.call(r.addresses["answer"]) for r in results] == list(range(16))
    assert len(child.entries(scoped)) == 16
    assert not child.private_files(scoped)


def test_waiting_threads_hear_of_the_failure(
    scoped: Path, parallelize: Callable[..., list[str]]
) -> None:
    def ask(_: int) -> str:
        with config.scope(cache_dir=scoped):
            try:
                jit.build_or_load("int answer( {", ["answer"], name="answer")
            except errors.CompileFailed as error:
                return error.command
        return ""

    assert all("kernel.cpp" in command for command in parallelize(ask, 4))
    assert not flight._flights


def test_O10_processes_that_ask_for_one_key_build_once(cache_dir: Path, tmp_path: Path) -> None:
    cxx = child.stub(tmp_path / "cxx", child.LOGGING)
    children = [child.start_child(OPKILN_CXX=cxx) for _ in range(8)]
    reports = [child.finish(c) for c in children]
    assert [r["value"] for r in reports] == [42] * 8
    assert child.starts(cxx) == 1
    assert sorted(r["loaded"][0] for r in reports) == ["built"] + ["disk"] * 7
    assert len(child.entries(cache_dir)) == 1
    assert not child.private_files(cache_dir)


def test_F080_F071_slow_writers_never_mix(cache_dir: Path, tmp_path: Path) -> None:
    # No lock at all (0 s wait) and pauses between the files: only the rename keeps entries whole.
    before = """
import time, random
from opkiln.runtime.jit import store
real = store.write_file
def slow(*args):
    time.sleep(random.random() * 0.03)
    real(*args)
store.write_file = slow
"""
    children = [
        child.start_child({"before": before, "times": 3}, OPKILN_LOCK_WAIT="0") for _ in range(6)
    ]
    for report in [child.finish(c) for c in children]:
        assert (report["value"], report["error"]) == (42, None)
        assert report["warnings"] == []
    assert len(child.entries(cache_dir)) == 1


# ---- kill, timeout, interruption ----


def test_F078_a_killed_builder_blocks_nobody(cache_dir: Path, tmp_path: Path) -> None:
    body = child.PROBES + 'echo build >> "$LOG"\n[ -e "$LOG.slow" ] && sleep 60\nexec "$G" "$@"'
    cxx = child.stub(tmp_path / "cxx", body)
    slow = tmp_path / "cxx.log.slow"
    slow.touch()
    builder = child.start_child(OPKILN_CXX=cxx)
    wait_for(lambda: child.starts(cxx) == 1)
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    slow.unlink()
    start = time.monotonic()
    report = child.run_child(OPKILN_CXX=cxx)
    assert report["value"] == 42
    assert report["loaded"] == ["built"]
    assert time.monotonic() - start < 10
    assert not child.private_files(cache_dir)


def test_F078_F079_a_lock_file_that_is_just_there(cache_dir: Path) -> None:
    first = child.run_child()
    entry = Path(first["path"]).parent
    shutil.rmtree(entry)
    place = entry.with_name(f".lock-{entry.name}")
    place.write_text("pid 1 on another-host", encoding="utf-8")
    assert child.run_child()["loaded"] == ["built"]
    shutil.rmtree(entry)
    place.mkdir()  # not a lock at all
    assert child.run_child()["loaded"] == ["built"]


def test_F079_a_holder_that_never_ends_is_named_then_bypassed(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    monkeypatch.setattr(lock, "MESSAGE_AFTER", 0.1)
    entry = child.entries(scoped)[0]
    shutil.rmtree(entry)
    path = entry.with_name(f".lock-{entry.name}")
    with lock.ProcessLock(str(path), 0, print) as held:
        assert held.held
        with (
            config.scope(lock_wait=0.4),
            pytest.warns(errors.OpkilnWarning, match=f"pid {os.getpid()} on .*OPKILN_LOCK_WAIT"),
        ):
            assert load().hit == "built"


def test_a_timeout_ends_the_whole_group(scoped: Path, tmp_path: Path) -> None:
    body = child.PROBES + (
        "trap '' TERM INT HUP\n"
        "(trap '' TERM INT HUP; echo $$ >> \"$LOG\"; sleep 47.11) &\n"
        'echo $! >> "$LOG"\nsleep 47.11'
    )
    cxx = child.stub(tmp_path / "cxx", body)
    start = time.monotonic()
    with config.scope(cxx=str(cxx)):
        jit.compiler()
        with config.scope(compile_timeout=0.5), pytest.raises(errors.CompileTimeout) as caught:
            load()
    assert time.monotonic() - start < 10
    assert "0.5 s" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    pids = [int(line) for line in cxx.with_suffix(".log").read_text("utf-8").split()]
    assert pids
    wait_for(lambda: not any(running(pid) for pid in pids), 5)
    assert not child.entries(scoped)
    assert not child.private_files(scoped)
    assert load().hit == "built"


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_compiler_that_hangs_when_asked_its_version(scoped: Path, tmp_path: Path) -> None:
    cxx = child.stub(tmp_path / "cxx", "sleep 40")
    with config.scope(cxx=str(cxx), compile_timeout=0.3), pytest.raises(errors.CompileTimeout):
        load()


STEPS = [
    (store, "write_file"),
    (build, "_run_direct"),
    (build, "open_entry"),
    (store, "manifest"),
    (store, "publish"),
    (store, "sync"),
]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=[name for _, name in STEPS])
def test_F071_interrupted_at_any_step(
    scoped: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[object, str], moment: str
) -> None:
    module, name = step
    real = getattr(module, name)

    def interrupted(*args: object, **kw: object) -> None:
        if moment == "after":
            real(*args, **kw)
        raise KeyboardInterrupt

    load(7)  # the compiler is known
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(8)
    assert not child.private_files(scoped)
    assert not flight._flights
    again = load(8)
    assert child.call(again.addresses["answer"]) == 8
    assert load(8).hit == "disk"


def test_ctrl_c_ends_the_compiler(cache_dir: Path, tmp_path: Path) -> None:
    cxx = child.stub(tmp_path / "cxx", child.PROBES + 'echo $$ >> "$LOG"\nexec sleep 47.12')
    builder = child.start_child(OPKILN_CXX=cxx)
    wait_for(lambda: child.starts(cxx) == 1)
    builder.send_signal(signal.SIGINT)
    report = child.finish(builder, 10)
    assert report["error"] == "KeyboardInterrupt"
    pid = int(cxx.with_suffix(".log").read_text("utf-8"))
    wait_for(lambda: not running(pid), 5)
    assert not child.private_files(cache_dir)


def test_a_fork_during_a_build_does_not_wait_for_its_parent(scoped: Path) -> None:
    jit.compiler()
    key = store.entry_for(store.Layer(store.root()), "t", "n", jit.KeyParts()).path
    flight._flights[key] = flight._Flight()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not flight._flights else 1)
    assert os.waitpid(pid, 0)[1] == 0
    flight._flights.clear()


def test_spawn_reports_a_program_that_is_not_there() -> None:
    with pytest.raises(spawn.NotStarted, match="No such file"):
        spawn.run(["/nowhere/cc1plus"], stdout=1, stderr=2, deadline=time.monotonic() + 5)


def test_ENOSPC_gives_a_warning_and_an_uncached_run(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit.compiler()
    real = store.write_file

    def full(path: str, data: bytes) -> None:
        if path.startswith(str(scoped)):
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(store, "write_file", full)
    monkeypatch.setattr(store, "_roots", {})
    monkeypatch.setattr(store, "_temporary", None)
    with pytest.warns(errors.OpkilnWarning, match="No space left") as caught:
        loaded = load()
    assert len(caught) == 1
    assert child.call(loaded.addresses["answer"]) == 42
    assert not loaded.path.startswith(str(scoped))
    assert not child.private_files(scoped)


def test_a_program_that_ignores_the_end_of_its_children(cache_dir: Path) -> None:
    before = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    after = "from opkiln.runtime.jit import build; report['counters'] = build.counters"
    report = child.run_child({"before": before, "after": after})
    assert report["value"] == 42
    assert report["counters"]["direct"] == 0  # exit codes are lost, so only the driver is trusted
    bad = child.run_child({"before": before, "text": "int answer( {"})
    assert bad["error"] == "CompileFailed"


def test_a_program_without_standard_streams(cache_dir: Path, tmp_path: Path) -> None:
    before = """
import os
kept = [os.dup(i) for i in range(3)]
for i in range(3): os.close(i)
"""
    after = "for i in range(3): os.dup2(kept[i], i)"
    report = child.run_child({"before": before, "after": after})
    assert report["value"] == 42
    assert report["error"] is None


def test_direct_steps_are_given_up_after_one_failure(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_direct_off", set())
    tried = []

    def broken(*_: object) -> list[list[str]]:
        tried.append(1)
        return [["/bin/false"], ["/bin/false"], ["/bin/false"]]

    monkeypatch.setattr(build, "_direct_steps", broken)
    for number in range(3):
        load(2000 + number)
    assert len(tried) == 1


def test_assembly_is_for_reading(scoped: Path) -> None:
    text = jit.assembly(child.TEXT)
    assert "answer" in text
    assert ".globl" in text
    assert not child.entries(scoped)
