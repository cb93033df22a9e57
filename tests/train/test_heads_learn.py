"""A fresh target gets a head of each kind, in its public format, which is served right away."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from training import options, write_prompts, write_target

from parlay import LLM, CompletionOutput, SamplingParams
from parlay.proposers.select import proposers
from parlay.train.model_card import Figures
from parlay.train.run import train
from parlay.train.trainee import methods

# One of each kind: heads side by side, a model, one after another, a layer of the target's, a block.
KINDS = [
    ("medusa", {"num_heads": 3}),
    pytest.param("medusa", {"num_heads": 2, "num_layers": 2, "own_outputs": True}, marks=pytest.mark.soak),
    pytest.param("mlp_speculator", {"n_predict": 3, "inner_dim": 96}, marks=pytest.mark.soak),
    ("draft_model", {"hidden_size": 64}),
    pytest.param(
        "mlp_speculator",
        {"n_predict": 3, "inner_dim": 96, "tie_weights": True, "scale_input": False},
        marks=pytest.mark.soak,
    ),
    pytest.param("eagle", {"rollout": 3}, marks=pytest.mark.soak),
    ("eagle3", {"rollout": 3, "draft_vocab_size": 48, "layers": (1, 2, 3)}),
    ("mtp", {"rollout": 3}),
    ("dflash", {"block_size": 4}),
    pytest.param("dspark", {"block_size": 4, "markov_rank": 16}, marks=pytest.mark.soak),
    pytest.param("dflash", {"block_size": 6, "draft_vocab_size": 48, "layers": (1, 3)}, marks=pytest.mark.soak),
]
# Most have seen enough after one or two; attention over a block has to find the newest token first.
EPOCHS = {"draft_model": 1, "mtp": 1, "eagle": 3, "medusa": 3, "mlp_speculator": 3, "dflash": 6, "dspark": 6}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("train") / "target")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("data") / "prompts.jsonl")


def answers(target: Path, speculation: dict[str, Any] | None) -> list[CompletionOutput]:
    llm = LLM(str(target), max_model_len=96, speculative_config=speculation)
    prompts = ["QWERTZ", "ASDFGHJKL", "YXCVBNM", "HELLO", "ANDSOON", "ZZZ"]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), use_tqdm=False)
    return [output.outputs[0] for output in outputs]


@pytest.fixture(scope="module")
def plain(target: Path) -> list[tuple[int, ...]]:
    """What the target answers without a head."""
    return [answer.token_ids for answer in answers(target, None)]


@pytest.fixture(scope="module")
def responses(target: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the target writes to be learnt from, the same for every head."""
    head = tmp_path_factory.mktemp("responses") / "head"
    train("medusa", options(target, data, head, max_steps=1))
    return head / "training" / "responses.jsonl"


def accepted(target: Path, head: Path, plain: list[tuple[int, ...]]) -> float:
    """Return how many tokens a step emits at temperature 0."""
    found = answers(target, {"model": str(head), "lengths": "fixed"})
    assert [answer.token_ids for answer in found] == plain
    return sum(a.metrics.emitted for a in found) / sum(a.metrics.steps for a in found)


@pytest.mark.parametrize(("method", "own"), KINDS, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_a_head_learns_and_is_served(
    method: str,
    own: dict[str, Any],
    target: Path,
    data: Path,
    plain: list[tuple[int, ...]],
    responses: Path,
    tmp_path: Path,
) -> None:
    found: dict[str, tuple[float, Figures]] = {}
    chosen = methods.load(method).Options(**own)
    shortest = {"max_steps": 1, "learning_rate": 1e-9, "generate": 0}
    (tmp_path / "trained" / "training").mkdir(parents=True)
    shutil.copy(responses, tmp_path / "trained" / "training")
    for name, more in (("untrained", shortest), ("trained", {"epochs": EPOCHS.get(method, 2)})):
        figures = train(method, options(target, data, tmp_path / name, **more), chosen)
        found[name] = accepted(target, tmp_path / name, plain), figures
    print(found)
    assert found["trained"][0] > 1.3 * found["untrained"][0]
    assert found["trained"][1].accuracy[0] > 0.3 + found["untrained"][1].accuracy[0]
    card = (tmp_path / "trained" / "README.md").read_text()
    assert f"parlay train {method} --target {target}" in card
    assert f"| 1 | {found['trained'][1].accuracy[0]:.1%} |" not in card.split("untrained")[0]


def test_what_is_trained_is_served() -> None:
    assert set(methods.names()) <= set(proposers.names())
