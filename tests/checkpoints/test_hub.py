"""Models by name, from a cache that was filled by hand: there is no network in the tests."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from checkpoints import write_byte_tokenizer, write_llama
from gguf_files import write_gguf

from parlay import LLM, ConfigError, ModelError
from parlay.bench.provenance import provenance
from parlay.checkpoints.find import find_model
from parlay.checkpoints.hub import Hub, parse_hub_name
from parlay.config import EngineConfig
from parlay.models.select import describe_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"
TOKEN = "hf_" + "S3cret" * 5


def publish(cache: Path, name: str, commit: str, *refs: str, write: Callable[[Path], Any] = write_llama) -> None:
    """Put a model into a cache as the hub's library would: blobs, a snapshot of links to them, refs."""
    home = cache / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir(exist_ok=True)
    (home / "refs").mkdir(exist_ok=True)
    write(snapshot)
    for file in sorted(snapshot.iterdir()):
        blob = home / "blobs" / f"{commit}-{file.name.encode().hex()}"
        file.rename(blob)
        file.symlink_to(os.path.relpath(blob, snapshot))
    for ref in refs:
        (home / "refs" / ref).write_text(commit)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that holds owner/model at two commits, of which main and v1 name the first and v0 the second."""
    path = tmp_path / "cache"
    publish(path, "owner/model", COMMIT, "main", "v1")
    publish(path, "owner/model", OLDER, "v0", write=lambda p: write_llama(p, num_hidden_layers=2, seed=1))
    return path


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    # HF_HUB_OFFLINE, which the library reads when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


offline = pytest.mark.usefixtures("_offline")


@offline
@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
def test_found_in_the_cache(cache: Path, revision: str | None) -> None:
    hub = Hub(cache_dir=str(cache), revision=revision)
    assert find_model("owner/model", hub).name == COMMIT
    assert describe_model("owner/model", hub).num_layers == 3


@offline
@pytest.mark.parametrize(("name", "revision"), [("owner/other", None), ("owner/model", "v2")])
def test_not_in_the_cache(cache: Path, name: str, revision: str | None) -> None:
    with pytest.raises(ModelError, match=f"'{name}'.*not in the hub's cache.*unset HF_HUB_OFFLINE") as error:
        find_model(name, Hub(cache_dir=str(cache), revision=revision))
    assert revision is None or f"revision '{revision}'" in str(error.value)
    assert "\n" not in str(error.value)


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"'owner/model'.*Name or service not known.*the network"):
        find_model("owner/model", Hub(cache_dir=str(cache)))


def test_what_is_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything given is passed on, and pickled files are fetched only where there is no safetensors file."""
    calls: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub = Hub(revision="v1", token="secret", cache_dir="/cache")
    assert find_model("owner/model", hub) == tmp_path
    (tmp_path / "model.safetensors").touch()
    find_model("owner/model", hub)
    find_model("owner/model", hub, weights=False)
    kinds = ("*.safetensors", "pytorch_model*.bin", "medusa_lm_head.pt")
    assert [tuple(kind in call["allow_patterns"] for kind in kinds) for call in calls] == [
        (True, False, False),
        (False, True, True),
        (True, False, False),
        (False, False, False),
    ]
    for call in calls:
        assert call["name"] == "owner/model"
        assert (call["revision"], call["token"], call["cache_dir"]) == ("v1", "secret", "/cache")
        assert {"*.json", "*.jinja", "merges.txt", "tokenizer.model", "*.tiktoken"} <= set(call["allow_patterns"])
        assert call["ignore_patterns"] == ["*/*[!a]", "consolidated*"]


def test_of_folders_only_templates_are_fetched() -> None:
    """Files of Hermes 3, Cohere's Command A and Llama 3.1, as the hub's own library filters them."""
    wanted = ["config.json", "model-00001-of-00002.safetensors", "chat_template.jinja", "merges.txt",
              "additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja"]  # fmt: skip
    others = ["original/consolidated.00.pth", "original/params.json", "original/tokenizer.model", "README.md",
              "onnx/model.onnx", "onnx/model.safetensors", "1_Pooling/config.json", "consolidated.safetensors",
              "gguf/merges.txt", "LICENSE", "vision/qwen.tiktoken"]  # fmt: skip
    asked = parse_hub_name("owner/model")
    found = huggingface_hub.utils.filter_repo_objects(
        [*wanted, *others], allow_patterns=asked.patterns, ignore_patterns=list(asked.ignored)
    )
    assert list(found) == wanted


def test_a_directory_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    assert find_model("owner/model").resolve() == path
    for name in ("./owner/other", "/owner/other", "other", "a/b/c", "other/", "-a/b", "a/b/../c.gguf", "a/" * 5000):
        with pytest.raises(ModelError, match="there is no model"):
            find_model(name)


@offline
def test_files_in_a_repository(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        model = write_llama(tmp_path / "source")
        for name, kind in (
            ("m-Q8_0.gguf", "Q8_0"),
            ("m.f16.gguf", "F16"),
            ("m-IQ8_0.gguf", "F32"),
            ("2.F16.gguf", "F16"),
        ):
            write_gguf(model, path / name, kind)

    publish(tmp_path / "cache", "owner/files", COMMIT, "main", write=write)
    hub = Hub(cache_dir=str(tmp_path / "cache"))
    for name in ("owner/files/m-Q8_0.gguf", "owner/files:Q8_0", "owner/files:q8_0"):
        assert find_model(name, hub).name == "m-Q8_0.gguf"
    with pytest.raises(ModelError, match=r"has no file 'other\.gguf'"):
        find_model("owner/files/other.gguf", hub)
    with pytest.raises(ModelError, match=r"ends in Q4_0, but there is none; give its path as owner/files/FILE\.gguf"):
        find_model("owner/files:Q4_0", hub)
    with pytest.raises(ModelError, match=r"there is 2\.F16\.gguf, m\.f16\.gguf; give"):
        find_model("owner/files:F16", hub)
    options: dict[str, Any] = {"download_dir": str(tmp_path / "cache"), "max_model_len": 32}
    one, other = (LLM(name, **options) for name in ("owner/files:Q8_0", "owner/files/m-Q8_0.gguf"))
    assert one.numerics_id == other.numerics_id
    assert one.numerics_id.startswith("m-Q8_0.gguf-")
    assert one.generate("abc")[0].outputs[0].token_ids == other.generate("abc")[0].outputs[0].token_ids


@offline
def test_files_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are asked for, and the first is what counts."""
    asked: list[list[str]] = []
    real = huggingface_hub.snapshot_download

    def download(name: str, **options: Any) -> str:
        asked.append(options["allow_patterns"])
        return real(name, **options)

    def write(path: Path) -> None:
        write_gguf(write_llama(tmp_path / "source"), path / "m-Q8_0.gguf", "Q8_0", tensors_each=12)

    publish(tmp_path / "cache", "owner/files", COMMIT, "main", write=write)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub = Hub(cache_dir=str(tmp_path / "cache"))
    parts = [f"m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in ("owner/files:Q8_0", *(f"owner/files/{part}" for part in parts)):
        assert find_model(name, hub).name == parts[0]
        assert describe_model(name, hub).num_layers == 3
        assert all(any(fnmatch(part, pattern) for pattern in asked[-1]) for part in parts)
        assert not any(fnmatch("other.gguf", pattern) for pattern in asked[-1])


@offline
def test_options_of_the_engine(cache: Path) -> None:
    options: dict[str, Any] = {"download_dir": str(cache), "max_model_len": 32}

    def layers(**more: Any) -> int:
        return len(LLM("owner/model", **options, **more).engine._worker._runner.cache)

    assert layers() == 3
    assert layers(revision="v0") == 2
    with pytest.raises(ModelError, match="revision 'v2'"):
        layers(revision="v2")
    draft = {"model": "owner/model", "revision": "v0"}
    llm = LLM("tiny-code", **options, tokenizer="tiny-code")
    assert llm.engine.config.download_dir == str(cache)
    llm = LLM("owner/model", speculative_config=draft, **options)
    assert len(llm.engine._worker._proposer._runner.cache) == 2  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="revision 'v3'"):
        LLM("owner/model", speculative_config=draft | {"revision": "v3"}, **options)


@offline
def test_revisions_of_tokenizers(cache: Path) -> None:
    publish(cache, "owner/tokenizer", COMMIT, "main", write=lambda p: write_byte_tokenizer(p, 200))
    publish(cache, "owner/tokenizer", OLDER, "v0", write=lambda p: write_byte_tokenizer(p, 150))

    def size(model: str = "owner/model", **options: Any) -> int:
        llm = LLM(model, download_dir=str(cache), max_model_len=32, **options)
        return int(llm.engine.codec.tokenizer.get_vocab_size())

    assert size(revision="v0") == 257
    # The revision of the model is not that of another model's tokenizer.
    assert size(tokenizer="owner/tokenizer", revision="v1") == 200
    assert size(tokenizer="owner/tokenizer", tokenizer_revision="v0") == 150
    for options in ({}, {"tokenizer": "owner/model"}):
        assert size(revision="v0", tokenizer_revision="v1", **options) == 257
        with pytest.raises(ModelError, match=r"'owner/model'.*revision 'v7'"):
            size(tokenizer_revision="v7", **options)


@offline
def test_a_tokenizer_needs_no_weights(tmp_path: Path) -> None:
    publish(tmp_path, "owner/words", COMMIT, "main", write=write_byte_tokenizer)
    assert find_model("owner/words", Hub(cache_dir=str(tmp_path)), weights=False).name == COMMIT


def test_what_is_on_this_machine_has_one_version(cache: Path, tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "directory")
    file = write_gguf(directory, tmp_path / "m.gguf")
    for model in ("tiny-code", str(directory), str(file)):
        for speculative, options in (
            (None, {"model": model, "revision": "main"}),
            (None, {"model": str(directory), "tokenizer": model, "tokenizer_revision": "main"}),
            (None, {"model": model, "tokenizer_revision": "main"}),
            ({"model": model, "revision": "main"}, {"model": str(directory)}),
        ):
            with pytest.raises(ConfigError, match=r"revision='main' picks a version of a model on a hub.*already"):
                LLM(**options, speculative_config=speculative)


def test_the_environment_alone_takes_it_offline(cache: Path) -> None:
    code = (
        "from parlay.checkpoints.find import find_model as find;print(find('owner/model').name);find('owner/other')"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert ran.stdout == f"{COMMIT}\n"
    assert "ModelError: there is no directory 'owner/other'" in ran.stderr
    assert "unset HF_HUB_OFFLINE" in ran.stderr


def test_a_token_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def fail(*args: Any, token: str, **options: Any) -> str:
        seen.append(token)
        raise ValueError(f"illegal header: Bearer {token}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    caplog.set_level(logging.DEBUG)
    said = []
    for speculative, options in (
        (None, {"model": "owner/model"}),
        (None, {"tokenizer": "owner/model"}),
        ({"model": "owner/model"}, {}),
    ):
        with pytest.raises(ModelError, match=r"illegal header: Bearer \*\*\*") as error:
            LLM(**options, speculative_config=speculative, hf_token=TOKEN)
        said.append(f"{error.value} {error.value.__cause__} {error.value!r}")
    assert seen == [TOKEN] * 3
    config = EngineConfig(hf_token=TOKEN)
    said += [repr(config), str(config), repr(Hub(token=TOKEN)), *capfd.readouterr(), caplog.text]
    for arguments in (["--hf-token", TOKEN], [f"--hf_token={TOKEN}"], [f"--hf-token={TOKEN}", "--seed", "3"]):
        monkeypatch.setattr(sys, "argv", ["parlay", "bench", *arguments])
        said.append(str(provenance()))
        assert "***" in said[-1]
    for bad in (TOKEN + "\n", " " + TOKEN, TOKEN + "é"):
        with pytest.raises(ConfigError, match="hf_token must be printable") as refused:
            EngineConfig.parse({"hf_token": bad})
        said.append(str(refused.value))
    assert not any("S3cret" in text for text in said)
