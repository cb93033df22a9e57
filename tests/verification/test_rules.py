"""The rules that verify drafts: decision by decision the oracle's, and in the long run the target's distribution."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from crossing import crossed
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numbered_drafts import numbered
from numpy.typing import NDArray
from scipy.stats import chisquare
from verification import classical as oracle
from verification.test_coupled import span_of

from parlay import SamplingParams
from parlay.kernels.reference_noise import gumbel_noise
from parlay.kernels.reference_sampling import process_row
from parlay.kernels.select import select_kernels
from parlay.kernels.uploads import Uploads
from parlay.proposers.draws import Draws
from parlay.sampling.distribution import Distribution, Purpose, noise_key, uniforms
from parlay.types.draft import ROOT, Draft
from parlay.types.draft_tree import paths
from parlay.types.plan import Span, Verdict
from parlay.verification import classical
from parlay.verification.typical import entropy, typical
from parlay.verification.verifier import Rule, Verifier
from parlay.verification.walk import Walk

VOCAB = 5
KERNELS = ["native", "reference"]
Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]


def random_logits(kind: int, vocab: int = VOCAB) -> Logits:
    """Return a toy model's logits: any function of the known tokens will do."""

    def of(known: tuple[int, ...]) -> NDArray[np.float32]:
        made = np.random.default_rng([kind, len(known), *known]).normal(size=vocab) * 1.3
        return made.astype(np.float32)

    return of


def probabilities(row: NDArray[np.float32], params: SamplingParams) -> oracle.Distribution:
    """Return the exact distribution that a row's token is drawn from."""
    scores = process_row(row, params.temperature, params.min_p, params.top_k, params.top_p).astype(np.float64)
    weights = np.exp(scores - scores.max())
    made: oracle.Distribution = weights / weights.sum()
    return made


def law_of(probs: oracle.Distribution, ids: Sequence[int] | None = None) -> Distribution:
    with np.errstate(divide="ignore"):
        logs = torch.from_numpy(np.log(probs).astype(np.float32))
    return Distribution(logs, None if ids is None else torch.tensor(ids))


class Noise:
    """A chance that decides with the very noise that the rules read."""

    def __init__(self, kernels: str, span: Span) -> None:
        self._kernels, self._span = select_kernels(force=kernels), span
        self.index, self.trial, self.of = 1, 0, 1
        self.key: int | None = None

    def at(self, index: int, children: int = 1) -> None:
        """Go to the index-th token of the step, of which there are so many draft tokens."""
        self.index, self.trial, self.of = index, 0, children

    def true(self, probability: float) -> bool:
        key = noise_key(self._span.end + self.index - 1, Purpose.ACCEPT, self.index)
        coin = uniforms(self._kernels, self._span.seed, key, self.of)[self.trial]
        self.trial += 1
        return coin < probability

    def token(self, distribution: oracle.Distribution) -> int:
        position = self._span.end + self.index - 1
        key = noise_key(position, Purpose.RESIDUAL, self.index) if self.of else position
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(distribution) + gumbel_noise(self._span.seed, key, len(distribution))))


class Onwards(Noise):
    """For a chain token by token: each decision is about the next token."""

    def __init__(self, kernels: str, span: Span) -> None:
        super().__init__(kernels, span)
        self._asked, self._accepted = 0, True

    def true(self, probability: float) -> bool:
        self._asked += 1
        self.at(self._asked)
        self._accepted = super().true(probability)
        return self._accepted

    def token(self, distribution: oracle.Distribution) -> int:
        if self._accepted:
            self.at(self._asked + 1, 0)
        return super().token(distribution)


class Block(Noise):
    """For a chain as a whole: the token after it is drawn with the noise of what is left, whatever is left."""

    def __init__(self, kernels: str, span: Span) -> None:
        super().__init__(kernels, span)
        self._asked = self._length = 0

    def true(self, probability: float) -> bool:
        self._asked += 1
        self.at(self._asked)
        if accepted := super().true(probability):
            self._length = self._asked
        return accepted

    def token(self, distribution: oracle.Distribution) -> int:
        self.at(self._length + 1)
        return super().token(distribution)


def decide(kernels: str, rule: Rule, span: Span, target: Logits, prompt: tuple[int, ...]) -> Verdict:
    known = [prompt, *(prompt + tuple(span.draft.tokens[n] for n in path) for path in paths(span.draft))]
    rows = torch.from_numpy(np.array([target(k) for k in known]))
    before = rows.clone()
    spans, distributions = numbered([span])
    (verdict,) = Verifier(rule)(select_kernels(force=kernels), spans, rows, distributions=distributions)
    assert torch.equal(rows, before), "verification may not change the logits"
    return verdict


def ended(tokens: Sequence[int], span: Span) -> list[int]:
    """Return what is emitted of tokens, in which the request may end."""
    made: list[int] = []
    for token in tokens[: span.remaining]:
        made.append(token)
        if token in span.stop_ids:
            break
    return made


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple)
params_ = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.4, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    top_k=st.sampled_from([0, 1, 3]),
    min_p=st.sampled_from([0.0, 0.1]),
)
stops = st.frozensets(st.integers(0, VOCAB - 1), max_size=2)
ids_ = st.sampled_from([None, (1, 3, 4), (4, 0), (2,)])


class Case(NamedTuple):
    """What a verification is given, beside a draft."""

    kernels: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    remaining: int
    stop: frozenset[int]
    ids: tuple[int, ...] | None
    kind: int


cases = st.builds(
    Case,
    st.sampled_from(KERNELS),
    prompts,
    params_,
    st.integers(0, (1 << 64) - 1),
    st.integers(1, 6),
    stops,
    ids_,
    st.integers(0, 999),
)


def wide(probs: oracle.Distribution, ids: Sequence[int] | None) -> oracle.Distribution:
    """Return a distribution over the target's tokens."""
    if ids is None:
        return probs
    made = np.zeros(VOCAB)
    made[list(ids)] = probs
    return made


@pytest.mark.parametrize("name", ["rejection", "block"])
@settings(max_examples=150)
@given(cases, st.data())
def test_chains_are_verified_as_the_oracle_does(name: str, case: Case, data: st.DataObject) -> None:
    """Under filters, with a vocabulary of the head's own, with certain draft tokens, to the end of the request."""
    kernels, prompt, params, seed, remaining, stop, ids, kind = case
    target, head = random_logits(kind), random_logits(kind + 1000, len(ids or range(VOCAB)))
    drawn: list[int] = []
    distributions: list[oracle.Distribution] = []
    for i in range(data.draw(st.integers(1, 4))):
        own = probabilities(head((*prompt, *drawn)), params)
        some = [place for place in range(len(own)) if own[place] > 0]
        place = data.draw(st.sampled_from(some))
        drawn.append(place if ids is None else ids[place])
        distributions.append(wide(own, ids))
        assert i < 4
    certain = data.draw(st.integers(0, 2)) if name == "rejection" else 0
    short: list[Distribution | None] = [
        law_of(distribution if ids is None else distribution[list(ids)], ids) for distribution in distributions
    ]
    for _ in range(certain):  # forced by a grammar
        drawn.append(data.draw(st.integers(0, VOCAB - 1)))
        distributions.append(np.eye(VOCAB)[drawn[-1]])
        short.append(None)
    draft = Draft.chain(drawn, "test", None, short)
    span = span_of(prompt, draft, params, seed, remaining=remaining, stop_ids=stop)
    verdict = decide(kernels, getattr(classical, name), span, target, prompt)

    def p(context: tuple[int, ...]) -> oracle.Distribution:
        return probabilities(target(context), params)

    def q(context: tuple[int, ...]) -> oracle.Distribution:
        return distributions[len(context) - len(prompt)]

    if name == "rejection":
        found = oracle.rejection(p, q, prompt, drawn, Onwards(kernels, span))
    else:
        cut = next((i + 1 for i, token in enumerate(drawn) if token in stop), len(drawn))
        found = oracle.block(p, q, prompt, drawn[:cut], Block(kernels, span))
    assert list(verdict.tokens) == ended(found, span)
    agreed = len(found) - 1
    assert verdict.path == tuple(range(min(agreed, len(verdict.tokens))))


@settings(max_examples=200)
@given(cases, st.data())
def test_trees_are_verified_as_the_oracle_does(case: Case, data: st.DataObject) -> None:
    """Children of a node are drawn one after another without replacement, and judged in this order."""
    kernels, prompt, params, seed, remaining, stop, ids, kind = case
    target, head = random_logits(kind), random_logits(kind + 1000, len(ids or range(VOCAB)))
    tokens: list[int] = []
    parents: list[int] = []
    distributions: list[Distribution] = []
    below: dict[int, list[int]] = {}
    wides: dict[int, oracle.Distribution] = {}
    contexts = {ROOT: prompt}
    for node in range(ROOT, data.draw(st.integers(0, 3))):
        if node not in contexts:
            break
        own = probabilities(head(contexts[node]), params)
        distribution = law_of(own, ids)
        wides[node] = wide(own, ids)
        some = [place for place in range(len(own)) if own[place] > 0]
        for place in data.draw(st.permutations(some))[: data.draw(st.integers(0, 3))]:
            child = len(tokens)
            tokens.append(place if ids is None else ids[place])
            parents.append(node)
            distributions.append(distribution)
            below.setdefault(node, []).append(child)
            contexts[child] = (*contexts[node], tokens[child])
    assume(tokens)
    draft = Draft(tuple(tokens), tuple(parents), ("test",) * len(tokens), None, tuple(distributions))
    span = span_of(prompt, draft, params, seed, remaining=remaining, stop_ids=stop)
    verdict = decide(kernels, classical.rejection, span, target, prompt)
    chance, node, found = Noise(kernels, span), ROOT, []
    path: list[int] = []
    while True:
        children = below.get(node, [])
        left = probabilities(target(contexts[node]), params)
        chance.at(len(found) + 1, len(children))
        candidates = [tokens[child] for child in children]
        q = wides.get(node, np.zeros(VOCAB))
        accepted, left = oracle.several(left, q, candidates, chance, replaced=False)
        if accepted is None:
            found.append(chance.token(left))
            break
        found.append(accepted)
        node = children[candidates.index(accepted)]
        path.append(node)
    assert list(verdict.tokens) == ended(found, span)
    assert list(verdict.path) == path[: len(verdict.tokens)]


def test_a_distribution_without_further_tokens_ends_the_round() -> None:
    """What stands beside the only token that the head can draft was not drawn, and is not judged."""
    params, target = SamplingParams(), random_logits(3)
    one = law_of(np.eye(VOCAB)[2])
    p, draws = probabilities(target((1,)), params), 3000
    draft = Draft((2, 4), (ROOT, ROOT), ("test",) * 2, None, (one, one))
    spans, distributions = numbered([span_of((1,), draft, params, seed, remaining=1) for seed in range(draws)])
    rows = torch.from_numpy(np.array([target(known) for known in ((1,), (1, 2), (1, 4))])).repeat(draws, 1)
    verdicts = Verifier(classical.rejection)(select_kernels(), spans, rows, distributions=distributions)
    seen = Counter(verdict.tokens[0] for verdict in verdicts)
    assert chisquare([seen[t] for t in range(VOCAB)], p * draws)[1] > 1e-3


def test_the_streams_of_noise_share_no_key() -> None:
    keys = [
        noise_key(position, purpose, index)
        for position in (0, 1, 7, 2**31, 2**32 - 1)
        for purpose in Purpose
        for index in range(40)
        if purpose or not index
    ]
    assert len(set(keys)) == len(keys)
    assert max(keys) < 2**63


# ----------------------------------------------------------------------------------------------- distributions

SOME, FEW, SOAK = 2_000, 600, 1_000_000  # mistakes that show at once need few
ENOUGH = 1_200  # for every mistake below that shows within a step
TOKENS = 2  # of each output: what p-values are about
SMALL = 4
Change = Callable[[Draft], Draft]


def tables(kind: int, vocab: int, depth: int) -> torch.Tensor:
    """Return logits for every sequence of up to `depth` tokens, `[depth + 1, vocab ** depth, vocab]`."""
    made = torch.zeros((depth + 1, vocab**depth, vocab))
    made.copy_(torch.from_numpy(np.random.default_rng(kind).normal(size=made.shape) * 1.2))
    return made


class Loop:
    """Decodes many requests of a toy target at once, step by step, with drafts as heads draw them."""

    def __init__(
        self, rule: str, *, depth: int = 2, width: int = 1, alike: float = 0.5, change: Change | None = None
    ):
        rules: dict[str, Rule] = {
            "rejection": classical.rejection,
            "block": classical.block,
            "typical": partial(typical, threshold=0.2, alpha=0.6),
        }
        # Coupled verification and the lossy rule share the target's noise with their drafts.
        self._rule, self._lossy, self._shared = rules.get(rule), rule == "typical", rule not in ("rejection", "block")
        self._depth, self._width, self._change = depth, width, change
        self._kernels = select_kernels()
        self._most = 1 + TOKENS + depth  # tokens of a context that have rows of their own
        self.target = tables(5, SMALL, self._most)
        self.head = alike * self.target + tables(6, SMALL, self._most)

    def run(self, seeds: Sequence[int], params: SamplingParams) -> list[tuple[int, ...]]:
        """Return the first tokens of each seed's output."""
        outs: list[tuple[int, ...]] = [()] * len(seeds)
        while left := [i for i, out in enumerate(outs) if len(out) < TOKENS]:
            for some in np.array_split(left, max(1, len(left) // 4000)):
                own = [outs[i] for i in some]
                spans = [
                    span_of((0, *out), Draft(), params, seeds[i]) for i, out in zip(some.tolist(), own, strict=True)
                ]
                drafts = self._draft(spans, own)
                if self._change is not None:
                    drafts = [self._change(draft) for draft in drafts]
                verdicts = self._judge(spans, own, drafts)
                for i, out, verdict in zip(some.tolist(), own, verdicts, strict=True):
                    outs[i] = (*out, *verdict.tokens)
        return [out[:TOKENS] for out in outs]

    def accepted(self, seeds: Sequence[int], params: SamplingParams) -> int:
        """Return how many first draft tokens of these seeds' first step stand."""
        spans = [span_of((0,), Draft(), params, seed) for seed in seeds]
        outs: list[tuple[int, ...]] = [()] * len(spans)
        return sum(len(verdict.path) > 0 for verdict in self._judge(spans, outs, self._draft(spans, outs)))

    def agreement(self, params: SamplingParams) -> float:
        """Return how often a first draft token is the target's token if both are drawn with the same noise."""
        p, q = (probabilities(table[0, 0].numpy(), params) for table in (self.target, self.head))
        some = [i for i in range(SMALL) if p[i] > 0 and q[i] > 0]
        return sum(1 / sum(max(p[i] / p[j], q[i] / q[j]) for i in range(SMALL)) for j in some)

    def distribution(self, params: SamplingParams) -> NDArray[np.float64]:
        """Return the exact joint distribution of the first two tokens, flat."""
        first = probabilities(self.target[0, 0].numpy(), params)
        return np.concatenate(
            [p * probabilities(self.target[1, t].numpy(), params) for t, p in enumerate(first.tolist())]
        )

    def _rows(self, table: torch.Tensor, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the logits after each of these contexts."""
        places = []
        for context in contexts:
            place = 0
            for token in context:
                place = place * SMALL + token
            places.append(len(context) * table.shape[1] + place)
        return table.flatten(0, 1)[places]

    def _draft(self, spans: Sequence[Span], outs: Sequence[tuple[int, ...]]) -> list[Draft]:
        count, width = len(spans), self._width
        tokens: list[list[int]] = [[] for _ in spans]
        parents: list[list[int]] = [[] for _ in spans]
        distributions: list[list[Distribution]] = [[] for _ in spans]
        nodes: list[list[tuple[int, tuple[int, ...]]]] = [[(ROOT, out)] for out in outs]
        for level in range(self._depth):
            rows = [(i, node, known) for i in range(count) for node, known in nodes[i]]
            draws = Draws(self._depth, len(rows), Uploads(select_kernels()))
            owners = [spans[i] for i, _, _ in rows]
            draws.prepare(owners, [span.end for span in owners], private=not self._shared)
            logits = self._rows(self.head, [known for _, _, known in rows])
            found, likely = torch.zeros((len(rows), width), dtype=torch.int64), torch.zeros((len(rows), width))
            written = (found[:, 0], likely[:, 0]) if width == 1 else (found, likely)
            draws.draw(self._kernels, level, logits, *written)
            nodes = [[] for _ in spans]
            for row, (i, parent, known) in enumerate(rows):
                distribution = Distribution(torch.empty(0)) if self._shared else draws.distribution(level, row)
                for token in found[row].tolist():
                    nodes[i].append((len(tokens[i]), (*known, token)))
                    tokens[i].append(token)
                    parents[i].append(parent)
                    distributions[i].append(distribution)
        return [
            Draft(tuple(t), tuple(p), ("test",) * len(t), None, None if self._shared else tuple(q))
            for t, p, q in zip(tokens, parents, distributions, strict=True)
        ]

    def _judge(
        self, spans: Sequence[Span], outs: Sequence[tuple[int, ...]], drafts: Sequence[Draft]
    ) -> list[Verdict]:
        contexts = []
        for out, draft in zip(outs, drafts, strict=True):
            contexts.append(out)
            contexts += [(*out, *(draft.tokens[n] for n in path))[: self._most] for path in paths(draft)]
        judged = [
            span_of((0, *out), draft, span.params, span.seed)
            for span, out, draft in zip(spans, outs, drafts, strict=True)
        ]
        judged, distributions = numbered(judged)
        verify = Verifier(self._rule, self._lossy)
        return verify(self._kernels, judged, self._rows(self.target, contexts), distributions=distributions)


def p_value(loop: Loop, seeds: int, params: SamplingParams | None = None) -> float:
    """Return how well the first two tokens of so many seeds agree with the target's distribution."""
    params, seen, part = params or SamplingParams(temperature=1.0), Counter[tuple[int, ...]](), 50_000
    for first in range(0, seeds, part):
        some = range(first, min(first + part, seeds))
        seen.update(out[:2] for out in loop.run([i * 7919 + 1 for i in some], params))
    distribution = loop.distribution(params)
    counts = np.array([seen[a, b] for a in range(SMALL) for b in range(SMALL)])
    if counts[distribution == 0].any():
        return 0.0
    return float(chisquare(counts[distribution > 0], distribution[distribution > 0] * seeds)[1])


CASES: dict[str, Callable[..., Loop]] = {
    "coupled, chains": partial(Loop, "coupled", depth=2),
    "coupled, trees": partial(Loop, "coupled", depth=2, width=2),
    "rejection, chains": partial(Loop, "rejection", depth=2),
    "rejection, trees": partial(Loop, "rejection", depth=2, width=2),
    "rejection, wide": partial(Loop, "rejection", depth=1, width=3, alike=0.0),
    "block, chains": partial(Loop, "block", depth=3),
    "block, two steps": partial(Loop, "block", depth=2, alike=0.75),
    "block, poor drafts": partial(Loop, "block", depth=2, alike=0.0),
}
FILTERS = {"all": SamplingParams(temperature=1.0), "top-p": SamplingParams(temperature=0.7, top_p=0.8)}


@crossed(case=tuple(CASES), kept=tuple(FILTERS))
def test_what_is_emitted_has_the_distribution_of_the_target(case: str, kept: str) -> None:
    assert p_value(CASES[case](), ENOUGH, FILTERS[kept]) > 1e-3


@pytest.mark.soak
@pytest.mark.parametrize("kept", FILTERS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_emitted_has_the_distribution_of_the_target_in_many_draws(case: str, kept: str) -> None:
    assert p_value(CASES[case](), SOAK, FILTERS[kept]) > 1e-4


@pytest.mark.parametrize("params", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("alike", [0.9, 1.2, 2.0])
def test_coupled_drafts_are_accepted_as_often_as_the_formula_says(alike: float, params: SamplingParams) -> None:
    """Daliri, Musco and Suresh's: the sum over j of 1 over the sum over i of max(p_i / p_j, q_i / q_j)."""
    loop, draws = Loop("coupled", depth=1, alike=alike), 2_000
    expected = loop.agreement(params)
    p, q = (probabilities(table[0, 0].numpy(), params) for table in (loop.target, loop.head))
    apart = float(abs(p - q).sum()) / 2
    assert (1 - apart) / (1 + apart) - 1e-9 <= expected <= 1 - apart + 1e-9
    assert 0.1 < expected < 0.99
    seen = loop.accepted([i * 7919 + 1 for i in range(draws)], params)
    assert abs(seen - expected * draws) < 4 * np.sqrt(draws * expected * (1 - expected))


def test_drafts_with_noise_of_their_own_agree_less_often() -> None:
    loop, params, draws = Loop("coupled", depth=1), SamplingParams(temperature=1.0), 4_000
    loop._shared = False  # as for the classical samplers
    seen = loop.accepted([i * 7919 + 1 for i in range(draws)], params)
    assert seen < (loop.agreement(params) - 0.05) * draws


def test_an_entropy_is_its_definition_in_any_order() -> None:
    """To the last bit: torch's sum over a vocabulary depends on its threads and instruction set."""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy((rng.normal(size=50_000) * 4).astype(np.float32))
    logits[rng.random(50_000) < 0.3] = -torch.inf
    distribution = torch.log_softmax(logits.double(), -1).float()
    exact = float(torch.special.entr(distribution.double().exp()).sum())
    assert entropy(distribution) == pytest.approx(exact, rel=1e-6)
    assert {entropy(distribution[torch.from_numpy(rng.permutation(50_000))]) for _ in range(5)} == {
        entropy(distribution)
    }
    assert entropy(torch.tensor([0.0, -torch.inf])) == 0


def test_typical_acceptance_has_another_distribution() -> None:
    assert p_value(Loop("typical"), FEW) < 1e-9


# ----------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("purpose", "seeds"), [(Purpose.ACCEPT, FEW), (Purpose.RESIDUAL, SOME)], ids=["coins", "a rest"]
)
def test_what_is_drawn_with_the_noise_of_drafts_is_found_out(
    purpose: Purpose, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared(position: int, asked: Purpose, index: int = 0) -> int:
        return noise_key(position, Purpose.DRAFT if asked is purpose else asked, index)

    monkeypatch.setattr(classical, "noise_key", shared)
    assert p_value(CASES["rejection, trees"](), seeds) < 1e-6


@pytest.mark.parametrize("case", ["rejection, chains", "rejection, trees", "block, chains"])
def test_a_rest_that_is_not_taken_is_found_out(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_taken(
        kernels: Any, target: torch.Tensor, distribution: Distribution, scale: float
    ) -> tuple[float, torch.Tensor]:
        mass, _ = excess(kernels, target, distribution, scale)
        return mass, target

    excess = classical._excess
    monkeypatch.setattr(classical, "_excess", nothing_taken)
    assert p_value(CASES[case](), FEW) < 1e-6


def test_noise_of_the_position_alone_is_found_out_over_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a block stands depends on draft tokens beyond what stands; drawn again, they would know of it."""

    def forgetful(position: int, purpose: Purpose, index: int = 0) -> int:
        return noise_key(position, purpose, min(index, 1))

    monkeypatch.setattr("parlay.proposers.draws.noise_key", forgetful)
    monkeypatch.setattr(classical, "noise_key", forgetful)
    assert p_value(CASES["block, two steps"](), 10_000) < 1e-6


def test_draft_tokens_dropped_for_what_they_are_are_found_out() -> None:
    def confident(draft: Draft) -> Draft:
        assert draft.q is not None
        sure = [
            float(distribution.logs[token]) > np.log(0.3)
            for token, distribution in zip(draft.tokens, draft.q, strict=True)
        ]
        return draft.cut(next((i for i, one in enumerate(sure) if not one), len(draft)))

    assert p_value(Loop("rejection", change=confident), FEW) < 1e-6


def test_siblings_judged_out_of_order_are_found_out() -> None:
    """Of siblings drawn without replacement the second may not stand without the first."""

    def second(draft: Draft) -> Draft:
        return draft.select([1]) if draft.parents[:2] == (ROOT, ROOT) else draft

    assert p_value(Loop("rejection", depth=1, width=2, alike=0.0, change=second), FEW) < 1e-6


def test_a_draft_cut_for_no_reason_of_its_own_keeps_the_distribution() -> None:
    count = iter(range(10**9))

    def arbitrary(draft: Draft) -> Draft:
        return draft.cut(next(count) % 3)

    assert p_value(Loop("block", depth=3, change=arbitrary), ENOUGH) > 1e-3


def test_rules_are_only_asked_where_drafts_were_drawn() -> None:
    """A draft that was not drawn, or a request at temperature 0, is verified by the coupled walk."""

    def never(kernels: Any, span: Span, walk: Walk) -> Verdict:
        raise AssertionError("not for this draft")

    target = random_logits(1)
    plain = Draft.chain((1, 2), "test")
    drawn = Draft.chain((1, 2), "test", None, (law_of(np.full(VOCAB, 0.2)),) * 2)
    for draft, temperature in ((plain, 1.0), (drawn, 0.0), (Draft(), 1.0)):
        span = span_of((3,), draft, SamplingParams(temperature=temperature), 0)
        assert decide("native", never, span, target, (3,)).tokens
