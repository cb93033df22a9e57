"""EAGLE-type heads: their reference in plain torch, and random checkpoints."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import write_head as write
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, silu
from watching import Known, Noted, head_of

from parlay import LLM
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner

Tensors = dict[str, Tensor]
Choose = Callable[[Tensor, int, Tensor | None], int]


def likeliest(logits: Tensor, position: int, ids: Tensor | None) -> int:
    return int(logits.argmax())


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def turn(x: Tensor, positions: Tensor, raw: dict[str, Any]) -> Tensor:
    """Rotate the first columns of heads `[rows, heads, D]` as a layer's config says."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0
    columns = int(x.shape[-1] * raw.get("partial_rotary_factor", 1.0))
    frequencies = theta ** (-torch.arange(0, columns, 2).double() / columns)
    if scaling.get("rope_type") == "llama3":
        frequencies = torch.tensor([llama3(float(frequency), scaling) for frequency in frequencies]).double()
    angles = positions[:, None].double() * frequencies
    cos, sin = (torch.cat([part, part], -1)[:, None] for part in (angles.cos(), angles.sin()))
    turning, still = x.split([columns, x.shape[-1] - columns], -1)
    a, b = turning.chunk(2, -1)
    return torch.cat([turning * cos + torch.cat([-b, a], -1) * sin, still], -1)


def llama3(frequency: float, scaling: dict[str, Any]) -> float:
    """Return a frequency as Llama 3.1 has it: long waves are stretched, short ones stay."""
    original, low, high = (
        scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    turns = original * frequency / (2 * math.pi)  # within the length that the target was first trained on
    stay = min(max((turns - low) / (high - low), 0.0), 1.0)
    return stay * frequency + (1 - stay) * frequency / float(scaling["factor"])


class HeadTwin:
    """What twins of heads share that draft tokens from the target's states.

    Attributes:
        tensors: the checkpoint's, in float64.
    """

    tensors: Tensors

    @property
    def ids(self) -> Tensor | None:
        """The target's ids `[D]` of what it can guess; None where they are the same."""
        offsets = self.tensors.get("d2t")
        return None if offsets is None else offsets + torch.arange(len(offsets))

    def token(self, place: int) -> int:
        """Return the target's id of a token that it can guess."""
        return place if self.ids is None else int(self.ids[place])

    def sure(self, row: int) -> float | None:
        """Return how likely the target is to accept the token that a row of the last chain predicts, if it tells."""
        return None

    def chain(
        self, tokens: Sequence[int], known: Tensor, length: int, choose: Choose = likeliest
    ) -> tuple[list[int], list[Tensor]]:
        """Return the guesses that follow `tokens`, and their logits.

        Args:
            tokens: all known ones; the first has no pair.
            known: the target's states `[len(tokens) - 1, H]` or `[..., n H]`.
            length: how many guesses.
            choose: which of a row of logits, for a position and given all ids.
        """
        raise NotImplementedError


class Twin(HeadTwin):
    """A head that computes everything anew from the first pair on, in float64, one request at a time."""

    def __init__(self, path: Path, embedding: Tensor, output: Tensor) -> None:
        """Read a checkpoint in any layout; embedding and output are the target's `[V, H]`."""
        raw = json.loads((path / "config.json").read_text())
        self.layers = raw.get("transformer_layer_config", raw)
        self.flags = {**raw.get("eagle_config", {}), **raw}
        tensors = load_file(path / "model.safetensors")
        self.tensors = {
            name.replace("midlayer.", "layers.0."): t.double() if t.is_floating_point() else t
            for name, t in tensors.items()
        }
        self.third = "layers.0.hidden_norm.weight" in self.tensors
        self.embedding = self.tensors.get("embed_tokens.weight", embedding.double())
        self.output = self.tensors.get("lm_head.weight", output.double())
        self.eps = self.layers.get("rms_norm_eps", 1e-6)

    def states(self, known: Tensor) -> Tensor:
        """Return what the layer is given of the target's states: `[pairs, H]`, or `[pairs, n H]` for EAGLE-3."""
        known = known.double()
        if not self.third:
            return known
        t = self.tensors
        parts = [name for name in ("fc_norm.0", "fc_norm.1", "fc_norm.2") if f"{name}.weight" in t]
        if parts:
            chunks = zip(known.chunk(len(parts), -1), parts, strict=True)
            known = torch.cat([rms(x, t[f"{name}.weight"], self.eps) for x, name in chunks], -1)
        if "input_norm.weight" in t:
            known = rms(known, t["input_norm.weight"], self.eps)
        return linear(known, t["fc.weight"], t.get("fc.bias"))

    def foresee(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Return the state `[pairs, d]` that each pair goes on with."""
        t, embedded = self.tensors, self.embedding[tokens]
        if self.third:
            normed = rms(states, t["layers.0.hidden_norm.weight"], self.eps)
            x = torch.cat([rms(embedded, t["layers.0.input_layernorm.weight"], self.eps), normed], -1)
            speculators = "speculators_model_type" in self.flags
            residual = normed if self.flags.get("norm_before_residual", speculators) else states
        else:
            x = residual = linear(torch.cat([embedded, states], -1), t["fc.weight"], t.get("fc.bias"))
        i = 0
        while f"layers.{i}.self_attn.q_proj.weight" in t:
            if i:
                norm = t.get(f"layers.{i}.hidden_norm.weight", t.get(f"layers.{i}.input_layernorm.weight"))
                assert norm is not None
                x = rms(residual, norm, self.eps)
            residual = residual + self._attention(i, x)
            residual = residual + self._mlp(
                i, rms(residual, t[f"layers.{i}.post_attention_layernorm.weight"], self.eps)
            )
            i += 1
        return rms(residual, t["norm.weight"], self.eps) if self.flags.get("norm_output") else residual

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        raw, rows = self.layers, len(x)
        heads = raw["num_attention_heads"]
        groups = raw.get("num_key_value_heads") or heads
        width = raw.get("head_dim") or raw["hidden_size"] // heads
        found = []
        for part, count in (("q", heads), ("k", groups), ("v", groups)):
            name = f"layers.{layer}.self_attn.{part}_"
            y = linear(x, self.tensors[f"{name}proj.weight"], self.tensors.get(f"{name}proj.bias")).view(
                rows, count, width
            )
            if part in "qk" and f"{name}norm.weight" in self.tensors:
                y = rms(y, self.tensors[f"{name}norm.weight"], self.eps)
            if part != "v":
                y = turn(y, torch.arange(rows), raw)
            found.append(y.repeat_interleave(heads // count, 1).transpose(0, 1))
        query, key, value = found
        scores = query @ key.transpose(1, 2) / math.sqrt(width)
        scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(rows, -1)
        return linear(mixed, self.tensors[f"layers.{layer}.self_attn.o_proj.weight"])

    def _mlp(self, layer: int, x: Tensor) -> Tensor:
        gate, up, down = (self.tensors[f"layers.{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    def features(self, states: Tensor) -> Tensor:
        """Return what the output layer multiplies."""
        if not self.third or self.flags.get("norm_output"):
            return states
        return rms(states, self.tensors["norm.weight"], self.eps)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits `[pairs, D]` of foreseen states."""
        return linear(self.features(states), self.output)

    def chain(
        self, tokens: Sequence[int], known: Tensor, length: int, choose: Choose = likeliest
    ) -> tuple[list[int], list[Tensor]]:
        pairs, states = list(tokens[1:]), self.states(known)
        guesses, scores = [], []
        for step in range(length):
            foreseen = self.foresee(torch.tensor(pairs), states)
            logits = self.logits(foreseen[-1])
            scores.append(logits)
            guesses.append(self.token(choose(logits, len(tokens) + step, self.ids)))
            pairs.append(guesses[-1])
            states = torch.cat([states, foreseen[-1:]])
        return guesses, scores


def assert_right(llm: LLM, path: Path, drafts: dict[Known, Noted]) -> None:
    """Compare drafts of a head that lies at a path with its twin's."""
    lent = load_file(llm.engine._worker._runner.model.config.path / "model.safetensors")
    assert_drafts(llm, Twin(path, lent["model.embed_tokens.weight"], lent["lm_head.weight"]), drafts)


def assert_drafts(llm: LLM, twin: HeadTwin, drafts: dict[Known, Noted], most: int = 40) -> None:
    """Compare drafts, by the known tokens that each follows, with the twin's; a spread of them if they are many."""
    head, own = head_of(llm), llm.engine._worker._runner
    runner = ModelRunner(own.model, own.kernels, 128, 1)
    runner.tap(head.taps)
    assert drafts
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the twin's products are small
    for known, noted in list(drafts.items())[:: -(-len(drafts) // most)]:
        draft = noted.draft
        hidden = runner.forward(flatten([Segment(known[:-1], 0, range(128))], 1))
        states = torch.cat(list(head.sources(hidden, runner.tapped)), 1)
        tokens, logits = twin.chain(known, states, len(draft), noted.choose)
        assert draft.is_chain
        assert list(draft.tokens) == tokens, f"after {len(known)} tokens"
        places = [noted.choose(row, len(known) + step, twin.ids) for step, row in enumerate(logits)]
        told = [twin.sure(i) for i in range(len(places))]
        probs = [
            noted.likely(row, place) if sure is None else sure
            for row, place, sure in zip(logits, places, told, strict=True)
        ]
        assert draft.probs == pytest.approx(probs, rel=2e-3)
    torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------- the goldens' shapes


def _widened(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    """Return the same layers with heads of a multiple of eight columns, the further ones zero.

    These do not turn, and scores are scaled for the width there was.
    """
    heads = config["num_attention_heads"]
    old = config.get("head_dim") or config["hidden_size"] // heads
    new = -(-old // 8) * 8
    if new == old:
        return config, tensors
    made = dict(tensors)
    for name, tensor in tensors.items():
        part = name.split("self_attn.")[-1][:1] if "self_attn." in name else ""
        if part and part in "qkv":
            rows = tensor.view(-1, old, tensor.shape[1]) * (math.sqrt(new / old) if part == "q" else 1)
            made[name] = torch.nn.functional.pad(rows, (0, 0, 0, new - old)).reshape(-1, tensor.shape[1])
        elif part == "o":
            columns = tensor.view(tensor.shape[0], -1, old)
            made[name] = torch.nn.functional.pad(columns, (0, new - old)).reshape(tensor.shape[0], -1)
    return {**config, "head_dim": new, "partial_rotary_factor": old / new}, made


def serve_golden(source: Path, path: Path) -> Path:
    """Copy a checkpoint; heads of 12 columns, which attention is not made for, become heads of 16."""
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    if "transformer_layer_config" in config:
        inner, tensors = _widened(config["transformer_layer_config"], tensors)
        config = {**config, "transformer_layer_config": inner}
    else:
        config, tensors = _widened(config, tensors)
    write(path, config, tensors)
    for file in source.glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    return path


# ------------------------------------------------------------------------------------------------------ random heads


def layer_shapes(raw: Mapping[str, Any], wide: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a decoder layer's tensors, without norms; `wide` if attention reads twice the width."""
    width, inner, dim = raw["hidden_size"], raw["intermediate_size"], raw["head_dim"]
    heads, groups = raw["num_attention_heads"] * dim, raw["num_key_value_heads"] * dim
    reads = width * (1 + wide)
    return {
        "self_attn.q_proj.weight": (heads, reads),
        "self_attn.k_proj.weight": (groups, reads),
        "self_attn.v_proj.weight": (groups, reads),
        "self_attn.o_proj.weight": (width, heads),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }


def eagle_config(**changes: Any) -> dict[str, Any]:
    """Return the config of a head for the tests' targets, as EAGLE's authors write it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        **changes,
    }


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tensors:
    """Return random tensors, of which norms are near one."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.items():
        spread = 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2
        ones = 1.0 if "norm" in name else 0.0
        tensors[name] = ones + spread * torch.randn(shape, generator=generator)
    return tensors


def random_eagle(raw: Mapping[str, Any], *, seed: int = 0, bias: bool = True, embedding: bool = False) -> Tensors:
    """Return the tensors of an EAGLE head."""
    width = raw["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (width, 2 * width)}
    if bias:
        shapes["fc.bias"] = (width,)
    if embedding:
        shapes["embed_tokens.weight"] = (raw["vocab_size"], width)
    for i in range(raw["num_hidden_layers"]):
        own = {**layer_shapes(raw, wide=False), "post_attention_layernorm.weight": (width,)}
        if i:
            own["input_layernorm.weight"] = (width,)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
    return random_tensors(shapes, seed)


def random_eagle3(
    raw: Mapping[str, Any],
    *,
    seed: int = 0,
    states: int = 192,
    ids: Sequence[int] | None = None,
    layer: str = "midlayer.",
) -> Tensors:
    """Return the tensors of an EAGLE-3 head; `ids` are the target's of the tokens that it knows, ascending."""
    width, vocab = raw["hidden_size"], raw["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (width, states), "norm.weight": (width,)}
    shapes["lm_head.weight"] = (vocab if ids is None else len(ids), width)
    own = layer_shapes(raw, wide=True)
    own |= dict.fromkeys(
        ("hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"), (width,)
    )
    shapes |= {layer + name: shape for name, shape in own.items()}
    tensors = random_tensors(shapes, seed)
    if ids is not None:
        tensors["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, torch.tensor(ids), True)
    return tensors
