"""One rank beside several."""

import json

import pytest

from parlay import ConfigError
from parlay.bench.ranks import RanksOptions
from parlay.cli.main import main


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [
            "bench",
            "ranks",
            "--batch-sizes",
            "2",
            "--max-tokens",
            "8",
            "--turns",
            "2",
            "--draft",
            "tiny-code-draft",
            "--modes",
            "exact",
            "fast",
            "--stages",
            "2",
        ]
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert [(row["ranks"], row["mode"], row["same_tokens"], row["turns"]) for row in found["rows"]] == [
        (1, "", True, 2),
        (2, "exact", True, 2),
        (2, "fast", None, 2),
        (2, "stages", True, 2),
    ]
    assert [row["kilobytes"] for row in found["exchanges"]] == [1, 4, 16, 64, 256]
    assert [(row["ranks"], row["draft_ranks"]) for row in found["drafts"]] == [(2, 1), (2, 2)]
    assert all(row["us_per_token"] > 0 for row in found["drafts"])
    assert all(row["shared_memory_us"] > 0 < row["gloo_us"] for row in found["exchanges"])


def test_one_rank_is_no_comparison() -> None:
    with pytest.raises(ConfigError, match="at least 2, not 1"):
        RanksOptions(ranks=(1,))
    with pytest.raises(ConfigError, match="stages must be at least 2, not 1"):
        RanksOptions(stages=(3, 1))
