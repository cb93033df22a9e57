"""GGUF files: the same bits as the same weights in safetensors, the same tokens, and typed errors for the rest."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from asking import CODE, completed_code
from checkpoints import read_config, write_llama
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf_files import (
    add_raw,
    finish,
    interleave,
    random_blocks,
    to_blocks,
    write_dequantised,
    write_gguf,
)
from pieces import logits_of
from safetensors.torch import load_file
from torch import Tensor

from parlay import LLM, ModelError
from parlay.checkpoints.find import find_model
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.models.select import describe_model
from parlay.numerics.digests import digest_model


def dequantisable(kind: GGMLQuantizationType) -> bool:
    """Whether the package can dequantise a kind."""
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (KeyError, NotImplementedError):
        return False
    return True


KINDS = [kind.name for kind in GGMLQuantizationType if kind.name not in ("F32", "F16") and dequantisable(kind)]
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
logits = partial(logits_of, storage="plain")
Q_PROJ, UP_PROJ = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_a_tensor_of_many_slabs(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks(kind, (11, 512), seed=2)
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    add_raw(writer, "x", blocks, kind)
    finish(writer)
    with GGUFFile(tmp_path / "a.gguf") as file:
        whole = file.read("x")
        for slab in (1, 513, 2048, 5000):
            monkeypatch.setattr("parlay.checkpoints.gguf.reader._SLAB", slab)
            assert torch.equal(file.read("x"), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_what_the_package_makes_of_it(tmp_path: Path, kind: str) -> None:
    blocks = random_blocks(kind, (5, 512), seed=4)
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    add_raw(writer, "x", blocks, kind)
    finish(writer)
    with GGUFFile(tmp_path / "a.gguf") as file, np.errstate(all="ignore"):
        found = file.read("x").float().numpy()
        expected = gguf.quants.dequantize(blocks, GGMLQuantizationType[kind])
    assert found.shape == (5, 512)
    assert np.array_equal(found, expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("BF16", torch.bfloat16)], ids=str)
def test_floats_give_the_bits_of_safetensors(tmp_path: Path, kind: str, dtype: torch.dtype, tied: bool) -> None:
    model = write_llama(tmp_path / "model", dtype=dtype, tie_word_embeddings=tied)
    file = write_gguf(model, tmp_path / "model.gguf", kind)
    assert describe_model(str(file)).dtype == str(dtype).removeprefix("torch.")
    for computed in (torch.float32, torch.bfloat16):
        assert torch.equal(logits(file, computed), logits(model, computed))


def test_a_wrong_order_of_rows_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_llama(tmp_path / "model")
    monkeypatch.setattr("gguf_files.interleave", lambda weight, heads: weight)
    file = write_gguf(model, tmp_path / "model.gguf")
    assert not torch.allclose(logits(file), logits(model), atol=0.1)


@pytest.mark.parametrize(
    "kind", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
)
def test_others_give_the_bits_of_their_values_in_safetensors(tmp_path: Path, kind: str) -> None:
    model = write_llama(tmp_path / "model", **WIDE)
    file = write_gguf(model, tmp_path / "model.gguf", kind)
    heads = {".q_proj.": 4, ".k_proj.": 2}
    values = {}
    for i, (name, tensor) in enumerate(load_file(model / "model.safetensors").items()):
        rotated = next((n for part, n in heads.items() if part in name), 0)
        values[name] = dequantised(interleave(tensor, rotated) if rotated else tensor, kind, i)
        if rotated:
            values[name] = halves(values[name], rotated)
    same = write_dequantised(model, tmp_path / "same", values, torch.float32)
    for computed in (torch.float32, torch.bfloat16):
        expected = logits(same, computed)
        assert expected.std() > 1e-3
        assert torch.equal(logits(file, computed), expected)


def dequantised(tensor: Tensor, kind: str, seed: int) -> Tensor:
    """Return the values that a file has for a tensor."""
    if tensor.dim() == 1:
        return tensor
    if kind == "F16":
        return tensor.half().float()
    return torch.from_numpy(gguf.quants.dequantize(to_blocks(tensor, kind, seed), GGMLQuantizationType[kind]))


def halves(weight: Tensor, heads: int) -> Tensor:
    """Undo `interleave`, one row at a time."""
    out = torch.empty_like(weight)
    for new, old in enumerate(interleave(torch.arange(weight.shape[0])[:, None], heads)[:, 0].tolist()):
        out[old] = weight[new]
    return out


@pytest.mark.parametrize("original", [32, 8192])
def test_llama3_scaling_is_recognised(tmp_path: Path, original: int) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    model = write_llama(tmp_path / "model", rope_theta=500000.0, rope_scaling=scaling)

    def add(writer: GGUFWriter) -> None:
        # As llama.cpp's converter computes them.
        divisors = []
        for i in range(0, 16, 2):
            frequency = 1.0 / 500000.0 ** (i / 16)
            length = 2 * np.pi / frequency
            if length < original / 4.0:
                divisors.append(1.0)
            elif length > original / 1.0:
                divisors.append(8.0)
            else:
                smooth = (original / length - 1.0) / 3.0
                divisors.append(1 / ((1 - smooth) / 8.0 + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))

    file = write_gguf(model, tmp_path / "model.gguf", change=add)
    assert torch.equal(logits(file), logits(model))
    plain = write_gguf(model, tmp_path / "plain.gguf")
    assert original > 4096 or not torch.equal(logits(plain), logits(model))

    def wrong(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32))

    with pytest.raises(ModelError, match=r"wrong\.gguf.*rope_freqs"):
        describe_model(str(write_gguf(model, tmp_path / "wrong.gguf", change=wrong)))


def test_the_config_says_what_the_directorys_does(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model", rope_theta=123456.0, eos_token_id=7, rms_norm_eps=1e-6)
    ours, theirs = read_config(write_gguf(model, tmp_path / "m.gguf")), read_config(model)
    for name in theirs.__slots__:
        if name not in ("path", "raw", "eos_token_ids"):
            assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.eos_token_ids == (7,)


def test_every_way_to_end_is_known(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    ends = {"tokenizer__ggml__eot_token_id": 3, "tokenizer__ggml__eom_token_id": 4}
    assert read_config(write_gguf(model, tmp_path / "m.gguf", **ends)).eos_token_ids == (256, 3, 4)


@pytest.mark.parametrize(
    ("kind", "name"), [("F16", "float16"), ("Q8_0", "bfloat16"), ("Q4_0", "bfloat16"), ("BF16", "bfloat16")]
)
def test_dtypes(tmp_path: Path, kind: str, name: str) -> None:
    assert read_config(write_gguf(write_llama(tmp_path / "m"), tmp_path / "m.gguf", kind)).dtype == name


# The reader beside the package's own, and names beside the package's own table.


def test_the_header_as_the_package_reads_it(tmp_path: Path) -> None:
    file = write_gguf(find_model("tiny-code"), tmp_path / "m.gguf", "Q8_0")
    reader = GGUFReader(file)
    with GGUFFile(file) as ours:
        assert list(ours.tensors) == [t.name for t in reader.tensors]
        for theirs in reader.tensors:
            stored = ours.tensors[theirs.name]
            assert stored.shape == tuple(theirs.shape.tolist())[::-1]
            assert (stored.kind.name, stored.offset, stored.size) == (
                theirs.tensor_type.name,
                theirs.data_offset,
                theirs.n_bytes,
            )
            expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
            assert torch.equal(ours.read(theirs.name).float(), torch.from_numpy(np.array(expected, np.float32)))
        read = {"STRING": ours.text, "UINT32": ours.integer, "FLOAT32": ours.number}
        compared = set()
        for key, field in reader.fields.items():
            kinds = [kind.name for kind in field.types]
            if key.startswith("GGUF."):
                continue
            if kinds[0] == "ARRAY":
                found: Any = ours.texts(key) if kinds[1] == "STRING" else ours.numbers(key)
                assert ours.length(key) == len(found)
            elif kinds[0] == "BOOL":
                found = ours.flag(key, not field.contents())
            else:
                found = read[kinds[0]](key)
            assert found == pytest.approx(field.contents()) if kinds[0] == "FLOAT32" else found == field.contents()
            compared.add(kinds[-1])
        assert compared >= {"STRING", "UINT32", "FLOAT32", "INT32", "BOOL"}


# Whole engines.


@pytest.fixture(scope="module")
def tiny_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(
        find_model("tiny-code"), tmp_path_factory.mktemp("gguf") / "tiny-code.gguf", "BF16", pre="ufakzeka"
    )


def test_tiny_code_completes_alike(tiny_code: Path) -> None:
    """With every proposer, either model or both in a GGUF file."""
    expected = completed_code(LLM("tiny-code", max_model_len=128, speculative_config=None), 32)
    draft = {"lengths": "fixed", "method": "draft_model", "num_speculative_tokens": 3}
    for target, speculative in (
        (tiny_code, None),
        (tiny_code, {"lengths": "fixed", "method": "ngram"}),
        (tiny_code, {**draft, "model": str(tiny_code)}),
        ("tiny-code", {**draft, "model": str(tiny_code)}),
    ):
        llm = LLM(target, max_model_len=128, speculative_config=speculative)
        assert completed_code(llm, 32) == expected
        assert speculative is None or llm.engine.stats.emitted > llm.engine.stats.steps * len(CODE)


def test_a_quantised_one_completes_alike_whoever_drafts(tmp_path: Path) -> None:
    file = write_gguf(find_model("tiny-code"), tmp_path / "q.gguf", "Q8_0", pre="ufakzeka")
    expected = completed_code(LLM(file, max_model_len=128, speculative_config=None), 32)
    for speculative in (
        {"lengths": "fixed", "method": "ngram"},
        {"lengths": "fixed", "method": "draft_model", "model": "tiny-code-draft"},
    ):
        assert completed_code(LLM(file, max_model_len=128, speculative_config=speculative), 32) == expected


def test_the_chat_template_comes_along(tiny_code: Path) -> None:
    messages = [{"role": "user", "content": "sort a list"}]
    found = LLM(tiny_code, max_model_len=64).chat_prompt(messages)
    assert found == LLM("tiny-code", max_model_len=64).chat_prompt(messages)


def test_a_draft_model_with_other_tokens_is_refused(tmp_path: Path, tiny_code: Path) -> None:
    tokens = json.loads((find_model("tiny-code") / "tokenizer.json").read_text())["model"]["vocab"]
    ordered = sorted(tokens, key=lambda t: tokens[t])
    ordered[300], ordered[301] = ordered[301], ordered[300]
    other = write_gguf(
        find_model("tiny-code"),
        tmp_path / "other.gguf",
        "BF16",
        pre="ufakzeka",
        tokenizer__ggml__tokens=ordered,
    )
    with pytest.raises(ModelError, match="other ids to tokens"):
        LLM(tiny_code, speculative_config={"lengths": "fixed", "method": "draft_model", "model": str(other)})


def test_a_digest_names_weights_and_shape(tmp_path: Path) -> None:
    model, other = write_llama(tmp_path / "a"), write_llama(tmp_path / "b", seed=1)
    seen = {
        digest_model(write_gguf(model, tmp_path / "a.gguf")),
        digest_model(write_gguf(model, tmp_path / "c.gguf")),
        digest_model(write_gguf(other, tmp_path / "b.gguf")),
        digest_model(write_gguf(model, tmp_path / "d.gguf", "F16")),
        digest_model(write_gguf(model, tmp_path / "e.gguf", llama__rope__freq_base=5.0)),
    }
    assert len(seen) == 4
