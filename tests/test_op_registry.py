"""Custom ops: one content per name, identity, libraries and their versions.

SEED-SYSTEMS A26, T30, T41; FIELD-CASES F101, F147.
"""

import gc
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_in_threads
from tests.op_library import BOTH, SMOOTH, Define, build

import opkiln as ok
from opkiln.native import Library, include_dir
from opkiln.runtime import errors
from opkiln.runtime.custom_op import registered


def test_t30_ops_appear_and_disappear(op_library: Path, tmp_path: Path) -> None:
    before = set(registered())
    other = shutil.copy(op_library, tmp_path / "other.so")
    for _ in range(2):  # and again, after all of it went
        ops = [
            ok.custom_op(f"{ns}::{name}(Tensor x) -> Tensor", library=library, cpu=f"t_{name}")
            for ns, library in (("one", op_library), ("two", other))
            for name in ("copy", "square")
        ]
        assert set(registered()) == before | {op.name for op in ops}
        assert len(set(ops)) == 4
        for op in ops:
            assert op(np.full(1, 3.0))[0] in (3, 9)
            op.unregister()
        assert set(registered()) == before
    with pytest.raises(errors.RegistrationError, match=r"one::copy is not registered"):
        ops[0](np.ones(1))
    with pytest.raises(errors.RegistrationError, match="one::copy"):
        ops[0].unregister()
    taken = ok.custom_op("one::copy(Tensor x) -> Tensor", library=op_library, cpu="t_square")
    with pytest.raises(errors.RegistrationError, match="another op has its name"):
        ops[0](np.ones(1))
    taken.unregister()


def test_t41_one_name_has_one_content(define_op: Define, op_library: Path, tmp_path: Path) -> None:
    made: list[ok.CustomOp] = []
    barrier = threading.Barrier(32)

    def work(_: int) -> None:
        barrier.wait()
        made.append(ok.custom_op(SMOOTH, library=op_library, cpu="t_smooth"))

    run_in_threads(work, 32)
    assert len(made) == 32
    assert len(set(made)) == 1
    first = define_op(SMOOTH, "t_smooth")
    changed = tmp_path / "changed.so"
    changed.write_bytes(op_library.read_bytes() + b"\0")
    again: dict[str, dict[str, Any]] = {
        "cpu code is t_smooth of": {"library": changed}, "infer=": {"infer": lambda left: left},
        "layout=": {"layout": "any"}, "cpu code": {"cpu": "t_copy"},
    }  # fmt: skip
    for text, options in again.items():
        with pytest.raises(errors.RegistrationError, match=f"other content: .*{text}"):
            ok.custom_op(SMOOTH, **{"library": op_library, "cpu": "t_smooth", **options})
    with pytest.raises(errors.RegistrationError, match="its schema is"):
        define_op("t::smooth(Tensor l, Tensor r, float s=0.3) -> Tensor", "t_smooth")
    assert first(np.ones(1), np.ones(1)) == 1.8  # the one that was there stays


def test_identity_is_schema_content_and_parameters(smooth: ok.CustomOp, op_library: Path) -> None:
    again = ok.custom_op(
        SMOOTH, library=Library(str(op_library)), cpu="t_smooth", backward="t::both"
    )
    assert again == smooth
    ops = [smooth, smooth.bind(s=0.0), smooth.bind(s=-0.0), smooth.bind(s=float("nan")),
           smooth.bind(s=1.0)]  # fmt: skip
    assert len({op.digest for op in ops}) == len(ops)
    assert smooth.bind(s=1) == smooth.bind(s=1.0)
    assert pickle.loads(pickle.dumps(smooth.bind(s=2.0))) == smooth.bind(s=2.0)
    code = (
        "import opkiln as ok, pickle, sys\n"
        "_, library, smooth, both, pickled = sys.argv\n"
        "wanted = ok.errors.RegistrationError\n"
        "try: pickle.loads(bytes.fromhex(pickled))(1, 2)\n"
        "except wanted as error: assert 't::smooth' in str(error)\n"
        "else: raise SystemExit('it ran where nobody made it')\n"
        "ok.custom_op(both, library=library, cpu='t_both')\n"
        "op = ok.custom_op(smooth, library=library, cpu='t_smooth', backward='t::both')\n"
        "print(op.digest.hex())"
    )
    command = [
        sys.executable,
        "-c",
        code,
        str(op_library),
        SMOOTH,
        BOTH,
        pickle.dumps(smooth).hex(),
    ]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.split()[-1] == smooth.digest.hex()


def test_a_program_outlives_the_registration(
    define_op: Define, tmp_path: Path, op_library: Path
) -> None:
    copy = shutil.copy(op_library, tmp_path / "gone.so")
    op = define_op("t::square(Tensor x) -> Tensor", "t_square", library=copy)
    f = ok.compile(lambda v: op(v) + 1)
    x = np.full(2, 3.0)
    f(x)
    op.unregister()
    assert f(x).tolist() == [10, 10]
    with pytest.raises(errors.RegistrationError, match="t::square"):
        f(np.full(2, 3, np.float32))  # would be another program


def test_unload_is_refused_while_an_op_or_a_program_needs_it() -> None:
    text = "#include <opkiln/op.hpp>\nvoid same(opkiln::Call call) {\n"
    text += (
        "  call.output<double>(0)[0] = call.input<double>(0)[0];\n}\nOK_CPP_OP(same_cpu, same);\n"
    )
    library = ok.load_inline("held", text)
    schema = "t::same(Tensor x) -> Tensor"
    op = ok.custom_op(schema, library=library, cpu="same_cpu")
    assert ok.custom_op(schema, library=library, cpu="same_cpu") == op
    f = ok.compile(op)
    assert f(np.full(1, 3.0))[0] == 3
    with pytest.raises(errors.InUse, match="t::same in use"):
        library.unload()
    op.unregister()
    with pytest.raises(errors.InUse, match="programs with a custom op of it in use"):
        library.unload()
    assert f(np.full(1, 4.0))[0] == 4
    f.clear()
    ok.compile(lambda v: v + 1)(np.ones(1))  # the next miss sweeps what is dead
    gc.collect()
    library.unload()
    with pytest.raises(errors.InUse, match="was unloaded"):
        ok.custom_op(schema, library=library, cpu="same_cpu")
    assert "t::same" not in registered()


# ---- the C interface ----


def test_the_header_is_plain_c_and_versions_are_checked(define_op: Define, tmp_path: Path) -> None:
    source = tmp_path / "plain.c"
    source.write_text(
        "#include <stddef.h>\n#include <opkiln/op.h>\n"
        "static int32_t run(ok_call *call) {\n"
        "  const ok_tensor *x = &call->inputs[0];\n"
        '  if (!ok_is(x, OK_FLOAT, 64)) return ok_fail(call, "float64 wanted");\n'
        "  for (int64_t i = 0; i < ok_numel(x); ++i)\n"
        "    ((double *)call->outputs[0].data)[i] = -((double *)x->data)[i];\n"
        "  return 0;\n}\n"
        "OK_OP(negative, run, NULL, NULL);\n"
    )
    op = define_op("t::negative(Tensor x) -> Tensor", "negative", library=build(source, tmp_path))
    assert op(np.ones(2)).tolist() == [-1, -1]
    with pytest.raises(errors.CustomOpError, match="float64 wanted"):
        op(np.ones(2, np.float32))
    # C++ takes it as well, and strings of another ABI do not matter (F101).
    shutil.move(source, source.with_suffix(".cpp"))
    old = build(source.with_suffix(".cpp"), tmp_path, "-D_GLIBCXX_USE_CXX11_ABI=0")
    schema = "t::negative_too(Tensor x) -> Tensor"
    assert define_op(schema, "negative", library=old)(np.ones(2)).tolist() == [-1, -1]
    if shutil.which("clang"):
        subprocess.run(["clang", "-xc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror",
                        f"-I{include_dir()}", "-c", str(source.with_suffix(".cpp")),
                        "-o", str(tmp_path / "o")], check=True)  # fmt: skip
    schema = "t::copy(Tensor x) -> Tensor"
    for symbol, text in {
        "t_later_abi": "ABI 2, this runtime knows 1", "t_larger": "a later opkiln/op.h",
        "t_no_run": "no function to run", "t_function": "no op descriptor",
    }.items():  # fmt: skip
        with pytest.raises(errors.AbiMismatch, match=f"t::copy: {symbol} of .*{text}"):
            define_op(schema, symbol)
    assert define_op(schema, "t_older")(np.full(1, 3.0)).shape == (1,)  # older ones keep working


def test_bad_libraries_symbols_and_options(
    define_op: Define, op_library: Path, tmp_path: Path
) -> None:
    before = registered()
    schema = "t::copy(Tensor x) -> Tensor"
    (tmp_path / "no.so").write_text("text")
    cases: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (errors.SymbolMissing, r"t_none[\s\S]*OK_OP\(t_none", "t_none", {}),
        (errors.LoadFailed, "no.so", "t_copy", {"library": tmp_path / "no.so"}),
        (errors.LoadFailed, "absent", "t_copy", {"library": tmp_path / "absent"}),
        (errors.ArgumentError, "library: expected what ok.load gives", "t_copy", {"library": None}),
        (errors.ArgumentError, "expected cpu= or cuda=", None, {}),
        (errors.ArgumentError, "expected a symbol or an address", 1.5, {}),
        (errors.ArgumentError, "lies in no shared library", 64, {}),
        (errors.ArgumentError, "layout: expected", "t_copy", {"layout": "c"}),
        (errors.ArgumentError, "infer: expected a function", "t_copy", {"infer": 3}),
        (errors.ArgumentError, "backward: expected an op", "t_copy", {"backward": 3}),
    ]
    for cls, text, symbol, options in cases:
        with pytest.raises(cls, match=text):
            define_op(schema, symbol, **options)
    assert registered() == before  # nothing half-registered
    library = Library(str(op_library))
    op = define_op(schema, library.symbol("t_copy"), library=None)  # by address
    assert op(np.full(1, 3.0))[0] == 3
    assert op == define_op(schema, library.symbol("t_copy"), library=None)
    cuda = define_op("t::gpu(Tensor x) -> Tensor", None, cuda="t_copy")
    with pytest.raises(errors.DeviceMismatch, match="t::gpu: there is code for cuda, none for cpu"):
        cuda(np.ones(2))
    with pytest.raises(errors.ArgumentError, match="'grad' would be"):
        define_op("t::g(Tensor grad) -> Tensor", "t_copy", backward=lambda grad: grad)
