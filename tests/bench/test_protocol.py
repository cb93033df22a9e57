"""The evaluation protocol's data and arithmetic; the benchmarks themselves on a handful of prefixes."""

import json
from pathlib import Path

import pytest

from parlay.bench.protocol import load_prefixes, params_for, repeated_share
from parlay.checkpoints.find import ASSETS, find_model
from parlay.cli.main import main
from parlay.proposers.select import embedded_configs
from parlay.text.tokenizer import TextCodec


def test_prefixes_are_frozen() -> None:
    prefixes = load_prefixes()
    assert len(prefixes) == 512
    assert {len(p.tokens) for p in prefixes} == {128}
    assert len({p.tokens for p in prefixes}) == 512
    codec = TextCodec(find_model("tiny-code"))
    with (ASSETS / "evaluation" / "prefixes.jsonl").open() as file:
        for line, prefix in zip(file, prefixes, strict=True):
            assert codec.encode(json.loads(line)["text"]) == list(prefix.tokens)


def test_protocol_parameters() -> None:
    params = params_for(load_prefixes(1)[0], 0.8)
    assert (params.temperature, params.max_tokens, params.seed, params.ignore_eos) == (0.8, 32, 0, True)


def test_repeated_share() -> None:
    assert repeated_share([range(32)]) == 0
    assert repeated_share([[1] * 16]) == 8 / 9
    assert repeated_share([]) == 0


@pytest.mark.parametrize(
    "kind",
    [
        ["methods", "--batch-sizes", "2", "--temperatures", "0", "--turns", "1", "--lengths", "fixed"],
        ["transformers", "--batch-sizes", "2", "--prompt-length", "40"],
    ],
)
def test_benchmarks_end_with_json(kind: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *kind, "--prefixes", "2"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["rows"]
    assert {"command", "commit", "torch", "cpu"} <= set(result["provenance"])
    if kind[0] == "transformers":
        assert [(row["prompt"], row["new"]) for row in result["rows"]] == [(128, 32), (40, 1)]
    if kind[0] == "methods":
        assert all(row["same_tokens"] for row in result["rows"])
        assert {row["method"] for row in result["rows"]} >= {"plain", "ngram", "draft_model"}


def test_a_prompt_beyond_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "transformers", "--prompt-length", "2048"]) == 2
    assert "shorten it" in capsys.readouterr().err


def test_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sampling", "--vocab-size", "1000", "--rounds", "2"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert {"greedy", "top-p 0.9"} <= {row["way"] for row in rows}
    assert all(row["ms"] > 0 for row in rows)


def test_startup(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--repeats", "1"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][0]
    assert row["seconds_to_first_token"] > 0


def test_memory_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--server"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][0]
    assert 100 << 20 < row["idle"] < row["after_a_request"] + (50 << 20)


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--max-tokens", "8"]) == 0
    out = capsys.readouterr().out
    assert "same tokens" in out
    assert out.count("yes") == len(embedded_configs()) + 1  # and auto


def test_transformers_on_prompts_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "def first(a, b):"}\n{"prompt": "class Second:\\n    pass\\n\\nsecond ="}\n')
    arguments = ["bench", "transformers", "--dataset", str(file), "--batch-sizes"]
    assert main([*arguments, "2"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert (row["batch"], row["prompt"]) == (2, 6)
    assert main([*arguments, "4"]) == 2
    assert "own.jsonl has 2 prompts, too few for a batch of 4" in capsys.readouterr().err
