"""A target that writes the prompts it is to answer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training import options, write_target

from parlay import LLM, SamplingParams
from parlay.errors import ConfigError
from parlay.text.tokenizer import TextCodec
from parlay.train.options import TrainOptions
from parlay.train.prompts import header_of, write_prompts
from parlay.train.run import TrainProgress, train

FEW = {"generate": 40, "response_tokens": 20, "epochs": 1}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("asks") / "target")


def chosen(target: Path, output: Path, **more: Any) -> TrainOptions:
    return replace(options(target, target, output, **{**FEW, **more}), data=None)


def test_prompts_are_what_the_target_says_after_the_header(target: Path, tmp_path: Path) -> None:
    codec = TextCodec(target)
    assert header_of(codec) == "user: "
    file = tmp_path / "prompts.jsonl"
    texts = write_prompts(file, chosen(target, tmp_path), "weights", codec)
    entries = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert len(texts) == len(entries) == len({entry["prompt"] for entry in entries}) == 40
    llm = LLM(str(target), speculative_config=None)
    begin = codec.encode("user: ", add_special_tokens=False)
    for text, entry in list(zip(texts, entries, strict=True))[::13]:
        said = llm.generate(
            begin, SamplingParams(temperature=1.0, max_tokens=128, seed=(1 << 32) + entry["try"]), use_tqdm=False
        )[0].outputs[0]
        assert (said.text.strip(), said.finish_reason) == (entry["prompt"], "stop")
        shown = codec.encode(f"user: {entry['prompt']}\nassistant:", add_special_tokens=False)
        assert text.tokens.tolist() == shown[-96:]
        assert not text.loss_mask.any()


def test_a_stopped_run_goes_on(target: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    codec = TextCodec(target)
    write_prompts(whole, chosen(target, tmp_path), "weights", codec)
    write_prompts(parts, chosen(target, tmp_path, generate=7), "weights", codec)
    parts.write_text(parts.read_text() + '{"prompt": "A')  # as a kill within a line leaves it
    seen: list[int] = []
    write_prompts(parts, chosen(target, tmp_path), "weights", codec, seen.append)
    assert seen[0] == 7
    assert parts.read_text() == whole.read_text()
    with pytest.raises(ConfigError, match=r"prompts written with other options or data"):
        write_prompts(parts, chosen(target, tmp_path), "other weights", codec)


def test_a_head_of_a_target_that_asks_itself(target: Path, tmp_path: Path) -> None:
    seen: list[TrainProgress] = []
    train("medusa", chosen(target, tmp_path / "head"), watch=seen.append)
    doing = list(dict.fromkeys(progress.doing for progress in seen))
    assert doing == ["prompts", "responses", "training"]
    card = (tmp_path / "head" / "README.md").read_text()
    assert "responses that the target wrote to its own prompts" in card
    assert "--data" not in card


def test_what_cannot_ask_itself_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give data, or have the target `generate`"):
        chosen(target, tmp_path / "head", generate=0)
    silent = write_target(tmp_path / "silent")
    (silent / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no chat template"):
        train("medusa", chosen(silent, tmp_path / "head"))
    assert not (tmp_path / "head").exists()
    (silent / "tokenizer_config.json").write_text(json.dumps({"chat_template": "hello"}))
    with pytest.raises(ConfigError, match="does not show what the user says"):
        train("medusa", chosen(silent, tmp_path / "head"))
