"""`parlay demo`: every method is measured, and those that are off are said to be."""

import re

import pytest

import parlay.checkpoints.pull
from parlay.cli import demo
from parlay.cli.main import main
from parlay.errors import ModelError
from parlay.proposers.select import embedded_configs


def test_every_method_has_its_row_or_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise ModelError("the hub cannot be reached")

    monkeypatch.setattr(parlay.checkpoints.pull, "pull", unreachable)
    monkeypatch.setattr(demo, "_UNSEEN", 3)
    assert main(["demo", "--max-tokens", "8"]) == 0
    out, err = capsys.readouterr()
    assert "smollm2 cannot be fetched; using tiny-code: the hub cannot be reached" in err
    assert "class Stack:" in out
    _, _, table = out.partition("same tokens")
    off = re.findall(r"(\w+)\s\(\d", table.partition("Off most of the time:")[2])
    assert "NO" not in table
    assert table.count("yes") + len(off) == len(embedded_configs()) + 1  # and auto
    assert ("longer steps" in " ".join(table.split())) == bool(off)
