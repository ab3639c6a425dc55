"""np.einsum, dot, tensordot and the like, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.test_matmul import integers

import opkiln as ok
from opkiln.runtime.errors import OpkilnError, ShapeError

F4 = np.dtype(np.float32)
Array = np.ndarray[Any, Any]
SIZES = dict(zip("abcdefijklmn", (2, 3, 4, 5, 2, 3, 3, 4, 5, 2, 3, 4), strict=True))

# T12 of the systems that opkiln replaces: results of whole numbers are exact.
EQUATIONS = [
    "i->i", "i->", "ij->ij", "ij->ji", "ij->i", "ij->j", "ij->", "ijk->kij",
    "i,i->", "i,i->i", "i,j->ij", "i,j->ji", "ij,j->i", "ij,i->j", "ij,ij->", "ij,ij->ij",
    "ij,jk->ik", "ij,jk->ki", "ij,kj->ik", "ji,jk->ik", "ij,jk->ijk", "ij,jk->i", "ij,jk->j",
    "bij,bjk->bik", "bij,bkj->bik", "bij,jk->bik", "bij,kj->kbi", "ij,bjk->ibk", "ijk,jk->i",
    "ijk,ijk->k", "abij,abjk->abik", "abi,acj->abcij", "ij", "ba", "ij,jk", "ij,jk,kl->il",
    "ij,jk,kl,lm->im", "i,ij,j->", "a,ab,abc->abc",
    "...ij,...jk->...ik", "...i,...i->...", "...ij->...ji", "i...,i->...", "...->...", "...ij",
]  # fmt: skip
MERGED = ["ijk,jkl->il", "bijk,bljk->bil", "ijkl,klmn->ijmn", "ijk,ijk->", "ij,ij"]
DIAGONALS = ["ii->i", "ii->", "ii", "iij->j", "iij->ij", "ijji->ij", "ii,ij->j", "iji,j->i"]


def operands(equation: str, ellipsis: tuple[int, ...] = (2, 3)) -> list[Array]:
    parts = equation.partition("->")[0].split(",")
    shapes: list[tuple[int, ...]] = []
    for part in parts:
        first, dots, last = part.partition("...")
        hidden = ellipsis if dots else ()
        shapes.append((*(SIZES[x] for x in first), *hidden, *(SIZES[x] for x in last)))
    return [integers(shape, F4, seed) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("equations", [EQUATIONS, MERGED, DIAGONALS], ids=len)
def test_einsum(equations: list[str]) -> None:
    arrays = {equation: operands(equation) for equation in equations}

    @ok.compile
    def every(arrays):
        return {equation: np.einsum(equation, *given) for equation, given in arrays.items()}

    for equation, got in every(arrays).items():
        want = np.einsum(equation, *arrays[equation])
        assert np.shape(got) == want.shape, equation
        np.testing.assert_array_equal(got, want, err_msg=equation)
        assert got.dtype == want.dtype


def run(fn: Any, *arrays: Any) -> Any:
    """Compiled and called once."""
    return ok.compile(fn)(*arrays)


FORMS: list[Any] = [
    lambda np, a, b: np.einsum(a, [0, 1], b, [1, 2], [0, 2]),
    lambda np, a, b: np.einsum(a, [0, 1], b, [1, 2]),
    lambda np, a, b: np.einsum(a, [..., 1], [1, ...]),
    lambda np, a, b: np.einsum(" ij , jk -> ki ", a, b, optimize="greedy"),
    lambda np, a, b: np.einsum("ij,jk->", a, b, dtype=np.result_type(a.dtype, "f8")),
    lambda np, a, b: np.einsum("ij,ij->ij", a.sum(0, keepdims=True), a),
    lambda np, a, b: np.einsum("ij,jk->ik", a, np.broadcast_to(b.sum(0, keepdims=True), b.shape)),
    lambda np, a, b: np.dot(a, b),
    lambda np, a, b: a.dot(b),
    lambda np, a, b: np.dot(a, 2),
    lambda np, a, b: np.dot(a, b.T.sum(0)),
    lambda np, a, b: np.dot(a.sum(0), b),
    lambda np, a, b: np.dot(a.sum(0), b.sum(1)),
    lambda np, a, b: np.dot(a[:, None], b[None]),
    lambda np, a, b: np.inner(a, b.T),
    lambda np, a, b: np.inner(a, a.sum(0)),
    lambda np, a, b: np.inner(3.0, a),
    lambda np, a, b: np.vdot(a.sum(0), b.sum(1)),
    lambda np, a, b: np.outer(a.sum(0), b.sum(0)),
    lambda np, a, b: np.tensordot(a, b, 1),
    lambda np, a, b: np.tensordot(a, b, 0),
    lambda np, a, b: np.tensordot(a, b, (1, 0)),
    lambda np, a, b: np.tensordot(a, b, ([-1], [0])),
    lambda np, a, b: np.vecdot(a, a),
    lambda np, a, b: np.matvec(a, b.sum(1)),
    lambda np, a, b: np.vecmat(a.sum(0), b),
    lambda np, a, b: np.linalg.matmul(a, b),
    lambda np, a, b: np.linalg.vecdot(a, a, axis=0),
    lambda np, a, b: np.linalg.outer(a.sum(0), b.sum(0)),
    lambda np, a, b: np.linalg.tensordot(a, b, axes=1),
    lambda np, a, b: np.linalg.multi_dot([a, b, b.T]),
    lambda np, a, b: np.matmul(a, b, dtype=np.result_type(a.dtype, "f8")),
]


@pytest.mark.parametrize("dtype", ["f4", "c16", "?"])
def test_every_form(dtype: str) -> None:
    a, b = integers((3, 4), np.dtype(dtype)), integers((4, 5), np.dtype(dtype), 1)

    @ok.compile
    def every(a, b):
        return [form(np, a, b) for form in FORMS]

    for i, (form, got) in enumerate(zip(FORMS, every(a, b), strict=True)):
        want = form(np, a, b)
        assert np.shape(got) == np.shape(want), i
        assert got.dtype == np.asarray(want).dtype, i
        np.testing.assert_array_equal(got, want, err_msg=str(i))


def test_an_axis_of_length_1_broadcasts_in_einsum_alone() -> None:
    a, b = integers((3, 1), F4), integers((4, 5), F4, 1)
    got = run(lambda a, b: np.einsum("ij,jk->ik", a, b), a, b)
    np.testing.assert_array_equal(got, np.einsum("ij,jk->ik", a, b))
    for fn in (lambda a, b: a @ b, np.dot, lambda a, b: np.matvec(a, b.sum(1))):
        with pytest.raises(ShapeError, match="size 4 is different from 1") as caught:
            run(fn, a, b)
        assert "test_contraction.py:" in str(caught.value)


REFUSED: list[tuple[str, tuple[tuple[int, ...], ...], str]] = [
    ("ij,jk->ik", ((2, 3),), "fewer operands"),
    ("ij", ((2, 3), (2, 3)), "more operands"),
    ("ijk", ((2, 3),), "too many subscripts for operand 0"),
    ("i", ((2, 3),), "no '...' ellipsis provided"),
    ("...i->i", ((2, 3),), "output has more dimensions"),
    ("ij->ijk", ((2, 3),), "'k' which never appeared"),
    ("ij->ii", ((2, 3),), "'i' multiple times"),
    ("i1", ((2, 3),), "invalid subscript '1'"),
    ("i..j", ((2, 3),), "contains a '.' that is not part"),
]


@pytest.mark.parametrize(("equation", "shapes", "text"), REFUSED, ids=lambda x: str(x)[:12])
def test_bad_subscripts(equation: str, shapes: tuple[tuple[int, ...], ...], text: str) -> None:
    arrays = [np.ones(s) for s in shapes]
    if "operands" not in text:  # NumPy says "more" where there are fewer
        with pytest.raises(ValueError, match=text):
            np.einsum(equation, *arrays)
    with pytest.raises(ShapeError) as caught:
        run(lambda *arrays: np.einsum(equation, *arrays), *arrays)
    assert text in str(caught.value)
    assert "test_contraction.py:" in str(caught.value)


def test_bad_operands() -> None:
    a = np.ones((3, 4), F4)
    for fn, text in [
        (lambda a: a @ 2.0, "does not have enough dimensions"),
        (lambda a: np.matvec(a.sum(0), a), "does not have enough dimensions"),
        (lambda a: np.tensordot(a, a, ((0, 1), (0,))), "shape-mismatch"),
        (lambda a: np.tensordot(a, a, 3), "3 axes"),
        (lambda a: np.linalg.multi_dot([a]), "at least two"),
        (lambda a: np.linalg.outer(a, a), "one-dimensional"),
        (lambda a: np.einsum("ij->ji", a, dtype=np.int32), "casting"),
        (lambda a: np.einsum("ij", a, out=a), "out="),
        (lambda a: np.einsum(a, [0, 60]), "valid range"),
        (lambda a: np.einsum("ij,jk", a, np.ones((5, 2))), "could not be broadcast"),
    ]:
        with pytest.raises(OpkilnError, match=text) as caught:
            run(fn, a)
        assert "test_contraction.py:" in str(caught.value)
