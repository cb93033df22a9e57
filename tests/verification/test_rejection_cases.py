"""The cases that vLLM publishes for its rejection sampler, as facts about the classical rules."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numbered_drafts import numbered
from scipy.stats import chisquare
from verification.test_coupled import GOLDENS, span_of

from parlay import SamplingParams
from parlay.kernels.select import select_kernels
from parlay.sampling.distribution import Distribution, Purpose, noise_key
from parlay.types.draft import Draft
from parlay.types.plan import Span, Verdict
from parlay.verification.classical import block, rejection
from parlay.verification.verifier import Rule, Verifier

RULES = [rejection, block]
VOCAB = 10


def decide(rule: Rule | None, spans: Sequence[Span], logits: torch.Tensor) -> list[Verdict]:
    told, distributions = numbered(spans)
    return Verifier(rule)(select_kernels(), told, logits, distributions=distributions)


@cache
def flat(vocab: int) -> Distribution:
    return distribution(np.full(vocab, 1 / vocab))


def distribution(probs: Any) -> Distribution:
    return Distribution(torch.as_tensor(np.asarray(probs, dtype=np.float64)).log().float())


def sure(tokens: Sequence[int], vocab: int = 64) -> torch.Tensor:
    """Return logits of a target that is all but certain of these tokens, one a row."""
    return 100 * torch.nn.functional.one_hot(torch.tensor(tokens), vocab).float()


def chain(tokens: Sequence[int], vocab: int = 64) -> Draft:
    """Return draft tokens that were drawn from the flat distribution."""
    return Draft.chain(tokens, "test", None, (flat(vocab),) * len(tokens))


def warm(draft: Draft, seed: int = 0, **params: Any) -> Span:
    return span_of((0,), draft, SamplingParams(**{"temperature": 1.0, **params}), seed)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("drafted", "target", "out"),
    [
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),  # a perfect match, and one more
        ([1, 2, 3], [1, 5, 3, 4], [1, 5]),  # an early mismatch
        ([1, 2, 3], [7, 2, 3, 4], [7]),
        ([1], [1, 6], [1, 6]),  # a single token
        ([1], [2, 6], [2]),
        ([], [5], [5]),  # no draft
    ],
)
def test_a_target_that_is_certain(
    rule: Rule, temperature: float, drafted: list[int], target: list[int], out: list[int]
) -> None:
    (verdict,) = decide(rule, [warm(chain(drafted), temperature=temperature)], sure(target))
    assert list(verdict.tokens) == out
    assert verdict.path == tuple(range(len(out) - 1))


@pytest.mark.parametrize("rule", [None, *RULES])
@pytest.mark.parametrize("case", GOLDENS["greedy"], ids=lambda case: case["note"])
def test_recorded_greedy_batches(rule: Rule | None, case: dict[str, Any]) -> None:
    """What vLLM's greedy kernel emits, at temperature 0, and at temperature 1 where the target is certain."""
    for temperature in (0.0, 1.0):
        spans, rows = [], []
        for request in case["requests"]:
            drafted = [token if token >= 0 else 63 for token in request["draft"]]  # a gap matches nothing
            spans.append(warm(chain(drafted), temperature=temperature))
            rows.append(sure([*request["target_argmax"], request["bonus"]]))
        for request, verdict in zip(case["requests"], decide(rule, spans, torch.cat(rows)), strict=True):
            assert list(verdict.tokens) == request["output"]
            assert len(verdict.path) == request["num_accepted"]


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_of_greedy_and_sampled_requests(rule: Rule) -> None:
    """What each emits is what it emits alone."""
    rng = np.random.default_rng(1)
    spans, rows = [], []
    for i in range(12):
        drafted = rng.integers(0, VOCAB, size=i % 4).tolist()
        spans.append(warm(chain(drafted, VOCAB), seed=i, temperature=float(i % 3) / 2))
        rows.append(torch.from_numpy(rng.normal(size=(len(drafted) + 1, VOCAB)).astype(np.float32)))
    together = decide(rule, spans, torch.cat(rows))
    alone = [decide(rule, [span], own)[0] for span, own in zip(spans, rows, strict=True)]
    assert together == alone
    for span, own, verdict in zip(spans, rows, together, strict=True):
        if span.params.temperature == 0:
            assert list(verdict.tokens) == own.argmax(-1).tolist()[: len(verdict.tokens)]


@pytest.mark.parametrize("rule", RULES)
def test_seeds_are_each_requests_own(rule: Rule) -> None:
    """A request's tokens follow from its seed, whoever else is there; without acceptance they are all sorts."""
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 100)).astype(np.float32))
    draft = chain([3, 4, 5], 100)
    one = decide(rule, [warm(draft, seed) for seed in (7, 8, 9)], logits.repeat(3, 1))
    other = decide(rule, [warm(draft, seed) for seed in (9, 1, 7)], logits.repeat(3, 1))
    assert (one[0], one[2]) == (other[2], other[0])
    many = decide(rule, [warm(draft, seed) for seed in range(200)], logits.repeat(200, 1))
    assert len({verdict.tokens for verdict in many}) > 25


@pytest.mark.parametrize("rule", RULES)
def test_flat_distributions(rule: Rule) -> None:
    """Where both distributions are flat every draft token stands, and what follows is flat."""
    draws = 1000
    drafted = np.random.default_rng(3).integers(0, VOCAB, size=(draws, 2)).tolist()
    spans = [warm(chain(own, VOCAB), seed) for seed, own in enumerate(drafted)]
    verdicts = decide(rule, spans, torch.zeros((3 * draws, VOCAB)))
    assert [list(verdict.tokens[:2]) for verdict in verdicts] == drafted
    last = Counter(verdict.tokens[2] for verdict in verdicts)
    assert chisquare([last[token] for token in range(VOCAB)])[1] > 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_k": 1}, {"top_p": 0.6}, {"top_k": 5, "top_p": 0.8}], ids=str)
def test_masks_are_respected(rule: Rule, params: dict[str, Any]) -> None:
    """Nothing is emitted outside of a request's top-k and top-p, whatever was drafted, nor by its neighbours."""
    row = torch.from_numpy(np.random.default_rng(4).normal(size=VOCAB).astype(np.float32))
    order = row.argsort(descending=True).tolist()
    mass = row.softmax(-1)[order][: params.get("top_k") or None]
    within = (mass / mass.sum()).cumsum(-1) - mass / mass.sum() < params.get("top_p", 1.0)
    allowed = {token for token, one in zip(order, within.tolist(), strict=False) if one}
    spans = []
    for seed in range(200):
        draft = chain([order[seed % VOCAB], order[seed // VOCAB % VOCAB]], VOCAB)
        spans += [warm(draft, seed, **params), warm(draft, seed)]
    verdicts = decide(rule, spans, row.repeat(3 * len(spans), 1))
    assert {token for verdict in verdicts[::2] for token in verdict.tokens} == allowed


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("draws", [5000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_what_is_recovered_converges_to_the_target(rule: Rule, draws: int) -> None:
    """Over ten tokens the distance to the target's distribution falls with more samples; that to another does not."""
    rng = np.random.default_rng(5)
    p, q, other = (rng.dirichlet(np.ones(VOCAB)) for _ in range(3))
    own = distribution(q)
    kernels = select_kernels()
    seeds = torch.arange(draws)
    drafted = torch.empty(draws, dtype=torch.int64)
    keys = torch.full((draws,), noise_key(1, Purpose.DRAFT, 1))
    kernels.draw(own.logs.repeat(draws, 1), torch.ones(draws), seeds, keys, drafted)
    spans = [warm(Draft.chain([token], "test", None, [own]), i) for i, token in enumerate(drafted.tolist())]
    verdicts = decide(rule, spans, torch.from_numpy(np.log(p).astype(np.float32)).repeat(2 * draws, 1))
    tokens = [verdict.tokens[0] for verdict in verdicts]

    def away(count: int, reference: Any) -> float:
        seen = np.bincount(tokens[:count], minlength=VOCAB) / count
        return float(np.linalg.norm(seen - reference))

    few, many = away(50, p), away(draws, p)
    assert many * 5 < few
    assert away(50, other) / away(draws, other) < 1.5
    assert chisquare(np.bincount(tokens, minlength=VOCAB), p * draws)[1] > 1e-3


GENERAL = [case for case in GOLDENS["random"] if case["draft_kind"] == "general q"]
BLOCKS = [case for case in GOLDENS["block_verification"] if "draft_probs_by_prefix" in case]


@pytest.mark.parametrize("case", GENERAL, ids=lambda case: f"{case['vocab']}^{case['num_draft']}")
def test_recorded_distributions_of_drawn_drafts(case: dict[str, Any]) -> None:
    check(rejection, case, case["num_draft"], case["output_sequence_probs"])


@pytest.mark.parametrize(
    ("rule", "name", "case"),
    [
        pytest.param(rule, name, case, id=f"{name}-{case['note'][:40]}", marks=marks)
        for rule, name in ((block, "block"), (rejection, "token"))
        for case in BLOCKS
        # Of random tables there are records for single tokens above.
        for marks in [pytest.mark.soak if name == "token" and case["note"].startswith("random") else ()]
    ],
)
def test_recorded_distributions_of_blocks(rule: Rule, name: str, case: dict[str, Any]) -> None:
    check(rule, case, case["gamma"], case[f"output_sequence_probs_{name}"])


def check(rule: Rule, case: dict[str, Any], length: int, expected: dict[str, float], draws: int = 1200) -> None:
    """Draw drafts and compare what one call emits, and how much of it was drafted, with the record."""

    def key(tokens: Sequence[int]) -> str:
        return ",".join(map(str, tokens))

    q = {known: np.array(own) / sum(own) for known, own in case["draft_probs_by_prefix"].items()}
    steps = {known: own.cumsum() for known, own in q.items()}
    distributions = {known: distribution(own) for known, own in q.items()}
    rows = {known: torch.tensor(own).log() for known, own in case["target_probs_by_prefix"].items()}
    rng, spans, logits = np.random.default_rng(6), [], []
    for seed in range(draws):
        drafted: list[int] = []
        for _ in range(length):
            own = steps[key(drafted)]
            drafted.append(int(np.searchsorted(own, rng.random() * own[-1], side="right")))
        prefixes = [key(drafted[:i]) for i in range(length + 1)]
        drawn_from = [distributions[known] for known in prefixes[:length]]
        spans.append(warm(Draft.chain(drafted, "test", None, drawn_from), seed))
        logits += [rows[known] for known in prefixes]
    seen = Counter(key(verdict.tokens) for verdict in decide(rule, spans, torch.stack(logits)))
    assert {*seen} <= {one for one, chance in expected.items() if chance > 0}
    cells = [one for one, chance in expected.items() if chance * draws >= 5]
    counts, wanted = [seen[one] for one in cells], [expected[one] * draws for one in cells]
    if (rest := draws - sum(wanted)) >= 1:
        counts.append(draws - sum(counts))
        wanted.append(rest)
    scale = sum(counts) / sum(wanted)
    assert chisquare(counts, [one * scale for one in wanted])[1] > 1e-3
