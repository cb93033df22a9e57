"""Medusa heads: every layout, both generations, and the authors' own numbers."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB, write_llama
from conftest import DTYPES, MakeLLM, Pair
from heads import assert_trace, medusa_logits, medusa_states, random_medusa, write_head, write_medusa
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from watching import expand, head_of, start

from parlay import LLM, ModelError
from parlay.errors import ConfigError
from parlay.proposers.methods.medusa.proposer import read_layout
from parlay.types.draft_tree import paths

GOLDENS = Path(__file__).parents[3] / "goldens" / "medusa"
VLLM = {"model_type": "medusa", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": VOCAB, "num_heads": 3}


def guesses(head: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the heads guess `[heads, rows]` and how likely that is to them, through the recorded passes."""
    starts = [start(row, head.default_length) for row in range(len(hidden))]
    for _ in range(2):  # recorded, then replayed
        drafts = [draft for _, draft in expand(head, starts, hidden)]
    return torch.tensor([draft.tokens for draft in drafts]).T, torch.tensor([draft.probs for draft in drafts]).T


def as_vllms(tensors: dict[str, Tensor], layers: int = 1, prefix: str = "") -> dict[str, Tensor]:
    """Return heads under vLLM's names."""
    renamed = {}
    for name, tensor in tensors.items():
        i, j, *rest = name.split(".")
        new = f"lm_heads.{i}.weight" if int(j) == layers else f"blocks.{i}.layers.{j}.{rest[-1]}"
        renamed[prefix + new] = tensor
    return renamed


# ------------------------------------------------------------------------------------------------------- goldens


@pytest.fixture(scope="module", params=["the authors'", "vLLM's"])
def form(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same heads in both layouts; their tensors are kept in the second."""
    if request.param == "vLLM's":
        return GOLDENS / "draft_vllm"
    tensors = {}
    for name, tensor in load_file(GOLDENS / "draft_vllm" / "model.safetensors").items():
        kind, i, *rest = name.split(".")
        tensors[f"{i}.1.weight" if kind == "lm_heads" else f"{i}.{rest[1]}.linear.{rest[2]}"] = tensor
    path = shutil.copytree(GOLDENS / "draft", tmp_path_factory.mktemp("medusa") / "draft")
    torch.save(tensors, path / "medusa_lm_head.pt")
    return path


@pytest.fixture(scope="module")
def golden(form: Path) -> LLM:
    config = {"model": str(form), "lengths": "fixed", "num_speculative_tokens": 5}
    return LLM(str(GOLDENS / "target"), dtype="float32", speculative_config=config)


def test_golden_logits(golden: LLM) -> None:
    head, cases = head_of(golden), load_file(GOLDENS / "golden.safetensors")
    assert head.default_length == 5, "counted, whatever the config says"
    prefixes = json.loads((GOLDENS / "golden.json").read_text())["prefixes"]
    for number, case in enumerate(prefixes):
        hidden, expected = cases[f"p{number}.target_hidden"][-6:], cases[f"p{number}.medusa_logits"]
        tokens, probs = guesses(head, hidden)
        for step in range(5):
            torch.testing.assert_close(head.score(step, 6), expected[step], rtol=0, atol=1e-3)
        assert tokens[:, -1].tolist() == case["top1_per_head"]
        assert torch.equal(tokens.long(), expected.argmax(-1))
        torch.testing.assert_close(probs, expected.softmax(-1).amax(-1), rtol=1e-3, atol=0)


def test_golden_text(golden: LLM) -> None:
    for case in json.loads((GOLDENS / "golden.json").read_text())["chain_generate"]:
        assert_trace(golden, case, "medusa")


@pytest.mark.parametrize("name", ["mc_sim_7b_63", "vicuna_7b_stage2"])
def test_golden_trees(form: Path, name: str) -> None:
    """The nodes that the reference makes of two of its own lists of choices."""
    golden = json.loads((GOLDENS / "golden.json").read_text())
    choices = golden["choices"][name]
    config = {"model": str(form), "medusa_choices": choices}
    llm = LLM(str(GOLDENS / "target"), dtype="float32", speculative_config=config)
    head, cases = head_of(llm), load_file(GOLDENS / "golden.safetensors")
    for number, case in enumerate(golden["prefixes"]):
        hidden = cases[f"p{number}.target_hidden"][-1:]
        begin = replace(start(0, head.default_length), width=10, nodes=len(choices))
        for _ in range(2):  # recorded, then replayed
            ((_, draft),) = expand(head, [begin], hidden)
        # Candidates are listed by length, then in the order of ranks; the first is the target's own token.
        expected = case["trees"][name]["tree_candidates"][1:]
        ranked = sorted(choices, key=lambda path: (len(path), path))
        best = cases[f"p{number}.medusa_logits"][:, -1].topk(10).indices.tolist()
        assert expected == [best[len(path) - 1][path[-1]] for path in ranked]
        texts = sorted(tuple(best[level][rank] for level, rank in enumerate(path)) for path in choices)
        assert sorted(tuple(draft.tokens[node] for node in path) for path in paths(draft)) == texts


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "is empty"),
        ([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0], [0] * 5, [0] * 6], "has 5 heads"),
        ([[0], [1, 0]], r"\[1, 0\] without its parent \[1\]"),
        ([[0], [16]], "ranks from 0 to 15"),
        ([[0], []], "ranks from 0"),
        ([[0], [0]], "twice"),
        ([["a"]], "int"),
    ],
)
def test_choices_that_do_not_fit(choices: Any, message: str) -> None:
    config = {"model": str(GOLDENS / "draft_vllm"), "medusa_choices": choices}
    with pytest.raises(ConfigError, match=message):
        LLM(str(GOLDENS / "target"), dtype="float32", speculative_config=config)
    good = {**config, "medusa_choices": [[0], [0, 0]]}
    with pytest.raises(ConfigError, match="medusa_choices lists 2 branches, more than num_speculative_tokens=1"):
        LLM(str(GOLDENS / "target"), speculative_config={**good, "num_speculative_tokens": 1})
    with pytest.raises(ConfigError, match="tree and medusa_choices contradict"):
        LLM(str(GOLDENS / "target"), speculative_config={**good, "tree": {"width": 2}})


# ------------------------------------------------------------------------------------------- against the reference


@pytest.mark.parametrize("outputs", [True, False], ids=["first generation", "second"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_and_generations(
    make_llm: MakeLLM, tmp_path: Path, models: dict[str, Pair], dtype: str, layers: int, outputs: bool
) -> None:
    tensors = random_medusa(layers=layers, outputs=outputs)
    for name in tensors:
        if outputs and name.endswith(f".{layers}.weight"):
            tensors[name] = tensors[name] * 8  # probabilities worth comparing
    llm = make_llm(dtype=dtype, speculative_config={"model": str(write_medusa(tmp_path, tensors))})
    hidden = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    tokens, probs = guesses(head_of(llm), hidden.to(getattr(torch, dtype)))
    if outputs:
        expected = torch.stack(medusa_logits(tensors, hidden, 3, layers))
    else:
        weight = load_file(models["float32"].target / "model.safetensors")["lm_head.weight"]
        expected = torch.stack([state @ weight.T for state in medusa_states(tensors, hidden, 3, layers)])
    # Rounding to bfloat16 may swap near equals; what is chosen is then all but the best.
    loss = expected.amax(-1) - expected.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1)
    assert float(loss.max()) <= (1e-4 if dtype == "float32" else 0.5)
    own = expected.softmax(-1).gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(probs, own, rtol=1e-3 if dtype == "float32" else 0.6, atol=1e-4)


def test_the_second_generation_is_small(make_llm: MakeLLM, tmp_path: Path) -> None:
    sizes = []
    for outputs in (True, False):
        path = write_medusa(tmp_path / str(outputs), random_medusa(outputs=outputs))
        sizes.append(head_of(make_llm(speculative_config={"model": str(path)})).weight_bytes)
    assert sizes[0] - sizes[1] == 3 * VOCAB * 64 * 4


def test_a_target_with_a_divisor(tmp_path: Path) -> None:
    """Some targets divide their logits; so do the probabilities of heads that borrow the output layer."""
    from families import write_family

    target = write_family(tmp_path / "target", "granite")
    tensors = random_medusa(outputs=False)
    path = write_medusa(tmp_path / "head", tensors)
    llm = LLM(str(target), dtype="float32", max_model_len=64, speculative_config={"model": str(path)})
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        tokens, probs = guesses(head_of(llm), hidden)
        logits = torch.stack(
            [llm.engine._worker._runner.model.logits(state) for state in medusa_states(tensors, hidden, 3, 1)]
        )
        assert torch.equal(tokens.long(), logits.argmax(-1))
        torch.testing.assert_close(probs, logits.softmax(-1).amax(-1), rtol=1e-3, atol=0)


def forms() -> dict[str, Callable[[Path, dict[str, Tensor]], Path]]:
    """Ways to write the same heads."""

    def prefixed(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        return {prefix + name: tensor for name, tensor in tensors.items()}

    def beside_the_target(path: Path, tensors: dict[str, Tensor]) -> Path:
        config = json.loads((write_llama(path) / "config.json").read_text())
        return write_head(path, config, tensors, "medusa_lm_head.pt")

    return {
        "beside the target": beside_the_target,
        "pt": lambda path, t: write_medusa(path, t),
        "safetensors": lambda path, t: write_medusa(path, t, "medusa_lm_head.safetensors"),
        "prefix": lambda path, t: write_medusa(path, prefixed(t, "medusa_head.")),
        "bin": lambda path, t: write_head(path, {}, t, "pytorch_model.bin"),
        "vllm": lambda path, t: write_head(path, {**VLLM, "medusa_fc_bias": True}, as_vllms(t)),
        "vllm without the key for biases": lambda path, t: write_head(path, VLLM, as_vllms(t)),
        "vllm's wrong number of heads": lambda path, t: write_head(path, {**VLLM, "num_heads": 2}, as_vllms(t)),
        "vllm with a prefix": lambda path, t: write_head(path, VLLM, as_vllms(t, prefix="medusa_heads.")),
        "vllm of all tokens": lambda path, t: write_head(
            path,
            {**VLLM, "truncated_vocab_size": VOCAB},
            as_vllms(t) | {"token_map": torch.arange(VOCAB)},
        ),
    }


@pytest.mark.parametrize("form", forms())
def test_layouts(make_llm: MakeLLM, tmp_path: Path, form: str) -> None:
    tensors = random_medusa()
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    expected = torch.stack(medusa_logits(tensors, hidden, 3, 1))
    head = head_of(make_llm(speculative_config={"model": str(forms()[form](tmp_path, tensors))}))
    tokens, _ = guesses(head, hidden)
    assert head.default_length == 3
    assert torch.equal(tokens.long(), expected.argmax(-1))


@pytest.mark.parametrize("whole", [True, False], ids=["cut when read", "stored cut"])
def test_a_choice_of_the_vocabulary(make_llm: MakeLLM, tmp_path: Path, whole: bool) -> None:
    chosen = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:50]
    tensors = random_medusa()
    stored = {
        name: tensor if whole or not name.endswith(".1.weight") else tensor[chosen]
        for name, tensor in tensors.items()
    }
    config = {**VLLM, "truncated_vocab_size": 50}
    path = write_head(tmp_path, config, as_vllms(stored) | {"token_map": chosen})
    head = head_of(make_llm(speculative_config={"model": str(path)}))
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    logits = torch.stack(medusa_logits(tensors, hidden, 3, 1))[..., chosen]
    tokens, probs = guesses(head, hidden)
    assert torch.equal(tokens.long(), chosen[logits.argmax(-1)])
    torch.testing.assert_close(probs, logits.softmax(-1).amax(-1), rtol=1e-3, atol=0)
    assert head.weight_bytes < 3 * 4 * (64 * 65 + 50 * 64) + 100_000


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_one_output_layer_for_all_heads(make_llm: MakeLLM, tmp_path: Path, name: str) -> None:
    tensors = random_medusa()
    one = {n: t for n, t in as_vllms(tensors).items() if not n.startswith("lm_heads")} | {name: tensors["0.1.weight"]}
    path = write_head(tmp_path, {**VLLM, "original_lm_head": True}, one)
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    tokens, _ = guesses(head_of(make_llm(speculative_config={"model": str(path)})), hidden)
    states = medusa_states(tensors, hidden, 3, 1)
    assert torch.equal(tokens.long(), torch.stack([(s @ tensors["0.1.weight"].T).argmax(-1) for s in states]))


# --------------------------------------------------------------------------------------------------- what is refused

Change = Callable[[dict[str, Tensor]], Any]
DAMAGE: dict[str, tuple[Change, str]] = {
    "missing layer": (lambda t: t.pop("1.0.linear.weight"), r"lacks the tensor '1\.0\.linear\.weight'"),
    "missing first layer": (lambda t: t.pop("0.0.linear.weight"), r"lacks the tensor '0\.0\.linear\.weight'"),
    "missing bias": (lambda t: t.pop("2.0.linear.bias"), r"lacks the tensor '2\.0\.linear\.bias'"),
    "missing output": (lambda t: t.pop("0.1.weight"), r"lacks the tensor '0\.1\.weight'"),
    "extra": (lambda t: t.update({"0.7.weight": torch.zeros(2)}), r"does not explain: '0\.7\.weight'"),
    "no head at all": (lambda t: [t.pop(n) for n in list(t) if "linear" in n], "holds no Medusa heads"),
    "a gap": (lambda t: t.update({"9.0.linear.weight": t["0.0.linear.weight"]}), r"lacks the tensor '3\.0\.linear"),
    "another width": (
        lambda t: t.update(random_medusa(hidden=32)),
        r"needs hidden states of width 32 but the target .* has 64; the head was made for another target",
    ),
    "another vocabulary": (
        lambda t: t.update(random_medusa(vocab=400)),
        r"needs a vocabulary of 400 but the target .* has 257; the head was made for another target",
    ),
    "a scalar": (lambda t: t.update({"0.0.linear.weight": torch.tensor(1.0)}), "needs hidden states of width 0"),
    "a scalar output": (lambda t: t.update({"0.1.weight": torch.tensor(1.0)}), "needs a vocabulary of 0"),
    "one odd output": (lambda t: t.update({"2.1.weight": torch.zeros(9, 64)}), r"'2\.1\.weight' has shape \[9, 64\]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage(weightless: str, tmp_path: Path, damage: str) -> None:
    tensors = random_medusa()
    change, match = DAMAGE[damage]
    change(tensors)
    path = write_medusa(tmp_path / "head", tensors)
    with pytest.raises(ModelError, match=match):
        LLM(weightless, speculative_config={"model": str(path)})


@pytest.mark.parametrize(
    ("changes", "tensors", "match"),
    [
        ({"hidden_size": 32}, {}, "hidden states of width 32"),
        ({"hidden_size": "64"}, {}, "hidden_size must be a whole number of at least 1, not '64'"),
        ({"vocab_size": 400}, {}, "a vocabulary of 400"),
        ({"truncated_vocab_size": 50}, {}, r"lacks the tensor 'token_map'"),
        ({"truncated_vocab_size": 50}, {"token_map": torch.zeros(9).long()}, r"'token_map' has shape \[9\]"),
        ({}, {"token_map": torch.zeros(50).long()}, None),
        ({"original_lm_head": 1}, {}, "original_lm_head must be true or false, not 1"),
        ({"original_lm_head": True}, {}, "does not explain: 'lm_heads.1.weight'"),
    ],
    ids=str,
)
def test_bad_configs(
    weightless: str, tmp_path: Path, changes: dict[str, Any], tensors: dict[str, Tensor], match: str | None
) -> None:
    path = write_head(tmp_path / "head", {**VLLM, **changes}, as_vllms(random_medusa()) | tensors)
    with pytest.raises(ModelError, match=match or "model.safetensors cannot be read"):
        LLM(weightless, speculative_config={"model": str(path)})


def test_biases_that_the_config_announces(weightless: str, tmp_path: Path) -> None:
    bare = {n: t for n, t in as_vllms(random_medusa()).items() if not n.endswith("bias")}
    path = write_head(tmp_path / "head", {**VLLM, "medusa_fc_bias": True}, bare)
    with pytest.raises(ModelError, match=r"lacks the tensor 'blocks\.0\.layers\.0\.bias' and 2 more"):
        LLM(weightless, speculative_config={"model": str(path)})


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_tokens_that_the_target_lacks(make_llm: MakeLLM, tmp_path: Path, token: int) -> None:
    tensors = as_vllms(random_medusa()) | {"token_map": torch.tensor([3, token, *range(10, 10 + VOCAB - 2)])}
    path = write_head(tmp_path, {**VLLM, "truncated_vocab_size": VOCAB}, tensors)
    with pytest.raises(ModelError, match="token_map maps to token ids beyond the target's 257"):
        make_llm(speculative_config={"model": str(path)})


def test_numbers_that_are_none(make_llm: MakeLLM, tmp_path: Path) -> None:
    tensors = random_medusa()
    tensors["1.1.weight"][3, 5] = torch.nan
    with pytest.raises(ModelError, match=r"'1\.1\.weight' holds values that are infinite or not numbers"):
        make_llm(speculative_config={"model": str(write_medusa(tmp_path, tensors))})


class Code:
    """What a pickle must not make."""


@pytest.mark.parametrize("content", [{"0.0.linear.weight": Code()}, {"0.0.linear.weight": [1]}, [1, 2], Code()])
def test_a_pickle_of_something_else(weightless: str, tmp_path: Path, content: object) -> None:
    path = write_medusa(tmp_path / "head", random_medusa())
    torch.save(content, path / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match=r"medusa_lm_head\.pt (is damaged, or holds other objects|holds some)"):
        LLM(weightless, speculative_config={"model": str(path)})


def test_no_weights_at_all(weightless: str, tmp_path: Path) -> None:
    path = write_medusa(tmp_path / "head", {})
    (path / "medusa_lm_head.pt").unlink()
    with pytest.raises(ModelError, match="does not exist; weights are read from"):
        LLM(weightless, speculative_config={"model": str(path)})


# ------------------------------------------------------------------------------------------------------- the parser

numbers = st.integers(0, 4).map(str) | st.sampled_from(["00", "999999", "9999999999", "-1", "x", ""])
parts = st.sampled_from(["linear", "weight", "bias", "blocks", "layers", "lm_heads", "medusa_head", "medusa_heads"])
tensor_names = st.lists(numbers | parts, max_size=6).map(".".join)


@given(st.lists(tensor_names, max_size=12), st.booleans())
def test_any_names_have_a_small_layout_or_none(names: list[str], one_output: bool) -> None:
    layout = read_layout(names, one_output)
    if layout is None:
        assert not any(
            n.endswith(".linear.weight") and n.split(".")[:2] == ["0", "0"] for n in names if n.count(".") == 3
        )
    else:
        heads, layers = len(layout.blocks), len(layout.blocks[0])
        assert 0 < heads * layers <= len(names) ** 2
        assert all(len(own) == layers for own in layout.blocks)
        assert len(layout.outputs) in (0, heads)


@given(st.integers(1, 6), st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from(["", "medusa_head."]))
def test_a_layout_is_what_was_written(heads: int, layers: int, outputs: bool, biased: bool, prefix: str) -> None:
    tensors = random_medusa(hidden=2, vocab=3, heads=heads, layers=layers, outputs=outputs)
    names = [prefix + name for name in tensors if biased or not name.endswith("bias")]
    layout = read_layout(sorted(names, reverse=True))
    assert layout is not None
    found = {f"{block}.{kind}" for own in layout.blocks for block in own for kind in ("weight", "bias")}
    assert {n for n in found if biased or not n.endswith("bias")} | set(layout.outputs) == set(names)
    assert (len(layout.blocks), len(layout.blocks[0]), layout.biased) == (heads, layers, biased)
    assert bool(layout.outputs) == outputs
