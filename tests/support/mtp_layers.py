"""Tiny checkpoints with a layer that predicts further tokens, and transformers' own drafts with it."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from families import write_family
from safetensors.torch import load_file, save_file
from torch import Tensor

# What released files call the tensors that transformers' class has, beside those of a decoder layer.
QWEN = {
    "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj.weight": "mtp.fc.weight",
    "post_norm.weight": "mtp.norm.weight",
    "mtp_block.": "mtp.layers.0.",
}
DEEPSEEK = {
    "enorm.weight": "model.layers.{}.enorm.weight",
    "hnorm.weight": "model.layers.{}.hnorm.weight",
    "eh_proj.weight": "model.layers.{}.eh_proj.weight",
    "post_norm.weight": "model.layers.{}.shared_head.norm.weight",
    "mtp_block.": "model.layers.{}.",
}
NEMOTRON = {
    "enorm.weight": "mtp.layers.0.enorm.weight",
    "hnorm.weight": "mtp.layers.0.hnorm.weight",
    "eh_proj.weight": "mtp.layers.0.eh_proj.weight",
    "final_layernorm.weight": "mtp.layers.1.final_layernorm.weight",
    "blocks.": "mtp.layers.",
}
# By families of `families.FAMILIES`: the names, and what the config says of the layer.
MODELS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "qwen3_5": (QWEN, {"mtp_num_hidden_layers": 1}),
    "qwen3_5-alike": (QWEN, {"mtp_num_hidden_layers": 1}),
    "qwen3_5moe": (QWEN, {"mtp_num_hidden_layers": 1}),
    "qwen3next": (QWEN, {}),
    "glm4moe": (DEEPSEEK, {"num_nextn_predict_layers": 1}),
    "glm4moelite": (DEEPSEEK, {"num_nextn_predict_layers": 1}),
    "deepseekv3": (DEEPSEEK, {"num_nextn_predict_layers": 1}),
    "deepseekv3-yarn": (DEEPSEEK, {"num_nextn_predict_layers": 1}),
    "nemotronh-experts": (NEMOTRON, {"num_nextn_predict_layers": 1}),
    "nemotronh-latents": (NEMOTRON, {"num_nextn_predict_layers": 1}),
    "mellum": (DEEPSEEK, {"num_nextn_predict_layers": 1}),
}


def transformers_layer(model: Any) -> Any:
    """Return transformers' own such layer for a model, with random weights."""
    from transformers.modeling_layers import MtpModel

    config = model.config
    config.num_mtp_layers = 1
    for key, kind in ("mtp_layer_types", "full_attention"), ("mtp_mlp_layer_types", "sparse"):
        if getattr(config, key, None) is None:
            setattr(config, key, [kind])
    if getattr(config, "mlp_only_layers", None):
        config.mlp_only_layers = [1]
    decoder = model.get_decoder()
    every = decoder.layers  # of which the class takes the last as a model: it is to be one with attention
    decoder.layers = torch.nn.ModuleList([next(layer for layer in every if hasattr(layer, "self_attn"))])
    made = MtpModel(model, 1).float().eval()
    decoder.layers = every
    return made


def load(path: Path) -> Any:
    """Return transformers' model of a checkpoint."""
    import transformers

    architecture = json.loads((path / "config.json").read_text())["architectures"][0]
    return getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32).eval()


def write_mtp(path: Path, name: str, *, seed: int = 0, **more: Any) -> Path:
    """Write a checkpoint of FAMILIES with such a layer, random as the others."""
    names, says = MODELS[name]
    write_family(path, name, seed=seed, **more)
    model = load(path)
    state, number = _layer_of(model).state_dict(), str(model.config.num_hidden_layers)
    generator = torch.Generator().manual_seed(seed + 1)
    tensors = load_file(path / "model.safetensors")
    alone = any("experts.0." in own for own in tensors)
    for own, tensor in state.items():
        spread = 1.5 * tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.2
        draw = spread * torch.randn(tensor.shape, generator=generator)
        tensor.copy_(draw if tensor.dim() > 1 else tensor + draw)
        part = next(part for part in names if own.startswith(part))
        renamed = own.replace(part, names[part].format(number), 1)
        tensors |= _experts(renamed, tensor) if alone and ".experts." in own else {renamed: tensor.contiguous()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    save_file({own: tensor.contiguous() for own, tensor in state.items()}, _kept(path))
    config = json.loads((path / "config.json").read_text()) | says
    (path / "config.json").write_text(json.dumps(config))
    return path


def _experts(name: str, stack: Tensor) -> dict[str, Tensor]:
    """Return the tensors of each expert where files do not stack them."""
    stem, _, kind = name.rpartition(".")
    parts = kind.split("_")[:-1]
    return {
        f"{stem}.{e}.{part}_proj.weight": own.contiguous()
        for e, expert in enumerate(stack)
        for part, own in zip(parts, expert.chunk(len(parts)), strict=True)
    }


def _kept(path: Path) -> Path:
    """Return where the layer's tensors lie as transformers has them, for the reference."""
    return path.parent / f"{path.name}-layer.safetensors"


class OfTwoBlocks(torch.nn.Module):
    """Nemotron's layer, of which its blocks are layers by themselves: a model of two of them behind a projection."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = copy.deepcopy(model.config)
        config.layers_block_type, config.num_hidden_layers = ["full_attention", "moe"], 2
        width, inner = config.hidden_size, type(model)(config).float().eval().model
        norm = type(inner.norm_f)
        self.enorm, self.hnorm = (norm(width, eps=config.layer_norm_epsilon) for _ in range(2))
        self.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        del inner.embeddings
        self.blocks = inner.layers
        self.final_layernorm = inner.norm_f
        self._run, self._embed = [inner], [model.get_input_embeddings()]  # in lists: no part of its state

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        x = self.eh_proj(torch.cat((self.enorm(self._embed[0](ids)), self.hnorm(hidden)), dim=-1))
        out: Tensor = self._run[0](inputs_embeds=x, use_cache=False).last_hidden_state
        return out


class OfOne(torch.nn.Module):
    """Everyone else's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._whole = [transformers_layer(model)]
        self.layer = self._whole[0].layers[0]

    def state_dict(self, *given: Any, **named: Any) -> Any:
        return self.layer.state_dict(*given, **named)

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        return self.layer.load_state_dict(*given, **named)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        positions = torch.arange(1, ids.shape[1] + 1)[None]
        out: Tensor = self._whole[0].forward_layer(0, hidden, positions, None, input_ids=ids)
        return out


def _layer_of(model: Any) -> OfOne | OfTwoBlocks:
    return (OfTwoBlocks if "NemotronH" in type(model).__name__ else OfOne)(model)


class Reference:
    """Drafts by transformers' classes, each from the whole text."""

    def __init__(self, path: Path) -> None:
        """Load a checkpoint that `write_mtp` has written."""
        self.model = load(path)
        self.layer = _layer_of(self.model)
        self.layer.load_state_dict(load_file(_kept(path)))

    @torch.no_grad()
    def draft(self, tokens: Sequence[int], count: int) -> tuple[list[int], Tensor, Tensor]:
        """Return `count` draft tokens after a text, the last of which the target has not seen, and their logits.

        The third are the target's states of the others, `[tokens - 1, hidden]`.
        """
        first = hidden = self.model.get_decoder()(torch.tensor([tokens[:-1]])).last_hidden_state
        text, logits = list(tokens), []
        for _ in range(count):
            out = self.layer(torch.tensor([text[1:]]), hidden)[:, -1:]
            logits.append(self.model.lm_head(out)[0, 0])
            text.append(int(logits[-1].argmax()))
            hidden = torch.cat((hidden, out), dim=1)
        return text[len(tokens) :], torch.stack(logits), first[0]
