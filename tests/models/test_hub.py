"""Models by name, from a cache that was filled by hand: there is no network in the tests."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from checkpoints import write_llama

from parlay import ModelError
from parlay.models.hub import Hub
from parlay.models.select import describe_model, find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that holds owner/model at one commit, which main and v1 name."""
    home = tmp_path / "cache" / "models--owner--model"
    write_llama(home / "snapshots" / COMMIT)
    (home / "refs").mkdir()
    for name in ("main", "v1"):
        (home / "refs" / name).write_text(COMMIT)
    return tmp_path / "cache"


@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
def test_found_in_the_cache(cache: Path, revision: str | None) -> None:
    hub = Hub(cache_dir=str(cache), offline=True, revision=revision)
    assert find_model("owner/model", hub).name == COMMIT
    assert describe_model("owner/model", hub).num_layers == 3


@pytest.mark.parametrize(("name", "revision"), [("owner/other", None), ("owner/model", "v2")])
def test_not_in_the_cache(cache: Path, name: str, revision: str | None) -> None:
    with pytest.raises(ModelError, match=f"'{name}'.*not in the hub's cache.*allow downloads") as error:
        find_model(name, Hub(cache_dir=str(cache), offline=True, revision=revision))
    assert revision is None or f"revision '{revision}'" in str(error.value)


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"'owner/model'.*Name or service not known.*the network"):
        find_model("owner/model", Hub(cache_dir=str(cache)))


def test_what_is_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything given is passed on, and `.bin` files are fetched only where there is no safetensors file."""
    calls: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub = Hub(revision="v1", token="secret", cache_dir="/cache")
    assert find_model("owner/model", hub) == tmp_path
    (tmp_path / "model.safetensors").touch()
    find_model("owner/model", hub)
    assert [("*.bin" in call["allow_patterns"], "*.safetensors" in call["allow_patterns"]) for call in calls] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    for call in calls:
        assert call["name"] == "owner/model"
        assert (call["revision"], call["token"], call["cache_dir"]) == ("v1", "secret", "/cache")
        assert call["local_files_only"] is False


def test_a_directory_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    assert find_model("owner/model").resolve() == path
    for name in ("./owner/other", "/owner/other", "other", "a/b/c", "other/", "-a/b"):
        with pytest.raises(ModelError, match="there is no model"):
            find_model(name)
