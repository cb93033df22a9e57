"""The generated part of the documentation: `scripts/site.py` puts it into the pages of `docs/reference/`.

`command_line` and `options` return Markdown, `http` the page and the OpenAPI document of a server. All of it comes
from where the code declares it: argparse, the configs' docstrings, the application.
"""

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from types import SimpleNamespace
from typing import Any

import httpx

from parlay import SamplingParams, SpeculationOverride, StructuredOutputsParams
from parlay.cli.flags import Parser
from parlay.cli.main import make_parser
from parlay.config import EngineConfig, ServerConfig, SpeculativeConfig
from parlay.config.docs import attribute_docs
from parlay.config.speculative import TreeShape
from parlay.proposers.select import proposers
from parlay.server.app import create_app

CONFIGS = (
    ("Engine: `LLM(...)`, `AsyncLLM(...)` and flags", EngineConfig),
    ("Server: flags of `parlay serve`", ServerConfig),
    ("Sampling: `SamplingParams(...)`, flags and fields of requests", SamplingParams),
    ("Structured outputs: `structured_outputs` of a request", StructuredOutputsParams),
    ("Speculation: `speculative_config`", SpeculativeConfig),
    ("Trees: `tree` in `speculative_config`", TreeShape),
    ("Speculation of one request: `speculative`", SpeculationOverride),
)
# Groups of flags that several commands have; the page of options has them once.
_SHARED = {"engine config": "the engine", "server config": "the server", "sampling params": "sampling"}
# Keys of `SpeculativeConfig` that users write as the methods' own keys and as a list.
INNER = ("options", "several")


def command_line() -> str:
    """Return a section for each command, and one for each kind of `bench` and method of `train`."""
    return "\n\n".join(_command(parser, depth) for parser, depth in commands(make_parser()))


def commands(parser: Parser, depth: int = 2) -> Iterator[tuple[Parser, int]]:
    """Yield a parser and all below it, with their depth."""
    yield parser, depth
    for below in parser.commands.values():
        yield from commands(below, depth + 1)


def options() -> str:
    """Return a table for each config, and one for each method's own keys in `speculative_config`."""
    sections = [_table(title, cls) for title, cls in CONFIGS]
    for name in proposers.names():
        own = proposers.load(name).Options
        if fields(own):
            sections.append(_table(f"Method `{name}`: further keys of `speculative_config`", own))
    return "\n\n".join(sections)


def http() -> dict[str, str]:
    """Return what a server answers at `/docs` and `/openapi.json`, by the names of the site's files."""

    async def ask() -> dict[str, str]:
        app = create_app(SimpleNamespace(model_name="MODEL"), log=lambda _: None)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = {
                name: await client.get(path)
                for name, path in (("endpoints.html", "/docs"), ("openapi.json", "/openapi.json"))
            }
        return {name: answer.raise_for_status().text for name, answer in answers.items()}

    return asyncio.run(ask())


def _command(parser: Parser, depth: int) -> str:
    parser.complete()
    rows, shared = [], []
    for group in parser._action_groups:
        own = [action for action in group._group_actions if not _silent(action)]
        if own and group.title in _SHARED:
            shared.append(_SHARED[group.title])
        else:
            rows += [(_names(action), _text(action)) for action in own]
    also = f"Further flags are [options](options.md) of {', '.join(shared)}, with dashes." if shared else ""
    parts = [f"{'#' * depth} `{parser.prog}`", parser.description or "", _rows(("flag", "meaning"), rows), also]
    return "\n\n".join(filter(None, parts))


def _silent(action: argparse.Action) -> bool:
    return action.help is argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction | argparse._HelpAction)


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(map(str, action.choices or ())) or 'VALUE'}"
    return f"`{', '.join(action.option_strings)}{value if isinstance(value, str) else ''}`"


def _text(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "parlay"}


def _table(title: str, cls: type) -> str:
    known = attribute_docs(cls)
    rows = [
        (f"`{field.name}`", _default(field), known.get(field.name, ""))
        for field in fields(cls)
        if not (cls is SpeculativeConfig and field.name in INNER)
    ]
    return f"## {title}\n\n" + _rows(("name", "default", "meaning"), rows)


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "" if field.default_factory is MISSING else f"`{field.default_factory()!r}`"
    return f"`{field.default!r}`"


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Escape what ends a cell or begins a tag."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
