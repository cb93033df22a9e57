"""Plug-ins by name, and what lies beside them."""

from pathlib import Path

import pytest

from parlay import ConfigError
from parlay.registry import Registry


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a plug-in, one of several parts, a helper, and a file that is no plug-in."""
    folder = tmp_path / "plugins_of_a_test"
    (folder / "parted").mkdir(parents=True)
    for name, text in (
        ("__init__.py", ""),
        ("whole.py", "VALUE = 1"),
        ("_helper.py", ""),
        ("table.py", "ROWS = 2"),
        ("parted/__init__.py", ""),
        ("parted/part.py", "VALUE = 3"),
    ):
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return folder.name


def test_plugins_and_what_is_none(package: str) -> None:
    registry = Registry(package, "plug-in", "part", needs=("VALUE",))
    assert registry.names() == ("parted", "table", "whole")
    assert [registry.load(name).VALUE for name in ("whole", "parted")] == [1, 3]
    with pytest.raises(ConfigError, match=r"table\.py is no plug-in: it does not define VALUE; write it, or begin"):
        registry.load("table")
    with pytest.raises(ConfigError, match=r"unknown plug-in 'hole'.*did you mean 'whole'"):
        registry.load("hole")
