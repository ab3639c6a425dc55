"""Builds the op bodies for several targets and lane counts and compares them with NumPy."""

from __future__ import annotations

import ctypes
import math
import platform
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opkiln.runtime.bodies import every_body, head

FLAGS = [
    "-std=gnu++17",
    "-O1",
    "-fgcse",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-Wno-psabi",
]
INTS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
FLOATS = ["f32", "f64"]
DTYPES: dict[str, Any] = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
}
UNARY_MATH = [
    *["exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "cbrt", "sin", "cos", "tan"],
    *["arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "erf"],
]
BINARY_MATH = ["pow", "arctan2", "hypot", "logaddexp", "logaddexp2"]
# Their distance from the true value is measured in tests/test_special.py.
SPECIAL = ["erfc", "erfinv", "lgamma", "digamma", "trigamma", "sinc", "expit", "logit", "softplus"]
SPECIAL += ["gelu", "gelu_tanh", "silu", "hard_swish"]
ROUNDINGS = ["rint", "floor", "ceil", "trunc", "sqrt", "abs", "sign"]
# Bodies with NumPy's own bits, by their names here.
EXACT: dict[str, Any] = {
    "spacing": np.spacing, "deg2rad": np.deg2rad, "rad2deg": np.rad2deg,
    "frexp_mantissa": lambda a: np.frexp(a)[0], "fraction": lambda a: np.modf(a)[0],
}  # fmt: skip
EXACT_PAIRS: dict[str, Any] = {
    "nextafter": np.nextafter, "heaviside": np.heaviside, "fmax": np.fmax, "fmin": np.fmin,
}  # fmt: skip
# (-march, lanes): every width of the machine's own target, and two targets without AVX-512.
NATIVE = [("native", 8), ("native", 16), ("native", 32), ("native", 64)]
BUILDS = [*NATIVE, ("x86-64-v3", 4), ("x86-64-v3", 8), ("x86-64", 4)]

Array = npt.NDArray[Any]
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="needs g++ on x86-64",
)


def types_of(lanes: int, names: list[str]) -> list[str]:
    """The dtypes that a kernel of this many lanes may hold."""
    limit = max(64 // lanes, 1) if lanes >= 8 else 8
    return [n for n in names if np.dtype(DTYPES[n]).itemsize <= limit]


def sections() -> str:
    """The driver uses every section."""
    return every_body()


def loop(name: str, args: str, body: str, fault: bool = False) -> str:
    """One exported loop over whole vectors."""
    head = f'extern "C" u64 {name}({args}, char*o, i64 n)'
    begin = "ok_fault_t f = {}; " if fault else ""
    end = "return ok_fault_bits(f);" if fault else "return 0;"
    return f"{head} {{ {begin}for (i64 i = 0; i < n; i += OK_N) {{ {body} }} {end} }}\n"


def unary(op: str, t: str) -> str:
    """Driver text of one operand of dtype t."""
    load = f"ok_load<{t}>(a + i * sizeof({t}))"
    return loop(f"{op}_{t}", "const char*a", f"ok_store(o + i * sizeof({t}), ok_{op}({load}));")


def binary(op: str, t: str, fault: bool = False) -> str:
    """Driver text of two operands of dtype t."""
    a, b = (f"ok_load<{t}>({p} + i * sizeof({t}))" for p in "ab")
    extra = ", f" if fault else ""
    store = f"ok_store(o + i * sizeof({t}), ok_{op}({a}, {b}{extra}));"
    return loop(f"{op}_{t}", "const char*a, const char*b", store, fault)


def casts(t: str, names: list[str]) -> str:
    """Driver text of the casts, masks and strided accesses of dtype t."""
    load = f"ok_load<{t}>(a + i * sizeof({t}))"
    out = ""
    for u in names:
        out += loop(
            f"cast_{t}_{u}",
            "const char*a",
            f"ok_store(o + i * sizeof({u}), ok_cast<{u}>({load}));",
        )
        # A mask of one width over a cast of another (g++ 12.2 fails on some AVX-512 spellings).
        out += loop(
            f"sel_{t}_{u}",
            "const char*a, const char*b",
            f"auto m = ok_to_bool(ok_load<{u}>(b + i * sizeof({u})));"
            f"ok_store(o + i * sizeof({u}), ok_sel(m, ok_cast<{u}>({load}), ok_splat<{u}>(0)));",
        )
        # A compare in one width selects in another.
        out += loop(
            f"pick_{t}_{u}",
            "const char*a, const char*b",
            f"auto x = ok_load<{u}>(b + i * sizeof({u}));"
            f"ok_store(o + i * sizeof({u}), ok_sel(ok_to_bool({load}), x, ok_splat<{u}>(7)));",
        )
    out += loop(f"bool_{t}", "const char*a", f"ok_store_bool(o + i, ok_not(ok_to_bool({load})));")
    out += loop(
        f"number_{t}",
        "const char*a",
        f"ok_store(o + i * sizeof({t}), ok_cast_from_bool<{t}>(ok_load_bool(a + i)));",
    )
    out += loop(
        f"strided_{t}",
        "const char*a",
        f"i64 z = sizeof({t}); auto v = ok_gather<{t}>(a + 3 * i * z, 3 * z);"
        "ok_scatter(o + 2 * i * z, 2 * z, v);",
    )
    out += loop(
        f"strided_bool_{t}",
        "const char*a",
        f"auto m = ok_and(ok_gather_bool(a + 3 * i, 3), ok_splat<{t}>(0) == 0);"
        "ok_scatter_bool(o + 2 * i, 2, m);",
    )
    return out


def driver(lanes: int) -> str:
    """The C++ text of every loop for one lane count."""
    names = types_of(lanes, INTS + FLOATS)
    text = f"{head(lanes)}{sections()}\n"
    for t in types_of(lanes, FLOATS):
        text += "".join(unary(op, t) for op in UNARY_MATH + SPECIAL + ROUNDINGS)
        text += "".join(
            binary(op, t) for op in [*BINARY_MATH, *EXACT_PAIRS, "copysign", "max", "min"]
        )
        text += "".join(unary(op, t) for op in EXACT)
        x = f"ok_load<{t}>(a + i * sizeof({t}))"
        store = f"ok_store(o + i * 4, ok_frexp_exponent({x}));"
        text += loop(f"frexp_exponent_{t}", "const char*a", store)
        for u in types_of(lanes, ["i32", "i64"]):
            store = f"ok_ldexp({x}, ok_load<{u}>(b + i * sizeof({u})))"
            store = f"ok_store(o + i * sizeof({t}), {store});"
            text += loop(f"ldexp_{t}_{u}", "const char*a, const char*b", store)
        for op in ["isnan", "isinf", "isfinite", "signbit"]:
            load = f"ok_load<{t}>(a + i * sizeof({t}))"
            text += loop(f"{op}_{t}", "const char*a", f"ok_store_bool(o + i, ok_{op}({load}));")
    for t in types_of(lanes, INTS):
        text += binary("ipow", t, fault=True)
        text += "".join(binary(op, t) for op in ["shl", "shr", "gcd", "lcm", "max", "min"])
        load = f"ok_load<{t}>(a + i * sizeof({t}))"
        text += loop(f"bitcount_{t}", "const char*a", f"ok_store(o + i, ok_bitcount({load}));")
        store = f"ok_store(o + i * sizeof({t}), ok_recip({load}, f));"
        text += loop(f"recip_{t}", "const char*a", store, fault=True)
        text += "".join(unary(op, t) for op in ["abs", "sign"])
    for t in names:
        text += "".join(binary(op, t, fault=True) for op in ["floordiv", "mod", "fmod"])
        text += casts(t, names)
    if "i64" in names:
        for op in ["lt", "le", "gt", "ge", "eq", "ne"]:
            text += loop(
                f"{op}_iu",
                "const char*a, const char*b",
                "auto x = ok_load<i64>(a + i * 8); auto y = ok_load<u64>(b + i * 8);"
                f"ok_store_bool(o + i, ok_{op}_iu(x, y));",
            )
    return text


class Built:
    """One compiled driver."""

    def __init__(self, march: str, lanes: int, library: Path) -> None:
        self.march, self.lanes = march, lanes
        self.library = ctypes.CDLL(str(library))

    def call(self, name: str, out: Array, *args: Array, count: int | None = None) -> int:
        """Run the loop `name` over whole vectors; returns the fault bits."""
        function = getattr(self.library, name)
        function.restype = ctypes.c_uint64
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*args, out)]
        n = out.size if count is None else count
        assert n % 64 == 0
        return int(function(*pointers, ctypes.c_int64(n)))

    def map(self, name: str, *args: Array, dtype: Any = None) -> Array:
        """Results of an elementwise loop over flat arrays of one length."""
        n = args[0].size
        fill = -n % 64
        padded = [np.concatenate([a, np.repeat(a[:1], fill)]) for a in args]
        out = np.empty(n + fill, dtype or args[0].dtype)
        self.fault = self.call(name, out, *padded)
        return out[:n]


@pytest.fixture(scope="session", params=BUILDS, ids=lambda b: f"{b[0]}-{b[1]}")
def built(request: pytest.FixtureRequest, drivers: dict[tuple[str, int], Built]) -> Built:
    """Each compiled driver in turn."""
    return drivers[request.param]


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Built]:
    """Every driver, two compilers at a time."""
    folder = tmp_path_factory.mktemp("bodies")
    out: dict[tuple[str, int], Built] = {}
    waiting = list(BUILDS)
    while waiting:
        pair, waiting = waiting[:2], waiting[2:]
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        for march, lanes in pair:
            source = folder / f"{march}-{lanes}.cpp"
            source.write_text(driver(lanes))
            command = ["g++", *FLAGS, f"-march={march}", "-shared", "-fPIC", str(source)]
            target = source.with_suffix(".so")
            running.append((subprocess.Popen([*command, "-o", str(target), "-lm"]), target))
        for (march, lanes), (process, target) in zip(pair, running, strict=True):
            assert process.wait() == 0
            out[march, lanes] = Built(march, lanes, target)
    return out


def integers(t: str, rng: np.random.Generator, n: int = 600) -> Array:
    """Edge values and random ones of an integer dtype."""
    info = np.iinfo(DTYPES[t])
    edge = [0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1]
    edge += [-1, -2, -7] if info.min < 0 else []
    near = np.clip(rng.integers(-20, 20, n), info.min, info.max)
    wide: Array = np.frombuffer(rng.bytes(n * info.bits // 8), DTYPES[t])
    return np.concatenate([np.array(edge, DTYPES[t]), near.astype(DTYPES[t]), wide])


def floats(t: str, rng: np.random.Generator, n: int = 4000) -> Array:
    """Special values, random bit patterns and everyday numbers of a float dtype."""
    info = np.finfo(t.replace("f", "float"))
    tiny, sub = float(info.tiny), float(info.smallest_subnormal)
    special = [0.0, 1.0, 0.5, 2.0, 1.5, 2.5, 3.0, 0.55, 1e-3, 88.8, 104.0, 709.9, 745.2, 1e4, 1e6]
    special += [math.inf, math.nan, tiny, sub, tiny - sub, float(info.max), float(info.eps)]
    special += [math.pi, math.pi / 2, math.e, 2.0**23, 2.0**24, 2.0**31, 2.0**52 + 1, 2.0**63]
    bits = rng.integers(0, 2**63, n, dtype=np.int64).view(np.uint64) << np.uint64(1)
    bits ^= rng.integers(0, 2**62, n).astype(np.uint64)
    kind = DTYPES[t]
    with np.errstate(all="ignore"):
        parts = [
            np.array(special).astype(kind),
            -np.array(special).astype(kind),
            bits.view(kind)[:n],
            rng.normal(0, 3, n).astype(kind),
            rng.uniform(-110, 110, n).astype(kind),
        ]
    return np.concatenate(parts)


def pairs(a: Array, rng: np.random.Generator, edges: int) -> tuple[Array, Array]:
    """The first `edges` values against each other, and the rest against a shuffle of itself."""
    left, right = np.meshgrid(a[:edges], a[:edges])
    other = rng.permutation(a)
    return np.concatenate([left.ravel(), a]), np.concatenate([right.ravel(), other])


def equal(got: Array, want: Array) -> None:
    """Equal bits, any NaN equal to any other."""
    assert got.dtype == want.dtype
    bad = got.view(f"u{got.itemsize}") != want.view(f"u{want.itemsize}")
    if got.dtype.kind == "f":
        bad &= ~(np.isnan(got) & np.isnan(want))
    assert not bad.any(), (np.flatnonzero(bad)[:5], got[bad][:5], want[bad][:5])


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """NumPy's floating-point warnings are not the subject."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_integer_ops(built: Built) -> None:
    """Division, power and shifts follow NumPy, and faults are reported."""
    rng = np.random.default_rng(1)
    for t in types_of(built.lanes, INTS):
        info = np.iinfo(DTYPES[t])
        a, b = pairs(integers(t, rng), rng, 12 if info.min < 0 else 9)
        for op, reference in [
            ("floordiv", np.floor_divide),
            ("mod", np.remainder),
            ("fmod", np.fmod),
            ("shl", np.left_shift),
            ("shr", np.right_shift),
            ("gcd", np.gcd),
            ("lcm", np.lcm),
            ("max", np.maximum),
            ("min", np.minimum),
        ]:
            equal(built.map(f"{op}_{t}", a, b), reference(a, b))
            overflow = 4 if op == "floordiv" and info.min < 0 else 0
            assert built.fault == (1 | overflow if op in ("floordiv", "mod", "fmod") else 0)
        whole = np.where(b == 0, np.ones_like(b), np.abs(b // 2 + (b == info.min)))
        built.map(f"floordiv_{t}", a, np.where(whole == 0, np.ones_like(b), whole))
        assert built.fault == 0
        exponent = (b.astype(np.uint64) % np.uint64(70)).astype(a.dtype)
        equal(built.map(f"ipow_{t}", a, exponent), np.power(a, exponent))
        assert built.fault == 0
        if info.min < 0:
            built.map(f"ipow_{t}", a, b)
            assert built.fault == 2
        equal(built.map(f"abs_{t}", a), np.abs(a))
        equal(built.map(f"sign_{t}", a), np.sign(a))
        equal(built.map(f"bitcount_{t}", a, dtype=np.uint8), np.bitwise_count(a))
        equal(built.map(f"recip_{t}", a), np.reciprocal(a))
        assert built.fault == 1
        built.map(f"recip_{t}", a[a != 0])
        assert built.fault == 0


def test_parts_and_neighbours_of_floats(built: Built) -> None:
    """Bits of random patterns too, subnormals among them."""
    rng = np.random.default_rng(5)
    for t in types_of(built.lanes, FLOATS):
        a = floats(t, rng)
        b = rng.permutation(a)
        for op, reference in EXACT.items():
            equal(built.map(f"{op}_{t}", a), reference(a))
        for op, reference in EXACT_PAIRS.items():
            got, want = built.map(f"{op}_{t}", a, b), reference(a, b)
            equal(*((got + 0, want + 0) if op in ("fmax", "fmin") else (got, want)))  # sign of 0
        equal(built.map(f"frexp_exponent_{t}", a, dtype=np.int32), np.frexp(a)[1])
        for u in types_of(built.lanes, ["i32", "i64"]):
            n = rng.integers(-1200, 1200, a.size).astype(DTYPES[u])
            n[:200:3] = np.iinfo(n.dtype).max
            n[1:200:3] = np.iinfo(n.dtype).min
            equal(built.map(f"ldexp_{t}_{u}", a, n), np.ldexp(a, n))


@pytest.mark.parametrize(
    "built", [b for b in BUILDS if "i64" in types_of(b[1], INTS)], indirect=True, ids=str
)
def test_mixed_sign_comparison(built: Built) -> None:
    """int64 against uint64 compares the numbers, not the bits."""
    rng = np.random.default_rng(2)
    a, b = integers("i64", rng), integers("u64", rng)
    a, b = np.repeat(a[:100], 100), np.tile(b[:100], 100)
    for op, reference in [
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
        ("eq", np.equal),
        ("ne", np.not_equal),
    ]:
        equal(built.map(f"{op}_iu", a, b, dtype=np.bool_), reference(a, b))


def test_casts(built: Built) -> None:
    """Casts in range and of integers give NumPy's numbers; selects convert their mask."""
    rng = np.random.default_rng(3)
    names = types_of(built.lanes, INTS + FLOATS)
    for t in names:
        a = floats(t, rng, 300) if t in FLOATS else integers(t, rng, 300)
        for u in names:
            kind = DTYPES[u]
            x = a
            if t in FLOATS and u in INTS:
                info = np.iinfo(kind)
                x = a[np.isfinite(a) & (a > float(info.min) - 1) & (a < float(info.max))]
            equal(built.map(f"cast_{t}_{u}", x, dtype=kind), x.astype(kind))
            y = (np.arange(x.size) % 3).astype(kind)
            want = np.where(y != 0, x.astype(kind), np.array(0, kind))
            equal(built.map(f"sel_{t}_{u}", x, y, dtype=kind), want)
            want = np.where(x != 0, y, np.array(7, kind))
            equal(built.map(f"pick_{t}_{u}", x, y, dtype=kind), want)
        equal(built.map(f"bool_{t}", a, dtype=np.bool_), ~a.astype(np.bool_))
        raw = rng.integers(0, 3, 640).astype(np.uint8)
        equal(built.map(f"number_{t}", raw, dtype=DTYPES[t]), (raw != 0).astype(DTYPES[t]))


def test_strided(built: Built) -> None:
    """Gathers and scatters step by bytes, from addresses of any alignment."""
    for t in types_of(built.lanes, INTS + FLOATS):
        source = np.arange(3 * 64 + 1).astype(DTYPES[t])[1:]
        out = np.full(2 * 64, 99, DTYPES[t])
        built.call(f"strided_{t}", out, source, count=64)
        assert (out[::2] == source[::3]).all()
        assert (out[1::2] == 99).all()
        flags = (np.arange(3 * 64) % 5).astype(np.uint8)
        result = np.full(2 * 64, 99, np.uint8)
        built.call(f"strided_bool_{t}", result, flags, count=64)
        assert (result[::2] == (flags[::3] != 0)).all()
        assert (result[1::2] == 99).all()


def test_exact_float_ops(built: Built) -> None:
    """Roundings, tests, floor division and remainder give NumPy's bits."""
    rng = np.random.default_rng(4)
    for t in types_of(built.lanes, FLOATS):
        a = floats(t, rng, 1500)
        for op in ROUNDINGS:
            equal(built.map(f"{op}_{t}", a), getattr(np, op)(a))
        for op in ["isnan", "isinf", "isfinite", "signbit"]:
            equal(built.map(f"{op}_{t}", a, dtype=np.bool_), getattr(np, op)(a))
        x, y = pairs(a, rng, 60)
        small = rng.normal(0, 1, 3000).astype(a.dtype)
        x, y = np.concatenate([x, small * 1000]), np.concatenate([y, rng.permutation(small)])
        equal(built.map(f"copysign_{t}", x, y), np.copysign(x, y))
        for op, reference in [
            ("floordiv", np.floor_divide),
            ("mod", np.remainder),
            ("fmod", np.fmod),
        ]:
            equal(built.map(f"{op}_{t}", x, y), reference(x, y))
            assert built.fault == 0
        x, y = (np.where(v == 0, np.zeros_like(v), v) for v in (x, y))  # the sign of 0 is free
        equal(built.map(f"max_{t}", x, y), np.maximum(x, y))
        equal(built.map(f"min_{t}", x, y), np.minimum(x, y))


def reference_of(op: str, *args: Array) -> Array:
    """A more exact result as long double."""
    wide = [a.astype(np.longdouble) for a in args]
    if op == "erf":
        return np.array([math.erf(float(v)) for v in args[0]], np.longdouble)
    if op == "pow":
        # The x87 powl of some C libraries is wrong at (-inf) ** -2**63.
        plain = np.all([np.isfinite(a) & (a != 0) for a in args], axis=0)
        special = np.power(*[a.astype(np.float64) for a in args])
        return np.where(plain, np.power(*wide), special)
    return np.asarray(getattr(np, op)(*wide))


def ulps(got: Array, exact: Array, larger: Array | None = None) -> Array:
    """Distance in units in the last place of the result, or of something larger."""
    want = exact.astype(got.dtype)
    same = (got == want) & (np.signbit(got) == np.signbit(want))
    same |= np.isnan(got) & np.isnan(want)
    size = np.abs(want) if larger is None else np.fmax(np.abs(want), larger)
    unit = np.spacing(np.minimum(size, np.finfo(got.dtype).max)).astype(np.longdouble)
    distance = np.abs(got.astype(np.longdouble) - exact) / unit
    return np.where(same, 0, distance).astype(np.float64)


def test_ulp_and_special_values(built: Built) -> None:
    """At most 4 ulp from the exact value, with the special values of C99."""
    rng = np.random.default_rng(5)
    for t in types_of(built.lanes, FLOATS):
        a = floats(t, rng, 1000)
        x, y = pairs(floats(t, rng, 300), rng, 60)
        x = np.concatenate([x, np.exp(rng.normal(0, 2, 2000)).astype(a.dtype)])
        y = np.concatenate([y, rng.uniform(-30, 30, 2000).astype(a.dtype)])
        for op in [*UNARY_MATH, *BINARY_MATH]:
            args = (x, y) if op in BINARY_MATH else (a,)
            larger = np.maximum(abs(x), abs(y)) if op.startswith("logaddexp") else None
            error = ulps(built.map(f"{op}_{t}", *args), reference_of(op, *args), larger)
            worst = int(np.argmax(np.nan_to_num(error, nan=np.inf)))
            assert not np.isnan(error).any(), (op, t, [v[np.isnan(error)][:3] for v in args])
            assert error[worst] <= 4, (op, t, error[worst], [v[worst] for v in args])


def test_same_bits_everywhere(drivers: dict[tuple[str, int], Built]) -> None:
    """Lane count and instruction set change no bit: also with fma in software."""
    rng = np.random.default_rng(6)
    for t in FLOATS:
        a = floats(t, rng, 1500)
        b = rng.permutation(a)
        first = drivers["native", 8]
        for (_, lanes), other in drivers.items():
            if t not in types_of(lanes, FLOATS):
                continue
            for op in [*UNARY_MATH, *SPECIAL, *ROUNDINGS]:
                equal(other.map(f"{op}_{t}", a), first.map(f"{op}_{t}", a))
            for op in [*BINARY_MATH, "max", "min", "floordiv", "mod", "fmod"]:
                equal(other.map(f"{op}_{t}", a, b), first.map(f"{op}_{t}", a, b))


def test_neighbours_do_not_matter(built: Built) -> None:
    """A value among large, special and ordinary neighbours gives the bits it gives alone."""
    rng = np.random.default_rng(7)
    for t in types_of(built.lanes, FLOATS):
        a = floats(t, rng, 500)
        alone = np.repeat(a[:, None], 64, axis=1).ravel()
        for op in [*UNARY_MATH, *SPECIAL]:
            equal(built.map(f"{op}_{t}", a), built.map(f"{op}_{t}", alone)[::64])
