"""Schemas of custom ops: what they say, and where a bad one is bad; T43, T44."""

import pytest

from opkiln.runtime import errors
from opkiln.runtime.custom_op.schema import parse


@pytest.mark.parametrize(("text", "column"), [
    ("f(Tensor a) -> Tensor", 2), ("ns::f(Tensor a)", 16), ("ns::f(Tensor a) ->", 19),
    ("ns::f(Tensor a) -> ()", 21), ("ns::f() -> Tensor", 1), ("ns::f(float k) -> Tensor", 1),
    ("ns::f(Tensor a, Tensor a) -> Tensor", 17), ("ns::f(Tensor a; b) -> Tensor", 15),
    ("ns::f(Tensor a'); import os; ('') -> Tensor", 15), ("ns::__f(Tensor a) -> Tensor", 5),
    ("ns::f(Tensor class) -> Tensor", 14), ("ns::f(Tensor __a) -> Tensor", 14),
    ("ns::f\n#define X(Tensor a) -> Tensor", 7), ("ns::f(Tensor \u0430\u0455) -> Tensor", 14),
    ("ns::f(double a) -> Tensor", 7), ("ns::f(Tensor a, float k=x) -> Tensor", 25),
    ("ns::f(Tensor a, int k=1.5) -> Tensor", 23), ("ns::f(Tensor a, bool k=1) -> Tensor", 24),
    ("ns::f(Tensor a, str k=1) -> Tensor", 23), ("ns::f(Tensor a=None) -> Tensor", 16),
    ("ns::f(Tensor? a, Tensor b) -> Tensor", 18), ("ns::f(Tensor a) -> Tensor a", 27),
    ("ns::f(Tensor a) -> Tensor extra more", 33), ("ns::f(Tensor a) -> (Tensor, float)", 29),
    ("ns::f(Tensor a,) -> Tensor", 16), ("ns::f(Tensor a, *, *) -> Tensor", 20), ("", 1),
    ("ns::f(Tensor a, int k=99999999999999999999) -> Tensor", 23),
    ("ns::f(Tensor a, str k='x) -> Tensor", 23),
])  # fmt: skip
def test_t43_t44_a_bad_schema_says_where(text: str, column: int) -> None:
    with pytest.raises(errors.SchemaError, match=f"schema, column {column}: expected ") as caught:
        parse(text)
    assert __file__ in str(caught.value)


def test_t43_schemas_have_one_canonical_text() -> None:
    text = ("ns::f(Tensor a, Tensor? b, float k=1, int n=-2, *, bool q=True, "
            "str s=\"it's\") -> (Tensor y, Tensor)")  # fmt: skip
    schema = parse(text)
    assert str(schema) == text.replace("k=1,", "k=1.0,")
    assert parse(str(schema)) == schema
    assert str(parse(" ns :: f ( Tensor a ,float k = 1e-3)->Tensor ")) == (
        "ns::f(Tensor a, float k=0.001) -> Tensor"
    )
    assert schema.results == ("y", "out1")
    assert schema.gradients == ("grad_y", "grad_out1")
    assert parse("ns::g(Tensor a) -> Tensor").gradients == ("grad",)
    inf = parse("ns::g(Tensor a, float k=-inf, float n=nan) -> Tensor")
    assert str(parse(str(inf))) == str(inf)
    with pytest.raises(errors.SchemaError, match="expected a str"):
        parse(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
