"""`parlay verify`: what it says, and when it fails."""

import json
from pathlib import Path

import pytest
from checkpoints import write_llama
from kernels.breaking import OtherOrder

import parlay.engine.engine
import parlay.engine.numerics
from parlay import LLM
from parlay.bench import sameness
from parlay.cli.main import main
from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.proposers.select import embedded_configs
from parlay.types.output import CompletionOutput, Logprob


def test_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--max-tokens", "8", "--json"]) == 0
    text, _, line = capsys.readouterr().out.rstrip().rpartition("\n")
    result = json.loads(line)
    numerics = LLM(max_model_len=64).numerics_id
    assert result["provenance"]["numerics"] == [numerics]
    assert {"cpu", "threads", "torch", "instruction_sets", "environment"} <= set(result["provenance"])
    assert text.startswith(numerics)
    assert "promise 1 holds here" in text
    assert result["holds"]
    assert all(check["same"] for check in result["checks"])
    assert len(result["checks"]) > 6
    rows = result["rows"]
    methods = {"plain", *embedded_configs()} - {"none"}
    ways = ("alone", "together", "in chunks", "from the cache")
    assert {(r["method"], r["way"], r["temperature"]) for r in rows} == {
        (method, way, t) for method in methods for way in ways for t in (0.0, 0.8)
    }
    assert all(r["same"] and r["difference"] is None and r["tokens"] == 32 for r in rows)
    assert all(any(r["accepted"] for r in rows if r["method"] == method) for method in methods - {"plain"})


def test_a_model_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_llama(tmp_path / "own", scale=7.0, calm=0.2))
    assert main(["verify", "--model", model, "--max-tokens", "6"]) == 0
    out = capsys.readouterr().out
    assert "own-" in out
    assert "draft_model was not tried" in out, "the embedded draft model has another vocabulary"
    assert "ngram" in out
    assert "{" not in out.splitlines()[-1]
    draft = json.dumps({"method": "draft_model", "model": model, "num_speculative_tokens": 2})
    assert main(["verify", model, "--max-tokens", "6", "--speculative-config", draft, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert {row["method"] for row in rows} == {"plain", "draft_model"}
    assert sum(row["accepted"] for row in rows) > 0


@pytest.mark.parametrize("kind", ["from 4 rows", "of 45 rows"])
def test_broken_kernels_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where the start-up check sees the fault and where only the full one does."""

    def select(device: str = "cpu") -> Kernels:
        return OtherOrder(ReferenceKernels("float32"), lambda rows: rows > 3 if kind == "from 4 rows" else rows == 45)

    for module in (parlay.engine.engine, parlay.engine.numerics):
        monkeypatch.setattr(module, "select_kernels", select)
    model = str(write_llama(tmp_path / "model", scale=7.0))
    assert main(["verify", model, "--max-tokens", "4", "--json"]) == 1
    *text, line = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert "promise 1 does NOT hold here to the bit" in text[-1]
    assert not result["holds"]
    broken = [check for check in result["checks"] if not check["same"]]
    assert {check["case"].split()[0] for check in broken} == {"linear"}
    assert all(set(check["rows"]) >= ({45} if kind == "of 45 rows" else {4, 45, 1000}) for check in broken)
    if kind == "from 4 rows":
        assert text[0].endswith("/up-to-floating-point")
        changed = [row for row in result["rows"] if not row.get("same", True)]
        assert {row["way"] for row in changed} >= {"together"}
        assert all(row["difference"].startswith("prompt ") for row in changed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no model 'nowhere'"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, not 0"),
        (["--speculative-config", '{"method": "ngrm"}'], "did you mean 'ngram'"),
    ],
)
def test_wrong_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_differences_are_found() -> None:
    def completion(tokens: tuple[int, ...], *logprobs: float) -> CompletionOutput:
        return CompletionOutput(
            index=0,
            text="",
            token_ids=tokens,
            sources=("target",) * len(tokens),
            logprobs=tuple({t: Logprob(p, 1, "")} for t, p in zip(tokens, logprobs, strict=True)),
            finish_reason="length",
            stop_reason=None,
            metrics=None,
        )

    one = completion((5, 6), -1.0, -2.0)
    assert sameness.first_difference([one, one], [one, one]) is None
    for other, words in (
        (completion((5, 7), -1.0, -2.0), "prompt 1, token 1: 7 instead of 6"),
        (completion((5, 6), -1.0, -2.0000000000000004), "prompt 1, token 1: log-probabilities"),
        (completion((5,), -1.0), "prompt 1: 1 tokens instead of 2"),
    ):
        assert sameness.first_difference([one, other], [one, one]) == words
