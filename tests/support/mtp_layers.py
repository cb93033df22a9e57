"""Tiny checkpoints with layers that predict further tokens, and transformers' own drafts with them."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from families import step_config, write_family
from safetensors.torch import load_file, save_file
from torch import Tensor

# What released files call the tensors that transformers' class has, beside those of a decoder layer. `{0}` or `{}`
# stands for the layer's number behind the model's, `{1}` for that among such layers.
QWEN = {
    "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj.weight": "mtp.fc.weight",
    "post_norm.weight": "mtp.norm.weight",
    "mtp_block.": "mtp.layers.{1}.",
}
DEEPSEEK = {
    "enorm.weight": "model.layers.{}.enorm.weight",
    "hnorm.weight": "model.layers.{}.hnorm.weight",
    "eh_proj.weight": "model.layers.{}.eh_proj.weight",
    "post_norm.weight": "model.layers.{}.shared_head.norm.weight",
    "mtp_block.": "model.layers.{}.",
}
HY = {
    "mtp_block.mlp.gate.": "model.layers.{}.mlp.router.gate.",
    "mtp_block.mlp.e_score_correction_bias": "model.layers.{}.mlp.expert_bias",
    "mtp_block.mlp.shared_experts.": "model.layers.{}.mlp.shared_mlp.",
    **DEEPSEEK,
    "post_norm.weight": "model.layers.{}.final_layernorm.weight",
}
NEMOTRON = {
    "enorm.weight": "mtp.layers.0.enorm.weight",
    "hnorm.weight": "mtp.layers.0.hnorm.weight",
    "eh_proj.weight": "mtp.layers.0.eh_proj.weight",
    "final_layernorm.weight": "mtp.layers.1.final_layernorm.weight",
    "blocks.": "mtp.layers.",
}
ERNIE = {
    "enorm.weight": "model.mtp_emb_norm.{1}.weight",
    "hnorm.weight": "model.mtp_hidden_norm.{1}.weight",
    "eh_proj.weight": "model.mtp_linear_proj.{1}.weight",
    "block.": "model.mtp_block.{1}.",
}
MIMO = {
    "enorm.weight": "model.mtp_layers.{1}.token_layernorm.weight",
    "hnorm.weight": "model.mtp_layers.{1}.hidden_layernorm.weight",
    "eh_proj.weight": "model.mtp_layers.{1}.input_proj.weight",
    "norm.weight": "model.mtp_layers.{1}.final_layernorm.weight",
    "block.": "model.mtp_layers.{1}.",
}
MIMO2 = {
    "enorm.weight": "model.mtp.layers.{1}.enorm.weight",
    "hnorm.weight": "model.mtp.layers.{1}.hnorm.weight",
    "eh_proj.weight": "model.mtp.layers.{1}.eh_proj.weight",
    "post_norm.weight": "model.mtp.layers.{1}.final_layernorm.weight",
    "mtp_block.post_attention_layernorm.": "model.mtp.layers.{1}.pre_mlp_layernorm.",
    "mtp_block.self_attn.sinks": "model.mtp.layers.{1}.self_attn.attention_sink_bias",
    "mtp_block.": "model.mtp.layers.{1}.",
}
STEP = {
    "enorm.weight": "model.layers.{}.enorm.weight",
    "hnorm.weight": "model.layers.{}.hnorm.weight",
    "eh_proj.weight": "model.layers.{}.eh_proj.weight",
    "norm.weight": "model.layers.{}.transformer.shared_head.norm.weight",
    "head.weight": "model.layers.{}.transformer.shared_head.output.weight",
    "block.": "model.layers.{}.",
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
    "cohere2moe": (DEEPSEEK, {"num_nextn_predict_layers": 1}),
    "hyv3": (HY, {"num_nextn_predict_layers": 1}),
    "nemotronh-experts": (NEMOTRON, {"num_nextn_predict_layers": 1}),
    "nemotronh-latents": (NEMOTRON, {"num_nextn_predict_layers": 1}),
    "mellum": (DEEPSEEK, {"num_nextn_predict_layers": 1}),
    "ernie4_5_moe": (ERNIE, {"num_nextn_predict_layers": 1}),
    "mimov2flash": (MIMO2, {}),
    "step3p5": (STEP, {"num_nextn_predict_layers": 1, "mtp_layer_types": ["sliding_attention"]}),
    "qwen2": (MIMO, {"num_nextn_predict_layers": 1, "architectures": ["MiMoForCausalLM"], "model_type": "mimo"}),
}


def transformers_layers(model: Any, count: int = 1) -> Any:
    """Return transformers' own such layers for a model, with random weights."""
    from transformers.modeling_layers import MtpModel

    config = model.config
    config.num_mtp_layers = count
    kinds = ("sliding_attention", "dense") if "MiMoV2" in type(model).__name__ else ("full_attention", "sparse")
    for key, kind in zip(("mtp_layer_types", "mtp_mlp_layer_types"), kinds, strict=True):
        if getattr(config, key, None) is None:
            setattr(config, key, [kind] * count)
    if getattr(config, "mlp_only_layers", None):
        config.mlp_only_layers = [count]
    decoder = model.get_decoder()
    every = decoder.layers  # of which the class takes the last as a model: it is to be one with attention
    decoder.layers = torch.nn.ModuleList([next(layer for layer in every if hasattr(layer, "self_attn"))])
    made = MtpModel(model, count).float().eval()
    decoder.layers = every
    for layer in made.layers:
        if hasattr(layer.mtp_block.self_attn, "force_rope"):  # which it is, says llama.cpp's cohere2moe.cpp
            layer.mtp_block.self_attn.force_rope = True
    return made


def load(path: Path) -> Any:
    """Return transformers' model of a checkpoint."""
    import transformers

    config = json.loads((path / "config.json").read_text())
    architecture = config["architectures"][0]
    if architecture.startswith("Step"):
        kind, own = transformers.Step3p7ForConditionalGeneration, step_config(config)
        return kind.from_pretrained(path, config=own, dtype=torch.float32, attn_implementation="eager").eval()
    architecture = architecture.replace("MiMoFor", "Qwen2For")  # which it is
    return getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32).eval()


def write_mtp(path: Path, name: str, *, layers: int = 1, seed: int = 0, **more: Any) -> Path:
    """Write a checkpoint of FAMILIES with so many such layers, random as the others."""
    names, says = MODELS[name]
    write_family(path, name, seed=seed, **more)
    model = load(path)
    generator = torch.Generator().manual_seed(seed + 1)
    tensors = load_file(path / "model.safetensors")
    alone, kept = any("experts.0." in own for own in tensors), {}
    for place, layer in enumerate(_layers_of(model, layers)):
        state = layer.state_dict()
        for own, tensor in state.items():
            spread = 1.5 * tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.2
            draw = spread * torch.randn(tensor.shape, generator=generator)
            part = next(part for part in names if own.startswith(part))
            before = model.config.get_text_config().num_hidden_layers
            renamed = own.replace(part, names[part].format(before + place, place), 1)
            shared = tensors.get(renamed)  # by all such layers
            begun = tensor if tensor.dim() == 1 and not own.endswith("sinks") else 0  # sinks begin as anything
            tensor.copy_(shared if shared is not None else begun + draw)
            tensors |= _experts(renamed, tensor) if alone and ".experts." in own else {renamed: tensor.clone()}
        kept |= {f"{place}.{own}": tensor.clone() for own, tensor in state.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    save_file(kept, _kept(path))
    counted = {key: layers for key, value in says.items() if value == 1}
    config = json.loads((path / "config.json").read_text()) | says | counted
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
    """Return where the layers' tensors lie as transformers has them, for the reference."""
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


class ByFormula(torch.nn.Module):
    """Those of models that transformers has without: formulas of their authors' code, around one of its layers.

    Sources: PaddlePaddle's FastDeploy, `Ernie4_5_MTPModel`; XiaomiMiMo/MiMo-7B-Base, `modeling_mimo.py`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        from transformers.models.ernie4_5.modeling_ernie4_5 import Ernie4_5DecoderLayer
        from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

        config, body = model.config, model.get_decoder()
        ernie, width = type(model).__name__.startswith("Ernie"), config.hidden_size
        norm = type(body.norm)
        self.enorm, self.hnorm = (norm(width, eps=config.rms_norm_eps) for _ in range(2))
        self.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        self.block = (Ernie4_5DecoderLayer if ernie else Qwen2DecoderLayer)(config, 0)
        if not ernie:
            self.norm = norm(width, eps=config.rms_norm_eps)
        self._last, self._state_first = [body.norm if ernie else self.norm], not ernie
        self._body = [body]  # in lists: no part of its state
        self.float().eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        body = self._body[0]
        pair = [self.enorm(body.embed_tokens(ids)), self.hnorm(hidden)]
        x = self.eh_proj(torch.cat(pair[::-1] if self._state_first else pair, dim=-1))
        positions = torch.arange(ids.shape[1])[None]
        later = torch.full((ids.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        x = self.block(x, position_embeddings=body.rotary_emb(x, positions), attention_mask=later)
        out: Tensor = self._last[0](x)
        return out


class OfStep(torch.nn.Module):
    """Step's, with output layers of their own, whose norm is not for the layer that comes next.

    Source: vLLM's `step3p5_mtp.py` and llama.cpp's `step35.cpp`, around transformers' layer.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        from transformers.models.step3p7.modeling_step3p7 import Step3p7DecoderLayer

        body = model.get_decoder()
        config, norm = copy.deepcopy(body.config), type(body.norm)
        config.swiglu_limits = config.swiglu_limits_shared = None
        config.mlp_layer_types = ["dense"] * config.num_hidden_layers
        width, self._window = config.hidden_size, config.sliding_window
        self.enorm, self.hnorm, self.norm = (norm(width, eps=config.rms_norm_eps) for _ in range(3))
        self.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        self.head = torch.nn.Linear(width, config.vocab_size, bias=False)
        self.block = Step3p7DecoderLayer(config, config.layer_types.index("sliding_attention"))
        self._body = [body]
        self.float().eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        body, each = self._body[0], torch.arange(ids.shape[1])
        x = self.eh_proj(torch.cat((self.enorm(body.embed_tokens(ids)), self.hnorm(hidden)), dim=-1))
        ago = each[:, None] - each
        hidden_keys = torch.where((ago < 0) | (ago >= self._window), -torch.inf, 0.0)[None, None]
        turned = body.rotary_emb(x, each[None], "sliding_attention")
        out: Tensor = self.block(x, attention_mask=hidden_keys, position_embeddings=turned, position_ids=each[None])
        return out

    def score(self, state: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(state))
        return out


class OfMany(torch.nn.Module):
    """Everyone else's: one of transformers' such layers."""

    def __init__(self, whole: Any, place: int) -> None:
        super().__init__()
        self._whole, self._place = [whole], place
        self.layer = whole.layers[place]

    def state_dict(self, *given: Any, **named: Any) -> Any:
        return self.layer.state_dict(*given, **named)

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        return self.layer.load_state_dict(*given, **named)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        positions = torch.arange(1, ids.shape[1] + 1)[None]
        out: Tensor = self._whole[0].forward_layer(self._place, hidden, positions, None, input_ids=ids)
        return out


def _layers_of(model: Any, count: int) -> list[Any]:
    kind = type(model).__name__
    if kind.startswith(("Ernie", "Qwen2")):
        return [ByFormula(model) for _ in range(count)]
    if "NemotronH" in kind:
        return [OfTwoBlocks(model)]
    if kind.startswith("Step"):
        return [OfStep(model) for _ in range(count)]
    whole = transformers_layers(model, count)
    return [OfMany(whole, place) for place in range(count)]


Choose = Callable[[Tensor, int], int]  # of a row of logits, for a position


def likeliest(logits: Tensor, position: int) -> int:
    return int(logits.argmax())


class Drafted(NamedTuple):
    """Draft tokens, their logits and the states that those follow from, and the target's states before."""

    tokens: list[int]
    logits: Tensor
    states: Tensor
    hidden: Tensor


class Reference:
    """Drafts by transformers' classes, each from the whole text.

    Of several layers, each draws one token, from what the one before it has made of the whole text and of the tokens
    drawn so far. The last one goes on with states of its own.
    """

    def __init__(self, path: Path) -> None:
        """Load a checkpoint that `write_mtp` has written."""
        self.model = load(path)
        config = (path / "config.json").read_text()
        self.unnormed = "MiMoFor" in config or "Step3" in config
        kept = load_file(_kept(path))
        self.layers = _layers_of(self.model, len({name.split(".")[0] for name in kept}))
        for place, layer in enumerate(self.layers):
            start = f"{place}."
            layer.load_state_dict({name.removeprefix(start): t for name, t in kept.items() if name.startswith(start)})

    def logits(self, states: Tensor) -> Tensor:
        """Return what the model's output layer makes of states."""
        made: Tensor = self.model.lm_head(states) * getattr(self.model, "logit_scale", 1.0)
        return made

    @torch.no_grad()
    def draft(self, tokens: Sequence[int], count: int, choose: Choose = likeliest) -> "Drafted":
        """Return `count` draft tokens after a text, the last of which the target has not seen."""
        first = hidden = self._states(torch.tensor([tokens[:-1]]))
        text, logits, states, out = list(tokens), list[Tensor](), list[Tensor](), first[:, :0]
        for step in range(count):
            place = min(step, len(self.layers) - 1)
            hidden = hidden if step == 0 else out if step == place else torch.cat((hidden, out[:, -1:]), dim=1)
            out = self.layers[place](torch.tensor([text[place + 1 :]]), hidden)
            states.append(out[0, -1])
            score = getattr(self.layers[place], "score", self.logits)
            logits.append(score(out[0, -1]))
            text.append(choose(logits[-1], len(text)))
        return Drafted(text[len(tokens) :], torch.stack(logits), torch.stack(states), first[0])

    def _states(self, tokens: Tensor) -> Tensor:
        """Return the states of tokens that the layer reads, `[1, tokens, hidden]`."""
        body, seen = self.model.get_decoder(), list[Tensor]()
        hook = body.register_forward_pre_hook(lambda *given: None)
        if self.unnormed:
            hook = body.norm.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        last: Tensor = body(tokens).last_hidden_state
        hook.remove()
        return seen[0] if seen else last
