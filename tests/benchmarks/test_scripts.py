"""The smaller benchmarks: that they end with rows that fit together, not how fast anything is."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from families import VOCAB
from mtp_layers import write_mtp
from vocabularies import shortened

from benchmarks import draft_vocabulary, ranks, ratios, sampling, startup, structured, threads, vocabularies
from parlay.bench.contenders import contenders
from parlay.checkpoints.find import ASSETS


def result(main: Callable[[Sequence[str]], int], flags: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(flags) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    rows = result(sampling.main, ["--vocab-size", "1000", "--rounds", "2"], capsys)["rows"]
    assert {row["way"] for row in rows} == set(sampling.CASES)
    assert all(row["ms"] > 0 for row in rows)


def test_draft_vocabulary(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "model", "qwen3_5")
    flags = ["--model", str(path), "--draft-vocab-size", "64", "--repetitions", "2", "--max-tokens", "4"]
    rows = result(draft_vocabulary.main, flags, capsys)["rows"]
    assert [row["rows"] for row in rows] == [VOCAB, 64]
    assert all(row["ms"] > 0 < row["step_ms"] for row in rows)


def test_startup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, forked_ranks: tuple[str, ...]
) -> None:
    def forked(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        return popen([*forked_ranks, "parlay", *command[3:]], **more)

    popen = subprocess.Popen
    monkeypatch.setattr(startup.subprocess, "Popen", forked)
    (row,) = result(startup.main, ["--repetitions", "1"], capsys)["rows"]
    assert row["seconds_to_first_token"] > 0


def test_threads(capsys: pytest.CaptureFixture[str]) -> None:
    rows = result(threads.main, ["--counts", "1", "3", "--rounds", "1"], capsys)["rows"]
    assert [row["threads"] for row in rows] == [1, 3]
    assert all(row["ms_256"] > row["ms_1"] > 0 for row in rows)


def test_vocabularies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    draft = shortened(ASSETS / "tiny-code-draft", tmp_path / "draft", 2000)
    flags = ["tiny-code", "--draft", str(draft), "--count", "2", "--max-tokens", "12", "--json"]
    rows = result(vocabularies.main, flags, capsys)["rows"]
    assert [(row["vocabulary"], row["temperature"]) for row in rows] == [
        (way, temperature) for way in vocabularies.WAYS for temperature in vocabularies.TEMPERATURES
    ]
    assert all(0 < row["acceptance_rate"] < 1 < row["acceptance_length"] for row in rows)


class ForkedCall:
    """In the place of `multiprocessing`'s process: a call of a function of the benchmark of ranks."""

    command: tuple[str, ...] = ()

    def __init__(self, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        place = str(Path(ranks.__file__).parents[1])
        call = (
            f"import sys; sys.path.append({place!r}); from benchmarks import ranks; ranks.{target.__name__}(*{args})"
        )
        self._command = [*self.command, "code", call]

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def join(self) -> None:
        assert self._process.wait() == 0


def test_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, forked_ranks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ForkedCall, "command", forked_ranks)
    monkeypatch.setattr(ranks, "get_context", lambda _: SimpleNamespace(Process=ForkedCall))
    monkeypatch.setattr(ranks, "_KILOBYTES", (256,))  # of which each starts a process
    monkeypatch.setattr(ranks, "_DRAFT_REPETITIONS", 3)
    flags = ["--batch-sizes", "2", "--max-tokens", "8", "--repetitions", "2", "--stages", "2"]
    found = result(ranks.main, [*flags, "--draft", "tiny-code-draft"], capsys)
    assert [(row["ranks"], row["stages"], row["same_tokens"], row["repetitions"]) for row in found["rows"]] == [
        (1, 1, True, 2),
        (2, 1, True, 2),
        (1, 2, True, 2),
    ]
    assert [row["kilobytes"] for row in found["exchanges"]] == [256]
    assert [(row["ranks"], row["draft_ranks"]) for row in found["drafts"]] == [(2, 1), (2, 2)]
    assert all(row["us_per_token"] > 0 for row in found["drafts"])
    assert all(row["shared_memory_us"] > 0 < row["gloo_us"] for row in found["exchanges"])
    assert ranks.main(["--ranks", "1"]) == 2
    assert "--ranks and --stages must be at least 2" in capsys.readouterr().err


def some(*methods: str) -> Callable[..., Any]:
    """Return a `contenders` of these alone."""
    return lambda model, length: contenders(model, length, methods)


def test_structured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured, "contenders", some("ngram", "draft_model"))
    found = result(
        structured.main, ["--requests", "4", "--batch-sizes", "2", "--num-speculative-tokens", "3"], capsys
    )
    assert found["provenance"]
    methods = [row["method"] for row in found["rows"] if row["temperature"] == 0]
    assert methods == ["plain", "ngram", "draft_model"]
    assert len(found["rows"]) == 2 * len(methods)
    for row in found["rows"]:
        assert row["same_tokens"]
        assert row["batch"] == 2
        assert 0 < row["stopped"] <= 1
        assert row["grammar_us_per_token"]["mean"] > 0
        if row["method"] == "plain":
            assert row["speed_up"] == row["acceptance_length"] == 1
            assert (row["forced_share"], row["acceptance_rate"]) == (0, None)
        else:
            assert row["acceptance_length"] > 1.5
            assert row["forced_share"] > 0.1


def test_structured_answers_to_prompts_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured, "contenders", some("ngram"))
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "def first(a, b):"}\n{"turns": ["A class for a stack.", "Another."]}\n')
    flags = ["--batch-sizes", "1", "--dataset", str(file), "--requests", "2"]
    assert all(row["same_tokens"] for row in result(structured.main, flags, capsys)["rows"])
    file.write_text('{"text": "x"}')
    assert structured.main(flags) == 2
    assert "own.jsonl, line 1: an entry has 'turns', 'messages' or 'prompt'" in capsys.readouterr().err


def test_ratios_of_a_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"model": "m", "workload": "edit", "batch": 1, "temperature": 0.0, "method": method, "budget": None}
        | {"speed_up": s, "interval": None, "precise": False, "repetitions": 2, "seconds": [1 / s, 1 / s]}
        for method, s in (("plain", 1.0), ("ngram", 2.0), ("suffix", 0.5))
    ]
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    assert ratios.main([str(tmp_path / "rows.json"), "--plot", str(tmp_path / "map.png")]) == 0
    out = capsys.readouterr().out
    assert "| edit | 1 | 0 | 2.00 | 0.50 |" in out
    assert "1 of 2 cells are below 0.98; 2 to 2 repetitions a cell" in out
    assert "| 1 | 0 | 2 | 2.00 [2.00, 2.00] | 0.50 [0.50, 0.50] |" in out
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
