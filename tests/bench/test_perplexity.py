"""Perplexity of a text, against the sum over its log-probabilities."""

import json
from math import exp
from pathlib import Path

import pytest

from parlay import LLM, ConfigError, SamplingParams
from parlay.bench.perplexity import PerplexityOptions, measure
from parlay.cli.main import main

TEXT = "".join(f"def value_{i}(x, y):\n    return x * {i} + y\n\n\n" for i in range(30))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


def test_the_second_half_of_each_window_counts(text: Path) -> None:
    options = PerplexityOptions(model="tiny-code", text=text, storages=("int8", "stored"), context=32, windows=3)
    eight, stored = measure(options, lambda label: None)
    llm = LLM("tiny-code", speculative_config=None)
    tokens = llm.engine.codec.encode(TEXT)
    losses = []
    for start in (0, 32, 64):
        window = list(tokens[start : start + 32])
        (output,) = llm.generate([window], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
        assert output.prompt_logprobs is not None
        counted = zip(window[16:], output.prompt_logprobs[16:], strict=True)
        losses += [-(of or {})[token].logprob for token, of in counted]
    assert stored["perplexity"] == pytest.approx(exp(sum(losses) / 48), rel=1e-12)
    assert (stored["tokens"], stored["same_top"]) == (48, 1.0)
    assert eight["perplexity"] == pytest.approx(stored["perplexity"], rel=0.05)
    assert 0.8 < eight["same_top"] <= 1
    assert eight["weights_mb"] < 0.6 * stored["weights_mb"]


def test_the_command(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", "perplexity", "--text", str(text), "--context", "32", "--windows", "2"])
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert code == 0
    assert [row["storage"] for row in rows] == ["stored", "plain"]
    assert rows[0]["perplexity"] == rows[1]["perplexity"]  # nothing of tiny-code is quantised


def test_caches(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--storages", "stored", "int8", "--kv-cache-dtypes", "int8", "auto", "--context", "32", "--windows", "2"]
    assert main(["bench", "perplexity", "--text", str(text), *flags]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    kinds = [(row["storage"], row["kv_cache_dtype"]) for row in rows]
    assert kinds == [("stored", "int8"), ("stored", "auto"), ("int8", "int8"), ("int8", "auto")]
    assert len({row["perplexity"] for row in rows}) == 4
    assert max(row["perplexity"] for row in rows) < 1.05 * min(row["perplexity"] for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": 8}, "at least 16 tokens"),
        ({"context": 5000}, "leave no room within the model's"),
        ({"context": 1000}, "too few for two windows"),
        ({"storages": ("plain", "plain")}, "each storage once"),
        ({"kv_cache_dtypes": ()}, "each dtype of the KV cache once"),
        ({"text": Path("missing.txt")}, "missing.txt cannot be read as text"),
    ],
)
def test_what_cannot_be_measured(text: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measure(PerplexityOptions(**{"model": "tiny-code", "text": text, **change}), lambda label: None)  # type: ignore[arg-type]
