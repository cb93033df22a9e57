"""What steps cost is remembered, and nothing that is damaged or from elsewhere is believed."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.drafting.remembered import CostFile, Costs

COSTS = Costs({1: (0.005, 40), 8: (0.0085, 3)}, {"eagle": {2: 0.001}}, {"eagle": [0.7, 0.5]})


def only(folder: Path) -> Path:
    (file,) = folder.glob("*.json")
    return file


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = CostFile("model/bits", 2, tmp_path)
    assert file.read() == Costs()
    file.write(COSTS)
    assert CostFile("model/bits", 2, tmp_path).read() == COSTS
    assert not list(tmp_path.glob("*.new"))


def test_others_have_files_of_their_own(tmp_path: Path) -> None:
    CostFile("model/bits", 2, tmp_path).write(COSTS)
    assert CostFile("model/bits", 4, tmp_path).read() == Costs()
    assert CostFile("other/bits", 2, tmp_path).read() == Costs()


def test_other_proposers_times_are_kept(tmp_path: Path) -> None:
    file = CostFile("model/bits", 2, tmp_path)
    file.write(COSTS)
    file.write(Costs({1: (0.004, 50)}, {"medusa": {3: 0.002}}, {"medusa": [0.2]}))
    drafting, chances = {"eagle": {2: 0.001}, "medusa": {3: 0.002}}, {"eagle": [0.7, 0.5], "medusa": [0.2]}
    assert file.read() == Costs({1: (0.004, 50)}, drafting, chances)


def test_a_file_for_something_else_is_not_believed(tmp_path: Path) -> None:
    file = CostFile("model/bits", 2, tmp_path)
    file.write(COSTS)
    raw = json.loads(only(tmp_path).read_text())
    raw["key"]["cpu"] = "another"
    only(tmp_path).write_text(json.dumps(raw))
    assert file.read() == Costs()


@pytest.mark.parametrize(
    "steps",
    [{"x": [1, 1]}, {"1": 3}, {"1": [-1, 1]}, {"1": [1e9, 1]}, {"1": ["a", 1]}, {"1": [None, 1]}, [], None, 7],
)
def test_a_damaged_file_is_made_anew(tmp_path: Path, steps: Any) -> None:
    file = CostFile("model/bits", 2, tmp_path)
    file.write(COSTS)
    raw = json.loads(only(tmp_path).read_text())
    only(tmp_path).write_text(json.dumps(raw | {"steps": steps}))
    assert file.read() == Costs()
    file.write(COSTS)
    assert file.read() == COSTS


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_no_table(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("costs")
    file = CostFile("model/bits", 2, folder)
    file.write(COSTS)
    only(folder).write_bytes(content)
    assert file.read() == Costs()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = CostFile("model/bits", 2, tmp_path / "file")
    file.write(COSTS)
    assert file.read() == Costs()


def test_only_so_many_files_are_kept(tmp_path: Path) -> None:
    for i in range(70):
        CostFile(f"model{i}", 1, tmp_path).write(COSTS)
    assert len(list(tmp_path.glob("*.json"))) == 64


def test_what_two_processes_save_at_once_is_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        saved = [
            pool.submit(CostFile("target", 1, tmp_path).write, Costs(drafting={f"head {i}": {1: 0.001}}))
            for i in range(24)
        ]
        for one in saved:
            one.result()
    assert len(CostFile("target", 1, tmp_path).read().drafting) == 24
