"""Models written as GGUF files: the bits of what they were made from, as an independent converter has them."""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from checkpoints import write_llama
from crossing import crossed
from families import OTHERS, write_family
from gguf import GGUFReader
from gguf_families import CONVERTED, HYBRIDS, VARIANTS, WRITTEN, convert
from gguf_files import ARCHES, finish, write_dequantised, write_gguf
from pieces import logits_of
from safetensors.torch import load_file, save_file
from stored_layers import write as write_quantised

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.checkpoints.find import find_model
from parlay.checkpoints.gguf import writer
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.loader import Checkpoint
from parlay.models.export.gguf import FORMS, export
from parlay.models.select import describe_model

SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
EXTRA: dict[str, dict[str, Any]] = {
    "llama3": {"rope_scaling": {**SCALED, "original_max_position_embeddings": 128}, "rope_theta": 5000.0},
    "tied": {"tie_word_embeddings": True, "head_dim": 32},
}
IRREGULAR = ["full_attention", *["sliding_attention"] * 3]
NAMES = [*VARIANTS, *WRITTEN, *EXTRA]
MADE = VARIANTS | WRITTEN | HYBRIDS | CONVERTED


@pytest.fixture(scope="module")
def models(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of every variant, in float32."""
    root = tmp_path_factory.mktemp("models")
    found = {
        name: write_family(root / name, name, **changes) if changes else checkpoint(name)
        for name, changes in MADE.items()
    }
    for name in (
        "gemma2",
        "gemma3",
        "step3p5",
        "step3p5-alike",
    ):  # whose norms lie in files plus one, which has to be exact here
        weights = load_file(found[name] / "model.safetensors")
        exact = {n: t + 1 - 1 if n.endswith("norm.weight") else t for n, t in weights.items()}
        save_file(exact, found[name] / "model.safetensors", metadata={"format": "pt"})
    return found | {name: write_llama(root / name, **changes) for name, changes in EXTRA.items()}


# What the package does not have; and of variants, an independent converter writes the same.
UNKNOWN = ("mellum", "laguna", "graniteswa", "hyv3", "cohere2moe", *VARIANTS, *EXTRA)


def assert_known(name: str, file: Path) -> None:
    """Look tensors up in the table of llama.cpp's own package."""
    if name.startswith(UNKNOWN):
        return
    reader = GGUFReader(file)
    arch = ARCHES[str(reader.fields["general.architecture"].contents())]
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    for tensor in reader.tensors:
        stem = re.sub(r"\.(weight|bias|scale)$", "", re.sub(r"^blk\.\d+", "blk.{bid}", tensor.name))
        assert stem in known, tensor.name


@crossed(name=NAMES, form=tuple(FORMS))
def test_logits_are_those_of_the_directory(models: dict[str, Path], name: str, form: Any, tmp_path: Path) -> None:
    """Of one in the same floats, or of what an engine makes blocks of: bit for bit. Names are llama.cpp's."""
    model, storage = models[name], form
    if form in ("bf16", "f16"):
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[form]
        weights = load_file(model / "model.safetensors")
        model, storage = write_dequantised(model, tmp_path / "same", weights, dtype), "stored"
    file = export(model, tmp_path / "model.gguf", form).path
    assert_known(name, file)
    dtype = torch.float32 if form in ("bf16", "int8") else torch.bfloat16
    expected = logits_of(model, dtype, storage)
    assert expected.std() > 1e-2
    assert torch.equal(logits_of(file, dtype), expected)


@crossed(name=tuple(HYBRIDS), form=["int4", "int8", "f16"])
def test_logits_of_hybrids_are_those_of_the_directory(
    models: dict[str, Path], name: str, form: Any, tmp_path: Path
) -> None:
    test_logits_are_those_of_the_directory(models, name, form, tmp_path)


@pytest.mark.parametrize("name", CONVERTED)
def test_logits_of_what_is_converted(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Sums in another order differ in their last bits; products with factors are rounded once more."""
    weights = load_file(models[name] / "model.safetensors")
    model = write_dequantised(models[name], tmp_path / "same", weights, torch.float16)
    file = export(model, tmp_path / "model.gguf", "f16").path
    assert_known(name, file)
    expected, found = logits_of(model), logits_of(file)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=0.02 if "falcon" in name else 1e-4, rtol=0)


def test_numbers_of_layers_are_among_the_metadata(models: dict[str, Path], tmp_path: Path) -> None:
    """And go along from file to file; a file may have one for all layers, but no list of another length."""
    file = export(models["apertus"], tmp_path / "model.gguf", "f16").path
    weights, fields = load_file(models["apertus"] / "model.safetensors"), GGUFReader(file).fields
    keys = gguf.Keys.xIELU.ALPHA_P, gguf.Keys.xIELU.ALPHA_N, gguf.Keys.xIELU.BETA, gguf.Keys.xIELU.EPS
    for key in keys:
        own = (weights[f"model.layers.{i}.mlp.act_fn.{key.split('.')[1]}"].item() for i in range(3))
        assert fields[key].contents() == list(own)
    again = export(file, tmp_path / "again.gguf", "f16").path
    assert torch.equal(logits_of(again), logits_of(file))
    name = "model.layers.2.mlp.act_fn.beta"
    for values, found in ((0.25, 0.25), ([0.1, 0.2], None)):
        written = rewritten(file, tmp_path / "other.gguf", {gguf.Keys.xIELU.BETA: values})
        if found is None:
            with pytest.raises(ModelError, match=r"xielu\.beta must list a number for each of 3 layers"):
                Checkpoint(written)
        else:
            with Checkpoint(written) as read:
                assert read.read(name).item() == found


def rewritten(file: Path, path: Path, changes: dict[str, Any]) -> Path:
    """Write a file again with other values of some keys."""
    with GGUFFile(file) as source:
        metadata = source.verbatim() | {key: writer.encode(value) for key, value in changes.items()}
        entries = [writer.Entry(one.name, one.kind, one.shape) for one in source.tensors.values()]
        data = [bytes(source.raw(one.name)[0]) for one in source.tensors.values()]
    path.write_bytes(
        writer.header(metadata, entries) + b"".join(one + bytes(writer.padding(len(one))) for one in data)
    )
    return path


def test_blocks_move_with_their_columns(models: dict[str, Path], tmp_path: Path) -> None:
    file = export(models["qwen3_5"], tmp_path / "model.gguf", "int8").path
    name = "model.layers.0.linear_attn.out_proj.weight"
    with Checkpoint(models["qwen3_5"], storage="int8") as theirs, Checkpoint(file) as ours:
        whole, found = (one.read_weight(name, torch.float32).numbers() for one in (theirs, ours))
    heads = whole.view(len(whole), 2, 3, 32)  # of two keys, three values each
    assert torch.equal(found.view(len(whole), 3, 2, 32), heads.transpose(1, 2))


@pytest.mark.parametrize("name", ["qwen2moe", "ernie4_5_moe", "gptoss"])
def test_vectors_may_be_matrices_of_one_row(
    models: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llama.cpp's converter leaves those that Hugging Face has so; to ggml it is the same."""
    export(models[name], tmp_path / "model.gguf", "bf16")
    vectors = ("ffn_gate_inp_shexp.weight", "exp_probs_b.bias", "attn_sinks.weight")
    widened = []

    def header(metadata: Any, tensors: Any) -> bytes:
        widened[:] = [one.name for one in tensors if one.name.endswith(vectors)]
        return writer.header(
            metadata, [replace(one, shape=(1, *one.shape)) if one.name in widened else one for one in tensors]
        )

    monkeypatch.setattr("parlay.models.export.gguf.header", header)
    export(models[name], tmp_path / "wide.gguf", "bf16")
    assert widened
    dtype = torch.float32
    assert torch.equal(logits_of(tmp_path / "wide.gguf", dtype), logits_of(tmp_path / "model.gguf", dtype))


@pytest.mark.parametrize("name", VARIANTS)
def test_an_independent_converter_writes_the_same(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    """The same tensors, byte for byte, and the same values under the same keys."""
    export(models[name], tmp_path / "ours.gguf", "bf16")
    convert(models[name], tmp_path / "theirs.gguf", "BF16")
    ours, theirs = GGUFReader(tmp_path / "ours.gguf"), GGUFReader(tmp_path / "theirs.gguf")
    found = {tensor.name: tensor for tensor in ours.tensors}
    assert found.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        same = found[tensor.name]
        assert (same.tensor_type, list(same.shape)) == (tensor.tensor_type, list(tensor.shape)), tensor.name
        assert same.data.tobytes() == tensor.data.tobytes(), tensor.name
    left_out = {"GGUF.kv_count", "tokenizer.chat_template"}
    if name == "mistral-unlimited":
        left_out.add("llama.attention.sliding_window")
    for key in theirs.fields.keys() - left_out:
        if key.endswith("freq_base_swa") and key not in ours.fields:
            continue  # the usual one
        if "scaling.original" in key and "scaling.type" not in "".join(theirs.fields) and name != "phi3-partial":
            continue  # nothing is scaled
        assert ours.fields[key].contents() == theirs.fields[key].contents(), key


def test_tiny_code_speaks_the_same(tmp_path: Path) -> None:
    export(find_model("tiny-code"), tmp_path / "tiny.gguf", "int4")
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=16, logprobs=2)
    llms = LLM("tiny-code", quantization="int4"), LLM(tmp_path / "tiny.gguf")
    prompts = ["def read(path):", "class A:\n    def"]
    outputs = [llm.generate(prompts, params, use_tqdm=False) for llm in llms]
    for one, other in zip(*outputs, strict=True):
        assert one.prompt_token_ids == other.prompt_token_ids
        assert one.outputs[0].text == other.outputs[0].text
        assert one.outputs[0].logprobs == other.outputs[0].logprobs
    messages = [{"role": "user", "content": "write a loop"}]
    assert llms[0].chat_prompt(messages) == llms[1].chat_prompt(messages)


# From files that are GGUF already.


def test_a_model_in_the_hubs_cache_has_its_name(tmp_path: Path) -> None:
    """And not that of a commit."""
    snapshot = tmp_path / "models--owner--small-model" / "snapshots" / "0123456789abcdef"
    export(write_llama(snapshot), tmp_path / "out.gguf", "bf16")
    with GGUFFile(tmp_path / "out.gguf") as file:
        assert file.text("general.name") == "small-model"


def test_metadata_of_a_file_go_over_verbatim(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = {"general__license": "none", "x__y": -5, "general__file_type": 2, "quantize__imatrix__file": "gone"}
    source = write_gguf(write_llama(tmp_path / "model"), tmp_path / "source.gguf", "Q4_0", **more)
    with caplog.at_level(logging.WARNING, logger="parlay"):
        export(source, tmp_path / "out.gguf", "int8")
    assert "source.gguf is already quantised" in caplog.text
    with GGUFFile(source) as theirs, GGUFFile(tmp_path / "out.gguf") as ours:
        before, after = theirs.verbatim(), ours.verbatim()
        assert before.pop("general.file_type") != after.pop("general.file_type")
        assert before.pop("quantize.imatrix.file")
        assert after.pop("general.quantization_version")
        assert before == after
        assert ours.integer("general.file_type") == 7
    assert torch.equal(logits_of(tmp_path / "out.gguf"), logits_of(source, storage="int8"))


@pytest.mark.parametrize(("kind", "form"), [("Q8_0", "int8"), ("F16", "f16"), ("BF16", "bf16")])
def test_what_is_stored_so_already_is_copied(
    models: dict[str, Path], tmp_path: Path, kind: str, form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    convert(models["mixtral"], tmp_path / "source.gguf", kind)
    with caplog.at_level(logging.WARNING, logger="parlay"):
        export(tmp_path / "source.gguf", tmp_path / "out.gguf", form)
    assert not caplog.records
    with GGUFFile(tmp_path / "source.gguf") as theirs, GGUFFile(tmp_path / "out.gguf") as ours:
        assert ours.tensors.keys() == theirs.tensors.keys()
        assert all(bytes(ours.raw(name)[0]) == bytes(theirs.raw(name)[0]) for name in ours.tensors)


def test_rotary_factors_go_along(models: dict[str, Path], tmp_path: Path) -> None:
    for name in ("phi3-partial", "llama3"):
        first = export(models[name], tmp_path / f"{name}.gguf", "bf16").path
        second = export(first, tmp_path / f"{name}-again.gguf", "bf16").path
        assert torch.equal(logits_of(first), logits_of(second))
        ours, theirs = describe_model(str(second)), describe_model(str(models[name]))
        assert ours.rotary == theirs.rotary


def test_parts_become_one_file(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model", dtype=torch.bfloat16)
    write_gguf(model, tmp_path / "m.gguf", "BF16", tensors_each=10)
    export(tmp_path / "m-00001-of-00003.gguf", tmp_path / "out.gguf", "int8")
    assert torch.equal(logits_of(tmp_path / "out.gguf"), logits_of(model, storage="int8"))


def test_packed_nibbles_are_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are blocks of four bits as they are; only embedding and head are rounded."""
    write_quantised(tmp_path / "awq", "awq")
    with caplog.at_level(logging.WARNING, logger="parlay"):
        export(tmp_path / "awq", tmp_path / "out.gguf", "int4")
    assert not caplog.records
    with Checkpoint(tmp_path / "awq", storage="stored") as packed, Checkpoint(tmp_path / "out.gguf") as ours:
        name = "model.layers.1.mlp.down_proj.weight"
        assert torch.equal(packed.read_weight(name, torch.float32).numbers(), ours.read(name, torch.float32))


def test_matrices_that_do_not_divide_into_blocks_stay(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model", intermediate_size=72, dtype=torch.float16)
    export(model, tmp_path / "out.gguf", "int4")
    with GGUFFile(tmp_path / "out.gguf") as file:
        kinds = {name.removeprefix("blk.1."): str(stored.kind) for name, stored in file.tensors.items()}
    assert kinds["ffn_down.weight"] == "F16"
    assert kinds["ffn_up.weight"] == "Q4_1"
    assert kinds["attn_norm.weight"] == "F32"
    assert kinds["token_embd.weight"] == kinds["output.weight"] == "Q8_0"


# What is refused.


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("opt", {}, "no GGUF files of OPTForCausalLM"),
        ("gemma", {}, "no GGUF files of GemmaForCausalLM"),
        ("llama-dynamic", {}, "kind='dynamic'"),
        ("llama-yarn-more", {}, "scaling="),
        ("qwen2-windows", {}, "windows="),
        ("gemma2", {}, "score_scale="),
        ("gemma3", {"query_pre_attn_scalar": 16, "layer_types": IRREGULAR}, "windows="),
        ("qwen3moe", {"moe_intermediate_size": 64}, "lacks the tensor|experts|sparse="),
        ("qwen3moe-weights-as-they-are", {}, "norm_topk_prob=false"),
    ],
)
def test_models_that_a_file_cannot_hold(tmp_path: Path, name: str, changes: dict[str, Any], words: str) -> None:
    model = write_family(tmp_path / "model", name, **changes)
    with pytest.raises(ModelError, match=words) as error:
        export(model, tmp_path / "out.gguf", "bf16")
    assert str(model) in str(error.value)
    assert not list(tmp_path.glob("out*"))
    assert name in OTHERS or "\n" not in str(error.value)


def test_where_a_file_may_be_written(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    (tmp_path / "there.gguf").write_text("precious")
    (tmp_path / "folder.gguf").mkdir()
    for name, words in (
        ("there.gguf", "exists; .*--force"),
        ("folder.gguf", "is a directory"),
        ("no/where.gguf", "does not exist"),
        ("model.bin", "must end in .gguf"),
    ):
        with pytest.raises(ConfigError, match=words):
            export(model, tmp_path / name, "bf16")
    assert (tmp_path / "there.gguf").read_text() == "precious"
    export(model, tmp_path / "there.gguf", "bf16", force=True)
    assert describe_model(str(tmp_path / "there.gguf")).num_layers == 3


def test_an_end_before_the_end_leaves_nothing(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    (tmp_path / "out.gguf").write_text("the one before")

    def stop(label: str) -> None:
        if label.startswith("5 of"):
            assert len(list(tmp_path.glob("out.gguf.*.partial"))) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "out.gguf", "bf16", force=True, tick=stop)
    assert {file.name for file in tmp_path.iterdir()} == {"model", "out.gguf"}
    assert (tmp_path / "out.gguf").read_text() == "the one before"


def test_numbers_that_a_form_cannot_hold(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 1e6
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(ModelError, match=r"up_proj.*float16"):
        export(model, tmp_path / "out.gguf", "f16")
    export(model, tmp_path / "out.gguf", "bf16")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 1e9
    save_file(tensors, model / "model.safetensors")
    for form in ("int8", "int4"):
        with pytest.raises(ModelError, match=r"up_proj"):
            export(model, tmp_path / "other.gguf", form)


def test_a_damaged_directory_is_named_before_anything_is_written(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(ModelError, match=r"lacks the tensor 'model\.layers\.3"):
        export(model, tmp_path / "out.gguf", "bf16")
    (model / "tokenizer.json").unlink()
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist"):
        export(model, tmp_path / "out.gguf", "bf16")


def copied(file: Path, path: Path, without: str = "", sections: list[int] | None = None) -> Path:
    """Write a file once more, without a key, or with rows in parts."""
    reader = GGUFReader(file)
    arch = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(path, arch)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", without):
            kind = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], kind)
    if sections:
        writer.add_array(f"{arch}.rope.dimension_sections", sections)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return path


def test_rows_of_a_text_model_that_saw_images(models: dict[str, Path], tmp_path: Path) -> None:
    """As llama.cpp's converter writes GLM-4.1V: in halves."""
    file = export(models["glm4"], tmp_path / "model.gguf", "bf16").path
    other = copied(file, tmp_path / "other.gguf", sections=[4, 2, 2, 0])
    with pytest.raises(ModelError, match=r"glm4\.rope\.dimension_sections is not supported"):
        describe_model(str(other))


def test_a_file_that_says_nothing_of_networks(models: dict[str, Path], tmp_path: Path) -> None:
    """For all layers of Qwen3.5 with experts have these alone."""
    file = export(models["qwen3_5moe"], tmp_path / "model.gguf", "bf16").path
    other = copied(file, tmp_path / "other.gguf", "qwen35moe.feed_forward_length")
    assert torch.equal(logits_of(other), logits_of(file))
