"""Custom ops: the C interface, schemas, the registry; eager, compiled, in graphs, differentiated.

SEED-SYSTEMS 2.7, A26, B3, T29, T30, T41-T45; FIELD-CASES F046, F049, F050, F087, F101, F147.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_in_threads
from tests.op_library import BOTH, Define, draw, smoothed

import opkiln as ok
from opkiln.ops.dtypes import SUPPORTED, as_dtype
from opkiln.runtime import errors

# ---- eager ----


@pytest.mark.parametrize(
    ("shape", "s"), [((128, 256), 0.2), ((2, 3, 4), 0.3), ((0, 4), 1), ((), 0.5)]
)
def test_t29_elem_add_smooth(smooth: ok.CustomOp, shape: tuple[int, ...], s: float) -> None:
    left, right = draw(*shape), draw(*shape, seed=1)
    np.testing.assert_allclose(smooth(left, right, s=s), smoothed(left, right, s), 1e-3, 1e-5)
    (applied,) = smooth.bind(s=s).apply(left, right)
    np.testing.assert_array_equal(applied, smooth(left, right, s))

    def loss(a: Any, b: Any) -> Any:
        return (smooth(a, b, s=s) * 3).sum()

    for gradient in ok.grad(loss, argnums=(0, 1))(left, right):
        np.testing.assert_array_equal(gradient, np.full(shape, 3, np.float32))


@pytest.mark.parametrize("name", [row.name for row in SUPPORTED])
def test_t45_all_dtypes_pass_through_eager_and_compiled(define_op: Define, name: str) -> None:
    dtype = as_dtype(name)
    copy = define_op("t::copy(Tensor x) -> Tensor", "t_copy")
    x = np.arange(24).reshape(4, 6).astype(dtype)
    for given in (x, x.T, x[::-1, ::2], x[1]):
        for run in (copy, ok.compile(copy)):
            found = run(given)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, given)


def test_optional_tensors_and_every_kind_of_scalar(define_op: Define) -> None:
    biased = define_op("t::biased(Tensor x, Tensor? b) -> Tensor", "t_biased")
    x, one = np.zeros(3, np.float32), np.ones(1, np.float32)
    assert biased(x).tolist() == biased(x, None).tolist() == [0, 0, 0]
    assert biased(x, b=one).tolist() == [1, 1, 1]
    assert ok.compile(lambda v: biased(v * 2) + biased(v, one))(x).tolist() == [1, 1, 1]
    mixed = define_op(
        "t::scalars(Tensor x, float f, int i=2, *, bool b=False, str s='plus') -> Tensor",
        "t_scalars",
    )
    y = np.zeros(2)
    assert mixed(y, 0.5)[0] == 2.5
    assert mixed(y, 1, 3, b=True)[0] == 104
    assert mixed(y, np.float32(0.5), np.int8(3), s="minus")[0] == -3.5
    f = ok.compile(lambda v, k, n: mixed(v, k, n, b=True, s="minus"))
    assert f(y, 0.25, 4)[0] == -104.25
    assert f(y, 2, 5)[0] == -107  # an int for a float, in a trace of its own
    assert mixed.bind(f=1.5, s="minus").apply(y)[0][0] == -3.5


def test_f049_layouts_are_what_the_op_says(define_op: Define) -> None:
    base = draw(6, 8, dtype=np.float64)
    inputs = [base, base.T, base[::2, 1::3], base[:, ::-1], np.broadcast_to(base[0], (6, 8))]

    def infer(x: ok.TensorDesc) -> tuple[ok.TensorDesc, ...]:
        return x.but(shape=x.shape[:1]), ok.TensorDesc(np.int64, (1,))

    dense = define_op("t::dense(Tensor x) -> (Tensor, Tensor)", "t_strided", infer=infer)
    loose = define_op(
        "t::any(Tensor x) -> (Tensor, Tensor)", "t_strided", infer=infer, layout="any"
    )
    for x in inputs:
        for op, stride in ((dense, 1), (loose, x.strides[1] // 8)):
            for run in (op, ok.compile(op)):
                sums, seen = run(x)
                np.testing.assert_allclose(sums, x.sum(axis=1))
                assert seen[0] == stride
        fused = ok.compile(lambda v: dense((v + 1).T))  # fed by a producer, read through a view
        np.testing.assert_allclose(fused(x)[0], (x + 1).sum(axis=0))
        assert fused(x)[1][0] == 1
    f = ok.compile(dense)
    f(base), f(base)
    assert f.info().copies == 0
    f(base.T)
    assert f.info().copies == 1
    assert "a custom op: once" in str(f.explain())


def test_f050_an_out_of_any_strides_and_views_of_a_result(smooth: ok.CustomOp) -> None:
    a, b = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    f = ok.compile(smooth)
    for out in (np.empty((4, 3, 2), np.float32).T, np.empty((2, 3, 8), np.float32)[..., ::2]):
        assert f(a, b, out=out) is out
        np.testing.assert_array_equal(out, smooth(a, b))
    own = a.copy()
    assert f(own, b, out=own) is own  # overlaps an input
    np.testing.assert_array_equal(own, smooth(a, b))
    g = ok.compile(lambda x, y: (smooth(x, y).T[:, None] + 1).sum(axis=0)[..., 0] * 2)
    np.testing.assert_allclose(g(a, b), (smoothed(a, b).T[:, None] + 1).sum(axis=0)[..., 0] * 2)


def test_f046_halves_of_one_base_need_no_copy(smooth: ok.CustomOp) -> None:
    base = draw(2, 1024)
    f = ok.compile(smooth)
    np.testing.assert_array_equal(f(base[0], base[1]), smoothed(base[0], base[1]))
    assert f.info().copies == 0


# ---- compiled ----


def test_neighbours_fuse_and_one_trace_serves_all_sizes(smooth: ok.CustomOp) -> None:
    @ok.compile
    def f(x: Any, y: Any, s: Any) -> Any:
        return np.exp(smooth(x * 2 - 1, x / 3 + 1, s=s)) * 3 + y

    for n in (1, 5, 64):
        for s in (0.2, 0.7):
            x, y = draw(n, 3), draw(n, 3, seed=1)
            want = np.exp(smoothed(x * 2 - 1, x / 3 + 1, s)) * 3 + y
            np.testing.assert_allclose(f(x, y, s), want, 1e-5)
    info = f.info()
    assert (info.traces, info.builds, info.misses) == (1, 1, 3)
    kernels = f.lower(x, y, 0.2).kernels
    assert [k.call is not None for k in kernels] == [False, True, False]
    assert "t::smooth %" in str(f.lower(x, y, 0.2).graph)


def test_a_warm_call_runs_no_python(smooth: ok.CustomOp) -> None:
    f = ok.compile(lambda x, y: smooth(x + 1, y) * 2)
    bound = f.bind(x := draw(4), y := draw(4, seed=1))
    f(x, y)
    seen: list[Any] = []
    sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_name, arg)))
    try:
        f(x, y)
        bound()
    finally:
        sys.setprofile(None)
    assert {name for event, name, _ in seen if event == "call"} == set()


def test_workspace_and_scalars_that_come_with_each_call(define_op: Define) -> None:
    flip = define_op("t::reversed(Tensor x) -> Tensor", "t_reversed")
    f = ok.compile(lambda x: flip(x) + flip(x * 2))
    for n in (1, 5, 1000):
        x = draw(n)
        np.testing.assert_array_equal(flip(x), x[::-1])
        np.testing.assert_array_equal(f(x), x[::-1] + (x * 2)[::-1])


def test_several_results_of_which_some_are_not_used(define_op: Define) -> None:
    both = define_op(BOTH, "t_both")
    f = ok.compile(lambda x: both(x + 1)[1] * 2)
    assert f(np.ones(3, np.float32)).tolist() == [4, 4, 4]
    g = ok.compile(lambda x: (both(x), both(x)[0]))
    (first, second), again = g(np.ones(2, np.float32))
    assert first.tolist() == second.tolist() == again.tolist() == [1, 1]
    assert sum(k.call is not None for k in g.lower(first).kernels) == 1  # equal calls are one


def test_inference_of_the_ops_own_pins_the_sizes(define_op: Define) -> None:
    tile = define_op("t::tiled(Tensor x, int times=2) -> Tensor", "t_tiled")
    x = np.arange(3, dtype=np.float32)
    assert tile(x, 3).shape == (3, 3)
    f = ok.compile(lambda v: tile(v * 2, times=4).sum(axis=0))
    for n in (3, 5, 3):
        np.testing.assert_array_equal(f(np.ones(n, np.float32)), np.full(n, 8))
    assert f.info().traces == 2  # one per size
    assert "size" in str(f.explain())
    with pytest.raises(errors.TraceError, match=r"shapes of t::tiled.*argument times.*\n.*static"):
        ok.compile(tile)(x, 2)


def test_a_size_of_the_result_from_the_sizes_of_the_inputs(define_op: Define) -> None:
    copy = define_op(
        "t::pairs(Tensor x) -> Tensor", "t_copy",
        infer=lambda x: ok.TensorDesc(x.dtype, (x.shape[0] * x.shape[1] // 2, 2)),
    )  # fmt: skip
    f = ok.compile(lambda x: copy(x + 1) * 2)
    for n in (2, 4, 6):
        x = draw(n, 3)
        assert f(x).shape == (n * 3 // 2, 2)
        np.testing.assert_array_equal(f(x).ravel(), ((x + 1) * 2).ravel())
    assert f.info().traces == 1
    (desc,), known = copy.infer([ok.TensorDesc("f4", (None, 3))])
    assert (desc.shape, known) == ((None, 2), False)
    (desc,), known = copy.infer([ok.TensorDesc("f4", (4, 3))])
    assert (desc.shape, known) == ((6, 2), True)


def test_in_graphs_by_hand_and_their_backward_graphs(smooth: ok.CustomOp) -> None:
    b = ok.SubgraphBuilder("around")
    x, y = b.input(), b.input()
    b.outputs(b.apply("*", b.apply(smooth.bind(s=0.5), b.apply("+", x, y), y), x))
    op = b.get()
    a, c = draw(4, 5), draw(4, 5, seed=1)
    want = smoothed(a + c, c, 0.5) * a
    np.testing.assert_allclose(op.apply(a, c)[0], want, 1e-6)
    np.testing.assert_allclose(b.compile().apply(a, c)[0], want, 1e-6)
    (desc,), known = op.infer([ok.TensorDesc("f4", (4, 5))] * 2)
    assert (desc.shape, known) == ((4, 5), True)
    back = op.backward_graph([ok.TensorDesc("f4", (4, 5))] * 2, (True, True), (True,))
    g = np.ones_like(a)
    given = [v for v, use in zip((a, c, want, g), back.input_mask, strict=True) if use]
    gradients = back.op.apply(*given)
    np.testing.assert_allclose(gradients[0], a + smoothed(a + c, c, 0.5), 1e-5)
    np.testing.assert_allclose(gradients[1], 2 * a, 1e-6)


# ---- gradients ----


def test_gradient_by_an_op_and_by_a_function_also_twice(define_op: Define) -> None:
    by_op = define_op("t::square(Tensor x) -> Tensor", "t_square", backward="t::square_grad")
    define_op("t::square_grad(Tensor x, Tensor grad) -> Tensor dx", "t_square_grad",
           backward=lambda x, grad, grad_dx: (2 * grad * grad_dx, 2 * x * grad_dx))  # fmt: skip
    by_function = define_op("t::square2(Tensor x) -> Tensor", "t_square",
                         backward=lambda x, grad: 2 * x * grad)  # fmt: skip
    by_result = define_op("t::square3(Tensor x) -> Tensor y", "t_square",
                       backward=lambda x, y, grad_y: 2 * y / x * grad_y)  # fmt: skip
    x = draw(7, dtype=np.float64)

    def cube(op: ok.CustomOp) -> Any:
        return lambda v: (op(v) * v).sum()

    for op in (by_op, by_function, by_result):
        first = ok.grad(cube(op))
        np.testing.assert_allclose(first(x), 3 * x * x)
        np.testing.assert_allclose(ok.grad(lambda v: first(v).sum())(x), 6 * x)  # noqa: B023
    none = define_op("t::square4(Tensor x) -> Tensor", "t_square")
    with pytest.raises(errors.GradientError, match=r"gradient of t::square4: there is no rule"):
        ok.grad(lambda v: none(v).sum())(x)
    wrong = define_op("t::square5(Tensor x) -> Tensor", "t_square", backward=lambda x: (x, x))
    with pytest.raises(errors.GradientError, match=r"expected 1 gradients.*got 2"):
        ok.grad(lambda v: wrong(v).sum())(x)
    lost = define_op("t::square6(Tensor x) -> Tensor", "t_square", backward=lambda z: z)
    with pytest.raises(errors.ArgumentError, match="parameter 'z'"):
        ok.grad(lambda v: lost(v).sum())(x)


def test_torch_tensors_in_and_out_with_autograd(define_op: Define, smooth: ok.CustomOp) -> None:
    torch = pytest.importorskip("torch")
    a, c = torch.randn(4, 6), torch.randn(6, 4).T
    found = smooth(a, c, s=0.5)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), smoothed(a.numpy(), c.numpy(), 0.5))
    a.requires_grad_()
    (smooth(a, c) * 2).sum().backward()
    assert torch.equal(a.grad, torch.full_like(a, 2))
    square = define_op(
        "t::square(Tensor x) -> Tensor", "t_square", backward=lambda x, grad: 2 * x * grad
    )
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(square, x)
    assert torch.autograd.gradgradcheck(square, x)
    f = ok.torch_function(lambda v: square(v + 1) * 3)
    assert torch.autograd.gradcheck(f, x)
    with pytest.raises(errors.ArgumentError, match=r"'r'.*same library as 'l'"):
        smooth(a, c.numpy())
    none = define_op("t::square2(Tensor x) -> Tensor", "t_square")
    with pytest.raises(errors.GradientError, match="t::square2"):
        none(x)
    with torch.no_grad():
        assert torch.equal(none(x), x * x)
    half = define_op("t::copy(Tensor x) -> Tensor", "t_copy")
    assert torch.equal(half(a.detach().bfloat16()), a.detach().bfloat16())
    with pytest.raises(errors.ArgumentError, match=r"to_dense|dense"):
        half(torch.eye(3).to_sparse())


# ---- errors ----


def test_t42_what_an_op_reports_is_a_python_error(define_op: Define) -> None:
    op = define_op("t::failing(Tensor x) -> Tensor", "t_failing")
    plain = define_op("t::returns(Tensor x) -> Tensor", "t_returns")
    said = {1.0: "one is not allowed", 2.0: "out of memory", 3.0: "unknown C.. exception"}
    f = ok.compile(lambda v: op(v * 1.0) + 1)
    for value, text in said.items():
        bad = np.array([0.0, value])
        here = rf"\({__file__}:{sys._getframe().f_lineno + 2}\)"
        with pytest.raises(errors.CustomOpError, match=f"t::failing: {text} {here}"):
            op(bad)
        with pytest.raises(errors.CustomOpError, match=rf"t::failing: {text} \({__file__}:\d+\)"):
            f(bad)
        bound = f.bind(bad)
        with pytest.raises(errors.CustomOpError, match=text):
            bound()
        bad[1] = 5
        assert bound()[1] == 6
        assert f(bad)[1] == op(bad)[1] + 1 == 6
    with pytest.raises(errors.CustomOpError, match="returned \ufffd an error"):
        plain(np.ones(1))
    with pytest.raises(errors.CustomOpError, match="t::returns: error 7"):
        ok.compile(plain)(np.full(1, 7.0))
    types = np.ones(2, np.int32)
    square = define_op("t::square(Tensor x) -> Tensor", "t_square")
    with pytest.raises(errors.CustomOpError, match="input 0: expected float64, got int32"):
        square(types)


def test_f131_what_an_op_reports_on_a_stream_comes_with_the_result(define_op: Define) -> None:
    op = define_op("t::failing(Tensor x) -> Tensor", "t_failing")
    f = ok.compile(lambda v: op(v * 1.0) + 1)
    stream = ok.Stream()
    with stream:
        bad = f(np.ones(2))
        try:
            after = f(bad).exception()
        except errors.CustomOpError as error:  # which `bad` had reported already
            after = error
        good = f(np.zeros(2))
        eager = op(np.zeros(2))
    with pytest.raises(errors.CustomOpError, match=rf"one is not allowed \({__file__}:\d+\)"):
        bad.result()
    assert str(after) == str(bad.exception())
    np.testing.assert_array_equal(good.result(), f(np.zeros(2)))
    np.testing.assert_array_equal(eager, op(np.zeros(2)))
    stream.close()


def test_bad_arguments_name_the_argument(define_op: Define, smooth: ok.CustomOp) -> None:
    x = np.ones(3, np.float32)
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (errors.ArgumentError, "missing argument 'r'", lambda: smooth(x)),
        (errors.ArgumentError, "unexpected keyword argument 'z'", lambda: smooth(x, x, z=1)),
        (errors.ArgumentError, "'r': expected a tensor, got None", lambda: smooth(x, None)),
        (errors.ArgumentError, "'r': expected an array, got 3", lambda: smooth(x, 3)),
        (errors.ArgumentError, "'s': expected float, got 'a'", lambda: smooth(x, x, s="a")),
        (errors.ArgumentError, "no scalar 'q'", lambda: smooth.bind(q=1)),
        (errors.ArgumentError, "expected 2 tensors, got 3", lambda: smooth.apply(x, x, x)),
        (errors.UnsupportedDType, "'l': dtype object", lambda: smooth(x.astype(object), x)),
        (errors.ArgumentError, "'l': expected numpy.ndarray, got the subclass MaskedArray",
         lambda: smooth(np.ma.masked_array(x), x)),
        (errors.UnsupportedDType, "'l': dtype datetime64",
         lambda: smooth(np.zeros(3, "M8[s]"), x)),
        (errors.UnsupportedDType, "'l': dtype timedelta64",
         lambda: ok.compile(lambda t: smooth(t, t))(np.zeros(3, "m8[s]"))),
        (errors.ArgumentError, "'s': expected float, got an array.*\n.*Tensor in the schema",
         lambda: ok.compile(lambda v: smooth(v, v, v.sum()))(x)),
    ]  # fmt: skip
    for cls, text, call in cases:
        with pytest.raises(cls, match=text):
            call()


def test_what_infer_gives_is_checked(define_op: Define) -> None:
    x = np.ones(3)
    for given, text in [
        (lambda x: 3, "expected 1 of TensorDesc, got 3"),
        (lambda x: (x, x), "expected 1 of TensorDesc"),
        (lambda x: x.but(shape=None), "expected a known shape"),
        (lambda nothing: nothing, "parameter 'nothing'"),
    ]:
        op = define_op("t::square(Tensor x) -> Tensor", "t_square", infer=given)
        for run in (op, ok.compile(op)):
            with pytest.raises(errors.ArgumentError, match=f"t::square: infer: .*{text}"):
                run(x)
        op.unregister()


# ---- threads, no compiler ----


def test_f087_ops_run_side_by_side_without_the_lock(smooth: ok.CustomOp) -> None:
    f = ok.compile(lambda x, y: smooth(x + 1, y) * 2)
    x, y = draw(1000), draw(1000, seed=1)
    want = smoothed(x + 1, y) * 2

    def work(_: int) -> None:
        for _ in range(50):
            np.testing.assert_array_equal(f(x, y), want)
            np.testing.assert_array_equal(smooth(x, y), smoothed(x, y))

    run_in_threads(work, 4)


def test_an_op_runs_without_the_lock(define_op: Define) -> None:
    wait = define_op("t::waits(Tensor x) -> Tensor", "t_waits")
    f = ok.compile(wait)
    f(np.ones(1))  # built
    bound = f.bind(kept := np.ones(1))
    for run, x in ((wait, np.zeros(1)), (f, np.zeros(1)), (lambda _: bound(), kept)):
        x[0] = 0
        found: list[Any] = []
        caller = threading.Thread(target=lambda: found.append(run(x)))  # noqa: B023
        caller.start()
        x[0] = 5  # never, if the op keeps the lock
        caller.join()
        assert found[0][0] == 5


def test_without_a_compiler_the_op_still_runs(
    smooth: ok.CustomOp, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ok.config.scope(disable=True):
        f = ok.compile(lambda x, y: smooth(x * 2, y) + 1)
        g = ok.grad(lambda x, y: (smooth(x * 2, y) * x).sum())
    x, y = draw(3), draw(3, seed=1)
    np.testing.assert_array_equal(f(x, y), smoothed(x * 2, y) + 1)
    np.testing.assert_allclose(g(x, y), smoothed(x * 2, y) + 2 * x, 1e-5)


def test_the_way_of_a_gpu_on_memory_of_the_cpu(
    define_op: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that say they are on a GPU: C order, workspace and stream come from their library."""
    torch = pytest.importorskip("torch")
    from opkiln.runtime.custom_op import arrays

    seen: list[Any] = []
    kind = type(arrays.TORCH)
    monkeypatch.setattr(kind, "device", lambda self, array: "cuda:0")
    monkeypatch.setattr(kind, "stream", lambda self, like: seen.append("stream") or 0)
    flip = define_op("t::flip(Tensor x) -> Tensor", None, cuda="t_reversed")
    x = torch.randn(4, 6)
    for given in (x, x.T, x[:, ::2]):
        want = given.contiguous().reshape(-1).flip(0).reshape(given.shape)
        assert torch.equal(flip(given), want)
    assert flip(x[:0]).shape == (0, 6)
    assert seen == ["stream"] * 3
    with pytest.raises(errors.CustomOpError, match="t::flip: input 0: expected float32"):
        flip(x.double())
    only = define_op("t::square(Tensor x) -> Tensor", "t_square")
    with pytest.raises(
        errors.DeviceMismatch, match="t::square: there is code for cpu, none for cuda"
    ):
        only(x.double())
    monkeypatch.setattr(kind, "device", lambda self, array: f"cuda:{array.ndim}")
    two = define_op("t::two(Tensor a, Tensor b) -> Tensor", None, cuda="t_smooth")
    with pytest.raises(errors.DeviceMismatch, match="'b': expected an array on cuda:2, as 'a' is"):
        two(x, x[0])
