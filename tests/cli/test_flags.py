"""Flags made from dataclasses."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay import SamplingParams
from parlay.cli.flags import Parser, add_flags, normalise
from parlay.cli.flags import given as values_given
from parlay.config import EngineConfig


@dataclass(frozen=True)
class Every:
    """Every kind of field.

    Attributes:
        number: how many.
        share: of 100%.
        word: a `word`.
        on: whether.
        mode: which.
        words: some.
        ids: some numbers.
        table: a table.
        tables: some tables.
        call: an object of Python's.
    """

    number: int = 3
    share: float | None = field(default=None, metadata={"aliases": ("part_of_it",)})
    word: str = ""
    on: bool = False
    mode: Literal["a", "b"] | None = None
    words: str | tuple[str, ...] = ()
    ids: tuple[int, ...] | list[int] = ()
    table: Mapping[str, Any] | None = None
    tables: list[dict[str, Any]] | None = None
    call: Callable[[int], int] | None = None


def parse(arguments: list[str], cls: type = Every) -> dict[str, Any]:
    parser = Parser(prog="x")
    add_flags(parser, cls)
    return values_given(cls, vars(parser.parse_args(normalise(arguments))))


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["--number", "4", "--share=0.5"], {"number": 4, "share": 0.5}),
        (["--part_of_it", "0.5"], {"share": 0.5}),
        (["--part-of_it=0.5"], {"share": 0.5}),
        (["--on"], {"on": True}),
        (["--no-on", "--mode", "b"], {"on": False, "mode": "b"}),
        (["--words", "a", "--words", "b_c"], {"words": ["a", "b_c"]}),
        (["--ids", "1", "--ids", "2"], {"ids": [1, 2]}),
        (["--table", '{"a_b": [1]}'], {"table": {"a_b": [1]}}),
        (["--tables", '[{"a": 1}]'], {"tables": [{"a": 1}]}),
        (["--word", "--", "--word"], None),
    ],
    ids=str,
)
def test_values(arguments: list[str], values: dict[str, Any] | None) -> None:
    if values is None:
        with pytest.raises(SystemExit):
            parse(arguments)
    else:
        assert parse(arguments) == values


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--numbr", "4"], "unknown flag --numbr (did you mean '--number'?); x --help lists the flags"),
        (["--num", "4"], "unknown flag --num (did you mean '--number'?)"),
        (["--call", "4"], "unknown flag --call"),
        (["--number", "x"], "invalid int value: 'x'"),
        (["--table", "{"], "'{' is not valid JSON"),
        (["--mode", "c"], "invalid choice: 'c'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("cls", [EngineConfig, SamplingParams, Every])
def test_every_flag_has_its_help(cls: type, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], cls)
    text = capsys.readouterr().out
    for f in fields(cls):
        assert (f"--{f.name.replace('_', '-')}" in text) == (f.name != "call")


def test_a_flag_that_may_be_repeated_takes_several_values() -> None:
    """Behind it, as vLLM's `--served-model-name` does, or as a list in JSON, as its `--allowed-origins`."""
    for words in (["a", "b"], ["a", "--words", "b"], ['["a", "b"]']):
        assert parse(["--words", *words, "--number", "1"]) == {"words": ["a", "b"], "number": 1}
    for word in ("[]", "[1]", "[a"):
        assert parse(["--words", word]) == {"words": [word]}


INTEGERS = st.integers(-(10**9), 10**9)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "number": INTEGERS,
            "share": st.floats(allow_nan=False),
            "word": st.text(),
            "on": st.booleans(),
            "words": st.lists(st.text(), min_size=1, max_size=3),
            "ids": st.lists(INTEGERS, min_size=1, max_size=3),
            "table": st.dictionaries(st.text(), INTEGERS | st.text(), max_size=3),
        },
    ),
    st.booleans(),
)
def test_what_is_written_is_what_is_read(values: dict[str, Any], underscores: bool) -> None:
    arguments = []
    for name, value in values.items():
        flag = "--" + (name if underscores else name.replace("_", "-"))
        if isinstance(value, bool):
            arguments.append(flag if value else "--no-" + name)
        else:
            many = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
            arguments += [f"{flag}={one}" for one in many]
    assert parse(arguments) == values
