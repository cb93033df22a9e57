"""Drafts that are made before the host knows a verdict: they are those that it would have had made."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from asking import Ask, random_seed, run
from checkpoints import VOCAB, write_llama
from conftest import MakeLLM, Pair, proposer_options
from families import write_family
from mtp_layers import write_mtp
from random_requests import compare_random_requests
from recurrent import write_random_head
from tagged_device import CROSSINGS
from torch import Tensor

from parlay import LLM, SamplingParams
from parlay.engine.launched_drafts import LaunchedDrafts
from parlay.proposers import draft_output
from parlay.proposers.device_verdict import DeviceVerdict
from parlay.proposers.draft_head import DraftWork, Start
from parlay.proposers.expanding_head import ExpandingHead
from parlay.proposers.select import proposers
from parlay.runner.runner import ModelRunner
from parlay.types.draft import Draft
from parlay.types.draft_tree import paths
from parlay.types.plan import Proposal

TREE = {"tree": {"width": 3, "depth": 3}, "num_speculative_tokens": 9}
METHODS = sorted(set(proposers.names()) - {"none", "ngram", "suffix"})  # which draft on the device
Texts = Sequence[Sequence[int]]


def options(models: dict[str, Pair], method: str, **shape: Any) -> dict[str, Any]:
    return {"method": method, "lengths": "fixed", **proposer_options(method, models["float32"]), **shape}


def proposer_of(method: str) -> Any:
    return proposers.load(method).Proposer  # type: ignore[attr-defined]


def helped(draft: Draft, known: Sequence[int], rng: Random, shares: Sequence[float]) -> Draft:
    """Return a draft of which a share of some path is right, for a text that goes on with `known`."""
    tokens, (*path,) = list(draft.tokens), rng.choice(paths(draft))
    for node, right in zip(path[: int(rng.choice(shares) * len(path))], known, strict=False):
        for other, token in enumerate(tokens):  # children of a node have different tokens
            if token == right and draft.parents[other] == draft.parents[node]:
                tokens[other] = tokens[node]
        tokens[node] = right
    return replace_tokens(draft, tokens)


def replace_tokens(draft: Draft, tokens: Sequence[int]) -> Draft:
    return Draft(tuple(tokens), draft.parents, draft.source, draft.probs)


def drafts_with_help(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    llm: LLM,
    asked: Sequence[Ask],
    texts: Texts,
    shares: Sequence[float] = (0, 0.5, 1),
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return each draft as it was made, with its request and position, where some are made right behind that."""
    kind, made = proposer_of(method), list[tuple[int, int, tuple[int, ...]]]()
    whole, first = kind.proposal, llm.engine._next_id

    def proposal(self: Any, work: DraftWork, start: Start, draft: Draft) -> Proposal:
        proposed: Proposal = whole(self, work, start, draft)
        number = start.span.request_id - first
        made.append((number, start.position, draft.tokens))
        if not draft.tokens:
            return proposed
        known = texts[number][start.position - len(asked[number].prompt) :]
        right = helped(draft, known, Random(f"{number} {start.position}"), shares)
        return replace(proposed, draft=right, state=replace(proposed.state, speculated=0))

    with monkeypatch.context() as patch:
        patch.setattr(kind, "proposal", proposal)
        found = run(llm, asked)
    assert [one.token_ids for one in found] == texts
    assert max(accepted for one in found for _, accepted in one.metrics.per_step or [(0, 0)]) > 1
    return sorted(made)


@pytest.mark.parametrize(
    ("method", "shape"),
    [
        ("draft_model", TREE),
        ("eagle3", {"num_speculative_tokens": 4}),
        ("pard", {"num_speculative_tokens": 8}),
        *(
            pytest.param(method, shape, marks=pytest.mark.soak)
            for method in METHODS
            for shape in (TREE, {"num_speculative_tokens": 8})
        ),
    ],
    ids=str,
)
def test_any_number_of_accepted_nodes(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    monkeypatch: pytest.MonkeyPatch,
    on_device: dict[str, Any],
    method: str,
    shape: dict[str, Any],
) -> None:
    """Up to the end of blocks and of the context, with preemption."""
    rng = Random(f"{random_seed()} {method}")
    sizes: dict[str, Any] = {"max_model_len": 48, "block_size": 4, "num_blocks": 30, "max_num_seqs": 4}
    prompts = [tuple(rng.randrange(256) for _ in range(rng.randint(1, 20))) for _ in range(10)]
    asked = [
        Ask(prompt, SamplingParams(temperature=rng.choice((0.0, 0.8)), seed=i, max_tokens=rng.choice((2, 9, None))))
        for i, prompt in enumerate(prompts)
    ]
    texts = [one.token_ids for one in run(make_llm(None, max_model_len=48), asked)]
    found = []
    for where in ({}, on_device):
        llm = make_llm(speculative_config=options(models, method, **shape), **sizes, **where)
        found.append(drafts_with_help(monkeypatch, method, llm, asked, texts))
        assert llm.engine._worker._failed_launches == 0
    assert found[0] == found[1]


def test_masks_at_the_end_of_a_request(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, on_device: dict[str, Any]
) -> None:
    """There may be places for fewer than a draft planned for any verdict would have."""
    config = options(models, "pard", num_speculative_tokens=8)
    llm, plain = make_llm(speculative_config=config, max_num_seqs=1, block_size=4, **on_device), make_llm(None)
    for most in range(8, 32):
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=most, ignore_eos=True)
        asked = [Ask((1, 2, 3, 4), params)]
        drafts_with_help(monkeypatch, "pard", llm, asked, [one.token_ids for one in run(plain, asked)], [1])
    assert llm.engine._worker._failed_launches == 0


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each launch has returned."""
    seen, whole = list[bool](), LaunchedDrafts.launch

    def launch(self: LaunchedDrafts, *of: Any) -> bool:
        seen.append(whole(self, *of))
        return seen[-1]

    monkeypatch.setattr(LaunchedDrafts, "launch", launch)
    return seen


def test_many_requests(
    make_llm: MakeLLM, models: dict[str, Pair], on_device: dict[str, Any], launches: list[bool]
) -> None:
    llm = make_llm(speculative_config=options(models, "eagle3", num_speculative_tokens=4), **on_device)
    asked = [Ask((i, 2, 3), SamplingParams(seed=i, max_tokens=20, ignore_eos=True)) for i in range(16)]
    run(llm, asked)
    launches.clear()
    steps = llm.engine.stats.steps
    run(llm, asked)
    assert all(launches)
    assert len(launches) >= llm.engine.stats.steps - steps - 2  # the last ones have no draft


def recurrent(name: str, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Return a target with recurrent layers, and what drafts for it."""
    shape = {"lengths": "fixed", "num_speculative_tokens": 3}
    if name == "mtp":
        return str(write_mtp(tmp_path / "model", "qwen3_5", calm=0.3)), {"method": name, **shape}
    target = write_family(tmp_path / "model", "qwen3_5", seed=2, calm=0.3)
    if name == "draft_model":
        draft = write_llama(tmp_path / "draft", vocab_size=VOCAB, seed=3, scale=7.0, calm=0.2)
        return str(target), {"method": name, "model": str(draft), "vocabulary": "same", **shape}
    return str(target), {"method": name, "model": str(write_random_head(tmp_path / "head", name)), **shape}


@pytest.mark.parametrize("name", ["mtp", "eagle3", "dflash", "draft_model"])
def test_behind_recurrent_layers(
    monkeypatch: pytest.MonkeyPatch,
    on_device: dict[str, Any],
    launches: list[bool],
    tmp_path: Path,
    name: str,
) -> None:
    """States before rows are kept by what came with these: drafts are the host's, copies as many as ever."""
    target, config = recurrent(name, tmp_path)
    sizes: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "block_size": 8, "max_num_seqs": 4}
    asked = [
        Ask(tuple(range(2 + i, 16 + 3 * i)), SamplingParams(temperature=t, seed=i, max_tokens=14, ignore_eos=True))
        for i, t in enumerate((0.0, 0.8, 0.0, 1.0))
    ]
    other = [Ask((7, *ask.prompt), ask.params) for ask in asked]
    texts = [one.token_ids for one in run(LLM(target, speculative_config=None, **sizes), asked)]
    longer = [Ask((*ask.prompt, *text, 7), ask.params) for ask, text in zip(asked, texts, strict=True)]
    here, there = (LLM(target, speculative_config=config, **sizes, **where) for where in ({}, on_device))
    kind, whole, made = proposer_of(name), proposer_of(name).proposal, list[tuple[int, int, tuple[int, ...]]]()

    def proposal(self: Any, work: DraftWork, start: Start, draft: Draft) -> Proposal:
        made.append((start.span.request_id, start.position, draft.tokens))
        proposed: Proposal = whole(self, work, start, draft)
        return proposed

    monkeypatch.setattr(kind, "proposal", proposal)
    for some in (asked, other, asked, longer, other):  # which checks the recordings, and continues cached prefixes
        found = []
        for llm in (here, there):
            made.clear()
            found.append(([one.token_ids for one in run(llm, some)], sorted(made)))
        assert found[0] == found[1]
        assert some is not asked or found[1][0] == texts
    launches.clear()
    up, down, steps, runner = CROSSINGS.up, CROSSINGS.down, there.engine.stats.steps, there.engine._worker._runner
    recordings = runner.recordings
    run(there, asked)
    steps = there.engine.stats.steps - steps + runner.recordings - recordings
    assert all(launches)
    rest = steps - len(launches)  # prompts, and the last steps
    assert rest < 5 < len(launches)
    assert CROSSINGS.up - up <= len(launches) + 4 * rest
    assert CROSSINGS.down - down <= len(launches) + 3 * rest
    compare_random_requests(LLM(target, speculative_config=None, **sizes), there, Random(name), 40)
    assert there.engine._worker._failed_launches == 0


def fails(times: int) -> Callable[..., Any]:
    """Return a launch that fails at first."""
    whole, left = ExpandingHead.launch, [times]

    def launch(self: ExpandingHead, placed: Any, arrays: Any, verdict: Any, *states: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            accepted = int(verdict.accepted.max())
        if accepted >= 2 and left[0]:
            left[0] -= 1
            raise RuntimeError("out of memory")
        return whole(self, placed, arrays, verdict, *states)

    return launch


def right_behind(monkeypatch: pytest.MonkeyPatch, ask: Ask, text: Sequence[int]) -> None:
    """Have Medusa draft trees whose right path is the second."""

    def proposal(self: Any, work: DraftWork, start: Start, draft: Draft) -> Proposal:
        right = text[start.position - len(ask.prompt) :][:2]
        if len(right) < 2:
            return work.proposals[start.index]
        tree = Draft(((right[0] + 1) % 250, *right), (-1, -1, 1), ("medusa",) * 3, (0.3,) * 3)
        return replace(work.proposals[start.index], draft=tree)

    monkeypatch.setattr(proposer_of("medusa"), "proposal", proposal)


@pytest.mark.parametrize("times", [1, 99])
def test_a_launch_that_fails(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    monkeypatch: pytest.MonkeyPatch,
    on_device: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    launches: list[bool],
    times: int,
) -> None:
    """Behind a path that is not the first: its nodes have been moved, and are not moved again."""
    ask = Ask((1, 2, 3, 4), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    (text,) = [one.token_ids for one in run(make_llm(None), [ask])]

    right_behind(monkeypatch, ask, text)
    monkeypatch.setattr(ExpandingHead, "launch", fails(times))
    llm = make_llm(speculative_config=options(models, "medusa", **TREE), max_num_seqs=1, **on_device)
    (found,) = run(llm, [ask])
    assert found.token_ids == text
    assert found.metrics.per_step[:4] == ((3, 2),) * 4
    failed = min(times, 3)
    assert sum("after the verdict is known" in record.message for record in caplog.records) == failed
    assert all(launches)
    assert len(launches) > 5 if times == 1 else len(launches) < 5


def test_a_verdict_that_fails(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, on_device: dict[str, Any]
) -> None:
    """Before anything was moved: drafts are made when the host has the verdict, and no request ends."""
    ask = Ask((1, 2, 3, 4), SamplingParams(temperature=0.8, seed=1, max_tokens=30, ignore_eos=True))
    here = make_llm(speculative_config=options(models, "eagle3", **TREE), max_num_seqs=1)
    expected = [(one.token_ids, one.metrics.per_step) for one in run(here, [ask])]
    llm = make_llm(speculative_config=options(models, "eagle3", **TREE), max_num_seqs=1, **on_device)

    def fail(*of: Any) -> Any:
        raise RuntimeError("the kernel cannot be compiled")

    monkeypatch.setattr(DeviceVerdict, "of", fail)
    assert [(one.token_ids, one.metrics.per_step) for one in run(llm, [ask])] == expected
    assert llm.engine._worker._failed_launches == 3


def test_a_move_that_fails(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, on_device: dict[str, Any]
) -> None:
    """Between two layers: nodes may be in both of their slots, so the step's rows are run again."""
    ask = Ask((1, 2, 3, 4), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    (text,) = [one.token_ids for one in run(make_llm(None), [ask])]
    right_behind(monkeypatch, ask, text)
    llm = make_llm(speculative_config=options(models, "medusa", **TREE), max_num_seqs=1, **on_device)
    move, moved = ModelRunner.move_slots, [0]

    def fail(self: ModelRunner, sources: Tensor, targets: Tensor) -> None:
        moved[0] += 1
        if moved[0] != 2:
            return move(self, sources, targets)
        with monkeypatch.context() as patch:
            patch.setattr(self, "cache", self.cache[:1])
            move(self, sources, targets)
        raise torch.OutOfMemoryError("between two layers")

    monkeypatch.setattr(ModelRunner, "move_slots", fail)
    engine = llm.engine
    (request,) = engine.add(ask.prompt, ask.params)
    errors = 0
    while request.finish_reason is None:
        try:
            engine.step()
        except Exception as error:
            errors += isinstance(error.__cause__, torch.OutOfMemoryError)
    assert errors == 1
    assert tuple(request.tokens[len(ask.prompt) :]) == tuple(text)


def test_a_draft_model_with_fewer_tokens(
    make_llm: MakeLLM, on_device: dict[str, Any], launches: list[bool], tmp_path: Path
) -> None:
    """What the target alone has is another token to it, on a device too."""
    draft = write_llama(tmp_path / "draft", vocab_size=150, seed=2, scale=7.0, calm=0.2)
    config = {"method": "draft_model", "model": str(draft), "vocabulary": "same", "num_speculative_tokens": 4}
    asked = [
        Ask((1, 2, 3, 4, 200), SamplingParams(temperature=1.0, seed=i, max_tokens=12, ignore_eos=True))
        for i in range(3)
    ]
    found = []
    for where in ({}, on_device):
        llm = make_llm(speculative_config=config, max_num_seqs=1, **where)
        found.append([(one.token_ids, one.metrics.per_step) for one in run(llm, asked)])
    assert found[0] == found[1]
    assert launches


def test_a_short_output_layer(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    monkeypatch: pytest.MonkeyPatch,
    on_device: dict[str, Any],
    launches: list[bool],
) -> None:
    """Its tokens' ids are known before the first verdict is."""
    monkeypatch.setattr(draft_output, "COMMON", 100)
    monkeypatch.setattr(draft_output, "least_share", lambda *of: 0.9)
    config = options(models, "draft_model", num_speculative_tokens=4)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    asked = [Ask(text, params) for text in ((1, 2, 3, 4, 5), (200, 201, 202, 203, 204), (9, 150, 160, 170, 180))]
    found = []
    for where in ({}, on_device):
        llm = make_llm(speculative_config=config, max_num_seqs=1, **where)
        found.append([run(llm, [ask])[0].metrics.per_step for ask in asked])
    assert found[0] == found[1]
    assert launches


def test_known_tokens_of_a_draft_model_are_padded(
    make_llm: MakeLLM, models: dict[str, Pair], on_device: dict[str, Any]
) -> None:
    """So that any number of them needs few recordings."""
    llm = make_llm(speculative_config=options(models, "draft_model", num_speculative_tokens=4), **on_device)
    for length in range(1, 60):
        llm.generate([*range(length)], SamplingParams(temperature=0.0, max_tokens=3))
    assert llm.engine._worker._proposer._runner.recordings <= 20
    assert CROSSINGS.up > 0
