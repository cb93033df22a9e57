"""What tells one model from another: every byte that its tokens depend on."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from checkpoints import write_llama
from families import write_family
from gguf_files import write_gguf
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import LLM, ModelError, env
from parlay.checkpoints.find import find_model
from parlay.models.config import ModelConfig
from parlay.models.select import describe_model
from parlay.models.style import Rotary
from parlay.numerics import digests as identity
from parlay.numerics import identify as numerics
from parlay.numerics.digests import digest_model, start_digest

Change = Callable[[Path], object]


def halve_a_third(path: Path) -> None:
    """Halve some rows of each output projection, of which no row in the middle."""
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor[: len(tensor) // 3] /= 2
    save_file(tensors, path / "model.safetensors")


def edit(name: str, **changes: Any) -> Change:
    def change(path: Path) -> None:
        file = path / name
        raw = json.loads(file.read_text()) if file.is_file() else {}
        file.write_text(json.dumps(raw | changes))

    return change


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = write_llama(tmp_path / "model")
    shutil.copy(find_model("tiny-code") / "tokenizer.json", path)
    return path


@pytest.mark.parametrize(
    "change",
    [
        halve_a_third,
        edit("config.json", rms_norm_eps=1e-3),
        edit("generation_config.json", eos_token_id=[5, 6]),
        edit("generation_config.json", temperature=0.5),
        edit("tokenizer_config.json", chat_template="{{ messages }}"),
        lambda path: (path / "chat_template.jinja").write_text("{{ messages[0].content }}"),
        edit("tokenizer.json", post_processor=None, normalizer={"type": "NFC"}),
    ],
    ids=["weights", "config", "end tokens", "defaults", "template", "template file", "tokenizer"],
)
def test_what_a_token_may_depend_on_is_in_the_digest(model: Path, change: Change) -> None:
    before = digest_model(model)
    change(model)
    assert digest_model(model) != before


def test_what_no_token_depends_on_is_not(model: Path, tmp_path: Path) -> None:
    before = digest_model(model)
    (model / "README.md").write_text("a model")
    assert digest_model(model) == before
    assert digest_model(Path(shutil.copytree(model, tmp_path / "elsewhere"))) == before
    assert start_digest(model, tmp_path / "elsewhere").result() == before
    os.utime(model / "config.json")
    assert digest_model(model) == before


def test_a_tokenizer_from_elsewhere(model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    edit("tokenizer.json", normalizer={"type": "NFC"})(other)
    assert digest_model(model, other) != digest_model(model)


def test_all_parts_of_a_gguf_file(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    whole = write_gguf(model, tmp_path / "whole.gguf")
    before = digest_model(whole)
    assert digest_model(whole.rename(tmp_path / "renamed.gguf")) == before
    parts = tmp_path / "parts"
    parts.mkdir()
    write_gguf(model, parts / "m.gguf", tensors_each=12)
    first, *_, last = sorted(parts.iterdir())
    assert first != last
    before = digest_model(first)
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    assert digest_model(first) != before


def test_files_are_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def note(file: Path) -> str:
        read.append(file.name)
        return blake3(file.read_bytes()).hexdigest()

    monkeypatch.setattr(identity, "_digest", note)
    before = digest_model(model)
    assert sorted(read) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    read.clear()
    assert digest_model(model) == before
    assert read == []
    file = model / "model.safetensors"
    about = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))  # as a copy that keeps times would
    assert digest_model(model) != before
    assert read == ["model.safetensors"]
    cache = env.cache_dir()
    assert cache is not None
    (cache / "digests.json").write_text("{")
    assert digest_model(model) != before
    assert len(read) == 5, "all files were read again"


def test_a_file_that_cannot_be_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, strict: bool = False) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "resolve", fail)
    with pytest.raises(ModelError, match="cannot be read"):
        digest_model(model)


@pytest.mark.parametrize(("family", "depends"), [("llama-longrope-short", True), ("llama-yarn", False)])
def test_a_longest_sequence_that_chooses_frequencies(tmp_path: Path, family: str, depends: bool) -> None:
    path = write_family(tmp_path, family)
    short, long = (LLM(str(path), max_model_len=length).numerics_id for length in (64, 200))
    assert (short != long) == depends


def test_the_rotary_embedding_of_layers_with_a_window_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frequencies are another library's powers, which may differ where the config does not."""
    config = describe_model(str(write_family(tmp_path, "gemma3")))
    assert config.style.local_rotary is not None
    before, whole = numerics.identify(config, 64, "digest"), numerics.frequencies_of

    def other(config: ModelConfig, length: int, rotary: Rotary) -> tuple[Tensor, float]:
        frequencies, size = whole(config, length, rotary)
        return frequencies * (1 + 1e-6 * (rotary is config.style.local_rotary)), size

    monkeypatch.setattr(numerics, "frequencies_of", other)
    assert numerics.identify(config, 64, "digest") != before


@pytest.mark.parametrize("name", ["parlay", "tokenizers", "jinja2", "llguidance"])
def test_what_makes_tokens_is_in_the_id(model: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Another version may read prompts otherwise, or permit other tokens."""
    known = numerics.version
    ids = set()
    for more in ("", "", ".post1"):
        monkeypatch.setattr(numerics, "version", lambda one, more=more: known(one) + (more if one == name else ""))
        numerics._makers.cache_clear()
        ids.add(LLM(str(model), max_model_len=32).numerics_id)
    numerics._makers.cache_clear()
    assert len(ids) == 2
