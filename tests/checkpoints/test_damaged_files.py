"""Damaged files of every kind but GGUF: a model, or an error of ours before anything is made as large as they say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from families import write_family
from hypothesis import example, given
from hypothesis import strategies as st
from parsing import ANY, CUTS, DEEP, ODD, PATCHES, Patch, damaged, edits, examples, many, orderly
from safetensors.torch import load_file

from parlay import LLM, ModelError
from parlay.errors import ParlayError
from parlay.kernels.select import select_kernels
from parlay.models.select import check_weights, describe_model, load_model
from parlay.runner.footprint import weight_bytes
from parlay.text.tokenizer import TextCodec

KERNELS = select_kernels()
SHAPE = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "num_attention_heads": 2}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model", vocab_size=300, num_key_value_heads=1, **SHAPE)


def load(path: Path) -> None:
    """All that an engine does with the files of a model, up to running it."""
    config = describe_model(str(path))
    weight_bytes(config, torch.bfloat16)
    check_weights(config)
    load_model(config, torch.float32, 16, KERNELS)


def use(path: Path) -> None:
    with orderly():
        load(path)


@pytest.fixture(scope="module", params=["llama", "qwen3moe", "gemma3", "phi3-partial", "opt", "granite", "mixtral"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("family") / "model"
    if request.param == "llama":
        return write_llama(path, num_nextn_predict_layers=0, rope_scaling=None, sliding_window=None, **SHAPE)
    return write_family(path, request.param)


SCALINGS = st.sampled_from(["linear", "dynamic", "llama3", "yarn", "longrope", "su", "default", "x"]) | ODD
NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "mscale")
SCALING = st.fixed_dictionaries(
    {"rope_type": SCALINGS},
    optional={
        **dict.fromkeys((*NUMBERS, "attention_factor", "rope_theta", "partial_rotary_factor"), ODD | st.floats(0, 9)),
        **dict.fromkeys(("short_factor", "long_factor"), st.lists(st.floats(0.5, 9) | ODD, max_size=8) | ODD),
    },
)
SIZES = ODD | st.integers(-3, 70) | st.integers() | st.sampled_from([10**6, 10**9, 1 << 31, 1 << 40]) | ANY


@examples
def test_configs(family: Path, tmp_path: Path, examples: int) -> None:
    path = shutil.copytree(family, tmp_path / "model")
    raw = json.loads((path / "config.json").read_text())
    raw |= {key: raw.get(key) for key in ("rope_scaling", "rope_parameters", "layer_types", "quantization_config")}
    scaled = st.fixed_dictionaries({}, optional={"rope_scaling": SCALING, "rope_parameters": SCALING})
    local = st.fixed_dictionaries({"rope_parameters": st.dictionaries(st.just("sliding_attention"), SCALING | ANY)})

    @many(examples // 5)
    @given(edits(raw, SIZES), st.just({}) | st.just({}) | scaled | local)
    def run(config: dict[str, Any], more: dict[str, Any]) -> None:
        (path / "config.json").write_text(json.dumps(config | more))
        use(path)

    run()


ABSURD = {
    "hidden_size": 10**9,
    "num_hidden_layers": 10**6,
    "vocab_size": 1 << 40,
    "intermediate_size": 10**12,
    "num_attention_heads": 10**8,
    "max_position_embeddings": 1 << 62,
}


@pytest.mark.parametrize("key", ABSURD)
@pytest.mark.parametrize(
    "value", ["absurd", -1, 1.5, "8", float("nan"), float("inf"), [[8]], {"a": {}}, True, 10**400]
)
def test_absurd_sizes(path: Path, key: str, value: Any) -> None:
    """The same with an engine, which would check kernels on the model's shapes and make a cache for it."""
    raw = json.loads((path / "config.json").read_text())
    absurd = ABSURD[key] if value == "absurd" else value
    (path / "config.json").write_text(json.dumps(raw | {key: absurd}))
    with orderly(), pytest.raises(ParlayError) as error:
        LLM(str(path), max_model_len=32 if key == "max_position_embeddings" else None)
    with orderly():
        raise error.value


@pytest.mark.parametrize("family", ["qwen3moe", "mixtral"], indirect=True)
@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"])
def test_absurd_experts(family: Path, tmp_path: Path, key: str) -> None:
    path = shutil.copytree(family, tmp_path / "model")
    raw = json.loads((path / "config.json").read_text())
    if key not in raw:
        return
    for value in (10**9, 1 << 40, 1 << 15):
        (path / "config.json").write_text(json.dumps(raw | {key: value}))
        with orderly():
            LLM(str(path))
            raise AssertionError


def talk(path: Path) -> None:
    codec = TextCodec(path)
    codec.decode(codec.encode("hello, world")[:50])
    codec.chat([{"role": "user", "content": "hi"}])


NAMES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "model.safetensors",
    "pytorch_model.bin",
    "old.bin",
]


@pytest.mark.parametrize("name", NAMES)
@examples
def test_bytes(path: Path, name: str, capfd: pytest.CaptureFixture[str], examples: int) -> None:
    """Of each file in turn, some are others, and some are missing at the end."""
    file = path / name
    if name.endswith("bin"):
        tensors = load_file(path / "model.safetensors")
        (path / "model.safetensors").unlink()
        file = path / "pytorch_model.bin"
        torch.save(tensors, file, _use_new_zipfile_serialization=name != "old.bin")
    whole = file.read_bytes() if file.exists() else (path / "config.json").read_bytes()

    @many(examples)
    @given(PATCHES, CUTS)
    @example([], 0)
    def run(patch: Patch, cut: int | None) -> None:
        # Not the file that a map may still be open on.
        file.unlink(missing_ok=True)
        file.write_bytes(damaged(whole, patch, cut))
        with orderly():
            talk(path) if name == "tokenizer.json" else load(path)

    run()


@pytest.mark.parametrize(
    "text", [DEEP, '{"a": ' + DEEP + "}", '{"vocab_size": ' + "9" * 5000 + "}", "\ufeff{", "\udcff"]
)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
    ],
)
def test_json_that_python_cannot_read(path: Path, name: str, text: str) -> None:
    if name.startswith("model."):
        (path / "model.safetensors").unlink()
    (path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with orderly(), pytest.raises(ModelError) as error:
        (load(path), TextCodec(path))
    assert name in str(error.value)
    with orderly():
        raise error.value


@pytest.mark.parametrize("text", ["x" * 5000, "two\nlines", "", "../.."])
@pytest.mark.parametrize("key", ["architectures", "model_type"])
def test_names_of_classes(path: Path, key: str, text: str) -> None:
    raw = json.loads((path / "config.json").read_text()) | {"architectures": ["NobodysForCausalLM"]}
    (path / "config.json").write_text(json.dumps(raw | {key: [text] if key == "architectures" else text}))
    with orderly(), pytest.raises(ModelError, match="is not supported") as error:
        load(path)
    with orderly():
        raise error.value


DTYPES = st.sampled_from(["F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "F4", "U64", "C64", "X"]) | ANY
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": DTYPES,
        "shape": st.lists(st.integers(0, 400) | ODD, max_size=3) | ANY,
        "data_offsets": st.lists(st.integers(0, 20000) | ODD, max_size=3) | ANY,
    },
)


@examples
def test_headers_of_safetensors(path: Path, examples: int) -> None:
    file = path / "model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    names = st.sampled_from(sorted(header))

    @many(examples)
    @given(
        st.dictionaries(names, ENTRY, max_size=2), edits(header), st.booleans(), st.none() | st.integers(0, 1 << 64)
    )
    def run(entries: dict[str, Any], other: dict[str, Any], keep: bool, claim: int | None) -> None:
        new = dict(header) if keep else other
        for name, entry in entries.items():
            new[name] = {**header[name], **entry} if isinstance(header[name], dict) else entry
        text = json.dumps(new).encode()
        size = len(text) if claim is None or keep else claim % (1 << 64)
        file.unlink()
        file.write_bytes(size.to_bytes(8, "little") + text + whole[8 + length :])
        use(path)

    run()


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@examples
def test_indexes(path: Path, kind: str, examples: int) -> None:
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").rename(path / "a.safetensors")
    torch.save(tensors, path / "a.bin")
    (path / "folder").mkdir()
    index = path / {"safetensors": "model.safetensors.index.json", "bin": "pytorch_model.bin.index.json"}[kind]
    names = st.sampled_from(
        ["a.safetensors", "a.bin", "folder", ".", "", "..", "../model/a.bin", "/dev/null", "a" * 300]
    )
    weight_map = st.dictionaries(st.sampled_from(sorted(tensors)) | st.text(), names | ODD | ANY, max_size=4)

    @many(examples)
    @given(st.fixed_dictionaries({"weight_map": weight_map | ANY}) | ANY)
    def run(content: Any) -> None:
        index.write_text(json.dumps(content))
        use(path)

    run()


def test_tensors_that_claim_more_than_there_is(path: Path) -> None:
    """A `.bin` file of a few bytes may describe any number of elements."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    for claim in (
        torch.zeros(1).expand(1 << 40),
        torch.zeros(1 << 40, device="meta"),
        torch.zeros(1).expand(1 << 20).to_sparse(),
        torch.zeros(4, dtype=torch.complex64),
    ):
        torch.save(tensors | {"model.norm.weight": claim}, path / "pytorch_model.bin")
        with orderly(), pytest.raises(ModelError, match="something else than plain tensors") as error:
            load(path)
        with orderly():
            raise error.value


@examples
def test_content_of_a_tokenizer(path: Path, capfd: pytest.CaptureFixture[str], examples: int) -> None:
    raw = json.loads((path / "tokenizer.json").read_text())
    part = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["BPE", "WordPiece", "WordLevel", "Unigram", "ByteLevel", "Split", "Metaspace", "x"]
            ),
            "vocab": st.dictionaries(st.text(max_size=2), st.integers(0, 9) | ODD, max_size=4) | ANY,
            "merges": st.lists(st.text(max_size=4) | ANY, max_size=3),
            "unk_id": ODD,
            "pattern": ANY | st.fixed_dictionaries({"Regex": st.text() | st.just("(") | st.just("(?=a)*")}),
            "prefix_space": st.booleans(),
        },
    )

    @many(examples)
    @given(edits(raw, part | ANY), st.just({}) | st.fixed_dictionaries({"model": edits(raw["model"], ANY)}))
    def run(content: dict[str, Any], model: dict[str, Any]) -> None:
        (path / "tokenizer.json").write_text(json.dumps(content | model))
        with orderly():
            talk(path)

    run()


@examples
def test_configs_of_tokenizers(path: Path, examples: int) -> None:
    good = {
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "bos_token": "<s>",
        "eos_token": {"content": "x"},
    }
    named = st.lists(
        st.fixed_dictionaries({"name": st.just("default") | ANY, "template": st.just("hi") | ANY}), max_size=2
    )

    @many(examples)
    @given(edits(good, ANY | named) | ANY, st.none() | st.binary(max_size=20) | st.just(b"{{ messages[0].role }}"))
    def run(content: Any, template: bytes | None) -> None:
        (path / "tokenizer_config.json").write_text(json.dumps(content))
        (path / "chat_template.jinja").unlink(missing_ok=True)
        if template is not None:
            (path / "chat_template.jinja").write_bytes(template)
        with orderly():
            talk(path)

    run()
