"""Rows in a file: a second run goes on where the first stopped, and one of something else is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from parlay.bench import record
from parlay.bench.record import METHODS, FileKind, Record
from parlay.errors import ConfigError

QUESTION = {"model": "m", "precision": 0.02, "methods": ["none", "ngram"]}
PROMPTS = {"workloads": {"edit": "d1"}}


def rows(workload: str = "edit", batch: int = 1) -> list[dict[str, Any]]:
    return [
        {"model": "m", "workload": workload, "batch": batch, "temperature": 0.0, "method": m, "numerics": "id-1"}
        for m in ("plain", "ngram")
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.json"
    Record(path, QUESTION, PROMPTS).add(rows())
    return path


def test_rows_say_what_they_were_measured_on(path: Path) -> None:
    content = json.loads(path.read_text())
    assert [row["session"] for row in content["rows"]] == [0, 0]
    assert {"cpu", "commit", "torch", "numerics"} <= set(content["sessions"][0])
    assert content["question"] == QUESTION
    assert [file.name for file in path.parent.iterdir()] == ["rows.json"]


def test_a_later_run_may_add_a_model_but_change_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    Record(path, {}, {"workloads": {}, "methods": {"m": ["none"]}}).add(rows())
    later = Record(path, {}, {"workloads": {}, "methods": {"n": ["none", "ngram"]}})
    assert [row["method"] for row in later.rows_of(workload="edit", batch=1, temperature=0.0)] == ["plain", "ngram"]
    assert not later.rows_of(workload="edit", batch=8, temperature=0.0)
    later.check_numerics("id-1", model="m")
    later.check_numerics("id-2", model="n")
    with pytest.raises(ConfigError, match="numerics id-1, here id-2"):
        later.check_numerics("id-2", model="m")
    later.add([row | {"model": "n", "numerics": "id-2"} for row in rows()])
    content = json.loads(path.read_text())
    assert content["methods"] == {"m": ["none"], "n": ["none", "ngram"]}
    assert [row["session"] for row in content["rows"]] == [0, 0, 1, 1]
    with pytest.raises(ConfigError, match="was measured with other methods of m; give the same, or another file"):
        Record(path, {}, {"workloads": {}, "methods": {"m": ["none", "ngram"]}})
    with pytest.raises(ConfigError, match="is not what `another command` writes"):
        Record(path, {}, {"workloads": {}, "methods": {}}, FileKind("another command", METHODS.case))


def test_nothing_is_written_before_a_case_is_measured(tmp_path: Path) -> None:
    Record(tmp_path / "rows.json", QUESTION, PROMPTS)
    assert not list(tmp_path.iterdir())
    Record(None, QUESTION, PROMPTS).add(rows())
    assert not list(tmp_path.iterdir())


def test_another_question_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"was measured with model 'm', here 'n'; precision 0\.02, here 0\.05; give"
    ):
        Record(path, {**QUESTION, "model": "n", "precision": 0.05}, PROMPTS)
    with pytest.raises(ConfigError, match="with other prompts of edit; give the same"):
        Record(path, QUESTION, {"workloads": {"edit": "d9"}})
    with pytest.raises(ConfigError, match="numerics id-1, here id-2"):
        Record(path, QUESTION, PROMPTS).check_numerics("id-2")
    real = record.provenance
    monkeypatch.setattr(record, "provenance", lambda *numerics: real(*numerics) | {"cpu": "Another", "threads": 96})
    with pytest.raises(ConfigError, match=r"cpu .*, here 'Another'; threads .*, here 96"):
        Record(path, QUESTION, PROMPTS)


@pytest.mark.parametrize("content", ["", "{", "[]", "5", "{}", '{"kind": "parlay bench methods"}', '{"rows": [{}]}'])
def test_files_of_something_else(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="is not what `parlay bench methods` writes"):
        Record(path, QUESTION, PROMPTS)


@pytest.mark.parametrize("name", ["rows.txt", "no/such/folder/rows.json"])
def test_where_no_file_can_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"an output must be a \.json file in an existing directory"):
        Record(tmp_path / name, QUESTION, PROMPTS)
