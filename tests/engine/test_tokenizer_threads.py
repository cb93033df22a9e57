"""Long texts: the same tokens as by the library's plain calls, without keeping other threads waiting."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from checkpoints import write_llama

from parlay.text.tokenizer import TextCodec

TEXT = "def f(x): return x if x < 2 else f(x - 1)\n\N{SNOWMAN}" * 40


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec(write_llama(tmp_path_factory.mktemp("tokens") / "target"))


def turns_meanwhile(work: Callable[[], Any]) -> int:
    """Return how often another thread gets its turn while `work` is done."""
    count, over = 0, threading.Event()

    def take_turns() -> None:
        nonlocal count
        while not over.is_set():
            time.sleep(0.001)
            count += 1

    thread = threading.Thread(target=take_turns)
    thread.start()
    before = count
    work()
    took = count - before
    over.set()
    thread.join()
    return took


@pytest.mark.parametrize("size", [10, 1023, 1024, len(TEXT)])
@pytest.mark.parametrize("special", [False, True])
def test_they_are_the_same(codec: TextCodec, size: int, special: bool) -> None:
    tokens = codec.encode(TEXT[:size], add_special_tokens=special)
    assert tokens == codec.tokenizer.encode(TEXT[:size], add_special_tokens=special).ids
    assert codec.decode(tokens, skip_special_tokens=special) == codec.tokenizer.decode(
        tokens, skip_special_tokens=special
    )


def test_others_go_on(codec: TextCodec) -> None:
    text = TEXT * 300
    assert turns_meanwhile(lambda: codec.tokenizer.encode(text)) < 10  # or the library no longer needs our care
    assert turns_meanwhile(lambda: codec.encode(text)) > 30
