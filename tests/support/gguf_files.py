"""GGUF files made from Hugging Face checkpoints: names by the `gguf` package's own table, bytes by its own writer."""

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from safetensors.torch import load_file, save_file
from torch import Tensor

ARCHES = {arch_name: arch for arch, arch_name in gguf.MODEL_ARCH_NAMES.items()}


def write_gguf(
    model: Path,
    path: Path,
    kind: str | Callable[[str], str] = "F32",
    *,
    pre: str | None = "gpt-2",
    change: Any = None,
    tensors_each: int = 0,
    **metadata: Any,
) -> Path:
    """Convert a Llama directory.

    Args:
        model: the directory.
        path: the file to write.
        kind: how matrices are stored, or what tells by a matrix's name; norms are float32, as is usual. Blocks of
            the `_K` and `IQ` kinds, which nothing here can make of weights, are random.
        pre: name of the pre-tokenizer; None puts `tokenizer.json` in as it is.
        change: called with the writer before anything is written.
        tensors_each: split the file into parts of at most so many tensors; `path` is then no file, but names them.
        metadata: further keys; dots as double underscores, None leaves a key out.
    """
    config = json.loads((model / "config.json").read_text())
    writer = GGUFWriter(path, "llama", split_max_tensors=tensors_each)
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    keys: dict[str, Any] = {
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv,
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        **tokenizer_keys(model, pre),
    }
    add_keys(writer, keys, metadata)
    for name, tensor in load_file(model / "model.safetensors").items():
        if ".q_proj." in name or ".k_proj." in name:
            tensor = interleave(tensor, heads if ".q_proj." in name else kv)
        add_tensor(writer, "llama", name, tensor, kind if isinstance(kind, str) else kind(name))
    if change is not None:
        change(writer)
    finish(writer)
    return path


def add_keys(writer: GGUFWriter, keys: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in {**keys, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
        if value is None:
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_uint32 if 0 <= value < 1 << 32 else writer.add_int64)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)


def interleave(weight: Tensor, heads: int) -> Tensor:
    """Turn rotary rows from halves into pairs, one row at a time."""
    size = weight.shape[0] // heads
    order = [
        head * size + half * (size // 2) + i for head in range(heads) for i in range(size // 2) for half in (0, 1)
    ]
    return weight[order]


def add_tensor(writer: GGUFWriter, arch: str, name: str, tensor: Tensor, kind: str) -> None:
    """Add a tensor under the name that the package's table has for Hugging Face's."""
    ours = _table(arch).get_name(name, try_suffixes=(".weight", ".bias"))
    assert ours is not None, name
    if tensor.dim() == 1:
        kind = "F32"
    add_raw(writer, ours, to_blocks(tensor, kind, seed=len(writer.tensors[0])), kind)


@lru_cache
def _table(arch: str) -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(ARCHES[arch], 100)


def add_raw(writer: GGUFWriter, name: str, blocks: np.ndarray, kind: str) -> None:
    floats = {"F32": np.float32, "F16": np.float16}
    if kind in floats:
        writer.add_tensor(name, blocks.view(floats[kind]))
    else:
        writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType[kind])


def to_blocks(tensor: Tensor, kind: str, seed: int = 0) -> np.ndarray:
    """Return a tensor's bytes as a file stores them, `[rows, bytes a row]`."""
    if kind == "BF16":
        return tensor.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint8)
    if kind.endswith("_K") or kind.startswith(("IQ", "Q1", "TQ")):
        return random_blocks(kind, (*tensor.shape[:-1], tensor.shape[-1]), seed)
    return gguf.quants.quantize(tensor.float().numpy(), GGMLQuantizationType[kind]).view(np.uint8)


def random_blocks(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return valid blocks of random bytes whose scales are moderate."""
    elements, width = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rng = np.random.default_rng(seed)
    rows = int(np.prod(shape[:-1]))
    blocks = rng.integers(0, 256, (rows, shape[-1] // elements, width), dtype=np.uint8)
    two = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q2_K": (width - 4, width - 2)}
    last = (width - 2,)
    places = two | {"Q3_K": last, "Q6_K": last, "TQ1_0": last, "TQ2_0": last, "IQ1_M": ()}
    for at in places.get(kind, (0,)):
        scale = rng.uniform(1e-4, 4e-4, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scale[..., None].view(np.uint8)
    if kind == "IQ1_M":  # the upper halves of every second byte are a scale of 2e-4
        for place, four in zip((-7, -5, -3, -1), (0, 9, 10, 0), strict=True):
            blocks[..., place] = blocks[..., place] & 15 | four << 4
    return blocks.reshape(*shape[:-1], -1)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def assert_same_file(ours: Path, theirs: Path, free: Collection[str] = ()) -> None:
    """Compare two files: the same tensors, but for what 16 bits round, and the same values under their keys.

    Args:
        ours: a file, which may have more keys.
        theirs: another one.
        free: further endings of keys that only one has to have.
    """
    one, other = GGUFReader(ours), GGUFReader(theirs)
    found = {tensor.name: tensor for tensor in one.tensors}
    assert found.keys() == {tensor.name for tensor in other.tensors}
    for tensor in other.tensors:
        same = found[tensor.name]
        values = [gguf.quants.dequantize(each.data, each.tensor_type) for each in (same, tensor)]
        assert list(same.shape) == list(tensor.shape), tensor.name
        np.testing.assert_allclose(*values, rtol=2**-8, atol=1e-6, err_msg=tensor.name)
    for key in other.fields.keys() - {"GGUF.kv_count", "tokenizer.chat_template"}:
        if not key.endswith(tuple(free)):
            assert one.fields[key].contents() == other.fields[key].contents(), key


def tokenizer_keys(model: Path, pre: str | None) -> dict[str, Any]:
    """Return what a file says of a directory's byte-level tokenizer."""
    text = (model / "tokenizer.json").read_text()
    described = json.loads(text)
    added = {t["id"]: t for t in described["added_tokens"]}
    vocabulary = {**described["model"]["vocab"], **{t["content"]: i for i, t in added.items()}}
    tokens = sorted(vocabulary, key=lambda t: vocabulary[t])
    config = json.loads((model / "tokenizer_config.json").read_text())
    shape = json.loads((model / "config.json").read_text())
    merges = [m if isinstance(m, str) else " ".join(m) for m in described["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i in added and added[i]["special"] else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": merges or None,
        "tokenizer.ggml.bos_token_id": shape.get("bos_token_id"),
        "tokenizer.ggml.eos_token_id": shape.get("eos_token_id"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": config.get("chat_template"),
        "tokenizer.huggingface.json": text if pre is None else None,
    }


def write_dequantised(model: Path, path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Path:
    """Write a directory like `model` with other weights."""
    path.mkdir()
    for file in model.iterdir():
        if file.suffix == ".json":
            (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text()) | {"dtype": str(dtype).removeprefix("torch.")}
    (path / "config.json").write_text(json.dumps(config))
    save_file({n: t.to(dtype).contiguous() for n, t in tensors.items()}, path / "model.safetensors")
    return path
