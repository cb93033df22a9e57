"""Tokenizers whose library panics: the request fails with a typed error, and nobody else's does."""

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from parlay import LLM, AsyncLLM, ModelError, ParlayError, RequestError, SamplingParams
from parlay.checkpoints.find import find_model
from parlay.rust_panics import Contained
from parlay.text.detokenizer import IncrementalDecoder
from parlay.text.tokenizer import TextCodec

PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
FRAME = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[X]", "type_id": 0}}]
ENCODING: list[dict[str, Any]] = [
    {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    {"post_processor": {"type": "TemplateProcessing", "single": FRAME, "pair": FRAME, "special_tokens": {}}},
]


class PanicException(BaseException):
    """As pyo3 raises it."""


def with_tokenizer(path: Path, **changes: Any) -> Path:
    write_llama(path, vocab_size=4096)
    spec = json.loads((find_model("tiny-code") / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(spec | changes))
    return path


@pytest.mark.parametrize("changes", ENCODING, ids=["pre-tokenizer", "template"])
def test_a_panic_while_encoding(tmp_path: Path, changes: dict[str, Any]) -> None:
    llm = LLM(str(with_tokenizer(tmp_path, **changes)))
    asks = [lambda: llm.generate("def f(x):", PARAMS)]
    if "pre_tokenizer" in changes:  # which words are for, too
        asks.append(lambda: llm.generate([5, 6], SamplingParams(bad_words=["no"])))
        asks.append(lambda: llm.generate([5, 6], SamplingParams(prediction="no")))
    for ask in asks:
        with pytest.raises(RequestError, match="the tokenizer cannot encode this text: its library panics"):
            ask()
    assert len(llm.generate([5, 6], PARAMS)[0].outputs[0].token_ids) == 12


def test_an_asynchronous_engine_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        engine = AsyncLLM(str(with_tokenizer(tmp_path, **ENCODING[0])))
        try:
            going = engine.generate([5, 6], PARAMS)
            with pytest.raises(RequestError, match="its library panics"):
                async for _ in engine.generate("def f(x):", PARAMS):
                    pass
            async for output in going:
                last = output
            assert len(last.outputs[0].token_ids) == 12
        finally:
            await engine.close()

    asyncio.run(main())


def test_a_panic_while_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step goes on for everybody else."""
    llm = LLM("tiny-code")
    alone = llm.generate([5, 6, 7], PARAMS)[0]
    step = IncrementalDecoder.add

    def add(self: IncrementalDecoder, token: int) -> str:
        with Contained("the tokenizer cannot decode these tokens"):
            if self is broken:
                raise PanicException("index out of bounds")
            return step(self, token)
        raise AssertionError

    monkeypatch.setattr(IncrementalDecoder, "add", add)
    requests = [llm.engine.add(prompt, PARAMS)[0] for prompt in ([5, 6, 7], [8, 9])]
    broken = requests[1].detokenizer._decoder
    while llm.engine.busy:
        llm.engine.step()
    assert isinstance(requests[1].error, RequestError)
    assert "index out of bounds" in str(requests[1].error)
    assert requests[0].error is None
    assert tuple(requests[0].tokens[3:]) == alone.outputs[0].token_ids


def test_a_panic_while_a_tokenizer_is_read(tmp_path: Path) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        LLM(str(with_tokenizer(tmp_path, normalizer=normalizer)))


CHARSMAP = (4).to_bytes(4, "little") + bytes(4) + b"x" * 3000 + bytes(1)


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [replace("aa", String="a")] * 40}},
            "its normalizer may make a text more than 1000 times as long",
        ),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [replace("xy", Regex="")] * 7}},
            "its normalizer may make a text more than 1000 times as long",
        ),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": b64encode(CHARSMAP).decode()}},
            "its normalizer may make a text more than 1000 times as long",
        ),
        ({"normalizer": replace("a" * 2000, String="a")}, "its normalizer may make a text more than 1000 times"),
        (
            {"decoder": {"type": "Sequence", "decoders": [replace("aa", String="a")] * 40}},
            "its decoder may make a text more than 1000 times as long",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 101}},
            "its pre_tokenizer has 101 parts and may have 100",
        ),
    ],
    ids=["doubling", "everywhere", "precompiled", "long", "decoding", "parts"],
)
def test_a_tokenizer_that_would_fill_the_memory(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """Four letters became 2^42, and the process died: of the server's front, or of the engine that decodes."""
    with pytest.raises(ModelError, match=words):
        TextCodec(with_tokenizer(tmp_path, **changes))


def test_tokenizers_that_make_texts_a_little_longer(tmp_path: Path) -> None:
    wide = [{"type": "Prepend", "prepend": "_"}, replace("\u2581", String=" "), replace("\u2581", Regex=" {2,}")]
    nested = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": wide}, {"type": "NFKD"}]}
    codec = TextCodec(with_tokenizer(tmp_path, normalizer=nested))
    assert codec.encode("a b")


def test_prompts_are_never_cut_or_filled_up(tmp_path: Path) -> None:
    """A tokenizer's own `truncation` and `padding` are about training; a stride beyond its length panics besides."""
    whole = TextCodec(find_model("tiny-code")).encode("def area(width, height):")
    asked = {
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 9},
        "padding": {
            "strategy": {"Fixed": 64},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "!",
        },
    }
    assert TextCodec(with_tokenizer(tmp_path, **asked)).encode("def area(width, height):") == whole


def test_what_is_no_panic_passes() -> None:
    for error in (KeyboardInterrupt(), ValueError("x"), SystemExit(3)):
        with pytest.raises(type(error)), Contained("nothing"):
            raise error
    with pytest.raises(ParlayError, match=r"^a library: boom$"), Contained("a library"):
        raise PanicException("boom")
