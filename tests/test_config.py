"""Settings: read once, checked, scoped, and refused with a message that names the variable."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opkiln.runtime.config import Config, config
from opkiln.runtime.errors import ConfigError, OpkilnWarning


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    config.reload()
    yield
    config.reload()


GOOD = [
    ("OPKILN_DEBUG", "3", "debug", 3),
    ("OPKILN_CACHE_MAX_BYTES", "1.5GiB", "cache_max_bytes", 3 * 2**29),
    ("OPKILN_CACHE_MAX_BYTES", "10 MB", "cache_max_bytes", 10**7),
    ("OPKILN_CACHE_MAX_BYTES", "0", "cache_max_bytes", 0),
    ("OPKILN_COMPILE_TIMEOUT", "2.5s", "compile_timeout", 2.5),
    ("OPKILN_LOCK_WAIT", "0", "lock_wait", 0.0),
    ("OPKILN_NUM_THREADS", "4", "num_threads", 4),
    ("OPKILN_DISABLE", "yes", "disable", True),
    ("OPKILN_DISABLE", "off", "disable", False),
    ("OPKILN_CACHE_DIR", "/a b", "cache_dir", "/a b"),
    ("OPKILN_CXX", " ccache g++ ", "cxx", "ccache g++"),
    ("CXX", "clang++", "cxx", "clang++"),
    ("MAX_JOBS", "7", "max_jobs", 7),
]


@pytest.mark.parametrize(("variable", "text", "name", "value"), GOOD)
def test_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(config, name) == value
    monkeypatch.setenv(variable, "changed later")
    assert getattr(config, name) == value


BAD = [
    ("OPKILN_DEBUG", "loud", "debug"),
    ("OPKILN_DEBUG", "6", "debug"),
    ("OPKILN_NUM_THREADS", "0", "num_threads"),
    ("OPKILN_NUM_THREADS", "1.5", "num_threads"),
    ("OPKILN_CACHE_MAX_BYTES", "5 parsecs", "cache_max_bytes"),
    ("OPKILN_CACHE_MAX_BYTES", "-1", "cache_max_bytes"),
    ("OPKILN_CACHE_MAX_BYTES", "inf", "cache_max_bytes"),
    ("OPKILN_CACHE_MAX_BYTES", "nan", "cache_max_bytes"),
    ("OPKILN_COMPILE_TIMEOUT", "nan", "compile_timeout"),
    ("OPKILN_COMPILE_TIMEOUT", "0", "compile_timeout"),
    ("OPKILN_DISABLE", "maybe", "disable"),
    ("MAX_JOBS", "many", "max_jobs"),
]


@pytest.mark.parametrize(("variable", "text", "name"), BAD)
def test_refused_with_the_variable_the_value_and_what_is_accepted(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError) as caught:
        getattr(config, name)
    message = str(caught.value)
    assert variable in message
    assert repr(text) in message
    assert vars(Config)[name].accepts in message


@pytest.mark.parametrize("variable", ["OPKILN_NUM_THREADS", "OPKILN_POOL_CAP"])
def test_a_bad_value_shows_at_the_first_use_of_any_setting(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "0")
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{variable}: expected a whole number from 1"):
            _ = config.debug
    monkeypatch.delenv(variable)
    assert config.debug == 0


def test_a_bad_value_that_an_assignment_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPKILN_NUM_THREADS", "0")
    config.num_threads = 2
    assert (config.debug, config.num_threads) == (0, 2)


def test_unknown_variables_give_one_warning_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPKILN_NUM_THREAD", "2")
    monkeypatch.setenv("OPKILN_XYZZY_PLUGH", "2")
    with pytest.warns(OpkilnWarning) as caught:
        _ = config.debug, config.num_threads, repr(config)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "OPKILN_NUM_THREAD (did you mean OPKILN_NUM_THREADS?)" in message
    assert "OPKILN_XYZZY_PLUGH" in message
    assert "OPKILN_XYZZY_PLUGH (did" not in message
    assert caught[0].filename == __file__


def test_settings_that_are_right_say_nothing(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    words = {"cxx": "g++", "cache_dir": "/c", "abi_check": "strict"}
    for row in Config.table():
        for variable in row.variables:
            monkeypatch.setenv(variable, words.get(row.name, "1"))
    monkeypatch.setenv("OPKILN_SANITIZE", "address")
    monkeypatch.setenv("OPKILN_EMPTY", " ")
    monkeypatch.setenv("OTHER_OPKILN_NAME", "1")
    assert config.debug == 1
    assert not recwarn.list


@pytest.mark.parametrize("row", Config.table(), ids=lambda row: row.name)
def test_defaults_pass_their_own_reader(row) -> None:
    assert row.variables[0] == f"OPKILN_{row.name.upper()}"
    assert row.checked(row.default, "default") == row.default
    assert row.doc
    assert row.accepts


def test_empty_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPKILN_DEBUG", "")
    monkeypatch.setenv("OPKILN_CXX", " ")
    monkeypatch.setenv("CXX", "g++-12")
    assert config.debug == 0
    assert config.cxx == "g++-12"


def test_scopes_nest_and_end_with_an_exception() -> None:
    with config.scope(debug=1, lock_wait=3):
        with config.scope(debug="2"):
            assert (config.debug, config.lock_wait) == (2, 3.0)
        with pytest.raises(ZeroDivisionError), config.scope(debug=5):
            raise ZeroDivisionError
        assert config.debug == 1
    assert config.debug == 0


def test_a_scope_belongs_to_its_thread() -> None:
    seen: list[int] = []
    with config.scope(debug=4):
        thread = threading.Thread(target=lambda: seen.append(config.debug))
        thread.start()
        thread.join()
    assert seen == [0]


def test_a_bad_scope_changes_nothing() -> None:
    with pytest.raises(ConfigError, match="scope"), config.scope(debug=1, num_threads=0):
        pass
    assert config.debug == 0


def test_assignment_is_for_the_process() -> None:
    config.debug = 2
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(config.debug))
    thread.start()
    thread.join()
    assert seen == [2]
    with pytest.raises(ConfigError, match=r"config\.debug"):
        config.debug = True + 9
    assert config.debug == 2


@pytest.mark.parametrize("use", ["read", "write", "scope"])
def test_unknown_names_are_refused_with_a_suggestion(use: str) -> None:
    with pytest.raises(AttributeError, match="did you mean 'num_threads'"):
        if use == "read":
            _ = config.numthreads
        elif use == "write":
            config.numthreads = 3
        else:
            with config.scope(numthreads=3):
                pass


def test_paths_are_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with config.scope(cache_dir="~/x"):
        assert config.cache_dir == str(tmp_path / "x")
    with config.scope(cache_dir=tmp_path):
        assert config.cache_dir == str(tmp_path)
    with config.scope(cache_dir=None):
        assert config.cache_dir is None
    with pytest.raises(ConfigError), config.scope(cache_dir="~nobody-here/x"):
        pass


def test_repr_shows_all() -> None:
    assert all(row.name in repr(config) for row in Config.table())
