"""Tiny assistants of Gemma 4, their GGUF files, and transformers' own drafts with them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from gguf_files import add_keys, add_raw, finish, to_blocks, tokenizer_keys
from safetensors.torch import load_file
from torch import Tensor

# Of a target and an assistant: the target's family, and what the assistant has.
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("gemma4", {}),
    "ordered": ("gemma4", {"centroids": 20}),
    "shared-keys": ("gemma4-inputs", {"kinds": ("full", "sliding", "sliding", "full"), "num_attention_heads": 2}),
    "shared-keys-ordered": ("gemma4-inputs", {"centroids": 52, "hidden_size": 48}),
    "capped": ("gemma4-experts", {"final_logit_softcapping": 2.0}),
}
WIDTH = 32
_SHARED = ("num_key_value_heads", "head_dim", "rope_parameters", "per_layer_config", "sliding_window", "vocab_size")
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "pre_projection.weight": "nextn.pre_projection.weight",
    "post_projection.weight": "nextn.post_projection.weight",
}


@contextmanager
def _sharing() -> Iterator[None]:
    """While transformers makes models whose layers all share keys, or that hand keys to others.

    Its 5.24 refuses the former, and of models without shared layers it hands out nothing.
    """
    from transformers import Gemma4TextConfig

    def modes(config: Any) -> list[str | None]:
        first = config.num_hidden_layers - config.num_kv_shared_layers
        found: list[str | None] = [None if i < first else "reuse" for i in range(config.num_hidden_layers)]
        for kind in set(config.layer_types[:first]):
            found[max(i for i in range(first) if config.layer_types[i] == kind)] = "store"
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(modes))
        yield


def text_config(target: Path, kinds: Sequence[str], **changes: Any) -> dict[str, Any]:
    """Return the config of an assistant's layers that fit a target's; `kinds` are "sliding" and "full"."""
    raw = json.loads((target / "config.json").read_text())
    own = {key: raw[key] for key in _SHARED if key in raw}
    whole = next(iter(own.pop("per_layer_config").values()))
    return {
        **own,
        "model_type": "gemma4_text",
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": len(kinds),
        "layer_types": [f"{kind}_attention" for kind in kinds],
        "num_attention_heads": 4,
        "global_head_dim": whole["head_dim"],
        "num_global_key_value_heads": whole.get("num_key_value_heads"),
        "attention_k_eq_v": "num_key_value_heads" in whole,
        "max_position_embeddings": 512,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "num_kv_shared_layers": len(kinds),
        **changes,
    }


def write_assistant(
    path: Path,
    target: Path,
    *,
    kinds: Sequence[str] = ("sliding", "sliding", "full"),
    centroids: int = 0,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """Write random weights as transformers saves them; `changes` are of its layers' config."""
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

    config = Gemma4AssistantConfig(
        text_config=text_config(target, kinds, **changes),
        backbone_hidden_size=json.loads((target / "config.json").read_text())["hidden_size"],
        use_ordered_embeddings=centroids > 0,
        num_centroids=max(centroids, 1),
        centroid_intermediate_top_k=3 if centroids else 1,
    )
    with _sharing():
        model = Gemma4AssistantForCausalLM(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.1 * draw)
            else:
                parameter.copy_(1.5 * parameter.shape[-1] ** -0.5 * draw)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(0.7 + 0.2 * torch.rand(1, generator=generator))
            if name.endswith("token_ordering"):
                buffer.copy_(torch.randperm(len(buffer), generator=generator))
    model.save_pretrained(path)
    return path


class Reference:
    """Drafts by transformers' generator."""

    def __init__(self, target: Path, assistant: Path) -> None:
        """Load both."""
        import transformers
        from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

        kinds = transformers.AutoModelForCausalLM, transformers.Gemma4AssistantForCausalLM
        with _sharing():
            self.target, self.assistant = (
                kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
                for kind, path in zip(kinds, (target, assistant), strict=True)
            )
        self._states: list[Tensor] = []
        self.assistant.register_forward_hook(lambda module, given, out: self._states.append(out.last_hidden_state))
        self._generator = SinglePositionMultiTokenCandidateGenerator(
            self.assistant, self.target.get_input_embeddings(), transformers.GenerationConfig(max_length=1 << 20)
        )

    @torch.no_grad()
    def draft(self, tokens: Sequence[int], count: int) -> tuple[list[int], Tensor, Tensor]:
        """Return `count` draft tokens after a text, the last of which the target has not seen, and their logits.

        The third are the states `[count, hidden]` that the assistant leaves.
        """
        self._states.clear()
        self._generator.num_assistant_tokens, self._generator.is_main_model_prefill = count, True
        out = self.target(torch.tensor([tokens[:-1]]), output_hidden_states=True, return_shared_kv_states=True)
        found, logits = self._generator.get_candidates(torch.tensor([list(tokens)]), {}, out, False, 0)
        return found[0, len(tokens) :].tolist(), logits[0], torch.cat(self._states, dim=1)[0]

    @torch.no_grad()
    def along(self, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
        """Return the logits `[path, vocab]` from which each token of a path is chosen, that follows a text."""
        out = self.target(torch.tensor([tokens[:-1]]), output_hidden_states=True, return_shared_kv_states=True)
        hidden, keys, logits = out.hidden_states[-1][:, -1:], out.shared_kv_states, []
        for token in (tokens[-1], *path[:-1]):
            pair = torch.cat((self.target.get_input_embeddings()(torch.tensor([[token]])), hidden), dim=-1)
            place = torch.tensor([[len(tokens) - 1]])
            one = self.assistant(inputs_embeds=pair, position_ids=place, shared_kv_states=keys)
            hidden = one.last_hidden_state
            logits.append(one.logits[0, 0])
        return torch.stack(logits)


def convert_assistant(assistant: Path, target: Path, path: Path, kind: str, **metadata: Any) -> Path:
    """Write a GGUF file as llama.cpp's converter does."""
    whole = json.loads((assistant / "config.json").read_text())
    config, writer = whole["text_config"], GGUFWriter(path, "gemma4-assistant")
    near = [one == "sliding_attention" for one in config["layer_types"]]
    far, layers = next(iter(config["per_layer_config"].values())), config["num_hidden_layers"]
    local = config["num_key_value_heads"]
    keys = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "embedding_length_out": whole["backbone_hidden_size"],
        "embedding_length_per_layer_input": 0,
        "nextn_predict_layers": layers,
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": [local if one else far.get("num_key_value_heads", local) for one in near],
        "attention.key_length": far["head_dim"],
        "attention.value_length": far["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": near,
        "attention.shared_kv_layers": layers,
        "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
    }
    given = {f"gemma4-assistant.{key}": value for key, value in keys.items()} | tokenizer_keys(target, "gpt-2")
    add_keys(writer, given, metadata)
    turning = int(far["head_dim"] * 0.25 / 2)
    divisors = torch.tensor([1.0] * turning + [1e30] * (far["head_dim"] // 2 - turning))
    add_raw(writer, "rope_freqs.weight", to_blocks(divisors, "F32"), "F32")
    for name, tensor in sorted(load_file(assistant / "model.safetensors").items()):
        if not name.startswith("masked_embedding."):
            own = "F32" if tensor.dim() == 1 else kind
            add_raw(writer, _stored(name), to_blocks(tensor, own), own)
    finish(writer)
    return path


def _stored(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, inner = name.split(".", 3)
    if inner == "layer_scalar":
        return f"blk.{layer}.layer_output_scale.weight"
    return f"blk.{layer}.{_PARTS[inner.removesuffix('.weight')]}.weight"
