"""`parlay demo`: every method beside plain decoding, with the same tokens."""

import pytest

from parlay.cli.main import main
from parlay.proposers.select import embedded_configs


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--max-tokens", "8"]) == 0
    out = capsys.readouterr().out
    assert "same tokens" in out
    assert out.count("yes") == len(embedded_configs()) + 1  # and auto
