"""Streams when a process is interrupted, ends or forks: in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import atexit, os, signal, sys, threading
import numpy as np
import opkiln as ok
from opkiln import native
sys.path.insert(0, {tests!r})
from tests.gates import eventually, held

@ok.compile
def f(x):
    return x * 2
x = np.arange(5.0)
f(x)
at_end = lambda: None
atexit.register(lambda: at_end())  # after what the first stream registers
stream = ok.Stream()
clock = native.ManualStream(1, device="cpu")
gate = ok.Event()
gate.record(clock)
"""


def child(code: str, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    head = HEAD.format(tests=str(Path(__file__).parent.parent))
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return done


def test_ctrl_c_ends_every_wait() -> None:
    done = child(
        """
stream.wait_event(gate)
with stream:
    future = f(x)

def interrupt():
    eventually(lambda: waiting)
    os.kill(os.getpid(), signal.SIGINT)

for wait in (gate.wait, future.result, stream.synchronize, stream.close, ok.synchronize):
    waiting = False
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        waiting = True
        wait()
    except KeyboardInterrupt:
        print("interrupted", end=" ")
    thread.join()
clock.advance(1)
print(future.result().sum())
"""
    )
    assert done.stdout.split() == ["interrupted"] * 5 + ["20.0"]


def test_F126_exit_finishes_what_is_queued() -> None:
    done = child(
        """
stream.wait_event(gate)
out = np.zeros(5)
with stream:
    future = f(x, out=out)
atexit.register(clock.advance, 1)  # before
at_end = lambda: print(out.sum(), future.done())
"""
    )
    assert (done.stdout, done.stderr) == ("20.0 True\n", "")


def test_F126_exit_drops_what_cannot_run() -> None:
    done = child(
        """
native.set_exit_patience(0.05)
stream.wait_event(gate)
with stream:
    first, second = f(x), f(x)
    f(x)
def at_end():
    print(first.done(), second.exception())
"""
    )
    assert "3 queued calls or waits were dropped at exit" in done.stderr
    assert "Exception ignored" not in done.stderr  # that line says it all
    assert "True f(): not computed: the stream was given up" in done.stdout


def test_exit_from_a_thread_with_work_queued() -> None:
    done = child(
        """
def work():
    with stream:
        for _ in range(5):
            f(x)

thread = threading.Thread(target=work)
thread.start()
thread.join()
with stream:
    keep = f(x)
"""
    )
    assert done.stderr == ""


def test_F086_fork_with_work_queued() -> None:
    done = child(
        """
stream.wait_event(gate)
with stream:
    future = f(x)
pid = os.fork()
if pid == 0:
    try:
        future.result()
    except ok.errors.StreamError as error:
        print("lost:", "in the process that called" in str(error), flush=True)
    try:
        with stream:
            f(x)
    except ok.errors.StreamError as error:
        print("refused:", "forked" in str(error), flush=True)
    with ok.Stream():
        print("own:", f(x).result().sum(), flush=True)
    print("inline:", f(x).sum(), flush=True)
    sys.exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert not future.done()
clock.advance(1)
print("parent:", future.result().sum())
"""
    )
    assert done.stdout.splitlines() == [
        "lost: True", "refused: True", "own: 20.0", "inline: 20.0", "parent: 20.0",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_F086_no_thread_makes_its_state_during_a_fork() -> None:
    """The child would wait in fork() itself for a lock of the interpreter that it finds taken."""
    done = child(
        """
import ctypes

c, api = ctypes.PyDLL(None), ctypes.pythonapi  # neither gives the interpreter's lock up
api.PyInterpreterState_Main.restype = ctypes.c_void_p
for step in (api.PyInterpreterState_ThreadHead, api.PyThreadState_Next):
    step.restype, step.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def states():
    count, state = 0, api.PyInterpreterState_ThreadHead(api.PyInterpreterState_Main())
    while state:
        count, state = count + 1, api.PyThreadState_Next(state)
    return count

def sleeps():
    text = ctypes.create_string_buffer(512)
    c.pread(stat, text, 512, 0)
    return text.value.rpartition(b")")[2].split()[0] == b"S"

def before_fork():
    had = states()
    clock.advance(1)
    while stream.pending or not sleeps():  # until the worker is about to call back
        pass
    print("made during the fork:", states() - had, flush=True)

hook = ctypes.CFUNCTYPE(None)(before_fork)
c.__register_atfork(hook, None, None, None)
stream.wait_event(gate)
with stream:
    future = f(x)
called = threading.Event()
future._on_done(called.set)
(task,) = (t for t in os.listdir("/proc/self/task")
           if open(f"/proc/self/task/{t}/comm").read() == "opkiln-stream\\n")
stat = os.open(f"/proc/self/task/{task}/stat", os.O_RDONLY)
sys.setswitchinterval(1000)
pid = os.fork()
if pid == 0:
    os._exit(0)
print("called:", called.wait(60), "child:", os.waitpid(pid, 0)[1])
"""
    )
    assert done.stdout.splitlines() == ["made during the fork: 0", "called: True child: 0"]
