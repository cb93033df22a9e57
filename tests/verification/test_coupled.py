"""Coupled verification against the oracle: whatever was drafted, what is emitted is what plain decoding emits."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from asking import log_probs
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from parlay import SamplingParams
from parlay.kernels.select import select_kernels
from parlay.sampling.bound_processor import BoundProcessor
from parlay.types.draft import ROOT, Draft
from parlay.types.draft_tree import children, paths
from parlay.types.plan import Span, Verdict
from parlay.verification.coupled import verify

GOLDENS = json.loads((Path(__file__).parent.parent / "goldens/verify/golden.json").read_text())
VOCAB = 5
KERNELS = ["native", "reference"]


def logits_of(known: tuple[int, ...]) -> NDArray[np.float32]:
    """Return a toy target's logits: any function of the known tokens will do; here with ties now and then."""
    digest = hashlib.blake2b(bytes(known), digest_size=VOCAB).digest()
    return np.array([d % 8 for d in digest], dtype=np.float32) / 2


def span_of(prompt: tuple[int, ...], draft: Draft, params: SamplingParams, seed: int, **more: Any) -> Span:
    return Span(
        tokens=prompt[-1:],
        start=len(prompt) - 1,
        blocks=(),
        seed=seed,
        params=params,
        draft=draft,
        sample=True,
        **{"request_id": 0, "remaining": 100, **more},
    )


def rows_of(prompt: tuple[int, ...], draft: Draft) -> list[NDArray[np.float32]]:
    """Return the target's row at the root and at every node."""
    known = [prompt, *(prompt + tuple(draft.tokens[n] for n in path) for path in paths(draft))]
    return [logits_of(k) for k in known]


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple)
params_ = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.4]),
    top_k=st.sampled_from([0, 1, 3]),
    min_p=st.sampled_from([0.0, 0.2]),
    logprobs=st.sampled_from([None, 0, 2]),
)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Bushy trees over a small vocabulary, so that walks often go several levels down."""
    size = draw(st.integers(0, 16))
    parents = tuple(draw(st.integers(ROOT, node - 1)) for node in range(size))
    return Draft(tuple(draw(st.integers(0, VOCAB - 1)) for _ in range(size)), parents, ("test",) * size)


class Crooked:
    """Changes rows by what came before them, and notes where it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def process(self, known: Sequence[int], path: Sequence[int], row: torch.Tensor) -> None:
        self.calls.append((*known, *path))
        row += crooked(self.calls[-1])

    def process_draft(self, known: Sequence[int], path: Sequence[int], row: torch.Tensor) -> None:
        raise AssertionError("verification drafts nothing")


def crooked(output: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(logits_of((7, *output, 7)))


stops = st.frozensets(st.integers(0, VOCAB - 1), max_size=2)
spans = st.tuples(
    prompts, trees(), params_, st.integers(0, (1 << 64) - 1), st.integers(1, 6), stops, st.integers(0, 4).map(bool)
)


@settings(max_examples=150)
@given(st.sampled_from(KERNELS), st.lists(spans, min_size=1, max_size=4))
def test_any_batch_of_trees(kernels: str, batch: list[tuple[Any, ...]]) -> None:
    plan, rows = [], []
    for prompt, draft, params, seed, remaining, stop, sample in batch:
        if sample:
            plan.append(span_of(prompt, draft, params, seed, remaining=remaining, stop_ids=stop))
            rows.extend(rows_of(prompt, draft))
        else:
            plan.append(Span(request_id=1, tokens=prompt, start=0, blocks=(), seed=seed, params=params))
    logits = torch.from_numpy(np.array(rows)) if rows else torch.empty((0, VOCAB))
    before = logits.clone()
    verdicts = verify(select_kernels(force=kernels), plan, logits)
    assert torch.equal(logits, before), "verification may not change the logits"
    assert len(verdicts) == len(plan)
    for span, (prompt, draft, *_), verdict in zip(plan, batch, verdicts, strict=True):
        if span.sample:
            check(prompt, draft, span, verdict)
        else:
            assert verdict == Verdict()


@settings(max_examples=100)
@given(
    st.sampled_from(KERNELS),
    st.lists(st.tuples(prompts, trees(), params_, st.integers(0, 99), st.booleans()), min_size=1, max_size=4),
)
def test_processors_follow_the_path_and_are_called_once_a_token(kernels: str, batch: list[tuple[Any, ...]]) -> None:
    output = (3, 1)
    plan, rows, processors = [], [], []
    for prompt, draft, params, seed, crook in batch:
        processors.append(Crooked() if crook else None)
        plan.append(span_of(prompt, draft, params, seed, request_id=len(plan)))
        rows.extend(rows_of(prompt, draft))
    live = {i: BoundProcessor(one, output) for i, one in enumerate(processors) if one is not None}
    verdicts = verify(select_kernels(force=kernels), plan, torch.from_numpy(np.array(rows)), live)
    for (prompt, draft, params, seed, _), span, verdict, processor in zip(
        batch, plan, verdicts, processors, strict=True
    ):
        if processor is None:
            check(prompt, draft, span, verdict)
            continue
        length = len(prompt)

        def target(known: tuple[int, ...], length: int = length) -> NDArray[np.float32]:
            return logits_of(known) + crooked((*output, *known[length:])).numpy()

        assert list(verdict.tokens) == oracle.decode(target, prompt, params, seed, len(verdict.tokens))
        assert processor.calls == [(*output, *verdict.tokens[:i]) for i in range(len(verdict.tokens))]
        assert verdict.tokens[-1] not in children(draft)[verdict.path[-1] if verdict.path else ROOT]


def check(prompt: tuple[int, ...], draft: Draft, span: Span, verdict: Verdict) -> None:
    tokens = list(verdict.tokens)
    expected = oracle.decode(logits_of, prompt, span.params, span.seed, len(tokens), span.stop_ids)
    assert tokens == expected
    # The path is one of the tree, spells the accepted tokens, and is as long as it can be.
    assert list(verdict.path) in [[], *paths(draft)]
    assert [draft.tokens[node] for node in verdict.path] == tokens[: len(verdict.path)]
    ended = tokens[-1] in span.stop_ids or len(tokens) == span.remaining
    assert len(tokens) - len(verdict.path) == (0 if ended and len(tokens) == len(verdict.path) else 1)
    if not ended:
        last = verdict.path[-1] if verdict.path else ROOT
        assert tokens[-1] not in children(draft)[last]
    assert len(tokens) <= span.remaining
    asked = span.params.logprobs
    if asked is None:
        assert verdict.logprobs is None
        return
    assert verdict.logprobs is not None
    for i, (token, entry) in enumerate(zip(tokens, verdict.logprobs, strict=True)):
        row = log_probs(logits_of(prompt + tuple(tokens[:i])))
        assert entry.logprob == row[token].item()
        assert len(entry.top) == asked


# ------------------------------------------------------------------------------------------------------- goldens


ONE_HOT = [case for case in GOLDENS["random"] if case["draft_kind"].startswith("one_hot")]


@pytest.mark.parametrize("case", ONE_HOT, ids=lambda c: f"{c['vocab']}^{c['num_draft']}")
def test_the_distribution_of_one_call(case: dict[str, Any]) -> None:
    """For a fixed draft, the distribution of what one call emits is the exact one of rejection sampling."""
    assert law_p_value(case, verify) > 1e-3


def test_a_biased_verifier_has_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acceptance by likelihood instead of by equality, as typical acceptance does, is seen at once."""

    def eager(kernels: Any, plan: list[Span], logits: torch.Tensor) -> list[Verdict]:
        verdicts = []
        for span, verdict in zip(plan, verify(kernels, plan, logits), strict=True):
            first = span.draft.tokens[0]
            generous = not verdict.path and span.seed % 20 == 0
            verdicts.append(Verdict((first, *verdict.tokens), (0,)) if generous else verdict)
        return verdicts

    assert law_p_value(ONE_HOT[0], eager) < 1e-6


def law_p_value(case: dict[str, Any], verifier: Callable[..., list[Verdict]], draws: int = 2500) -> float:
    draft = Draft.chain(case["draft_tokens"], "test")
    prefixes = [case["draft_tokens"][:i] for i in range(len(draft) + 1)]
    distribution = [case["target_probs_by_prefix"][",".join(map(str, prefix))] for prefix in prefixes]
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(np.array(distribution)).astype(np.float32))
    params = SamplingParams(temperature=1.0)
    plan = [span_of((0,), draft, params, seed) for seed in range(draws)]
    verdicts = verifier(select_kernels(), plan, logits.repeat(draws, 1))
    seen = Counter(",".join(map(str, verdict.tokens)) for verdict in verdicts)
    exact = {key: p for key, p in case["output_sequence_probs"].items() if p > 0}
    if not set(seen) <= set(exact):
        return 0.0
    return float(
        chisquare([seen[key] for key in exact], [p * draws / sum(exact.values()) for p in exact.values()])[1]
    )
