"""What steps cost is remembered, and nothing that is damaged or from elsewhere is believed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parlay.cache_file import CacheFile
from parlay.drafting.cost_file import _VERSION, CostFile, Costs

SUMS = [20.0, 40.0, 90.0, 0.02, 0.045]
COSTS = Costs({1: (0.005, 40), 8: (0.0085, 3)}, {"eagle": {2: SUMS}}, {"eagle": [[70.0, 100.0], [3.0, 9.0]]})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = CostFile("model/bits", 2, tmp_path)
    assert file.read() == Costs()
    file.write(COSTS)
    assert CostFile("model/bits", 2, tmp_path).read() == COSTS
    assert not list(tmp_path.glob("*.new"))


def test_others_have_entries_of_their_own(tmp_path: Path) -> None:
    CostFile("model/bits", 2, tmp_path).write(COSTS)
    assert CostFile("model/bits", 4, tmp_path).read() == Costs()
    assert CostFile("other/bits", 2, tmp_path).read() == Costs()


def test_what_is_known_of_other_proposers_stays(tmp_path: Path) -> None:
    file = CostFile("model/bits", 2, tmp_path)
    file.write(COSTS)
    file.write(Costs({1: (0.004, 50)}, {"medusa": {3: SUMS}}, {"medusa": [[1.0, 5.0]]}))
    drafting, acceptance = COSTS.drafting | {"medusa": {3: SUMS}}, COSTS.acceptance | {"medusa": [[1.0, 5.0]]}
    assert file.read() == Costs({1: (0.004, 50)}, drafting, acceptance)


@pytest.mark.parametrize(
    "steps",
    [{"x": [1, 1]}, {"1": 3}, {"1": [-1, 1]}, {"1": [1e9, 1]}, {"1": ["a", 1]}, {"1": [None, 1]}, [], None, 7],
)
def test_a_wrong_entry_is_made_anew(tmp_path: Path, steps: Any) -> None:
    """Its checksum is right: it stems from another version."""
    file = CostFile("model/bits", 2, tmp_path)
    file.write(COSTS)
    with CacheFile("costs", _VERSION, folder=tmp_path).changing() as entries:
        (name,) = entries
        entries[name] = {**entries[name], "steps": steps}
    assert file.read() == Costs()
    file.write(COSTS)
    assert file.read() == COSTS


def test_what_two_processes_save_at_once_is_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        saved = [
            pool.submit(CostFile("target", 1, tmp_path).write, Costs(drafting={f"head {i}": {1: SUMS}}))
            for i in range(24)
        ]
        for one in saved:
            one.result()
    assert len(CostFile("target", 1, tmp_path).read().drafting) == 24
