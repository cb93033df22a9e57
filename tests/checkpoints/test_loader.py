"""The loader is strict, says which tensor is at fault, and says so before it reads any data."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoints import write_llama
from crossing import crossed
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import LLM, ModelError
from parlay.checkpoints.headers import weight_files
from parlay.checkpoints.loader import Checkpoint
from parlay.numerics.digests import digest_model

Tensors = dict[str, Tensor]
Edit = Callable[[Tensors], None]
K_PROJ = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of tensors whose data was read."""
    names: list[str] = []
    read = Checkpoint._counted

    def spy(self: Checkpoint, name: str, dtype: torch.dtype) -> Tensor:
        names.append(name)
        return read(self, name, dtype)

    monkeypatch.setattr(Checkpoint, "_counted", spy)
    return names


def edit(path: Path, change: Edit) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def load(path: Path) -> LLM:
    return LLM(str(path), max_model_len=64)


def test_the_spy_sees_reads(path: Path, reads: list[str]) -> None:
    load(path)
    assert K_PROJ in reads


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(K_PROJ), ["lacks", K_PROJ]),
        (lambda t: [t.pop(n) for n in list(t) if "k_proj" in n], ["lacks", "layers.0.self_attn.k_proj", "2 more"]),
        (lambda t: t.update({"model.layers.3.mlp.up_proj.weight": torch.zeros(2)}), ["layers.3.mlp.up_proj"]),
        (lambda t: t.update({K_PROJ.replace("weight", "bias"): torch.zeros(32)}), ["k_proj.bias"]),
        (lambda t: t.update({K_PROJ: torch.zeros(64, 64)}), [K_PROJ, "[64, 64]", "[32, 64]"]),
        (lambda t: t.update({"model.norm.weight": torch.zeros(1, 64)}), ["model.norm.weight", "[1, 64]"]),
    ],
    ids=["missing", "several missing", "extra layer", "extra bias", "shape", "dimensions"],
)
def test_tensors_that_do_not_fit(path: Path, reads: list[str], change: Edit, words: list[str]) -> None:
    edit(path, change)
    with pytest.raises(ModelError) as error:
        load(path)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert reads == []


def test_a_head_in_a_tied_checkpoint_is_not_read(tmp_path: Path, reads: list[str]) -> None:
    path = write_llama(tmp_path / "tied", tie_word_embeddings=True)
    edit(path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load(path)
    assert "model.embed_tokens.weight" in reads
    assert "lm_head.weight" not in reads


def test_what_early_exporters_stored_is_ignored(path: Path) -> None:
    edit(path, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    load(path)


FURTHER = ["model.layers.3.eh_proj.weight", "model.layers.4.mlp.up_proj.weight", "mtp.layers.0.norm.weight"]


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
def test_layers_that_predict_further_tokens_are_handed_back(tmp_path: Path, reads: list[str], key: str) -> None:
    path = write_llama(tmp_path / "further", **{key: 2})
    assert load(path).engine._worker._runner.model.leftovers == ()
    edit(path, lambda t: t.update({name: torch.zeros(2) for name in FURTHER}))
    reads.clear()
    assert load(path).engine._worker._runner.model.leftovers == tuple(FURTHER)
    assert reads
    assert not set(FURTHER) & set(reads)
    edit(path, lambda t: t.update({"model.layers.5.mlp.up_proj.weight": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"not explain: 'model\.layers\.5\.mlp\.up_proj\.weight'$"):
        load(path)


@pytest.mark.parametrize("count", [None, 0])
@pytest.mark.parametrize("name", [name for name in FURTHER if not name.startswith("mtp.")])
def test_but_only_if_the_config_announces_them(tmp_path: Path, name: str, count: int | None) -> None:
    path = write_llama(tmp_path / "further", num_nextn_predict_layers=count)
    edit(path, lambda t: t.update({name: torch.zeros(2)}))
    with pytest.raises(ModelError, match=f"does not explain: '{name}'"):
        load(path)


@pytest.mark.parametrize("count", [-1, "2", True, 1.5, 1 << 70, float("nan"), [1]])
def test_numbers_of_further_layers(tmp_path: Path, count: object) -> None:
    """A damaged number explains no more than there is, and costs nothing."""
    path = write_llama(tmp_path / "further", num_nextn_predict_layers=count)
    edit(path, lambda t: t.update({"model.layers.5000.norm.weight": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"num_nextn_predict_layers|does not explain"):
        load(path)


def test_no_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="does not exist"):
        load(path)


def test_a_missing_shard_is_named(path: Path, reads: list[str]) -> None:
    index = {"weight_map": {K_PROJ: "model-00001-of-00002.safetensors"}}
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="model-00001-of-00002"):
        load(path)
    assert reads == []


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_one_file_of_all_weights_comes_before_an_index(path: Path, kind: str) -> None:
    """As in transformers, which leaves an index behind when it saves a model of shards as one file."""
    tensors = load_file(path / "model.safetensors")
    name = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[kind]
    if kind == "bin":
        (path / "model.safetensors").unlink()
        torch.save(tensors, path / name)
    (path / f"{name}.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, f"gone.{kind}")}))
    assert weight_files(path) == [path / name]
    load(path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index(path: Path, text: str) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError):
        load(path)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("where", ["../elsewhere.{}", "{}/elsewhere.{}", "a/../../elsewhere.{}", "/dev/zero", ".."])
def test_an_index_stays_in_its_directory(path: Path, reads: list[str], kind: str, where: str) -> None:
    """Even where the file is there and holds what is asked for."""
    name = where.format(kind) if where.count("{}") < 2 else where.format(path.parent, kind)
    tensors = load_file(path / "model.safetensors")
    save_file(tensors, path.parent / "elsewhere.safetensors")
    torch.save(tensors, path.parent / "elsewhere.bin")
    (path / "a").mkdir()
    (path / "model.safetensors").unlink()
    index = {"safetensors": "model.safetensors.index.json", "bin": "pytorch_model.bin.index.json"}[kind]
    (path / index).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, name)}))
    for use in (load, digest_model):
        with pytest.raises(ModelError, match="which is no file in the model's directory"):
            use(path)
    assert reads == []


def test_weights_are_converted(path: Path) -> None:
    with Checkpoint(path) as checkpoint:
        assert checkpoint.shape(K_PROJ) == (32, 64)
        exact = checkpoint.read(K_PROJ, torch.float32)
        assert torch.equal(checkpoint.read(K_PROJ, torch.bfloat16), exact.bfloat16())


@crossed(
    damaged=tuple(product((torch.nan, torch.inf, -torch.inf), (0, 1000, -1))),
    stored=(torch.float32, torch.bfloat16, torch.float16),
)
def test_values_that_are_no_numbers_are_refused(path: Path, damaged: tuple[float, int], stored: torch.dtype) -> None:
    value, place = damaged

    def damage(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(stored)
        tensors[K_PROJ].view(-1)[place] = value

    load(path)
    edit(path, damage)
    with pytest.raises(
        ModelError, match=rf"tensor '{K_PROJ}' holds values that are infinite or not numbers"
    ) as error:
        load(path)
    assert "model.safetensors" in str(error.value)
    assert "damaged" in str(error.value)


def test_values_too_large_for_the_dtype_are_refused(path: Path) -> None:
    edit(path, lambda t: t[K_PROJ].view(-1)[3:4].fill_(3.4e38))
    load(path)
    with pytest.raises(ModelError, match=rf"'{K_PROJ}'.*infinite.*in bfloat16"):
        LLM(str(path), max_model_len=64, dtype="bfloat16")


def test_a_damaged_head_or_draft_model_is_refused(path: Path, tmp_path: Path) -> None:
    good = write_llama(tmp_path / "good")
    edit(path, lambda t: t["lm_head.weight"].view(-1)[-1:].fill_(torch.nan))
    with pytest.raises(ModelError, match=r"'lm_head\.weight'"):
        load(path)
    with pytest.raises(ModelError, match=r"'lm_head\.weight'"):
        LLM(str(good), max_model_len=64, speculative_config={"method": "draft_model", "model": str(path)})


def as_bin(path: Path, content: object = None, **options: bool) -> Path:
    """Replace a model's safetensors file by a `.bin` one of the same tensors, or of `content`."""
    file = path / "model.safetensors"
    torch.save(load_file(file) if content is None else content, path / "pytorch_model.bin", **options)
    file.unlink()
    return path / "pytorch_model.bin"


@pytest.mark.parametrize("archive", [True, False], ids=["zip", "old"])
def test_bin_files(path: Path, archive: bool) -> None:
    with Checkpoint(path) as checkpoint:
        expected = checkpoint.read(K_PROJ, torch.float32)
    as_bin(path, _use_new_zipfile_serialization=archive)
    load(path)
    with Checkpoint(path) as checkpoint:
        assert checkpoint.shape(K_PROJ) == (32, 64)
        assert torch.equal(checkpoint.read(K_PROJ, torch.float32), expected)


def test_shards_of_bin_files(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    names = sorted(tensors)
    weight_map = {name: f"pytorch_model-{i % 2 + 1:05}-of-00002.bin" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        torch.save({n: tensors[n] for n in names if weight_map[n] == file}, path / file)
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    before = digest_model(path)
    load(path)
    (path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(ModelError, match="pytorch_model-00002-of-00002"):
        load(path)
    assert before


def test_a_bin_file_runs_no_code(path: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    as_bin(path, {K_PROJ: Trap()})
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is damaged, or holds other objects than tensors"):
        load(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_digest_names_weights(path: Path, kind: str) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path / "model.safetensors").items()}
    seen = set()
    for changed in (
        {},
        {K_PROJ: tensors[K_PROJ] * 1.01},
        {"model.norm.weight": tensors["model.norm.weight"] * 2},
        {"another": torch.zeros(0)},
    ):
        if kind == "safetensors":
            save_file(tensors | changed, path / "model.safetensors", metadata={"format": "pt"})
        else:
            torch.save(tensors | changed, path / "pytorch_model.bin")
            (path / "model.safetensors").unlink(missing_ok=True)
        seen.add(digest_model(path))
        assert digest_model(path) in seen
    assert len(seen) == 4


@pytest.mark.parametrize("kind", ["safetensors", "bin", "old bin"])
@pytest.mark.parametrize("damage", ["garbage", "empty", "short header", "truncated", "one byte short", "a directory"])
def test_damaged_files(path: Path, reads: list[str], kind: str, damage: str) -> None:
    file = path / "model.safetensors"
    if kind != "safetensors":
        file = as_bin(path, _use_new_zipfile_serialization=kind == "bin")
    whole = file.read_bytes()
    if damage == "a directory":
        file.unlink()
        file.mkdir()
    else:
        kept = {"empty": 0, "short header": 40, "truncated": len(whole) // 2, "one byte short": len(whole) - 1}
        file.write_bytes(b"\xff" * 100 if damage == "garbage" else whole[: kept[damage]])
    with pytest.raises(ModelError, match=file.name):
        load(path)
    assert reads == []


@pytest.mark.parametrize("content", [[1], {"a": 3}, {}], ids=str)
def test_bin_files_of_something_else(path: Path, content: object) -> None:
    as_bin(path, content)
    with pytest.raises(ModelError):
        load(path)
