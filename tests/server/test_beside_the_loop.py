"""What takes long is done in threads, so that other requests' events go on."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama
from serving import Live, engine_of

from parlay.server.openai.completions import CompletionShape
from parlay.text.tokenizer import TextCodec


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    model = write_llama(tmp_path, seed=2, scale=7.0)
    with engine_of(model, served_model_name="small") as engine, Live(engine) as server:
        yield server


def watch(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    """Return where to find the threads that a method was called in."""
    threads: list[int] = []
    method = getattr(owner, name)

    def watched(*arguments: Any, **more: Any) -> Any:
        threads.append(threading.get_ident())
        return method(*arguments, **more)

    monkeypatch.setattr(owner, name, watched)
    return threads


def test_many_short_prompts(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = watch(monkeypatch, TextCodec, "encode")
    answer = live.post("/v1/completions", {"prompt": ["a few words " * 10] * 50, "max_tokens": 1})
    assert answer.status_code == 200
    assert len(threads) == 50
    assert live._thread.ident not in threads


def test_a_long_answer(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who guessed each piece is found by decoding token by token."""
    threads = watch(monkeypatch, CompletionShape, "whole")
    asked = {"prompt": [[1, 2, 3]] * 50, "max_tokens": 100, "ignore_eos": True, "return_sources": True}
    assert live.post("/v1/completions", asked).status_code == 200
    assert len(threads) == 1
    assert live._thread.ident not in threads


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/tokenize", {"prompt": "word " * 20_000}, "encode"),
        ("/detokenize", {"tokens": [65] * 100_000}, "decode"),
    ],
)
def test_much_text_alone(live: Live, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, name: str) -> None:
    threads = watch(monkeypatch, TextCodec, name)
    assert live.post(path, body).status_code == 200
    assert len(threads) == 1
    assert live._thread.ident not in threads
