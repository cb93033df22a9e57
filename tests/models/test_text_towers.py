"""The text models inside multimodal checkpoints, as transformers writes them and as they lie on the hub."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from families import SMALL
from pieces import logits_in_pieces, make_runner, random_tokens
from safetensors.torch import load_file, save_file
from towers import TOWERS, write_tower

from parlay import LLM, ModelError, SamplingParams
from parlay.checkpoints.inventory import describe as describe_checkpoint
from parlay.models.export.gguf import export
from parlay.models.select import describe_model

# How text models' tensors begin: transformers 5 and earlier ones, and a file of the text model alone.
PREFIXES = ("model.language_model.", "language_model.model.", "model.")


@pytest.mark.parametrize("name", TOWERS)
def test_equal_to_transformers(tmp_path: Path, name: str) -> None:
    expected = write_tower(tmp_path, name)
    config = describe_model(str(tmp_path))
    assert config.architecture == TOWERS[name][-1]
    assert expected.std() > 0.3
    for cuts in ([], [1, 2, 30, 47, 48]):
        found = logits_in_pieces(make_runner(tmp_path), random_tokens(), cuts)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert describe_checkpoint(tmp_path, "disk", "own").role == "model"


# parlay writes no Muse-Glimmer, and files have other numbers of Qwen3.5's recurrent layers.
@pytest.mark.parametrize("name", [name for name in TOWERS if "glimmer" not in name and name != "qwen3_5_moe"])
def test_as_a_gguf_file(tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    write_tower(model, name, **({"query_pre_attn_scalar": 16} if name == "gemma3" else {}))  # which files cannot say
    halves = {key: tensor.half().float() for key, tensor in load_file(model / "model.safetensors").items()}
    save_file(halves, model / "model.safetensors", {"format": "pt"})
    file = export(model, tmp_path / "model.gguf", "f16").path
    expected, found = (logits_in_pieces(make_runner(path), random_tokens(), [33]) for path in (model, file))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("head", ["lm_head.weight", "language_model.lm_head.weight"])
def test_names_of_all_ages(tmp_path: Path, prefix: str, head: str) -> None:
    expected = write_tower(tmp_path, "mistral3")
    tensors = load_file(tmp_path / "model.safetensors")
    (own,) = (one for one in PREFIXES if f"{one}norm.weight" in tensors)
    renamed = {
        prefix + name.removeprefix(own) if name.startswith(own) else head if "lm_head" in name else name: tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    found = logits_in_pieces(make_runner(tmp_path), random_tokens(), [33])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_config_that_has_the_text_models_keys_itself(tmp_path: Path) -> None:
    """As Qwen2.5-VL's files are, whose names of tensors are older too."""
    expected = write_tower(tmp_path, "qwen2_5_vl")
    tensors = load_file(tmp_path / "model.safetensors")
    older = {"model.language_model.": "model.", "model.visual.": "visual."}
    flat = {
        next((name.replace(one, own) for one, own in older.items() if name.startswith(one)), name): each
        for name, each in tensors.items()
    }
    assert {"model.norm.weight", "visual.patch_embed.proj.weight"} < {*flat}
    save_file(flat, tmp_path / "model.safetensors", {"format": "pt"})
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text())
    text = raw.pop("text_config")
    theta = text.pop("rope_parameters")["rope_theta"]
    turning = {"rope_theta": theta, "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}
    file.write_text(json.dumps({**text, **raw, **turning, "model_type": "qwen2_5_vl"}))
    assert describe_model(str(tmp_path)).architecture == "Qwen2ForCausalLM"
    found = logits_in_pieces(make_runner(tmp_path), random_tokens(), [33])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_models_that_speak(tmp_path: Path, name: str) -> None:
    """Qwen's Omni models, as they lie on the hub; what speaks is of no matter."""
    expected = write_tower(tmp_path, name)
    tensors = {f"thinker.{key}": tensor for key, tensor in load_file(tmp_path / "model.safetensors").items()}
    speaking = {key.replace("thinker", "talker"): tensor.clone() for key, tensor in tensors.items()}
    save_file(tensors | speaking, tmp_path / "model.safetensors", {"format": "pt"})
    file = tmp_path / "config.json"
    thinker = json.loads(file.read_text())
    whole = {"architectures": ["Qwen2_5OmniModel"], "dtype": thinker.pop("dtype"), "model_type": name}
    file.write_text(json.dumps({**whole, "thinker_config": thinker, "talker_config": {"hidden_size": 8}}))
    found = logits_in_pieces(make_runner(tmp_path), random_tokens(), [33])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "turned"), [("qwen3_5_moe", False), ("qwen3_vl_moe", False), ("qwen3_vl_moe", True)]
)
def test_stacked_experts(tmp_path: Path, name: str, turned: bool) -> None:
    """As they lie on the hub: Qwen3.5's with outputs first, Qwen3-VL's with inputs first."""
    expected = write_tower(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    experts = sorted({name.split("gate_proj")[0] for name in tensors if re.search(r"experts\.0\.gate_proj", name)})
    for first in experts:
        stack = first.removesuffix("0.")
        each = [tensors.pop(f"{stack}{i}.{part}_proj.weight") for i in range(9) for part in ("gate", "up", "down")]
        pairs = zip(each[0::3], each[1::3], strict=True)
        tensors[f"{stack}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        tensors[f"{stack}down_proj"] = torch.stack(each[2::3])
    stacks = [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert len(stacks) > 3
    for one in stacks if turned else ():
        tensors[one] = tensors[one].transpose(1, 2).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    found = logits_in_pieces(make_runner(tmp_path), random_tokens(), [33])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_text_model_that_names_its_class(tmp_path: Path) -> None:
    """Of a kind that is known by that class alone, as Kimi K2.5's."""
    expected = write_tower(tmp_path, "mistral3")
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text())
    raw["text_config"] |= {"model_type": "kimi_k2", "architectures": ["LlamaForCausalLM"]}
    file.write_text(json.dumps(raw))
    assert describe_model(str(tmp_path)).architecture == "LlamaForCausalLM"
    found = logits_in_pieces(make_runner(tmp_path), random_tokens(), [33])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_text_model_of_no_type(tmp_path: Path) -> None:
    """Transformers leaves the inner type of Step-3.7's config out of account."""
    write_tower(tmp_path, "step3p7")
    known, file = describe_model(str(tmp_path)), tmp_path / "config.json"
    raw = json.loads(file.read_text())
    del raw["text_config"]["model_type"]
    file.write_text(json.dumps(raw))
    found = describe_model(str(tmp_path))
    assert (found.architecture, found.style) == (known.architecture, known.style)


def test_speculation_changes_no_token(tmp_path: Path) -> None:
    write_tower(tmp_path, "gemma3")
    params = [SamplingParams(temperature=t, seed=3, max_tokens=24, logprobs=1, ignore_eos=True) for t in (0.0, 0.8)]
    found = []
    for method in (None, {"method": "ngram", "lengths": "fixed"}):
        llm = LLM(str(tmp_path), speculative_config=method, max_model_len=128, num_blocks=32)
        outputs = llm.generate([[7, 8, 9] * 5] * 2, params)
        found.append([(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"text_config": None}, "Gemma3ForConditionalGeneration"),
        (
            {"text_config": {"model_type": "recurrent_gemma_text"}},
            "RecurrentGemmaForCausalLM is not supported; these families are",
        ),
        ({"text_config": {**SMALL, "model_type": "gemma3_text", "num_hidden_layers": 2}}, "does not explain"),
    ],
    ids=["no text", "another family", "other sizes"],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    write_tower(tmp_path, "gemma3")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelError, match=complaint):
        LLM(str(tmp_path))


def test_bases_by_layer(tmp_path: Path) -> None:
    """transformers turns all layers by one base, whatever the list says."""
    write_tower(tmp_path, "muse_glimmer")
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text())
    raw["text_config"]["layer_rope_theta"] = [0, 500.0, 10000.0, 500.0, 0]
    file.write_text(json.dumps(raw))
    with pytest.raises(ModelError, match="layer_rope_theta"):
        describe_model(str(tmp_path))


def test_without_a_text_model_among_the_tensors(tmp_path: Path) -> None:
    write_tower(tmp_path, "gemma3")
    file = tmp_path / "model.safetensors"
    seen = {name: tensor for name, tensor in load_file(file).items() if "vision" in name}
    save_file(seen, file, {"format": "pt"})
    with pytest.raises(ModelError, match="no tensor of its text model is there"):
        LLM(str(tmp_path))
