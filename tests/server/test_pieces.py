"""Conversations of very many pieces: refused before their template runs, or run where they delay only their like."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from parlay.errors import ContextLengthError
from parlay.server.openai.prompts import check_pieces
from parlay.text.chat import pieces
from parlay.text.tokenizer import TextCodec

HELLO = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("messages", "tools", "count"),
    [
        ([], None, 0),
        ([HELLO] * 3, None, 3),
        ([HELLO] * 3, [TOOL] * 4, 7),
        # OpenAI's parts of a message, and calls of tools.
        ([{"role": "user", "content": [{"type": "text", "text": ""}] * 5}], None, 6),
        ([{"role": "assistant", "content": None, "tool_calls": [CALL] * 6}, HELLO], [], 8),
        ([{"role": "user"}, {"role": "tool", "content": None, "tool_calls": None}], None, 2),
        (["no message", 5], None, 2),  # which the template's reader refuses
    ],
)
def test_pieces(messages: list[Any], tools: list[Any] | None, count: int) -> None:
    assert pieces(messages, tools) == count


def test_more_pieces_than_tokens_are_refused() -> None:
    check_pieces(2048, 2048)
    with pytest.raises(ContextLengthError, match="maximum context length is 2048 tokens"):
        check_pieces(95_000, 2048)


def test_many_pieces_run_elsewhere(tmp_path: Path) -> None:
    """While one process renders a thousand messages, another renders one; a request's template has a third."""
    model = write_llama(tmp_path / "model")
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    codec = TextCodec(model)
    try:
        for messages, lane in (([HELLO], "own"), ([HELLO] * 1000, "many")):
            assert codec.lane(None, len(messages)) == lane
            before = len(codec._runners[lane]._started)
            assert codec.chat(messages) == "hi" * len(messages)
            assert len(codec._runners[lane]._started) == before + 1
        assert [len(codec._runners[lane]._started) for lane in ("own", "many", "given")] == [1, 1, 0]
        assert codec.lane("{{ 1 }}", 5) == codec.lane("{{ 1 }}", 5000) == "given"
        assert codec.lane(codec.template, 5) == "own"
        assert asyncio.run(codec.run_template(None, lambda: codec.chat([HELLO] * 300), 300)) == "hi" * 300
    finally:
        codec.close()
    assert all(not runner._started for runner in codec._runners.values())
