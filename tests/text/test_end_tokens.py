"""What ends an answer: the model's configs and the tokenizer's, as in vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import read_config, write_llama

from parlay import LLM, SamplingParams
from parlay.engine.resolve import end_tokens
from parlay.text.tokenizer import TextCodec

IM_END = 259


def write(path: Path, config: dict[str, Any], **files: Any) -> Path:
    """Write a model whose token 259 is <|im_end|>."""
    model = write_llama(path, vocab_size=260, num_hidden_layers=1, hidden_size=32, head_dim=8, **config)
    tokenizer = (model / "tokenizer.json").read_text().replace(f"<{IM_END}>", "<|im_end|>")
    (model / "tokenizer.json").write_text(tokenizer)
    for name, content in files.items():
        (model / f"{name}.json").write_text(json.dumps(content))
    return model


NAMED = {"content": "<|im_end|>", "special": True}


@pytest.mark.parametrize(
    ("config", "files", "ends"),
    [
        ({"eos_token_id": 2}, {"tokenizer_config": {"eos_token": "<|im_end|>"}}, {2, IM_END}),
        ({"eos_token_id": 2}, {"tokenizer_config": {"eos_token": NAMED}}, {2, IM_END}),
        ({"eos_token_id": None}, {"tokenizer_config": {"eos_token": "<|im_end|>"}}, {IM_END}),
        ({"eos_token_id": 2}, {"special_tokens_map": {"eos_token": "<|im_end|>"}}, {2, IM_END}),
        ({"eos_token_id": 2}, {"generation_config": {"eos_token_id": None}}, {2}),
        ({"eos_token_id": 2}, {"generation_config": {}}, {2}),
        ({"eos_token_id": 2}, {"generation_config": {"eos_token_id": [3, 4]}}, {3, 4}),
        ({"eos_token_id": 2}, {"tokenizer_config": {"eos_token": "<|nowhere|>"}}, {2}),
        ({"eos_token_id": 2}, {"tokenizer_config": {"eos_token": None}}, {2}),
    ],
    ids=str,
)
def test_what_ends_an_answer(tmp_path: Path, config: dict[str, Any], files: dict[str, Any], ends: set[int]) -> None:
    model = write(tmp_path / "m", config, **files)
    assert end_tokens(read_config(model), TextCodec(model)) == ends


def test_a_fine_tune_stops(tmp_path: Path) -> None:
    model = write(tmp_path / "m", {"eos_token_id": 2}, tokenizer_config={"eos_token": "<|im_end|>"})
    only = SamplingParams(temperature=0, max_tokens=5, allowed_token_ids=[IM_END])
    llm = LLM(model, speculative_config=None)
    one = llm.generate({"prompt_token_ids": [5, 6]}, only)[0].outputs[0]
    assert (one.token_ids, one.text, one.finish_reason) == ((IM_END,), "", "stop")


def test_a_tokenizer_of_more_tokens_ends_nothing_beyond_the_model(tmp_path: Path) -> None:
    model = write(tmp_path / "m", {"eos_token_id": 2}, tokenizer_config={"eos_token": "<|im_end|>"})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": IM_END}))
    assert end_tokens(read_config(model), TextCodec(model)) == {2}
