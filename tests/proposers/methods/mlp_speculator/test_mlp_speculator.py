"""MLP speculators: tied and untied, in every way they are written, and the authors' own numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB
from conftest import DTYPES, MakeLLM
from heads import assert_trace, mlp_chain, mlp_config, mlp_logits, random_mlp, write_head
from safetensors.torch import load_file
from torch import Tensor
from watching import expand, head_of, start

from parlay import LLM, ModelError

GOLDENS = Path(__file__).parents[3] / "goldens"


def run_head(
    head: Any, hidden: Tensor, token: Tensor, forced: list[Tensor] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the guesses that follow `token`, and the logits that each was chosen by.

    With `forced`, the i-th guess is told that those came before it, whatever was guessed.
    """
    rows, levels, tokens = len(hidden), range(head.default_length), head._expander.tokens
    starts = [start(row, head.default_length, int(token[row])) for row in range(rows)]
    if forced is None:
        list(expand(head, starts, hidden))
    else:
        head.begin(hidden, torch.arange(rows))
    logits = []
    for level in levels:
        if forced is not None:
            tokens[level, :rows] = forced[level]
        head.advance(level, rows)
        logits.append(head.score(level, rows).clone())
    return [tokens[level + 1, :rows].clone() for level in levels], logits


# ---------------------------------------------------------------------------------------------------------- goldens


@pytest.fixture(scope="module", params=["mlp_tied", "mlp_untied"])
def golden(request: pytest.FixtureRequest) -> tuple[Path, LLM]:
    path = GOLDENS / request.param
    target = str(GOLDENS / "medusa" / "target")
    return path, LLM(target, dtype="float32", speculative_config={"model": str(path / "draft"), "lengths": "fixed"})


def test_golden_logits(golden: tuple[Path, LLM]) -> None:
    path, llm = golden
    cases = load_file(path / "golden.safetensors")
    for number, case in enumerate(json.loads((path / "golden.json").read_text())["prefixes"]):
        hidden, expected = cases[f"p{number}.target_hidden"], cases[f"p{number}.step_logits"]
        tokens, logits = run_head(head_of(llm), hidden[-1:], torch.tensor([case["last_token"]]))
        torch.testing.assert_close(torch.cat(logits), expected, rtol=0, atol=1e-3)
        assert [int(t) for t in tokens] == case["draft_tokens"]
        # The i-th guess of the row at position p is told the tokens at p + 1, ..., p + 1 + i.
        forced, rows = cases[f"p{number}.teacher_forced_tokens"], len(hidden)
        before = [forced[rows - 4 + 1 + i : rows + 1 + i] for i in range(len(tokens))]
        _, logits = run_head(head_of(llm), hidden[-4:], before[0], before)
        torch.testing.assert_close(torch.stack(logits), cases[f"p{number}.teacher_forced_logits"], rtol=0, atol=1e-3)


def test_golden_text(golden: tuple[Path, LLM]) -> None:
    path, llm = golden
    for case in json.loads((path / "golden.json").read_text())["chain_generate"]:
        assert_trace(llm, case, "mlp_speculator")


# ------------------------------------------------------------------------------------------ against the reference


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale_input": True},
        {"tie_weights": True},
        {"tie_weights": True, "scale_input": True, "n_predict": 5},
        {"inner_dim": 0},
        {"inner_dim": 37, "n_predict": 4},
        {"inner_dim": 64, "n_predict": 1, "tie_weights": True},
        {"inner_dim": 200},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_ties(make_llm: MakeLLM, tmp_path: Path, dtype: str, changes: dict[str, Any]) -> None:
    config = mlp_config(**changes)
    tensors = random_mlp(config)
    llm = make_llm(dtype=dtype, speculative_config={"model": str(write_head(tmp_path, config, tensors))})
    head = head_of(llm)
    hidden = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    token = torch.arange(9) * 28
    for _ in range(2):  # recorded, then replayed
        tokens, logits = run_head(head, hidden.to(getattr(torch, dtype)), token)
        if dtype == "float32":
            expected_tokens, expected = mlp_chain(config, tensors, hidden, token)
            assert torch.equal(torch.stack(tokens), torch.stack(expected_tokens))
        else:
            expected = mlp_logits(config, tensors, hidden, [token, *tokens[:-1]])
        close = {"rtol": 0, "atol": 1e-3} if dtype == "float32" else {"rtol": 0.1, "atol": 0.15}
        torch.testing.assert_close(torch.stack(logits), torch.stack(expected), **close)
        probs = torch.stack(logits).softmax(-1).amax(-1)
        torch.testing.assert_close(head._expander.likely[:, :9], probs, rtol=1e-4, atol=0)


def as_tied(tensors: dict[str, Tensor], guesses: int) -> dict[str, Tensor]:
    """Return tied tensors under all the names that some exporters write."""
    every = dict(tensors)
    for i in range(1, guesses):
        for part in ("emb.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias"):
            every["speculator." + part.format(i)] = tensors["speculator." + part.format(0)].clone()
        every[f"speculator.proj.{i}.weight"] = tensors["speculator.proj.1.weight"].clone()
    return every


@pytest.mark.parametrize("form", ["repeated", "repeated in part", "bin", "without the prefix", "by name alone"])
def test_layouts(make_llm: MakeLLM, tmp_path: Path, form: str) -> None:
    config = mlp_config(tie_weights=True, n_predict=4)
    tensors, written = random_mlp(config), dict(config)
    stored = tensors
    if form.startswith("repeated"):
        stored = as_tied(tensors, 4)
    if form == "repeated in part":
        del stored["speculator.emb.2.weight"]
    if form == "without the prefix":
        stored = {name.removeprefix("speculator."): tensor for name, tensor in tensors.items()}
    if form == "by name alone":
        del written["architectures"], written["model_type"]
    path = write_head(tmp_path, written, stored, "pytorch_model.bin" if form == "bin" else "")
    llm = make_llm(speculative_config={"model": str(path)})
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    tokens, _ = run_head(head_of(llm), hidden, torch.tensor([1, 2, 3]))
    expected, _ = mlp_chain(config, tensors, hidden, torch.tensor([1, 2, 3]))
    assert torch.equal(torch.stack(tokens), torch.stack(expected))
    # Tied tensors are held once.
    numbers = sum(t.numel() for t in tensors.values())
    assert numbers * 4 <= head_of(llm).weight_bytes < numbers * 4 + 100_000


# ------------------------------------------------------------------------------------------------- what is refused


Change = Callable[[dict[str, Tensor]], Any]
DAMAGE: dict[str, tuple[Change, str]] = {
    "missing": (lambda t: t.pop("speculator.ln.1.bias"), r"lacks the tensor 'speculator\.ln\.1\.bias'"),
    "extra": (lambda t: t.update({"speculator.emb.3.weight": torch.zeros(2)}), r"not explain: 'speculator\.emb\.3"),
    "alien": (lambda t: t.update({"lm_head.weight": torch.zeros(2)}), r"does not explain: 'lm_head\.weight'"),
    "width": (
        lambda t: t.update({"speculator.proj.0.weight": torch.zeros(48, 32)}),
        r"has shape \[48, 32\], but the config says \[48, 64\]",
    ),
    "scalar": (lambda t: t.update({"speculator.emb.0.weight": torch.tensor(1.0)}), r"has shape \[\]"),
    "nothing": (lambda t: t.clear(), "lacks the tensor"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage(weightless: str, tmp_path: Path, damage: str) -> None:
    tensors = random_mlp(mlp_config())
    change, match = DAMAGE[damage]
    change(tensors)
    path = write_head(tmp_path / "head", mlp_config(), tensors)
    with pytest.raises(ModelError, match=match):
        LLM(weightless, speculative_config={"model": str(path)})


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("emb_dim", None, "lacks the key 'emb_dim'"),
        ("n_predict", None, "lacks the key 'n_predict'"),
        ("vocab_size", None, "lacks the key 'vocab_size'"),
        ("emb_dim", 32, "needs hidden states of width 32 but the target .* has 64"),
        ("vocab_size", 400, "needs a vocabulary of 400 but the target .* has 257; the head was made for another"),
        ("n_predict", 0, "n_predict must be a whole number of at least 1, not 0"),
        ("n_predict", True, "n_predict must be a whole number of at least 1, not True"),
        ("n_predict", 10**9, "n_predict must be at most 64"),
        ("n_predict", 10**99, "n_predict must be a whole number"),
        ("inner_dim", "64", "inner_dim must be a whole number of at least 0, not '64'"),
        ("inner_dim", 1 << 30, r"but the config says"),
        ("inner_dim", -1, "inner_dim must be a whole number of at least 0, not -1"),
        ("scale_input", "yes", "scale_input must be true or false, not 'yes'"),
        ("tie_weights", 1, "tie_weights must be true or false, not 1"),
    ],
)
def test_bad_configs(weightless: str, tmp_path: Path, key: str, value: Any, match: str) -> None:
    config = {k: v for k, v in {**mlp_config(), key: value}.items() if v is not None}
    path = write_head(tmp_path / "head", config, random_mlp(mlp_config()))
    with pytest.raises(ModelError, match=match):
        LLM(weightless, speculative_config={"model": str(path)})


def test_ties_that_are_none(make_llm: MakeLLM, tmp_path: Path) -> None:
    config = mlp_config(tie_weights=True, n_predict=4)
    stored = as_tied(random_mlp(config), 4)
    stored["speculator.proj.3.weight"][1, 2] += 1
    with pytest.raises(ModelError, match=r"proj\.3\.weight differs from speculator\.proj\.1\.weight"):
        make_llm(speculative_config={"model": str(write_head(tmp_path, config, stored))})


@pytest.mark.parametrize("name", ["emb.1.weight", "ln.0.bias", "head.2.weight", "proj.0.weight"])
def test_numbers_that_are_none(make_llm: MakeLLM, tmp_path: Path, name: str) -> None:
    tensors = random_mlp(mlp_config())
    tensors[f"speculator.{name}"].view(-1)[-1] = torch.inf
    with pytest.raises(ModelError, match=rf"'speculator\.{name}' holds values that are infinite or not numbers"):
        make_llm(speculative_config={"model": str(write_head(tmp_path, mlp_config(), tensors))})


def test_tokens_of_another_vocabulary_in_a_config_alone(weightless: str, tmp_path: Path) -> None:
    """Where config and tensors agree with each other, but not with the target."""
    config = mlp_config(vocab_size=VOCAB + 129)
    path = write_head(tmp_path / "head", config, random_mlp(config))
    with pytest.raises(ModelError, match="needs a vocabulary of 386"):
        LLM(weightless, speculative_config={"model": str(path)})
