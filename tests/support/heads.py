"""Draft heads in the public formats: their reference in plain torch, and checkpoints for any target."""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from checkpoints import VOCAB
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu, one_hot, silu

from parlay import LLM, SamplingParams
from parlay.runner.batch import Segment, flatten

Tensors = dict[str, Tensor]
ChooseAll = Callable[[int, Tensor], Tensor]  # of a step and its logits `[rows, V]`, the choices
GUESSES = 8
_TEXTS, _PROMPT, _OUTPUT = 64, 12, 36

# ------------------------------------------------------------------------------------------------ slow and obvious


def likeliest_all(step: int, logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def medusa_states(tensors: Mapping[str, Tensor], hidden: Tensor, heads: int, layers: int) -> list[Tensor]:
    """Return the states `[rows, H]` of every head in the authors' layout."""
    states = []
    for i in range(heads):
        state = hidden
        for j in range(layers):
            bias = tensors.get(f"{i}.{j}.linear.bias", 0)
            state = state + silu(state @ tensors[f"{i}.{j}.linear.weight"].T + bias)
        states.append(state)
    return states


def medusa_logits(tensors: Mapping[str, Tensor], hidden: Tensor, heads: int, layers: int) -> list[Tensor]:
    """Return the logits `[rows, V]` of every head of the first generation."""
    states = medusa_states(tensors, hidden, heads, layers)
    return [state @ tensors[f"{i}.{layers}.weight"].T for i, state in enumerate(states)]


def mlp_states(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], hidden: Tensor, tokens: list[Tensor]
) -> list[Tensor]:
    """Return the state `[rows, D]` of every guess, of which the i-th is told that `tokens[i]` came before it."""
    count, width = config["n_predict"], config["inner_dim"] or config["emb_dim"]
    old = 0.5 ** (0.5 / count)
    new = math.sqrt((1 - old**2) * width / 2)
    state, states = hidden, []
    if config.get("scale_input"):
        state = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + 1e-6) / math.sqrt(2)
    for i, before in enumerate(tokens):
        shared = 0 if config.get("tie_weights") else i
        project = min(i, 1) if config.get("tie_weights") else i

        def part(name: str, index: int = shared) -> Tensor:
            kind, _, which = name.partition(" ")
            return tensors[f"speculator.{kind}.{index}.{which or 'weight'}"]

        state = state @ part("proj", project).T + new / old * part("emb")[before]
        state = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + 1e-6) * part("ln") + part("ln bias")
        state = gelu(state)
        states.append(state)
    return states


def mlp_logits(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], hidden: Tensor, tokens: list[Tensor]
) -> list[Tensor]:
    """Return the logits `[rows, V]` of every guess."""
    states = mlp_states(config, tensors, hidden, tokens)
    tied = config.get("tie_weights")
    return [state @ tensors[f"speculator.head.{0 if tied else i}.weight"].T for i, state in enumerate(states)]


def mlp_chain(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    hidden: Tensor,
    token: Tensor,
    choose: ChooseAll = likeliest_all,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the guesses `[rows]` that follow `token`, and the logits that each was chosen by."""
    tokens = [token]
    for step in range(config["n_predict"]):
        tokens.append(choose(step, mlp_logits(config, tensors, hidden, tokens)[-1]))
    return tokens[1:], mlp_logits(config, tensors, hidden, tokens[:-1])


def assert_trace(llm: LLM, case: Mapping[str, Any], source: str) -> None:
    """Compare a greedy text, and what was guessed and confirmed in every step, with a reference's."""
    beyond = case["k"] + 1  # further tokens, so that the last draft is as long as the others
    params = SamplingParams(
        temperature=0, max_tokens=len(case["tokens"]) + beyond, ignore_eos=True, return_rejected=True
    )
    answer = llm.generate([case["prompt"]], params)[0].outputs[0]
    assert list(answer.token_ids[: len(case["tokens"])]) == case["tokens"]
    assert answer.rejected is not None
    at = 1
    for step in case["rounds"]:
        emitted, accepted = len(step["emitted"]), step["accepted"]
        assert answer.sources[at : at + emitted] == (source,) * accepted + ("target",)
        rejected = [guess.token_id for guess in answer.rejected if guess.at == at + accepted]
        assert [*answer.token_ids[at : at + accepted], *rejected] == step["draft"]
        at += emitted


# ---------------------------------------------------------------------------------------------------- random heads


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator) * (1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2)


def random_medusa(
    *, hidden: int = 64, vocab: int = VOCAB, heads: int = 3, layers: int = 1, outputs: bool = True, seed: int = 0
) -> Tensors:
    """Return heads in the authors' layout, of the first generation if they have outputs."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for i in range(heads):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = _random(generator, hidden, hidden)
            tensors[f"{i}.{j}.linear.bias"] = _random(generator, hidden)
        if outputs:
            tensors[f"{i}.{layers}.weight"] = _random(generator, vocab, hidden)
    return tensors


def mlp_config(**changes: Any) -> dict[str, Any]:
    """Return the config of an MLP speculator for the tests' targets."""
    return {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": VOCAB,
        "emb_dim": 64,
        "inner_dim": 48,
        "n_predict": 3,
        **changes,
    }


def random_mlp(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Return the tensors that a config asks for; of tied ones the first."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    count, width = config["n_predict"], config["inner_dim"] or config["emb_dim"]
    for i in range(count):
        if i < (2 if config.get("tie_weights") else count):
            tensors[f"speculator.proj.{i}.weight"] = _random(generator, width, width if i else config["emb_dim"])
        if i < (1 if config.get("tie_weights") else count):
            tensors[f"speculator.emb.{i}.weight"] = _random(generator, config["vocab_size"], width)
            tensors[f"speculator.head.{i}.weight"] = _random(generator, config["vocab_size"], width)
            tensors[f"speculator.ln.{i}.weight"] = 1 + _random(generator, width)
            tensors[f"speculator.ln.{i}.bias"] = _random(generator, width)
    return tensors


def write_head(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], file: str = "") -> Path:
    """Write a checkpoint: `model.safetensors`, or a `file` of another name and kind."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if file.endswith((".pt", ".bin")):
        torch.save(dict(tensors), path / file)
    else:
        apart = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        save_file(apart, path / (file or "model.safetensors"), metadata={"format": "pt"})
    return path


def write_medusa(path: Path, tensors: Mapping[str, Tensor], file: str = "medusa_lm_head.pt") -> Path:
    """Write heads as their authors do; the config counts wrongly, as theirs does."""
    return write_head(path, {"medusa_num_heads": 2, "medusa_num_layers": 1}, tensors, file)


# ---------------------------------------------------------------- heads that agree with a target in part, in a second


def solve(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the matrix `[n, D]` that makes most of `wanted` `[rows, n]` out of features `[rows, D]`, in float64."""
    gram = features.T @ features + 0.3 * torch.eye(features.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, features.T @ wanted).T


def fit(features: Tensor, tokens: Tensor, vocab: int) -> Tensor:
    """Return the output layer `[vocab, D]` that tells `tokens` best from features `[rows, D]` by least squares."""
    return (30 * solve(features.double(), one_hot(tokens, vocab).double())).float()


@cache
def texts_of(target: Path) -> tuple[Tensor, Tensor]:
    """Return tokens `[texts, length]` that a target wrote, and its hidden states `[texts, length, H]`."""
    llm = LLM(str(target), dtype="float32", max_model_len=_PROMPT + _OUTPUT, speculative_config=None)
    vocab = llm.engine.vocab_size
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(vocab - 1, (_TEXTS, _PROMPT), generator=generator).tolist()
    params = [
        SamplingParams(temperature=(i % 3) / 2, max_tokens=_OUTPUT, ignore_eos=True, seed=i) for i in range(_TEXTS)
    ]
    outputs = llm.generate(prompts, params)
    texts = [[*prompt, *out.outputs[0].token_ids] for prompt, out in zip(prompts, outputs, strict=True)]
    runner = llm.engine._worker._runner
    blocks = range(-(-len(texts[0]) // runner.block_size))
    states = [runner.forward(flatten([Segment(text, 0, blocks)], runner.block_size)).clone() for text in texts]
    return torch.tensor(texts), torch.stack(states)


def windows_of(target: Path) -> tuple[Tensor, Tensor]:
    """Return hidden states `[rows, H]` and the tokens `[rows, GUESSES + 1]` that follow each."""
    texts, hidden = texts_of(target)
    starts = range(_PROMPT - 1, texts.shape[1] - GUESSES - 1)
    return (
        torch.cat([hidden[:, i] for i in starts]),
        torch.cat([texts[:, i + 1 : i + GUESSES + 2] for i in starts]),
    )


def serve_head(target: Path, head: Path, **config: Any) -> LLM:
    """Return an engine that always drafts chains, unless `config` says otherwise."""
    given = {"model": str(head), "lengths": "fixed", "tree": "off", **config}
    return LLM(str(target), dtype="float32", max_model_len=128, speculative_config=given)
