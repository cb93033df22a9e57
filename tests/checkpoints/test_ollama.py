"""Models that Ollama has on this machine: found, listed, described, sampled as it says, and left alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf

from parlay.checkpoints.find import ASSETS, find_model, recommended
from parlay.cli.main import main
from parlay.errors import ModelError

pytestmark = pytest.mark.usefixtures("_own_folders")

HOST = "registry.ollama.example"
Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a model as Ollama lays it out; return its file."""
    blobs = tmp_path / "ollama/blobs"

    def write(path: str, *, folder: str = "manifests", params: Any = None, **others: str) -> Path:
        blobs.mkdir(parents=True, exist_ok=True)
        file = blobs / "sha256-aa"
        if not file.exists():
            write_gguf(ASSETS / "tiny-code", blobs / "made.gguf", "Q8_0").rename(file)
        layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:aa", "size": 1}]
        if params is not None:
            (blobs / "sha256-bb").write_text(json.dumps(params))
            layers.append({"mediaType": "application/vnd.ollama.image.params", "digest": "sha256:bb"})
        layers += [{"mediaType": kind.replace("_", "."), "digest": digest} for kind, digest in others.items()]
        manifest = tmp_path / "ollama" / folder / HOST / path
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        return file

    return write


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("library/tiny/latest", ["ollama:tiny", "ollama:tiny:latest", "ollama:Tiny", "ollama:library/tiny"]),
        ("library/tiny/4b", ["ollama:tiny:4b"]),
        ("Me/Tiny/q8_0", ["ollama:me/tiny:q8_0", f"ollama:{HOST}/me/tiny:Q8_0"]),
    ],
)
@pytest.mark.parametrize("folder", ["manifests", "manifests-v2"])
def test_names(put: Put, path: str, names: list[str], folder: str) -> None:
    file = put(path, folder=folder)
    assert [find_model(name) for name in names] == [file] * len(names)
    for other in ("ollama:tiny:8b", "ollama:", "ollama:a/b/c/d/e", "ollama:../tiny"):
        with pytest.raises(ModelError, match="Ollama has no model"):
            find_model(other)


def test_a_name_without_its_prefix(put: Put) -> None:
    put("library/tinier/4b")
    with pytest.raises(ModelError, match="did you mean 'ollama:tinier:4b'"):
        find_model("tinier:4b")


def test_its_sampling_is_the_default(put: Put) -> None:
    given = {"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.1, "stop": ["<|im_end|>"], "num_ctx": 40960}
    put("library/tiny/latest", params={**given, "top_p": -1, "min_p": 7})
    assert recommended("ollama:tiny") == {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    put("library/plain/latest")
    assert recommended("ollama:plain") == {}


def test_commands(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    file = put("library/tiny/4b", params={"temperature": 0.25})
    assert main(["list", "--json"]) == 0
    (listed,) = (one for one in json.loads(capsys.readouterr().out)["models"] if one["place"] == "ollama")
    assert (listed["name"], listed["path"], listed["kind"]) == ("ollama:tiny:4b", str(file), "Q8_0")
    assert main(["show", "ollama:tiny:4b"]) == 0
    assert "temperature 0.25" in capsys.readouterr().out.replace("=", " ")
    assert main(["generate", "--model", "ollama:tiny:4b", "def f(x):", "--max-tokens", "3"]) == 0
    assert main(["rm", "ollama:tiny:4b"]) != 0
    assert "ollama rm" in capsys.readouterr().err
    assert file.exists()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"application/vnd_ollama_image_adapter": "sha256:cc"}, "adapter"),
        ({"application/vnd_ollama_image_tensor; name=x": "sha256:cc"}, "tensor by tensor"),
    ],
)
def test_forms_that_are_not_supported(put: Put, others: dict[str, str], message: str) -> None:
    put("library/tiny/latest", **others)
    with pytest.raises(ModelError, match=message):
        find_model("ollama:tiny")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"layers": 3}', '{"layers": [3, {}, {"mediaType": 3, "digest": {}}]}']
)
def test_damaged_manifests(put: Put, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    put("library/tiny/latest")
    (tmp_path / "ollama/manifests" / HOST / "library/tiny/latest").write_text(content)
    with pytest.raises(ModelError, match="no file that is here"):
        find_model("ollama:tiny")
    assert main(["list"]) == 0
    assert "ollama" not in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(put: Put) -> None:
    put("library/tiny/latest").chmod(0)
    with pytest.raises(ModelError, match="permissions"):
        find_model("ollama:tiny")


@pytest.mark.parametrize("digest", ["../../secret", "..", "", "sha256:", "sha256:a\\u0000"])
def test_a_digest_that_is_none(put: Put, tmp_path: Path, digest: str) -> None:
    put("library/tiny/latest")
    manifest = tmp_path / "ollama/manifests" / HOST / "library/tiny/latest"
    manifest.write_text(manifest.read_text().replace("sha256:aa", digest))
    with pytest.raises(ModelError, match="no file that is here"):
        find_model("ollama:tiny")
    assert main(["list"]) == 0


def test_a_model_of_another_host(put: Put, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Ollama names those from the hub."""
    file = put("library/tiny/latest")
    other = tmp_path / "ollama/manifests/hf.co/u/m/Q4"
    other.parent.mkdir(parents=True)
    other.write_text((tmp_path / "ollama/manifests" / HOST / "library/tiny/latest").read_text())
    assert find_model("ollama:hf.co/u/m:Q4") == file
    with pytest.raises(ModelError, match="Ollama has no model"):
        find_model("ollama:u/m:Q4")
    assert main(["list"]) == 0
    assert "ollama:hf.co/u/m:Q4 " in capsys.readouterr().out


def test_its_file_is_not_removed(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    file = put("library/tiny/latest")
    assert main(["rm", str(file)]) != 0
    assert "ollama rm" in capsys.readouterr().err
    assert file.exists()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ModelError, match="there is no model"):
        find_model("no-such")
