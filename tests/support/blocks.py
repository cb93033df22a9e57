"""Block drafters: their reference in plain torch, and random checkpoints."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from eagles import HeadTwin, Tensors, layer_shapes, likeliest, random_tensors, rms, turn
from heads import solve, texts_of, write_head
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, one_hot, silu

from parlay import LLM
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner

TAPS = (1, 2, 3)
_ALIASES = {"midlayer.": "layers.0.", "encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}


class BlockTwin(HeadTwin):
    """A head that computes everything anew, in float64, one request at a time."""

    def __init__(self, path: Path, embedding: Tensor, output: Tensor) -> None:
        """Read a checkpoint in any layout; embedding and output are the target's `[V, H]`."""
        raw = json.loads((path / "config.json").read_text())
        self.layers = raw.get("transformer_layer_config", raw)
        self.raw = {**self.layers, **raw, **raw.get("dflash_config", {})}
        self.tensors = {}
        for name, tensor in load_file(path / "model.safetensors").items():
            for old, new in _ALIASES.items():
                name = name.replace(old, new)
            self.tensors[name] = tensor.double() if tensor.is_floating_point() else tensor
        self.embedding = self.tensors.get("embed_tokens.weight", embedding.double())
        self.output = self.tensors.get("lm_head.weight", output.double())
        self.eps = self.layers.get("rms_norm_eps", 1e-6)
        self.block, self.mask = self.raw["block_size"], self.raw["mask_token_id"]
        self.anchored = self.raw.get("sample_from_anchor", False)
        self.own_mask: Tensor | None = None

    def sight(self, layer: int) -> tuple[bool, int]:
        """Return whether a layer is causal within a block, and how many keys a row sees up to its own; 0 for all."""
        types = self.raw.get("layer_types")
        sliding = types[layer] == "sliding_attention" if types else self.raw.get("use_swa", False)
        assistant = "Muse" in str(self.raw.get("architectures"))
        causal = self.raw.get("is_causal", self.raw.get("causal", sliding and not assistant))
        if self.raw.get("sliding_window_non_causal"):
            causal = False
        window = self.raw.get("swa_window_size") or self.raw.get("sliding_window") or 0
        return causal, (window + assistant) * sliding

    def states(self, tokens: Sequence[int] | Tensor, known: Tensor) -> Tensor:
        """Return the normed states `[block, d]` of a block after the last of `tokens`, of which it is the first.

        Args:
            tokens: all known ones.
            known: the target's states after the layers it reads, side by side, `[len(tokens) - 1, n H]`.
        """
        t = self.tensors
        context = rms(linear(known.double(), t["fc.weight"]), t["hidden_norm.weight"], self.eps)
        unknown = self.embedding[min(self.mask, len(self.embedding) - 1)].expand(self.block - 1, -1)
        rows = torch.cat([self.embedding[tokens[-1]][None], unknown])
        if self.own_mask is not None:
            rows = torch.cat([rows[:1], self.own_mask.double().expand(self.block - 1, -1)])
        rows = rows * self.raw.get("input_embedding_scale", 1.0)
        i = 0
        while f"layers.{i}.self_attn.q_proj.weight" in t:
            rows = self._layer(i, rows, context)
            i += 1
        return rms(rows, t["norm.weight"], self.eps)

    def _layer(self, i: int, rows: Tensor, context: Tensor) -> Tensor:
        part = f"layers.{i}."
        x = rms(rows, self.tensors[f"{part}input_layernorm.weight"], self.eps)
        rows = rows + self.around(f"{part}attention_conv.", x, lambda y: self._attention(i, y, context))
        x = rms(rows, self.tensors[f"{part}post_attention_layernorm.weight"], self.eps)
        gate, up, down = (self.tensors[f"{part}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return rows + self.around(
            f"{part}mlp_conv.", x, lambda y: linear(silu(linear(y, gate)) * linear(y, up), down)
        )

    def around(self, name: str, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what a part of a layer makes of a block's rows, and of what may be around it."""
        return part(x)

    def _heads(self, layer: int, letter: str, x: Tensor, positions: Tensor) -> Tensor:
        raw, name = self.layers, f"layers.{layer}.self_attn.{letter}_"
        width = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        y = linear(x, self.tensors[f"{name}proj.weight"], self.tensors.get(f"{name}proj.bias"))
        y = y.view(len(x), -1, width)
        if letter != "v":
            if f"{name}norm.weight" in self.tensors:
                y = rms(y, self.tensors[f"{name}norm.weight"], self.eps)
            if not self.raw.get("is_neox_style", True):  # neighbours turn together
                columns = int(width * raw.get("partial_rotary_factor", 1.0))
                pairs = torch.cat([torch.arange(columns).view(-1, 2).T.flatten(), torch.arange(columns, width)])
                y = y[..., pairs]
            y = turn(y, positions, raw)
        return y.repeat_interleave(raw["num_attention_heads"] // y.shape[1], 1).transpose(0, 1)

    def _attention(self, layer: int, x: Tensor, context: Tensor) -> Tensor:
        old, new = len(context), len(x)
        every = torch.arange(old + new)
        query = self._heads(layer, "q", x, every[old:])
        both = torch.cat([context, x])
        key, value = (self._heads(layer, letter, both, every) for letter in "kv")
        causal, window = self.sight(layer)
        ahead = every[None] - every[old:, None]
        seen = torch.ones(new, old + new, dtype=torch.bool)
        if causal:
            seen &= ahead <= 0
        if window:
            seen &= ahead > -window
        scores = (query @ key.transpose(1, 2)) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~seen, -math.inf)
        sinks = self.tensors.get(f"layers.{layer}.self_attn.attention_sink_bias")
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, new, 1)], -1)
        mixed = scores.softmax(-1)[..., : old + new] @ value
        mixed = mixed.transpose(0, 1).reshape(new, -1) * self.raw.get("attention_value_scale", 1.0)
        name = f"layers.{layer}.self_attn.o_proj."
        return linear(mixed, self.tensors[f"{name}weight"], self.tensors.get(f"{name}bias"))

    def predicting(self, tokens: Sequence[int] | Tensor, known: Tensor) -> Tensor:
        """Return the states of the rows that predict tokens, `[drafted, d]`."""
        return self.states(tokens, known)[not self.anchored :]

    def logits(self, states: Tensor) -> Tensor:
        scores = linear(states, self.output) * self.raw.get("output_multiplier", 1.0)
        cap = self.raw.get("final_logit_softcapping")
        return cap * (scores / cap).tanh() if cap else scores

    def chain(
        self, tokens: Sequence[int], known: Tensor, length: int, choose: Any = likeliest
    ) -> tuple[list[int], list[Tensor]]:
        scores = list(self.logits(self.predicting(tokens, known)[:length]))
        guesses = [self.token(choose(row, len(tokens) + i, self.ids)) for i, row in enumerate(scores)]
        return guesses, scores


class SparkTwin(BlockTwin):
    """A head whose rows' logits have a bias by the token before, and which tells how likely each is accepted."""

    def __init__(self, path: Path, embedding: Tensor, output: Tensor) -> None:
        super().__init__(path, embedding, output)
        nested = "transformer_layer_config" in self.raw
        self.anchored = self.raw.get("sample_from_anchor", not nested)
        self.kind, self.told = self.raw.get("markov_head_type", "vanilla"), list[float]()

    def chain(
        self, tokens: Sequence[int], known: Tensor, length: int, choose: Any = likeliest
    ) -> tuple[list[int], list[Tensor]]:
        states = self.states(tokens, known)
        along, before = torch.zeros(self.entry(0).shape[0]).double(), tokens[-1]
        if not self.anchored:
            _, along = self.bias(self.entry(before), states[0], along)
        guesses, scores, self.told = [], [], []
        for i, state in enumerate(states[not self.anchored :][:length]):
            bias, along = self.bias(self.entry(before), state, along)
            self.told.append(float(self.confidence(state, self.entry(before))))
            scores.append(self.logits(state) + bias)
            before = self.token(choose(scores[-1], len(tokens) + i, self.ids))
            guesses.append(before)
        return guesses, scores

    def sure(self, row: int) -> float | None:
        return self.told[row] if "confidence_head.proj.weight" in self.tensors else None

    def entry(self, token: int) -> Tensor:
        """Return what the head knows of a token that comes before another, `[r]`."""
        return self.tensors["markov_head.markov_w1.weight"][token]

    def bias(self, entry: Tensor, hidden: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bias `[D]` on a row's logits, and the recurrent state behind it."""
        t, features = self.tensors, entry
        if self.kind == "gated":
            name = "markov_head.gate_proj."
            features = linear(torch.cat([hidden, entry]), t[f"{name}weight"], t[f"{name}bias"]).sigmoid() * entry
        elif self.kind == "rnn":
            name = "markov_head.joint_proj."
            joint = linear(torch.cat([along, entry, hidden]), t[f"{name}weight"], t[f"{name}bias"])
            gate, candidate, out = joint.chunk(3)
            along = gate.sigmoid() * along + (1 - gate.sigmoid()) * candidate.tanh()
            features = out.tanh()
        return linear(features, t["markov_head.markov_w2.weight"]), along

    def confidence(self, hidden: Tensor, entry: Tensor) -> Tensor:
        """Return how likely a row's token is accepted."""
        if "confidence_head.proj.weight" not in self.tensors:
            return torch.tensor(0.0)
        weight = self.tensors["confidence_head.proj.weight"]
        read = torch.cat([hidden, entry]) if weight.shape[1] > len(hidden) else hidden
        return linear(read, weight, self.tensors["confidence_head.proj.bias"]).sigmoid()


class WalkTwin(BlockTwin):
    """A head with convolutions along a block, which walks along the likeliest tokens of each place."""

    def around(self, name: str, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        base, weight = self.tensors[f"{name}base_kernel"], self.tensors[f"{name}kernel_projection.weight"]
        own = linear(x, weight).view(len(x), 2, base.shape[1], -1)
        return self.convolve(part(self.convolve(x, own[:, 0], base[0])), own[:, 1], base[1])

    def convolve(self, x: Tensor, own: Tensor, base: Tensor) -> Tensor:
        """Return a block's rows with coefficients that they share, `[taps, d]`, and their own, `[rows, taps, g]`."""
        out = torch.zeros_like(x)
        for row in range(len(x)):
            for tap in range(min(len(base), row % self.block + 1)):
                shared = own[row, tap].repeat_interleave(x.shape[1] // own.shape[2])
                out[row] += (base[tap] + shared) * x[row - tap]
        return out

    def chain(
        self, tokens: Sequence[int], known: Tensor, length: int, choose: Any = likeliest
    ) -> tuple[list[int], list[Tensor]]:
        guesses, scores, before = [], [], tokens[-1]
        for i, state in enumerate(self.predicting(tokens, known)[:length]):
            scores.append(self.walked(self.logits(state), state, before))
            before = self.token(choose(scores[-1], len(tokens) + i, self.ids))
            guesses.append(before)
        return guesses, scores

    def walked(self, logits: Tensor, state: Tensor, before: int) -> Tensor:
        """Return a row's scores `[D]` after a token: minus infinity but for the candidates."""
        t, name = self.tensors, "candidate_selector."
        gate = t[f"{name}predecessor_codebook"][before] * linear(state, t[f"{name}hidden_projection.weight"])
        out = torch.full_like(logits, -math.inf)
        for place in logits.argsort(descending=True)[: self.raw["selector_top_k"]].tolist():
            out[place] = logits[place] + t[f"{name}successor_codebook"][self.token(place)] @ gate
        return out


def twin_for(llm: LLM, path: Path, kind: type[BlockTwin] = BlockTwin) -> BlockTwin:
    """Return the twin of a head for an engine's target."""
    lent = load_file(llm.engine._worker._runner.model.config.path / "model.safetensors")
    return kind(path, lent["model.embed_tokens.weight"], lent["lm_head.weight"])


def block_config(**changes: Any) -> dict[str, Any]:
    """Return the config of a head for the tests' targets, as DFlash's authors write it."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "block_size": 16,
        "dflash_config": {"mask_token_id": 255, "target_layer_ids": [i - 1 for i in TAPS]},
        **changes,
    }


def random_block(config: dict[str, Any], *, states: int = 192, bias: bool = False, seed: int = 0) -> Tensors:
    """Return the tensors of a head that reads `states` numbers of its target."""
    raw = config.get("transformer_layer_config", config)
    width = raw["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, states),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    for i in range(raw["num_hidden_layers"]):
        own = layer_shapes(raw, wide=False)
        own |= {f"self_attn.{letter}_norm.weight": (raw["head_dim"],) for letter in "qk"}
        own |= {f"{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
        if bias:
            own |= {f"self_attn.{x}_proj.bias": own[f"self_attn.{x}_proj.weight"][:1] for x in "qkvo"}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
    return random_tensors(shapes, seed)


def markov_tensors(kind: str, hidden: int, rank: int, vocab: int, drafted: int, *, seed: int = 7) -> Tensors:
    """Return random tensors of what a token says about the next one, and of the confidence head."""
    shapes = {"markov_head.markov_w1.weight": (vocab, rank), "markov_head.markov_w2.weight": (drafted, rank)}
    if kind == "gated":
        shapes |= {"markov_head.gate_proj.weight": (rank, hidden + rank), "markov_head.gate_proj.bias": (rank,)}
    if kind == "rnn":
        inputs = 2 * rank + hidden
        shapes |= {"markov_head.joint_proj.weight": (3 * rank, inputs), "markov_head.joint_proj.bias": (3 * rank,)}
    shapes |= {"confidence_head.proj.weight": (1, hidden + rank), "confidence_head.proj.bias": (1,)}
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if "_w" not in name else 1.0)
        for name, shape in shapes.items()
    }


def walk_tensors(
    hidden: int, vocab: int, *, layers: int = 2, taps: int = 2, group: int = 8, rank: int = 6, seed: int = 8
) -> Tensors:
    """Return random tensors of convolutions along a block, and of what scores its candidates."""
    shapes: dict[str, tuple[int, ...]] = {
        "candidate_selector.predecessor_codebook": (vocab, rank),
        "candidate_selector.successor_codebook": (vocab, rank),
        "candidate_selector.hidden_projection.weight": (rank, hidden),
    }
    for i in range(layers):
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{i}.{name}.base_kernel"] = (2, taps, hidden)
            shapes[f"layers.{i}.{name}.kernel_projection.weight"] = (2 * taps * (hidden // group), hidden)
    generator = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    for name, tensor in found.items():
        if name.endswith("base_kernel"):
            tensor[:, 0] += 1  # little but the rows themselves
    return found


def near_sighted(config: dict[str, Any], *, seed: int = 0) -> Tensors:
    """Return a random head whose rows see, in the i-th layer, hardly anything but the row i + 1 places before them.

    So the newest token reaches the rows behind it, whole, and little else does. Queries and keys are the same at
    every place, and their products those of the places' distance: all pairs of columns agree at the wanted one.
    """
    raw = config.get("transformer_layer_config", config)
    tensors, width, heads = random_block(config, bias=True, seed=seed), raw["head_dim"], raw["num_attention_heads"]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    for i in range(raw["num_hidden_layers"]):
        name = f"layers.{i}.self_attn."
        for letter in "qk":
            tensors[f"{name}{letter}_proj.weight"] *= 0.02
            tensors[f"{name}{letter}_norm.weight"] = torch.full((width,), 3.0)
        turned = (i + 1) * frequencies
        tensors[f"{name}q_proj.bias"] = torch.cat([turned.cos(), -turned.sin()]).float().repeat(heads)
        still = torch.cat([torch.ones(width // 2), torch.zeros(width // 2)])
        tensors[f"{name}k_proj.bias"] = still.repeat(raw["num_key_value_heads"])
        tensors[f"layers.{i}.mlp.down_proj.weight"] *= 0.2
    return tensors


def fit_output(config: dict[str, Any], tensors: Tensors, path: Path, target: Path, ids: Sequence[int]) -> Tensor:
    """Return the output layer `[len(ids), d]` that tells a target's tokens best from the states of blocks."""
    texts, _ = texts_of(target)
    lent = load_file(target / "model.safetensors")
    twin = BlockTwin(write_head(path, config, tensors), lent["model.embed_tokens.weight"], lent["lm_head.weight"])
    twin.block = 4  # further rows and older contexts hardly matter
    known, ends = torch.stack([*states_after(target, texts, TAPS)]), range(6, texts.shape[1] - 1, 3)
    before = torch.cat([texts[:, end - 4 : end] for end in ends])
    contexts = torch.cat([known[:, end - 5 : end - 1] for end in ends])
    features = torch.vmap(lambda tokens, context: twin.predicting(tokens, context)[:2])(before, contexts).flatten(
        0, 1
    )
    tokens = torch.cat([texts[:, end : end + 2] for end in ends]).flatten()
    inside = torch.isin(tokens, torch.tensor(ids))
    shares = one_hot(tokens, len(lent["lm_head.weight"]))[inside][:, list(ids)].double()
    return 30 * solve(features[inside], shares).float()


def states_after(target: Path, texts: Tensor, layers: tuple[int, ...]) -> Iterator[Tensor]:
    """Yield of each of a target's texts `[n, length]` the states after some layers, `[length, layers H]`."""
    kernels, length = select_kernels(), texts.shape[1]
    model = load_model(describe_model(str(target)), torch.float32, length, kernels)
    runner = ModelRunner(model, kernels, length, 1)
    runner.tap(layers)
    for text in texts.tolist():
        runner.forward(flatten([Segment(text, 0, range(length))], 1))
        yield torch.cat(list(runner.tapped), 1)
