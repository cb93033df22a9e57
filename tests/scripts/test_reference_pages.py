"""The generated pages of the documentation name everything that they are about."""

import json
import re
from dataclasses import fields

import pytest
import reference

from parlay.cli.main import make_parser


def test_every_command_and_flag() -> None:
    page = reference.command_line()
    parsers = [parser for parser, _ in reference.commands(make_parser())]
    assert re.findall(r"^#+ `(.*)`$", page, re.MULTILINE) == [parser.prog for parser in parsers]
    for flag in ("--names", "--seconds", "--once", "--draft-vocab-size"):
        assert re.search(rf"^\| `{flag}\b", page, re.MULTILINE), flag


@pytest.mark.parametrize("cls", [cls for _, cls in reference.CONFIGS], ids=lambda cls: cls.__name__)
def test_every_option_is_explained(cls: type) -> None:
    table = reference.options()
    for field in fields(cls):
        if field.name not in reference.INNER:
            assert re.search(rf"^\| `{field.name}` \| .* \| \S.* \|$", table, re.MULTILINE), field.name


def test_every_endpoint() -> None:
    pages = reference.http()
    paths = json.loads(pages["openapi.json"])["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/health"} <= set(paths)
    assert all(path in pages["endpoints.html"] for path in paths)


def test_tables_hold_their_cells() -> None:
    for line in (reference.command_line() + reference.options()).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 4)
            assert not re.search(r"<\w", line)
