"""Every family out of a GGUF file: the bits of the same weights in safetensors."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import essence
from crossing import crossed
from families import write_family
from gguf_families import VARIANTS, convert
from gguf_files import write_dequantised
from pieces import TOKENS, logits_of

from parlay import LLM, SamplingParams
from parlay.models.select import describe_model

logits = partial(logits_of, storage="plain")


@pytest.fixture(scope="module")
def models(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {
        name: write_family(root / name, name, **changes) if changes else checkpoint(name)
        for name, changes in VARIANTS.items()
    }


@crossed(variant=tuple(VARIANTS), kind=["F32", "BF16", "F16", "Q8_0"])
def test_logits_are_those_of_safetensors(models: dict[str, Path], variant: str, kind: str, tmp_path: Path) -> None:
    values = convert(models[variant], tmp_path / "model.gguf", kind)
    same = write_dequantised(models[variant], tmp_path / "same", values, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        expected = logits(same, dtype)
        assert expected.std() > 1e-2
        assert torch.equal(logits(tmp_path / "model.gguf", dtype), expected)


@crossed(variant=["llama-biases", "qwen2", "qwen3", "granite", "mixtral", "qwen3moe", "gemma3"], kind=["F32", "Q8_0"])
def test_tensors_that_hold_several(models: dict[str, Path], variant: str, kind: str, tmp_path: Path) -> None:
    """What converters put behind one another is read as if each was a tensor."""
    convert(models[variant], tmp_path / "apart.gguf", kind)
    convert(models[variant], tmp_path / "fused.gguf", kind, fused=True)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(logits(tmp_path / "fused.gguf", dtype), logits(tmp_path / "apart.gguf", dtype))


BLOCKS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@crossed(kind=BLOCKS, variant=["mixtral", "llama-linear"], dtype=[torch.float32, torch.bfloat16])
def test_logits_of_quantised_blocks(tmp_path: Path, variant: str, kind: str, dtype: torch.dtype) -> None:
    """Of whole matrices, and of stacked experts."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 2}
    model = write_family(tmp_path / "model", variant, **sizes)
    same = write_dequantised(model, tmp_path / "same", convert(model, tmp_path / "m.gguf", kind), torch.float32)
    expected = logits(same, dtype)
    assert expected.std() > 1e-3
    assert torch.equal(logits(tmp_path / "m.gguf", dtype), expected)


@pytest.mark.parametrize("variant", ["granite", "mixtral", "gemma2", "phi3-partial"])
def test_same_tokens_with_n_grams_and_a_draft(models: dict[str, Path], variant: str, tmp_path: Path) -> None:
    convert(models[variant], tmp_path / "target.gguf", "F16")
    convert(models[variant], tmp_path / "draft.gguf", "Q8_0")
    params = [SamplingParams(temperature=t, seed=5, max_tokens=24, ignore_eos=True, logprobs=2) for t in (0.0, 0.8)]
    seen = []
    for speculative in (
        None,
        {"lengths": "fixed", "method": "ngram", "num_speculative_tokens": 4},
        {
            "lengths": "fixed",
            "method": "draft_model",
            "num_speculative_tokens": 4,
            "model": str(tmp_path / "draft.gguf"),
        },
    ):
        llm = LLM(tmp_path / "target.gguf", max_model_len=128, dtype="float32", speculative_config=speculative)
        outputs = llm.generate(["abcabcabc"] * 2, params, use_tqdm=False)
        seen.append([essence(output.outputs[0]) for output in outputs])
    assert llm.engine.stats.emitted > 2 * llm.engine.stats.steps
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_config_says_what_the_directorys_does(models: dict[str, Path], variant: str, tmp_path: Path) -> None:
    convert(models[variant], tmp_path / "model.gguf")
    ours, theirs = describe_model(str(tmp_path / "model.gguf")), describe_model(str(models[variant]))
    if variant == "mistral-unlimited":  # which files call a Llama, and it is one
        theirs = replace(theirs, architecture="LlamaForCausalLM")
    assert replace(ours, path=theirs.path, raw=theirs.raw) == theirs


# Whose files transformers reads too, with what it supposes where it does not look: heads of 128 or 256 columns,
# Gemma's bounds and bases.
WIDE = {"head_dim": 256, "query_pre_attn_scalar": 256}
ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
}
READABLE: dict[str, dict[str, Any]] = {
    "mistral-unlimited": {},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "phi3": {},
    "gemma2": {**WIDE, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {**WIDE, "num_hidden_layers": 7, "layer_types": None, "rope_parameters": ROPE},
}


@pytest.mark.parametrize("variant", READABLE)
def test_logits_are_those_of_transformers_own_reading(tmp_path: Path, variant: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    file = tmp_path / "model.gguf"
    convert(write_family(tmp_path / "model", variant, **READABLE[variant]), file, tokenizer__ggml__padding_token_id=0)
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    found = model.load_state_dict(tensors, strict=False)
    assert not found.unexpected_keys
    assert found.missing_keys == (["lm_head.weight"] if config.tie_word_embeddings else [])
    model.tie_weights()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert torch.allclose(logits(file), expected, atol=1e-4)
