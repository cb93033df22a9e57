"""What is remembered between starts: nothing damaged is believed, and nothing that another process wrote is lost."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parlay import env
from parlay.cache_file import CacheFile


def change(cache: CacheFile, **entries: Any) -> None:
    with cache.changing() as there:
        there.update(entries)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    cache = CacheFile("name", 1, folder=tmp_path / "folder")
    assert cache.read() == {}
    change(cache, one=(1, 2.5, None), other={"1": [True]})
    assert CacheFile("name", 1, folder=tmp_path / "folder").read() == {"one": [1, 2.5, None], "other": {"1": [True]}}
    assert {file.suffix for file in (tmp_path / "folder").iterdir()} == {".json", ".lock"}


def test_another_version_is_another_file(tmp_path: Path) -> None:
    change(CacheFile("name", 1, folder=tmp_path), one=1)
    assert CacheFile("name", 2, folder=tmp_path).read() == {}
    change(CacheFile("name", 2, folder=tmp_path), two=2)
    assert CacheFile("name", 2, folder=tmp_path).read() == {"two": 2}


def test_those_changed_longest_ago_make_room(tmp_path: Path) -> None:
    cache = CacheFile("name", 1, most=3, folder=tmp_path)
    for name in "abc":
        change(cache, **{name: 1})
    change(cache, a=2)
    change(cache, d=1)
    assert list(cache.read()) == ["c", "a", "d"]


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "3", "null", '{"x": 3}', '{"version": 1}', '{"version": 1, "entries": 3}', "[" * 100_000),
        *('{"version": 1, "entries": {"one": 3}}', '{"version": 1, "entries": {"one": [3, 4, 5]}}'),
        '{"version": 1, "entries": {"one": [0, 1e999]}}',
    ],
)
def test_a_damaged_file_is_made_anew(tmp_path: Path, content: str) -> None:
    cache = CacheFile("name", 1, folder=tmp_path)
    (tmp_path / "name.json").write_text(content)
    assert cache.read() == {}
    change(cache, one=1)
    assert cache.read() == {"one": 1}


def test_an_entry_with_another_digit_is_left_out(tmp_path: Path) -> None:
    cache = CacheFile("name", 1, folder=tmp_path)
    change(cache, one=[17], other=[3])
    file = tmp_path / "name.json"
    file.write_text(file.read_text().replace("17", "18"))
    assert cache.read() == {"other": [3]}
    # Nor is an entry that got the name of another.
    change(cache, one=[17])
    raw = json.loads(file.read_text())
    raw["entries"]["other"] = raw["entries"]["one"]
    file.write_text(json.dumps(raw))
    assert cache.read() == {"one": [17]}


@pytest.mark.parametrize("obstacle", ["a file", "a directory", "no home"])
def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    folder = None if obstacle == "no home" else tmp_path / "cache"
    if obstacle == "a file":
        (tmp_path / "cache").write_text("in the way")
    elif obstacle == "a directory":
        (tmp_path / "cache" / "name.json").mkdir(parents=True)
    monkeypatch.setattr(env, "cache_dir", lambda: None)
    cache = CacheFile("name", 1, folder=folder)
    change(cache, one=1)
    assert cache.read() == {}
    assert not list(tmp_path.rglob("*.new")), "nothing is left behind"


def test_what_several_write_at_once_is_all_there(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: change(CacheFile("name", 1, folder=tmp_path), **{f"entry {i}": i}), range(24)))
    assert len(CacheFile("name", 1, folder=tmp_path).read()) == 24
