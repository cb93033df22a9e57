"""A stand-in hub with models in it, and a cache of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write_llama
from gguf_files import write_gguf
from stand_in_hub import StandInHub, serving

from parlay.checkpoints.hub import Hub


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model as a directory, and as a GGUF file in two kinds."""
    path = tmp_path_factory.mktemp("files")
    write_llama(path / "model")
    for kind in ("Q8_0", "F16"):
        write_gguf(path / "model", path / f"m-{kind}.gguf", kind, general__license="mit")
    return path


@pytest.fixture
def standing(files: Path) -> StandInHub:
    """A hub that has owner/files with two GGUF files, and owner/model with a directory."""
    hub = StandInHub()
    hub.publish("owner/files", **{f"m-{kind}.gguf": files / f"m-{kind}.gguf" for kind in ("Q8_0", "F16")})
    hub.publish("owner/model", all=files / "model")
    return hub


@pytest.fixture
def endpoint(standing: StandInHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The stand-in's address, which the hub's library asks in place of its own."""
    with serving(standing) as address:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        # Files are small here, and whoever waits before another try waits for nothing.
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        yield address


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    """An empty cache."""
    return Hub(cache_dir=str(tmp_path / "cache"))


@pytest.fixture
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing from wheels or Ollama, and no short names but the package's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg-config"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))


@pytest.fixture
def own_names(tmp_path: Path, _own_folders: None) -> Path:
    """The user's table of short names, which has tiny and tiny:f16."""
    table = tmp_path / "xdg-config" / "parlay" / "models.toml"
    table.parent.mkdir(parents=True)
    table.write_text('[tiny]\ndefault = "q8"\nq8 = "owner/files:Q8_0"\nf16 = "owner/files:F16"\n')
    return table
