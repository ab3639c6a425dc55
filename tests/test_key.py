"""Keys: what changes them and what must not (both directions), readable differences."""

import hashlib
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opkiln.runtime.key import KeyParts, sha256

Value = str | bytes | tuple[str, ...]
values = st.one_of(st.text(max_size=6), st.binary(max_size=6), st.lists(st.text(max_size=4)))
lists = st.lists(st.tuples(st.text(max_size=3), values), unique_by=lambda p: p[0], max_size=4)


def plain(parts: list[tuple[str, Value | list[str]]]) -> list[tuple[str, Value]]:
    return [(n, tuple(v) if isinstance(v, list) else v) for n, v in parts]


@given(lists, lists)
def test_equal_digests_mean_equal_parts(a: list, b: list) -> None:
    same = plain(a) == plain(b)
    assert (KeyParts(a).hexdigest == KeyParts(b).hexdigest) == same
    assert (KeyParts(a) == KeyParts(b)) == same


DIFFERENT: list[list[tuple[str, Value]]] = [
    [],
    [("", "")],
    [("a", "")],
    [("a", "b")],
    [("a", b"b")],
    [("a", ("b",))],
    [("a", ())],
    [("a", ("",))],
    [("a", ("b", ""))],
    [("ab", "")],
    [("a", "b"), ("c", "d")],
    [("c", "d"), ("a", "b")],
    [("a", "bcd")],
    [("a", ("x", "y")), ("b", ())],
    [("a", ("x",)), ("b", ("y",))],
    [("a", ("xy",)), ("b", ())],
    [("a", "1:b")],
]


def test_K2_no_two_lists_meet() -> None:
    assert len({KeyParts(parts).hexdigest for parts in DIFFERENT}) == len(DIFFERENT)


def test_K2_the_digest_is_the_same_in_every_process() -> None:
    code = (
        "from opkiln.runtime.key import KeyParts;"
        "print(KeyParts([('a','x'),('b',b'\\0'),('c',['p','q'])]).hexdigest)"
    )
    seen = set()
    for seed in ("0", "1"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        seen.add(run.stdout.strip())
    # The value is written down: a change of the format is a change of all caches in the field.
    assert seen == {"452e728aa7e2bbffb364a2a844d1b18c5026b69a0309866a98fdaee664fc6715"}


def test_short_and_repr() -> None:
    parts = KeyParts([("a", "x")])
    assert parts.short == parts.hexdigest[:24]
    assert parts.short in repr(parts)
    assert len(parts.hexdigest) == 64


def test_a_name_occurs_once() -> None:
    with pytest.raises(ValueError, match="'a' twice"):
        KeyParts([("a", "x"), ("a", "y")])


def test_F129_the_difference_is_named() -> None:
    old = KeyParts([("text", "t"), ("flags", ("-O1", "-g")), ("gone", "g")])
    new = KeyParts([("text", "t"), ("flags", ("-O2", "-g")), ("more", "m")])
    expected = [("flags", "-O1 -g", "-O2 -g"), ("more", "", "m"), ("gone", "g", "")]
    assert new.diff(old) == expected
    assert new.diff(old.digests()) == expected
    assert new.diff(new) == []


def test_long_and_odd_values_are_shown_by_digest() -> None:
    for value in ("x" * 200, "a\nb", "Ω"):
        shown = KeyParts([("a", value)]).digests()["a"]
        assert shown.startswith("sha256:")
        assert shown.isascii()


def test_sha256_is_sha256() -> None:
    for data in (b"", b"abc", bytes(range(256)) * 99):
        assert sha256(data) == hashlib.sha256(data).hexdigest()


def test_surrogates_from_file_names_are_taken() -> None:
    name = os.fsdecode(b"\xff\xfe")
    assert KeyParts([("path", name)]).hexdigest != KeyParts([("path", "??")]).hexdigest
