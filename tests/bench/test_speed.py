"""`parlay bench latency` and `throughput`: their workload, their rows, their last line, their plot."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from parlay import ConfigError
from parlay.bench import speed
from parlay.bench.options import LatencyOptions, ThroughputOptions
from parlay.bench.plots import check_target
from parlay.bench.speed import measure, panels, workload
from parlay.checkpoints.find import ASSETS
from parlay.cli.main import main
from parlay.config import SpeculativeConfig
from parlay.text.tokenizer import TextCodec

NGRAM = SpeculativeConfig(method="ngram", lengths="fixed", options={"prompt_lookup_min": 1, "prompt_lookup_max": 2})
SMALL = {"input_len": 12, "output_len": 6, "num_iters": 3, "num_iters_warmup": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("speed") / "target", scale=2.0)


def quiet(label: str) -> None:
    """Say nothing."""


def test_the_seed_decides_the_workload() -> None:
    codec = TextCodec(ASSETS / "tiny-code")
    options = ThroughputOptions(num_prompts=40, input_len=20, range_ratio=0.5, num_iters=2, num_iters_warmup=1)
    work = workload(codec, options, 2048)
    assert work == workload(codec, options, 2048)
    assert work != workload(codec, replace(options, seed=1), 2048)
    assert [len(prompts) for prompts, _ in work] == [40] * 3
    lengths = {len(prompt) for prompts, _ in work for prompt in prompts}
    assert min(lengths) >= 10
    assert max(lengths) <= 30
    assert len(lengths) > 10
    assert len({params.seed for _, many in work for params in many}) == 120
    assert len({tuple(prompt) for prompts, _ in work for prompt in prompts}) == 120
    assert all(p.max_tokens == 64 and p.ignore_eos for _, many in work for p in many)


def test_prompts_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codec, file = TextCodec(ASSETS / "tiny-code"), tmp_path / "own.jsonl"
    texts = ["def f(x):", "class A:", "import os"]
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    options = ThroughputOptions(num_prompts=7, output_len=4, num_iters=2, num_iters_warmup=0, dataset=str(file))
    work = workload(codec, options, 64)
    assert work == workload(codec, options, 64)
    found = [codec.decode(prompt) for prompts, _ in work for prompt in prompts]
    assert len(found) == 14
    assert set(found[:3]) == set(found[3:6]) == set(texts)  # all of them before any comes again
    with pytest.raises(ConfigError, match=r"own\.jsonl, line 1: the prompt has"):
        workload(codec, options, 5)
    flags = ["--num-prompts", "3", "--output-len", "4", "--num-iters", "1", "--num-iters-warmup", "0"]
    assert main(["bench", "throughput", "--dataset", str(file), *flags]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["workload"]["dataset"] == str(file)
    assert main(["bench", "latency", "--dataset", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_latency_of_all_lengths_alike() -> None:
    work = workload(TextCodec(ASSETS / "tiny-code"), LatencyOptions(batch_size=3, input_len=7), 2048)
    assert {len(prompt) for prompts, _ in work for prompt in prompts} == {7}


@pytest.mark.parametrize(
    "options", [LatencyOptions(batch_size=2, **SMALL), ThroughputOptions(num_prompts=5, temperature=0.8, **SMALL)]
)
def test_rows(model: Path, options: Any) -> None:
    plain, ngram = rows = measure({"model": str(model), "max_num_seqs": 4}, NGRAM, options, quiet)
    assert [row["method"] for row in rows] == ["plain", "ngram"]
    assert plain["speed_up"] == plain["acceptance_length"] == 1.0
    assert ngram["acceptance_length"] > 1.0
    assert plain["same_tokens"] is ngram["same_tokens"] is True
    assert len(plain["seconds"]) == len(ngram["seconds"]) == 3
    assert plain["numerics"] == ngram["numerics"]
    if isinstance(options, ThroughputOptions):
        assert plain["tokens_per_s"] == pytest.approx(6 * plain["requests_per_s"])
    else:
        assert plain["p90_s"] >= plain["median_s"] > 1e-3 * plain["first_token_ms"] > 0
        assert plain["ms_per_token"] > 0
    shown = panels(rows, options)
    assert all(set(methods) == {"plain", "ngram"} for methods in shown.values())


def test_another_token_is_noticed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = speed.LLM.generate, iter(range(100))

    def wrong(self: Any, prompts: Any, params: Any, **more: Any) -> Any:
        return real(self, prompts if next(calls) % 2 else [[1, 2, 3] for _ in prompts], params, **more)

    monkeypatch.setattr(speed.LLM, "generate", wrong)
    _, ngram = measure({"model": str(model)}, NGRAM, LatencyOptions(**SMALL), quiet)
    assert not ngram["same_tokens"]


def test_one_token_has_no_time_after_the_first(model: Path) -> None:
    options = LatencyOptions(**{**SMALL, "output_len": 1, "num_iters": 1})
    rows = measure({"model": str(model)}, None, options, quiet)
    assert rows[0]["ms_per_token"] is None
    assert "ms a token after it" not in panels(rows, options)


@pytest.mark.parametrize(
    ("cls", "options", "match"),
    [
        (LatencyOptions, {"batch_size": 0}, "batch_size must be at least 1, not 0"),
        (LatencyOptions, {"num_iters_warmup": -1}, "at least 0, not -1"),
        (ThroughputOptions, {"num_prompts": 0}, "num_prompts must be at least 1"),
        (ThroughputOptions, {"range_ratio": 1.0}, "below 1, not 1.0"),
        (ThroughputOptions, {"range_ratio": float("nan")}, "not nan"),
    ],
    ids=str,
)
def test_bad_options(cls: type, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        cls(**options)


def test_more_than_the_context_holds(model: Path) -> None:
    with pytest.raises(ConfigError, match="of 513 tokens exceed the context of 512"):
        measure({"model": str(model)}, None, LatencyOptions(input_len=500, output_len=13), quiet)


@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_the_command(kind: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.png"
    arguments = ["bench", kind, "--model", str(model), "--input_len", "9", "--output-len", "4", "--num-iters", "2"]
    arguments += ["--num-iters-warmup", "0", "--speculative_config", '{"method": "ngram"}', "--plot", str(plot)]
    arguments += ["--batch-size", "2"] if kind == "latency" else ["--num-prompts", "3"]
    assert main(arguments) == 0
    *table, last = capsys.readouterr().out.strip().splitlines()
    assert any("ngram" in line for line in table)
    found = json.loads(last)
    assert [row["method"] for row in found["rows"]] == ["plain", "ngram"]
    assert found["workload"]["input_len"] == 9
    assert len(found["provenance"]["numerics"]) == 1
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num-prompts", "0"], "num_prompts must be at least 1"),
        (["--plot", "result.pdf"], "a plot must be a .png file"),
        (["--plot", "/no/such/folder/x.png"], "in an existing directory"),
        (["--block-size", "0"], "block_size must be at least 1"),
        (["--speculative-config", "{"], "not valid JSON"),
    ],
    ids=str,
)
def test_mistakes_come_before_measuring(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "throughput", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlay.bench.plots.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'parlay\[plot\]'"):
        check_target(tmp_path / "x.png")
