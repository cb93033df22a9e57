"""`parlay explain`: what follows from a table, by hand; no figure of this machine is judged."""

import json
from pathlib import Path

import pytest
import torch

from parlay.cli.main import main
from parlay.errors import ConfigError
from parlay.explain.passes import PassTimes
from parlay.explain.payoff import LONGEST, best, emitted, explain, free_rows, intensity, pays_from, sentence
from parlay.models.select import describe_model

CONFIG = describe_model("tiny-code")
FLAT = PassTimes(((1, 1.0), (512, 1.0)))
STEEP = PassTimes(((1, 1.0), (512, 512.0)))
# Ten rows for the price of one, then each costs a tenth.
RIDGE = PassTimes(((1, 1.0), (10, 1.0), (20, 2.0), (40, 4.0)))


@pytest.mark.parametrize(("acceptance", "length", "tokens"), [(0.5, 0, 1), (0.5, 2, 1.75), (1.0, 4, 5), (0.0, 9, 1)])
def test_tokens_of_a_step(acceptance: float, length: int, tokens: float) -> None:
    assert emitted(acceptance, length) == pytest.approx(tokens)


def test_where_rows_are_free_every_draft_token_pays() -> None:
    found = best(FLAT, 4, 0.5)
    assert found.length == LONGEST
    assert found.speed_up == pytest.approx(emitted(0.5, LONGEST))
    assert pays_from(FLAT, 4) == 0.01


def test_where_each_row_costs_a_step_none_pays() -> None:
    assert best(STEEP, 4, 0.9).length == 0
    assert best(STEEP, 4, 0.9).speed_up == 1
    assert pays_from(STEEP, 4) is None
    assert sentence(STEEP, 4, 0.0) == "batch 4: does not pay, whatever the acceptance rate"


def test_drafting_has_its_price() -> None:
    # One draft token for half a step: two steps' worth has to come of one and a half.
    assert pays_from(FLAT, 1, 0.5) == 0.51
    assert sentence(FLAT, 1, 0.5) == "batch 1: pays from an acceptance rate of 0.51 on"
    found = best(FLAT, 1, 0.8, 0.5)
    rates = [emitted(0.8, k) / (1 + 0.5 * k) for k in range(LONGEST + 1)]
    assert found.speed_up == pytest.approx(max(rates))
    assert rates[found.length] == max(rates)


def test_what_was_not_timed_is_not_considered() -> None:
    assert best(RIDGE, 40, 0.9).length == 0
    assert best(RIDGE, 64, 0.9).length == 0
    assert best(RIDGE, 4, 0.99).length <= 9
    grid = explain(RIDGE, CONFIG, torch.bfloat16, 0.0, 128)["grid"]
    assert {cell["batch"] for cell in grid} == {1, 2, 4, 8, 16, 32}


def test_the_ridge() -> None:
    assert free_rows(RIDGE) == pytest.approx(10)
    assert free_rows(STEEP) == pytest.approx(1)
    assert free_rows(FLAT) == 512


def test_intensity_grows_with_rows() -> None:
    one, eight = (intensity(CONFIG, torch.bfloat16, rows, 128) for rows in (1, 8))
    assert eight.flops == pytest.approx(8 * one.flops, rel=0.01)
    assert one.size <= eight.size <= 1.01 * one.size
    assert one.flops / one.size == pytest.approx(1, rel=0.1)  # two bytes a weight, two operations


def test_passes_never_fall() -> None:
    """A pass of two rows that took one second shows that one row takes no longer."""
    times = PassTimes.of([(1, 3.0), (2, 1.0), (4, 5.0)])
    assert times.timed == ((1, 1.0), (2, 1.0), (4, 5.0))
    assert [times.seconds(rows) for rows in (1, 3, 8)] == [1, 3, 10]


@pytest.mark.parametrize(("cost", "context"), [(-1.0, 128), (float("nan"), 128), (0.0, 0), (0.0, 1 << 20)])
def test_wrong_numbers(cost: float, context: int) -> None:
    with pytest.raises(ConfigError, match=r"--draft-cost|--context"):
        explain(FLAT, CONFIG, torch.bfloat16, cost, context)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "map.png"
    assert main(["explain", "tiny-code", "--seconds", "0.5", "--draft-cost", "0.1", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    assert [row["rows"] for row in result["passes"]][:2] == [1, 2]
    assert len(result["conclusions"]) >= 1
    assert all(sentence in out for sentence in result["conclusions"])
    assert all(cell["speed_up"] >= 1 for cell in result["grid"])
    assert result["ridge"]["rows"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["tiny-cod"], "there is no model"),
        (["--seconds", "0"], "seconds must be a number above 0"),
        (["--plot", "map.jpg"], "a .png file"),
    ],
)
def test_wrong_flags(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *flags]) == 2
    assert message in capsys.readouterr().err
