"""The comparison with transformers finds reasons for differences, and what has none."""

import json
from pathlib import Path
from typing import Any

import compare_templates
import pytest
from compare_templates import CASES, EQUAL, UNEXPLAINED, compare, main
from text.chat_templates import CHATML, GEMMA2, GLM, GUARD, LLAMA31, NAMED, NEMO, PHI35, QWEN, QWEN35

from parlay.text import chat
from parlay.text.messages import Message


@pytest.mark.parametrize(
    ("template", "case", "reason"),
    [
        (QWEN, "several turns", EQUAL),
        (QWEN, "a call", EQUAL),
        (GLM, "a call", "arguments as an object"),
        (QWEN, "a beginning with a line end", EQUAL),
        (QWEN35, "developer", "developer as system"),
        (QWEN35, "system and developer", "developer as system, one system message"),
        (GEMMA2, "system", "system in the first user turn"),
        (PHI35, "history without tools", "history in text"),
        (PHI35, "tools", "tools in the system message"),
        (LLAMA31, "no calls", "null keys and empty calls left out"),
        (LLAMA31, "text beside a call", "arguments as an object, text beside a call in its own message"),
        (NEMO, "a call", "arguments as an object, short ids"),
        (NEMO, "text beside a call", "the template shows not all"),
        (NAMED, "a call and its answer", "history in text, tools in the system message"),
        (NAMED, "history without tools", "arguments as an object, names at results"),
        (GUARD, "one question", "content as parts"),
        (CHATML, "parts", "parts as one text"),
        ("{{ raise_exception('no') }}", "system", "the template refuses"),
        ("{{ messages[0].content }}{% for m in messages %}{{ m.content }}{% endfor %}", "one question", EQUAL),
    ],
)
def test_reasons(template: str, case: str, reason: str) -> None:
    assert compare(template, CASES[case])[0] == reason


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jinja").write_text(QWEN)
    (tmp_path / "hermes").mkdir()
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": QWEN}]
    (tmp_path / "hermes" / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (tmp_path / "broken.gguf").write_bytes(b"no")
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert f"3 templates, {len(CASES)} conversations" in said.out
    assert "hermes [default]: developer: developer as system" in said.out
    assert "hermes [tool_use]: empty arguments: arguments as an object" in said.out
    assert "broken.gguf: left out" in said.err


def test_what_has_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jinja").write_text(QWEN)
    real = chat.adapted

    def loses_the_first(*given: Any) -> tuple[list[Message], Any]:
        messages, tools = real(*given)
        return messages[1:] or messages, tools

    monkeypatch.setattr(chat, "adapted", loses_the_first)
    assert main([str(tmp_path), "-v"]) == 1
    assert f"a.jinja: several turns: {UNEXPLAINED}\n--- parlay" in capsys.readouterr().out
    monkeypatch.setattr(compare_templates, "adapted", loses_the_first)
    assert main([str(tmp_path)]) == 1, "a change of the messages is no reason for loss"
