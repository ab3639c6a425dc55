"""`opkiln show`: the words of --shapes, FILE:FUNC, the stages, and every way to get them wrong."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opkiln as ok
from opkiln.runtime.cli import main
from opkiln.runtime.cli.shapes import parse
from opkiln.runtime.errors import UsageError

MODEL = '''
"""A file as users have them."""
import functools
import numpy as np
import opkiln as ok

print("imported")

@ok.compile
def gelu(x, k):
    return 0.5 * x * (1 + np.tanh(k * x))

def norm(x, *, axis):
    return x / x.sum(axis=axis, keepdims=True)

def two(pair, k=2.0):
    a, b = pair
    return a * k + b, a - b

def tangled(x):
    return helper(x)

def helper(x):
    return [][0] + x

class Net:
    def __init__(self, w=2.0):
        self.w = w

    @ok.compile
    def fast(self, x):
        return x * self.w

    def slow(self, x):
        return x + self.w

    @staticmethod
    def apart(x):
        return -x

class Needy:
    def __init__(self, w):
        self.w = w

    def call(self, x):
        return x * self.w

class Layer:
    w = 3.0

    @ok.compile
    def __call__(self, x):
        return x * self.w

needy = Needy(3.0)
layer = Layer()
konstant = 3
half = functools.partial(two, k=0.5)

if __name__ == "__main__":
    raise SystemExit("the file must not run as a program")
'''


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in the working directory; what its import changes is put back."""
    path, modules = list(sys.path), set(sys.modules)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    yield file
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("model"):
            del sys.modules[name]


def show(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["show", *argv])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.usefixtures("model")
def test_all_stages(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = show(capsys, "model.py:gelu", "--shapes", "float32[64,1024]", "0.79")
    assert (status, err) == (0, "imported\n")  # what the file prints does not mix with the answer
    headings = [line for line in out.splitlines() if line[:2] in {f"{i}." for i in range(1, 6)}]
    assert [h[3:].split(":")[0].split()[0] for h in headings] == [
        "Python", "Traced", "Rewritten", "Fused", "C++",
    ]  # fmt: skip
    python, traced, _, fused, cpp = (out.split(h)[1] for h in headings)
    assert "model.py:9\n@ok.compile\ndef gelu(x, k):" in python
    assert "n = x.shape[0] = 64\nm = x.shape[1] = 1024\n" in traced
    assert "%0 = x " in traced and ": float32[n, m]  # model.py:11" in traced
    assert "convert k (check)" in traced
    assert "buffer 0: arg float32[n, m] = x" in fused and "tanh v" in fused
    assert 'extern "C"' in cpp and "ok_tanh(" in cpp and "struct ok_vec" not in cpp


@pytest.mark.usefixtures("model")
def test_one_stage_is_that_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("model.py:norm", "--shapes", "float64[8,3][::2].T axis=1", "--static", "axis")
    _, dot, _ = show(capsys, *words, "--dot")
    assert dot.startswith("digraph opkiln {") and dot.count(" -> ") == 4
    _, source, _ = show(capsys, *words, "--source")
    assert source.startswith("// opkiln generated kernel")
    assert source.count("// ok_k0 ") == 1
    _, assembly, _ = show(capsys, *words, "--asm")
    assert "\tret" in assembly and "ok_k0:" in assembly
    status, said, _ = show(capsys, *words, "--svg", "norm.svg")
    assert (status, said) == (0, "wrote norm.svg\n")
    text = (tmp_path / "norm.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    _, out, _ = show(capsys, *words, "--svg", "-")
    assert out == text


@pytest.mark.parametrize(
    ("target", "node"),
    [
        ("model.py:Net.fast", "multiply"),
        ("model.py:Net.slow", "add"),
        ("model.py:Net.apart", "negative"),
        ("model.py:needy.call", "multiply"),
        ("model:gelu", "tanh"),
        ("model.py:half", "subtract"),
        ("model.py:layer", "multiply"),  # compiled already, in its class
    ],
)
@pytest.mark.usefixtures("model")
def test_targets(target: str, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"gelu": ["float32[5]", "1.0"], "half": ["(float32[5], float32[5])"]}.get(
        target.rpartition(":")[2], ["float32[5]"]
    )
    status, out, err = show(capsys, target, "--dot", "--shapes", *shapes)
    assert status == 0, err
    assert f'[label="{node}\\n' in out


@pytest.mark.usefixtures("model")
def test_source_keeps_its_form(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = show(capsys, "model.py:Net.slow", "--shapes", "float32[3]")
    assert "\ndef slow(self, x):\n    return x + self.w\n" in out


@pytest.mark.usefixtures("model")
def test_nested_arguments_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = show(capsys, "model.py:two", "--shapes", "(float32[3], float32[4,1])", "k=1.5")
    assert "%0 = pair[0] " in out and "%1 = pair[1] " in out
    assert "return %" in out and "buffer 1: arg float32[m, k] = pair[1]" in out


WRONG = {
    "model.py": (2, "names no function", "name one of model.py:gelu, model.py:norm"),
    "model.py:gelo": (2, "model.py has no 'gelo'", "did you mean gelu?"),
    "model.py:Net.fest": (2, "model.py:Net has no 'fest'", "did you mean fast?"),
    "model.py:nope.x.nope": (2, "model.py has no 'nope'", "name one of model.py:gelu"),
    "model.py:gelu.": (2, "model.py:gelu has no ''", ""),
    ".:gelu": (2, "'.' is neither", ""),
    "./:gelu": (2, "'.' is not a regular file", ""),
    "modle.py:gelu": (2, "'modle.py': no such file", "did you mean model.py?"),
    "nowhere.at_all:f": (2, "no module and no file 'nowhere.at_all'", "write FILE.py:FUNC"),
    "model.py:konstant": (2, "is int, not a function", "name a function"),
    "model.py:Net": (2, "is the class Net, not a function", "name a function or a method"),
    "model.py:gelu": (2, "missing 2 required positional arguments", "arguments of gelu(x, k)"),
    "model.py:Needy.call": (1, "Needy() cannot be made without arguments", "model.call"),
    "model.py:gelu --shapes flaot32[3] 1": (2, "unknown dtype flaot32", "did you mean float32?"),
    "model.py:gelu --shapes float32[3] 1 2 3": (2, "--shapes: gelu() takes 2", "gelu(x, k)"),
    "model.py:gelu --static k": (2, "is compiled already", "give static to its ok.compile"),
    "model.py:norm --shapes float32[3] axis=1": (
        1,
        "value of the scalar argument axis",
        'static="axis"',
    ),
    "model.py:two --shapes (float32[3],float32[3]) --svg no/x.svg": (2, "--svg no/x.svg", "name"),
}


@pytest.mark.parametrize("words", WRONG, ids=str)
@pytest.mark.usefixtures("model")
def test_mistakes(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, message, fix = WRONG[words]
    status, out, err = show(capsys, *words.split())
    assert (status, out) == (wanted, "")
    error, _, advice = err.removeprefix("imported\n").partition("\n  how to fix: ")
    assert error.startswith("opkiln: ") and message in error
    assert fix in (advice or error)


@pytest.mark.usefixtures("model")
def test_users_own_error_while_tracing(capsys: pytest.CaptureFixture[str]) -> None:
    """Their lines, and none of ours."""
    status, out, err = show(capsys, "model.py:tangled", "--shapes", "float32[3]")
    assert (status, out) == (1, "")
    assert "in tangled\n    return helper(x)" in err
    assert err.rstrip().endswith("IndexError: list index out of range")
    assert "runtime/" not in err and "importlib" not in err


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("def f(x: return x", "SyntaxError: "),
        ("import numpy as np\nx = 1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    ],
)
@pytest.mark.parametrize("where", ["model.py:f", "model:f"])
def test_users_own_error_at_import(
    text: str, end: str, where: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.write_text(text)
    status, out, err = show(capsys, where)
    assert (status, out) == (1, "")
    assert f'File "{model}", line ' in err
    assert err.rstrip().splitlines()[-1].startswith(end)
    assert "runtime/cli" not in err and "<frozen" not in err


def test_shapes() -> None:
    call = parse("float32[64,1024], float64[6,2][::2].T 3 -2.5 'a b' axis=(0,1) k={'w': int8[()]}")
    first, second, three, minus, text = call.args
    assert (first.dtype, first.shape, first.flags.c_contiguous) == (np.float32, (64, 1024), True)
    assert (second.shape, second.strides) == ((2, 3), (8, 32))
    assert (three, minus, text) == (3, -2.5, "a b")
    assert call.kwargs["axis"] == (0, 1)
    assert call.kwargs["k"]["w"].shape == () and call.kwargs["k"]["w"].dtype == np.int8
    assert call.words[0] == "float32[64,1024]" and call.words[-1] == "k={'w': int8[()]}"
    assert parse("[None, True, inf, -inf]").args == ([None, True, float("inf"), -float("inf")],)
    assert parse("  ").args == ()
    dates, spans = parse("datetime64[D][4] timedelta64['3ms'][8,2].T").args
    assert (dates.dtype, spans.dtype, spans.shape) == ("M8[D]", "m8[3ms]", (2, 8))


@pytest.mark.parametrize(
    ("text", "word", "fix"),
    [
        ("float32", "'float32' has no shape", "float32[64,1024]"),
        ("float32[-1]", "whole numbers", "float32[64,1024]"),
        ("float32[2.5]", "whole numbers", "float32[64,1024]"),
        ("float32[True]", "whole numbers", "float32[64,1024]"),
        ("float33[2]", "unknown dtype float33", "did you mean float32?"),
        ("thing[2]", "unknown dtype thing", "the dtypes are bool, int8"),
        ("datetime64[q][2]", "'q' is no unit of time", "datetime64[s][64,1024]"),
        ("relu", "'relu' is not a Python value", "needs quotes"),
        ("float32[3", "'float32[3' is not a dtype", "in quotes"),
        ("f(x)", "'f(x)' is not a dtype", "in quotes"),
        ("3.T", "'3.T'", "in quotes"),
        ("(3).T", "no array", "in quotes"),
        ("float32[3][9]", "cannot be sliced", "in quotes"),
        ("float64[99999999999,99999999999]", "cannot be made", "smaller extents"),
        ("k=1 k=2", "'k=2'", "in quotes"),
        ("k=1 2", "follows a keyword", "in quotes"),
        ("*3", "'*3'", "in quotes"),
        ("**{}", "'**{}'", "in quotes"),
        ("__import__('os').getcwd()", "is not a dtype", "in quotes"),
        ("float32[3][::0]", "slice step cannot be zero", "in quotes"),
        ("{[1]: 2}", "unhashable", "in quotes"),
        ("float32[3]" + ".T" * 3000, "not a Python value", "in quotes"),
    ],
)
def test_wrong_shapes(text: str, word: str, fix: str) -> None:
    with pytest.raises(UsageError, match="--shapes") as caught:
        parse(text)
    message, _, advice = str(caught.value).partition("\n  how to fix: ")
    assert word in message and fix in advice


def test_everything_in_a_pipe_without_utf8(tmp_path: Path) -> None:
    """What the encoding lacks is escaped, not lost and not an error; plain even with rich."""
    file = tmp_path / "modèle.py"
    file.write_text("def größe(x):\n    return x + 1  # ß\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "opkiln", "show", f"{file}:größe", "--shapes", "float32[3]"],
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    out = done.stdout.decode("ascii")
    assert "return x + 1  # \\xdf" in out
    assert "\x1b" not in out


def test_str_of_a_lowering_tells_all_stages() -> None:
    def f(x, k):
        return np.exp(x) * k

    low = ok.compile(f).lower(np.zeros((2, 3)), 2.0)
    text = str(low)
    for part in ("n = x.shape[0] = 2", low.traced.text(low.names), "convert k", low.own_source):
        assert part in text
    assert low.source.endswith(low.own_source)
    assert low.kernels == tuple(launch.kernel for launch in low.lowered.launches)


@pytest.mark.usefixtures("model")
def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = [str(tmp_path / "model.py:two"), "--shapes", "(float32[3], float32[3])"]
    script = 'rmdir "$PWD" && exec "$0" -m opkiln show "$@"'
    for cache, status, said in (("cache", 1, "is below no directory"), (str(tmp_path), 0, "")):
        done = subprocess.run(
            ["sh", "-c", script, sys.executable, *words, *(["--asm"] if status else [])],
            cwd=gone,
            env={**os.environ, "OPKILN_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert said in done.stderr and "Errno" not in done.stderr, done.stderr
        gone.mkdir()
