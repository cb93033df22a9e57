"""Checkpoints as people save, edit and fetch them; the transformers library says what they mean."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_config, write_llama
from families import SMALL, reference, write_family
from gguf_files import write_gguf
from pieces import logits_in_pieces, make_runner, random_tokens
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor

from parlay import ConfigError, ModelError
from parlay.checkpoints.find import find_model
from parlay.models.select import describe_model, resolve_dtype
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec

LENGTH = 40
TOKENS = random_tokens(LENGTH)


def logits(path: Path) -> Tensor:
    return logits_in_pieces(make_runner(path, length=LENGTH), TOKENS, [11])


def assert_as_transformers(path: Path) -> None:
    torch.testing.assert_close(logits(path), reference(path, TOKENS), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        # As the model cards of Qwen2.5 and Qwen3, of Llama 3.1 and of vLLM's documents tell people to add it.
        ("qwen3", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        ("qwen2", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        ("mistral", {"rope_type": "linear", "factor": 2.0}),
        (
            "llama-biases",
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        ("gemma3", {"rope_type": "linear", "factor": 2.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_scaling_that_the_user_adds_counts(tmp_path: Path, name: str, scaling: dict[str, Any]) -> None:
    path = write_family(tmp_path / "model", name)
    assert json.loads((path / "config.json").read_text())["rope_parameters"], "as transformers 5 writes it"
    before = logits(path)
    edit_config(path, rope_scaling=scaling)
    assert_as_transformers(path)
    assert (logits(path) - before).abs().max() > 0.01


def test_an_added_scaling_leaves_the_base_of_frequencies(tmp_path: Path) -> None:
    own = {"rope_type": "default", "rope_theta": 1e6}
    path = write_llama(tmp_path / "model", rope_parameters=own)
    edit_config(path, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})
    rotary = describe_model(str(path)).rotary
    assert (rotary.theta, rotary.kind) == (1e6, "yarn")


@pytest.mark.parametrize(
    ("said", "dtype"),
    [("half", "float32"), ("float", "float32"), ("torch.bfloat16", "bfloat16"), ("fp32", "float32")],
)
def test_other_names_of_dtypes(tmp_path: Path, said: str, dtype: str) -> None:
    path = write_llama(tmp_path / "model", torch_dtype=said)
    assert resolve_dtype("auto", describe_model(str(path))) is getattr(torch, dtype)


@pytest.mark.parametrize("said", ["float64", "float8_e4m3fn", "int8"])
def test_a_dtype_of_the_config_that_is_not_supported(tmp_path: Path, said: str) -> None:
    path = write_llama(tmp_path / "model", torch_dtype=said)
    with pytest.raises(ConfigError, match=f"model: its config names the dtype '{said}', .* give dtype='float32' or"):
        resolve_dtype("auto", describe_model(str(path)))
    assert resolve_dtype("float32", describe_model(str(path))) is torch.float32


@pytest.mark.parametrize("none", [None, []])
def test_a_generation_config_that_names_no_end(tmp_path: Path, none: Any) -> None:
    path = write_llama(tmp_path / "model", eos_token_id=5)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": none}))
    assert describe_model(str(path)).eos_token_ids == (5,)


@pytest.mark.parametrize("odd", ["2", 2.5, [1, "</s>"], -1, True])
def test_ends_that_are_no_ids_are_named_with_their_file(tmp_path: Path, odd: Any) -> None:
    path = write_llama(tmp_path / "model", eos_token_id=5)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": odd}))
    with pytest.raises(ModelError, match=r"generation_config.json: eos_token_id must be a token id or several"):
        describe_model(str(path))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_config_without_a_dtype_is_as_its_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    path = edit_config(write_llama(tmp_path / "model", dtype=dtype), "torch_dtype", "dtype")
    assert describe_model(str(path)).dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("name", "architectures"),
    [("qwen3", None), ("gemma3", None), ("qwen3moe", None), ("granite", "GraniteForCausalLM"), ("gemma", None)],
)
def test_configs_that_do_not_list_a_class(tmp_path: Path, name: str, architectures: str | None) -> None:
    path = edit_config(write_family(tmp_path / "model", name), architectures=architectures)
    assert_as_transformers(path)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "opt", "granite4"])
def test_a_head_that_is_saved_beside_a_tied_embedding(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_family(tmp_path / "model", name)
    file = path / "model.safetensors"
    tensors = load_file(file)
    embedding = next(tensor for key, tensor in tensors.items() if key.endswith("embed_tokens.weight"))
    expected = logits(path)
    save_file({**tensors, "lm_head.weight": embedding.clone()}, file, metadata={"format": "pt"})
    assert describe_model(str(path)).tie_embeddings
    assert torch.equal(logits(path), expected)
    assert not caplog.records
    save_file({**tensors, "lm_head.weight": embedding.flip(0).clone()}, file, metadata={"format": "pt"})
    assert_as_transformers(path)
    assert not torch.equal(logits(path), expected)
    assert any("has an output layer of its own" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "opt"])
def test_a_tied_embedding_under_the_heads_name(tmp_path: Path, name: str) -> None:
    """`safetensors.torch.save_model` keeps one of a shared tensor's names, which may be the head's."""
    from transformers import AutoModelForCausalLM

    path = write_family(tmp_path / "model", name)
    expected = logits(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    save_model(model, str(path / "model.safetensors"), metadata={"format": "pt"})
    assert "lm_head.weight" in load_file(path / "model.safetensors")
    assert torch.equal(logits(path), expected)
    edit_config(path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lacks the tensor .*embed_tokens"):
        logits(path)


def test_layers_of_granite_4_as_older_configs_call_them(tmp_path: Path) -> None:
    path = write_family(tmp_path / "model", "granite4-h")
    expected = describe_model(str(path)).style
    older = ["mamba", "attention", "mamba", "mamba"]
    assert describe_model(str(edit_config(path, layer_types=None, layers_block_type=older))).style == expected


def test_a_width_for_each_layer(tmp_path: Path) -> None:
    """As Gemma 3n has it."""
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

    torch.manual_seed(0)
    config = Gemma3nTextConfig(
        **{k: v for k, v in SMALL.items() if k != "intermediate_size"} | {"num_hidden_layers": 4},
        intermediate_size=[64, 96, 96, 64],
        vocab_size_per_layer_input=SMALL["vocab_size"],
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        num_kv_shared_layers=0,
        sliding_window=13,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
    )
    Gemma3nForCausalLM(config).save_pretrained(tmp_path)
    assert describe_model(str(tmp_path)).intermediate_size == 96
    torch.testing.assert_close(logits(tmp_path), reference(tmp_path, TOKENS), atol=1e-4, rtol=0)


def test_the_key_that_gguf_files_of_2023_have_for_a_linear_scaling(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")

    def rotary(**metadata: float) -> Any:
        return describe_model(
            str(write_gguf(model, tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", **metadata))
        ).rotary

    new = rotary(llama__rope__scaling__factor=4.0)
    assert new.scaling == {"factor": 4.0}
    assert rotary(llama__rope__scale_linear=4.0) == new
    assert rotary(llama__rope__scaling__factor=2.0, llama__rope__scale_linear=4.0).scaling == {"factor": 2.0}
    assert rotary(llama__rope__scale_linear=0.0) == rotary()
    with pytest.raises(ModelError, match="yarn_ext_factor"):
        rotary(llama__rope__scaling__factor=4.0, llama__rope__scaling__yarn_ext_factor=0.5)


@pytest.mark.parametrize("names", [("a.gguf", "mmproj-a-f16.gguf"), ("b.GGUF",), ("c.gguf", "config.json")])
def test_folders_with_one_gguf_model(tmp_path: Path, names: tuple[str, ...]) -> None:
    model = write_llama(tmp_path / "model")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in names:
        write_gguf(model, folder / name) if name.lower().endswith("gguf") else (folder / name).write_text("{}")
    found = find_model(str(folder))
    assert found == folder / names[0]
    assert describe_model(str(folder)).num_layers == 3


def test_what_is_said_of_folders_that_are_no_model(tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"m-Q4_K_M\.gguf.*m-Q8_0\.gguf"):
        describe_model(str(tmp_path))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="LoRA"):
        describe_model(str(adapter))


@pytest.mark.parametrize("biases", [False, True])
def test_internlm3(tmp_path: Path, biases: bool) -> None:
    """A Llama whose biases have keys of their own."""
    expected = logits(write_llama(tmp_path, attention_bias=biases, mlp_bias=biases))
    own = {"architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3", "qkv_bias": biases, "bias": biases}
    edit_config(tmp_path, "attention_bias", "mlp_bias", **own)
    assert torch.equal(logits(tmp_path), expected)


def test_shards(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    whole, tensors = logits(path), load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    weight_map = {name: f"model-{i % 3 + 1:05}-of-00003.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        shard = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(shard, path / file, metadata={"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert torch.equal(logits(path), whole)
    assert_as_transformers(path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_byte_order_mark_before_json(tmp_path: Path, name: str) -> None:
    """As Windows' editors save it."""
    path = write_llama(tmp_path / "model")
    file = path / name
    file.write_text("\ufeff" + (file.read_text() if file.exists() else '{"eos_token_id": 7}'))
    config = describe_model(str(path))
    assert config.eos_token_ids == ((7,) if name == "generation_config.json" else (256,))
    assert "assistant:" in TextCodec(path).chat([{"role": "user", "content": "a"}], ChatOptions())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "model.gguf", "pytorch_model.bin"])
def test_pointers_of_git_lfs(tmp_path: Path, name: str) -> None:
    path = write_llama(tmp_path / "model")
    if name != "config.json":
        (path / "model.safetensors").unlink()
    (path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4000000000\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        make_runner(path / name if name.endswith("gguf") else path)


def test_a_gguf_file_under_the_name_of_a_pickle(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model")
    write_gguf(path, path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"ends in \.gguf"):
        make_runner(path, length=LENGTH)


def test_a_gguf_file_with_biases_of_queries_keys_and_values_alone(tmp_path: Path) -> None:
    """llama.cpp loads each bias of attention by itself."""
    path = write_llama(tmp_path / "model", attention_bias=True)
    file = path / "model.safetensors"
    tensors = {
        name: torch.zeros_like(t) if name.endswith("o_proj.bias") else t for name, t in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})
    expected = logits(path)
    save_file({n: t for n, t in tensors.items() if not n.endswith("o_proj.bias")}, file, metadata={"format": "pt"})
    assert torch.equal(logits(write_gguf(path, tmp_path / "model.gguf")), expected)
