"""`bench structured`: what its rows say, not how fast anything is."""

import json
from pathlib import Path

import pytest

from parlay.bench.structured import SCHEMAS
from parlay.cli.main import main


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--requests", "4", "--batch-sizes", "2", "--num-speculative-tokens", "3"]
    assert main(["bench", "structured", *sizes]) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result["provenance"]
    methods = [row["method"] for row in result["rows"] if row["temperature"] == 0]
    assert methods[0] == "plain"
    assert {"ngram", "draft_model"} < set(methods)
    assert len(result["rows"]) == 2 * len(methods)
    for row in result["rows"]:
        assert row["same_tokens"]
        assert row["batch"] == 2
        assert 0 < row["stopped"] <= 1
        assert row["grammar_us_per_token"]["mean"] > 0
        if row["method"] == "plain":
            assert row["speed_up"] == row["acceptance_length"] == 1
            assert row["forced_share"] == 0
            assert row["acceptance_rate"] is None
        else:
            assert row["acceptance_length"] > 1.5
            assert row["forced_share"] > 0.1


def test_prompts_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "def first(a, b):"}\n{"turns": ["A class for a stack.", "Another."]}\n')
    command = ["bench", "structured", "--batch-sizes", "1", "--dataset", str(file)]
    assert main([*command, "--requests", "2"]) == 0
    rows = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["rows"]
    assert all(row["same_tokens"] for row in rows)
    file.write_text('{"text": "x"}')
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "own.jsonl, line 1: an entry has 'turns', 'messages' or 'prompt'" in said


def test_every_schema_names_its_properties() -> None:
    assert all(schema["required"] == list(schema["properties"]) for schema in SCHEMAS)
