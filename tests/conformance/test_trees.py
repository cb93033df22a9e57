"""Trees of every shape give the tokens of plain decoding, also of shapes that no shipped proposer drafts.

A planted proposer knows what plain decoding will say and hides it in random trees: among siblings, behind noise,
below other branches, so that accepted nodes seldom lie where their keys and values belong.
"""

import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from asking import Ask, accepted, assert_same, essence, meddle_at_random, run, with_params
from conftest import DTYPES, MakeLLM, Plain
from crossing import crossed

from parlay import SamplingParams
from parlay.proposers.base import HostProposer
from parlay.runner.runner import ModelRunner
from parlay.types.draft import ROOT, Draft
from parlay.types.plan import Span, Verdict

VOCAB = 257
TEMPERATURES = (0.0, 0.7, 1.3)


class Planted(HostProposer):
    """Random trees, some of whose nodes continue the text as plain decoding will."""

    default_length = 10

    def __init__(self, futures: Sequence[Sequence[int]], *, honesty: float = 0.5, seed: int = 0) -> None:
        self._futures = futures
        self._honesty = honesty
        self._random = random.Random(seed)
        self._known: dict[int, int] = {}

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        # The first call brings the prompt, of which the futures say nothing.
        known = self._known.get(request_id)
        self._known[request_id] = 0 if known is None else known + len(tokens)

    def propose(self, request_id: int, budget: int) -> Draft:
        future = self._futures[request_id][self._known[request_id] :]
        rng, honesty = self._random, self._honesty
        size = rng.randint(0, budget)
        tokens: list[int] = []
        parents: list[int] = []
        honest = {ROOT: 0}  # nodes on the right path, with their depth
        for node in range(size):
            tip = max(honest, key=lambda n: honest[n])
            parent = tip if rng.random() < honesty else rng.randint(ROOT, node - 1)
            depth = honest.get(parent)
            right = depth is not None and depth < len(future) and rng.random() < 0.7
            tokens.append(future[depth] if right else rng.randrange(VOCAB))
            parents.append(parent)
            if depth is not None and depth < len(future) and tokens[-1] == future[depth]:
                first = all(parents[n] != parent or tokens[n] != tokens[-1] for n in range(node))
                if first:
                    honest[node] = depth + 1
        return Draft(tuple(tokens), tuple(parents), ("planted",) * size)

    def forget(self, request_id: int) -> None:
        self._known.pop(request_id, None)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[HostProposer], None]:
    def install(proposer: HostProposer) -> None:
        monkeypatch.setattr("parlay.engine.speculation.make_proposer", lambda config, target: proposer)

    return install


def asks(temperature: float) -> list[Ask]:
    rng = random.Random(5)
    filters = [{}, {"top_k": 8}, {"top_p": 0.8}, {"min_p": 0.02}]
    return [
        Ask(
            tuple(rng.randrange(256) for _ in range(rng.randint(1, 30))),
            SamplingParams(
                temperature=temperature, seed=i, max_tokens=rng.randint(10, 40), logprobs=2, **filters[i % 4]
            ),
        )
        for i in range(12)
    ]


OPTIONS: list[dict[str, int]] = [
    {"max_num_batched_tokens": 7},
    {"block_size": 1},
    {"block_size": 3, "max_num_batched_tokens": 20},
    {"block_size": 4, "num_blocks": 18, "max_model_len": 72},
]


@crossed(dtype=DTYPES, honesty_and_temperature=list(product((0.2, 0.5, 0.9), TEMPERATURES)), preempted=[0.0, 0.4])
def test_trees_give_the_same_tokens(
    make_llm: MakeLLM,
    plain: Plain,
    plant: Callable[..., None],
    dtype: str,
    honesty_and_temperature: tuple[float, float],
    preempted: float,
) -> None:
    honesty, temperature = honesty_and_temperature
    expected = plain(dtype, asks(temperature))
    plant(Planted([a.token_ids for a in expected], honesty=honesty, seed=int(10 * temperature)))
    answers = run(
        make_llm(dtype=dtype, block_size=4), asks(temperature), meddle_at_random(random.Random(2), preempted)
    )
    assert_same(answers, expected)
    assert accepted(answers) > 50
    assert max(len(a.metrics.accepted_per_position) for a in answers) >= 3, "no step accepted several nodes"
    assert any("planted" in a.sources and "target" in a.sources for a in answers)
    assert (sum(a.metrics.preemptions for a in answers) > 3) == (preempted > 0)


@crossed(dtype=DTYPES, options=OPTIONS)
def test_trees_under_pressure(
    make_llm: MakeLLM, plain: Plain, plant: Callable[..., None], dtype: str, options: dict[str, int]
) -> None:
    expected = plain(dtype, asks(0.7))
    plant(Planted([a.token_ids for a in expected]))
    answers = run(make_llm(dtype=dtype, **options), asks(0.7))
    assert_same(answers, expected)
    assert accepted(answers) > 10
    assert any(a.metrics.preemptions for a in answers) == ("num_blocks" in options)


def test_what_trees_leave_in_the_prefix_cache_is_right(
    make_llm: MakeLLM, plain: Plain, plant: Callable[..., None]
) -> None:
    """Blocks filled by moved nodes are found by a later prompt that continues the first output."""
    first = asks(0.7)
    expected = plain("bfloat16", first)
    later = [
        Ask(ask.prompt + answer.token_ids, SamplingParams(temperature=0.7, seed=9, max_tokens=8, logprobs=1))
        for ask, answer in zip(first, expected, strict=True)
    ]
    after = plain("bfloat16", later)
    plant(Planted([a.token_ids for a in (*expected, *after)], honesty=0.7))
    llm = make_llm(dtype="bfloat16", block_size=4)
    assert_same(run(llm, first), expected)
    answers = run(llm, later)
    assert_same(answers, after)
    for answer, ask, before in zip(answers, later, first, strict=True):
        assert answer.metrics.cached_tokens > min(len(before.prompt), len(ask.prompt) - 8)


def test_the_truth_is_accepted_whole(make_llm: MakeLLM, plain: Plain, plant: Callable[..., None]) -> None:
    class Truth(Planted):
        def propose(self, request_id: int, budget: int) -> Draft:
            future = self._futures[request_id][self._known[request_id] :]
            return Draft.chain(future[:budget], "truth")

    expected = plain("float32", asks(0.7))
    plant(Truth([a.token_ids for a in expected]))
    answers = run(make_llm(), asks(0.7))
    assert_same(answers, expected)
    for answer in answers:
        assert answer.metrics.accepted == answer.metrics.drafted > 0
        assert answer.metrics.steps == -(-len(answer.token_ids) // (Truth.default_length + 1))


def test_keeping_the_wrong_slots_is_caught(
    make_llm: MakeLLM, plain: Plain, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepted nodes whose keys and values stay where they were drafted leave rejected ones in their place."""
    expected = plain("float32", asks(0.7))
    moved = 0

    def keep(self: ModelRunner, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> None:
        nonlocal moved
        moved += sum(v.path != tuple(range(len(v.path))) for v in verdicts)

    monkeypatch.setattr(ModelRunner, "move_accepted", keep)
    plant(Planted([a.token_ids for a in expected]))
    answers = run(make_llm(), asks(0.7))
    assert moved > 10
    assert sum(essence(a) != essence(b) for a, b in zip(answers, expected, strict=True)) > 3


def test_reading_ancestors_out_of_order_is_caught(
    make_llm: MakeLLM, plain: Plain, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same keys in another order give other bits in the end; the comparison is that sharp."""
    from parlay.runner import batch

    right = batch.paths
    monkeypatch.setattr(batch, "paths", lambda draft: [path[::-1] for path in right(draft)])
    expected = plain("float32", asks(0.7))
    plant(Planted([a.token_ids for a in expected], honesty=0.9))
    answers = run(make_llm(), asks(0.7))
    assert [essence(a) for a in answers] != [essence(a) for a in expected]


def test_rejected_nodes_are_told(make_llm: MakeLLM, plain: Plain, plant: Callable[..., None]) -> None:
    """All nodes beside the confirmed path, siblings above its end too."""
    expected = plain("float32", asks(0.7))
    plant(Planted([a.token_ids for a in expected], seed=3))
    answers = run(make_llm(), [with_params(ask, return_rejected=True) for ask in asks(0.7)])
    assert_same(answers, expected)
    for answer in answers:
        assert answer.rejected is not None
        assert len(answer.rejected) == answer.metrics.drafted - answer.metrics.accepted > 0
        assert all(
            guess.at == len(answer.token_ids) or answer.sources[guess.at] == "target" for guess in answer.rejected
        )
