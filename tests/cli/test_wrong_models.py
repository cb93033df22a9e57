"""What is wrong with a model is said on the command line in one sentence."""

import json
import shutil
from pathlib import Path

import pytest
from checkpoints import write_llama
from gguf_files import write_gguf
from safetensors.torch import load_file, save_file

from parlay.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sound model, and what people make of it."""
    path = tmp_path_factory.mktemp("models")
    whole = write_llama(path / "whole")
    sharded = path / "sharded"
    shutil.copytree(whole, sharded)
    tensors = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    shards = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(shards.values()):
        save_file({name: tensors[name] for name in tensors if shards[name] == shard}, sharded / shard)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (path / "empty").mkdir()
    (path / "config").mkdir()
    shutil.copy(whole / "config.json", path / "config")
    for name, kept in (("cut", -500), ("missing", 0)):
        shard = shutil.copytree(sharded, path / name) / "model-00002-of-00002.safetensors"
        data = shard.read_bytes()
        shard.unlink()
        if kept:
            shard.write_bytes(data[:kept])
    file = write_gguf(whole, path / "cut.gguf", "Q8_0")
    file.write_bytes(file.read_bytes()[:-500])
    (path / "notes.txt").write_text("hello")
    return path


CASES = {
    "--model=nowhere": "there is no model 'nowhere': give a directory",
    "--model=empty": "config.json does not exist; a model directory needs one",
    "--model=config": "tokenizer.json does not exist",
    "--model=config --tokenizer=whole": "model.safetensors does not exist",
    "--model=cut": "model-00002-of-00002.safetensors cannot be read",
    "--model=missing": "model-00002-of-00002.safetensors does not exist",
    "--model=cut.gguf": "cut.gguf is damaged",
    "--model=notes.txt": "notes.txt is not a GGUF file",
    "--model=owner/model": "and the model of that name is not in the hub's cache",
    "--model=owner/model/x.gguf": "not in the hub's cache",
    "--model=owner/model:Q4_K_M": "not in the hub's cache",
    "--model=owner/model --revision=v1": "of that name at revision 'v1' is not in the hub's cache",
    "--model=whole --revision=v1": "leave revision out",
    "--model=whole --tokenizer=owner/model": "not in the hub's cache",
    "--model=whole --hf-token=a b": "hf_token must be printable ASCII characters",
    '--model=whole --speculative-config={"model":"cut"}': "model-00002-of-00002.safetensors cannot be read",
    '--model=whole --speculative-config={"model":"owner/model","revision":"v1"}': "of that name at revision 'v1'",
}


@pytest.mark.parametrize("arguments", CASES)
def test_one_sentence(
    folder: Path, arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    options = ["--" + part for part in arguments.removeprefix("--").split(" --")]
    assert main(["generate", f"--download-dir={tmp_path}", *options, "hello"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("parlay: ")
    assert said.err.count("\n") == 1
    assert CASES[arguments] in said.err
