"""Models with recurrent layers that draft: of the target's own weights, or beside it with states of their own."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import exp
from pathlib import Path
from typing import Any

import pytest
import recurrent
from asking import Ask, accepted, assert_same, preempt_every_third_step, run
from crossing import crossed
from families import write_family
from pieces import random_tokens
from recurrent import alone
from switching import any_choices
from vocabularies import permuted

from parlay import LLM, ModelError, SamplingParams
from parlay.drafting.device_drafts import DeviceDrafts
from parlay.drafting.state import DraftedRequest
from parlay.types.draft import NO_DRAFT, ROOT, Draft
from parlay.types.plan import Proposal

FAMILIES = ("qwen3_5", "lfm2", "nemotronh-experts", "falconh1", "kimilinear")
FIXED = {"lengths": "fixed", "num_speculative_tokens": 3}
TREE = {"lengths": "fixed", "num_speculative_tokens": 16, "tree": {"width": 4, "depth": 4}}

asks = partial(recurrent.asks, length=30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        return write_family(tmp_path_factory.mktemp("models") / name, name, seed=2, calm=0.3, scale=4.0)

    return cache(write)


@pytest.fixture
def engine(model: Callable[[str], Path]) -> Callable[..., LLM]:
    """Return what makes an engine of a family; the draft model is one of another family, or the target once more."""

    def make(name: str, method: str | None, more: dict[str, Any] | None = None, **options: Any) -> LLM:
        spec: dict[str, Any] | None = None
        if method is not None:
            spec = {"method": "self"} if method == "self" else {"method": "draft_model", "model": str(model(method))}
            spec |= FIXED if more is None else more
        given = {"dtype": "float32", "max_model_len": 256, "block_size": 8, **options}
        return LLM(str(model(name)), speculative_config=spec, **given)

    return make


@pytest.fixture(scope="module")
def plainly(model: Callable[[str], Path]) -> Callable[[str], list[Any]]:
    return cache(lambda name: alone(model(name), asks()))


@crossed(name=FAMILIES, shape=("chains", "trees"))
def test_the_target_drafts_for_itself(
    engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], name: str, shape: str
) -> None:
    """Its four bits begin with the state of the target, which they leave as it is."""
    llm = engine(name, "self", TREE if shape == "trees" else FIXED, max_num_batched_tokens=40)
    for meddle in (None, preempt_every_third_step()):
        found = run(llm, asks(), meddle)
        assert_same(found, plainly(name))
        assert accepted(found) > 100


@pytest.mark.parametrize("name", FAMILIES)
def test_a_draft_model_of_the_same_weights_is_always_right(
    engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], name: str
) -> None:
    """In chunks and in company, then from the cache, then preempted: so its states are the text's."""
    llm = engine(name, name, max_num_batched_tokens=40)
    for meddle in (None, None, preempt_every_third_step()):
        found = run(llm, asks(), meddle)
        assert_same(found, plainly(name))
        assert accepted(found) == sum(one.metrics.drafted for one in found) > 100


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_of_a_draft_model(
    engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of the same weights, so that it knows the target's probability of each token that is accepted."""
    trees: dict[tuple[int, ...], Draft] = {}
    inner = DeviceDrafts.advance

    def keep(self: DeviceDrafts, request: DraftedRequest, proposal: Proposal) -> None:
        inner(self, request, proposal)
        trees[tuple(request.tokens)] = proposal.draft

    monkeypatch.setattr(DeviceDrafts, "advance", keep)
    greedy, depths = asks()[::2], [0] * 4
    found = run(engine(name, name, TREE), greedy)
    assert_same(found, plainly(name)[::2])
    for ask, one in zip(greedy, found, strict=True):
        assert one.logprobs is not None
        for emitted in range(1, len(one.token_ids)):
            tree = trees.get((*ask.prompt, *one.token_ids[:emitted]), NO_DRAFT)
            for node, at in accepted_nodes(tree, one.token_ids[emitted:]):
                assert tree.probs is not None
                sure = one.logprobs[emitted + at][one.token_ids[emitted + at]].logprob
                assert tree.probs[node] == pytest.approx(exp(sure), rel=1e-4)
                depths[at] += 1
    assert depths[2] > 0  # the first node whose state has another one's above it


def accepted_nodes(tree: Draft, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the nodes on the path that `tokens` take in a tree, each with its depth."""
    node = ROOT
    for at, token in enumerate(tokens):
        children = (i for i, parent in enumerate(tree.parents) if parent == node and tree.tokens[i] == token)
        node = next(children, -2)
        if node == -2:
            return
        yield node, at


@pytest.mark.parametrize(("target", "drafter"), [("qwen3", "lfm2"), ("lfm2", "qwen3"), ("qwen3_5", "falconh1")])
def test_a_draft_model_of_another_family(
    engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], target: str, drafter: str
) -> None:
    """Either of the two may be recurrent."""
    llm = engine(target, drafter, max_num_batched_tokens=40)
    for meddle in (None, None, preempt_every_third_step()):
        found = run(llm, asks(), meddle)
        assert_same(found, plainly(target))
        assert sum(one.metrics.drafted for one in found) > 100
    llm.engine.check()


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("method", ["self", "qwen3_5"])
def test_ranks(engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], method: str) -> None:
    more = FIXED if method == "self" else FIXED | {"draft_tensor_parallel_size": 2}
    found = run(engine("qwen3_5", method, more, tensor_parallel_size=2), asks())
    assert_same(found, plainly("qwen3_5"))
    assert accepted(found) > 100


@pytest.mark.parametrize("target", ["lfm2", "qwen3"])
def test_a_draft_model_goes_on_from_a_checkpoint(engine: Callable[..., LLM], target: str) -> None:
    """It runs no token of a cached prefix again, but those behind its last checkpoint."""
    llm = engine(target, "lfm2", max_num_seqs=4)
    ask = Ask(tuple(random_tokens(61)), SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    (first,) = run(llm, [ask])
    runs = counted_rows(llm)
    (again,) = run(llm, [ask])
    assert again.token_ids == first.token_ids
    assert again.metrics.per_step == first.metrics.per_step
    assert runs[0] == 61 - 56 + 1
    runs.clear()
    answer = (*ask.prompt, *first.token_ids, 5, 6)
    run(llm, [Ask(answer, ask.params)])
    assert runs[0] <= len(answer) - 72 + 1


def counted_rows(llm: LLM) -> list[int]:
    """Return a list to which a draft model's passes over known tokens add their rows."""
    proposer: Any = llm.engine._worker._proposer
    found: list[int] = []
    inner = proposer.run

    def run_counted(batch: Any) -> Any:
        if batch.states.rows[:, 3].max() < 0:  # no place: not a level of a draft
            found.append(len(batch.tokens))
        return inner(batch)

    proposer.run = run_counted
    return found


@pytest.mark.parametrize("method", ["self", "lfm2"])
def test_lengths_chosen_at_random(
    engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It is switched off and on in the middle of requests."""
    any_choices(monkeypatch)
    llm = engine("qwen3_5", method, {})
    for _ in range(3):
        assert_same(run(llm, asks()), plainly("qwen3_5"))


def test_states_of_a_draft_model_are_part_of_the_memory(engine: Callable[..., LLM]) -> None:
    assert engine("qwen3", None).engine.memory.states == 0
    memory = engine("qwen3", "lfm2").engine.memory
    rows = 2 * memory.room.slots + memory.room.places  # of each of the three convolutions, which have three taps
    assert memory.states == 3 * 64 * 4 * rows


def test_another_vocabulary_is_refused(model: Callable[[str], Path], tmp_path: Path) -> None:
    other = permuted(model("lfm2"), tmp_path / "other")
    with pytest.raises(ModelError, match="its recurrent layers cannot go back"):
        LLM(str(model("qwen3")), speculative_config={"method": "draft_model", "model": str(other)})
