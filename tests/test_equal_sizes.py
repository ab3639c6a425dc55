"""Sizes that are equal in a call are one symbol, and what broadcasts them shares a loop nest."""

from typing import Any

import numpy as np
import pytest

import opkiln as ok


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def moments(m: Any, v: Any, g: Any) -> tuple[Any, Any]:
    return m * 0.9 + g * 0.1, v * 0.99 + g * g


def check(f: Any, args: list[np.ndarray]) -> None:
    for got, want in zip(f(*args), f.__wrapped__(*args), strict=True):
        np.testing.assert_array_equal(got, want)


def test_equal_sizes_share_one_kernel_for_every_size() -> None:
    f = ok.compile(moments)
    args = arrays((5, 7), (5, 7), (5, 7))
    assert len(f.lower(*args).kernels) == 1
    for shape in ((5, 7), (3, 4), (1, 9), (1, 1), (0, 3)):
        check(f, arrays(shape, shape, shape))
    assert f.info().traces == 1 and f.info().builds + f.info().disk_hits <= 1


def test_other_broadcasting_is_another_trace_and_right() -> None:
    f = ok.compile(moments)
    shapes = [
        ((4, 6),) * 3,
        ((4, 6), (4, 6), (1, 6)),
        ((4, 1), (4, 6), (4, 6)),
        ((1, 1), (4, 6), (4, 1)),
    ]
    for _ in range(2):
        for shape in shapes:
            check(f, arrays(*shape))
    assert f.info().traces == len(shapes)
    text = str(f.explain())
    assert "as m.shape" in text and f"{__file__.rsplit('/', 1)[-1]}" in text


def test_misfits_are_refused_as_ever() -> None:
    f = ok.compile(moments)
    check(f, arrays((4, 6), (4, 6), (4, 6)))
    with pytest.raises(ValueError, match="could not be broadcast"):
        f(*arrays((4, 6), (4, 6), (4, 5)))
    check(f, arrays((4, 6), (4, 6), (4, 6)))


def test_one_nest_stays_general() -> None:
    f = ok.compile(lambda a, b: a * b + a)
    for shapes in (((3, 4), (3, 4)), ((3, 1), (3, 4)), ((3, 4), (1, 4))):
        a, b = arrays(*shapes)
        np.testing.assert_array_equal(f(a, b), a * b + a)
    assert f.info().traces == 1


def test_a_captured_array_fixes_the_size_of_what_meets_it() -> None:
    (held,) = arrays((6,))
    f = ok.compile(lambda x, y: (x * held, (x + y).sum(axis=1)))
    for rows in (3, 5):
        x, y = arrays((rows, 6), (rows, 6))
        got = f(x, y)
        np.testing.assert_array_equal(got[0], x * held)
        np.testing.assert_allclose(got[1], (x + y).sum(axis=1), rtol=1e-5)
    assert f.info().traces == 1
    x, y = arrays((3, 1), (3, 6))
    np.testing.assert_array_equal(f(x, y)[0], x * held)
    assert f.info().traces == 2


def test_a_chain_of_equal_sizes_has_one_leader() -> None:
    f = ok.compile(lambda a, b, c, d: (a + b, c + d, b + c))
    args = arrays((8,), (8,), (8,), (8,))
    assert len(f.lower(*args).kernels) == 1
    check(f, args)
    mixed = arrays((8,), (8,), (1,), (1,))
    check(f, mixed)
    assert f.info().traces == 2
