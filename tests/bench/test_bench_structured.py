"""`bench structured`: what its rows say, not how fast anything is."""

import json

import pytest

from parlay.bench.structured import SCHEMAS, measure
from parlay.cli.main import main


def test_rows() -> None:
    labels: list[str] = []
    rows = list(measure("tiny-code", (4,), 8, 3, labels.append))
    methods = [row["method"] for row in rows if row["temperature"] == 0]
    assert methods[0] == "plain"
    assert {"ngram", "draft_model"} < set(methods)
    for row in rows:
        assert row["same_tokens"]
        assert row["batch"] == 4
        assert 0 < row["stopped"] <= 1
        assert row["grammar_us_per_token"]["mean"] > 0
        if row["method"] == "plain":
            assert row["speed_up"] == row["acceptance_length"] == 1
            assert row["forced_share"] == 0
            assert row["acceptance_rate"] is None
        else:
            assert row["acceptance_length"] > 1.5
            assert row["forced_share"] > 0.1
    assert len(labels) == len(rows)


def test_every_schema_names_its_properties() -> None:
    assert all(schema["required"] == list(schema["properties"]) for schema in SCHEMAS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "structured", "--requests", "4", "--batch-sizes", "2"]) == 0
    out = capsys.readouterr().out
    result = json.loads(out.strip().splitlines()[-1])
    assert {row["batch"] for row in result["rows"]} == {2}
    assert result["provenance"]
