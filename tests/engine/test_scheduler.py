"""The scheduler alone: plans are looked at, verdicts are made up."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay import SamplingParams, SpeculationOverride
from parlay.config import EngineConfig
from parlay.drafting.drafting import Drafting
from parlay.drafting.host_drafts import LoadedProposer
from parlay.engine.request import Request
from parlay.engine.scheduler import Scheduler
from parlay.kv.pool import BlockPool
from parlay.kv.table import BlockTable
from parlay.proposers.base import DeviceProposer, HostProposer, Proposer
from parlay.types.cache import CacheSpec
from parlay.types.draft import Draft
from parlay.types.plan import Plan, Proposal, ProposerState, Span, SpanError, StepOutput, Verdict


class Zeros(HostProposer):
    """Drafts a chain of zeros, as long as it may, and remembers what it was told."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = {}
        self.budgets: list[int] = []

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        self.seen.setdefault(request_id, []).extend(tokens)

    def propose(self, request_id: int, budget: int) -> Draft:
        self.budgets.append(budget)
        return Draft.chain([0] * budget, "zeros")

    def forget(self, request_id: int) -> None:
        self.seen.pop(request_id, None)


class Rig:
    """A scheduler without a model: every sampling span accepts as many nodes as asked, then emits a 1."""

    def __init__(self, k: int = 0, blocks: int = 64, proposer: Proposer | None = None, **options: Any) -> None:
        config = EngineConfig(**{"block_size": 4, "enable_prefix_caching": False, **options})
        self.pool = BlockPool(blocks, config.block_size)
        self.proposer = Zeros()
        methods = [LoadedProposer("one", proposer or self.proposer, k)] if k else []
        drafting = Drafting(methods, share_prefixes=config.enable_prefix_caching)
        self.scheduler = Scheduler(config, self.pool, drafting)
        self.count = 0
        self.clock = 0.0
        self.plan = Plan(0, ())

    def add(self, prompt: int | Sequence[int], max_tokens: int = 8, **more: Any) -> Request:
        tokens = tuple(range(10, 10 + prompt)) if isinstance(prompt, int) else tuple(prompt)
        tenant = more.pop("tenant", "")
        params = SamplingParams(speculative=more.pop("speculative", None))
        request = Request(
            request_id=self.count,
            prompt_tokens=tokens,
            params=params,
            seed=0,
            max_tokens=max_tokens,
            stop_ids=more.pop("stop_ids", frozenset()),
            table=BlockTable(self.pool, tenant),
            tenant=tenant,
            **more,
        )
        self.count += 1
        self.scheduler.add(request)
        return request

    def look(self) -> dict[int, Span]:
        """Plan a step and return its spans by request."""
        self.expired = self.scheduler.expire(self.clock)
        self.plan = self.scheduler.plan()
        self.scheduler.check()
        return {span.request_id: span for span in self.plan.spans}

    def commit(self, accept: int = 0, tail: int = 1, seconds: float = 0.0) -> list[Request]:
        """Answer the plan after `seconds`; drafts are accepted up to `accept` nodes, then the target adds `tail`."""
        verdicts = []
        for span in self.plan.spans:
            if not span.sample:
                verdicts.append(Verdict())
                continue
            path = tuple(range(min(accept, len(span.draft), span.remaining)))
            tokens = [span.draft.tokens[node] for node in path]
            if len(tokens) < span.remaining and not set(tokens) & span.stop_ids:
                tokens.append(tail)
            verdicts.append(Verdict(tuple(tokens), path))
        proposals = tuple(map(self.propose, self.plan.spans, verdicts))
        self.clock += 1
        moved = self.scheduler.commit(
            self.plan, StepOutput(self.plan.plan_id, tuple(verdicts), proposals), self.clock, lambda: seconds
        )
        self.scheduler.check()
        return moved

    def propose(self, span: Span, verdict: Verdict) -> Proposal:
        return Proposal()

    def step(self, accept: int = 0) -> dict[int, Span]:
        spans = self.look()
        self.commit(accept)
        return spans


def rows(spans: dict[int, Span]) -> dict[int, int]:
    return {i: len(span.tokens) + len(span.draft) for i, span in spans.items()}


# --------------------------------------------------------------------------------------------------------- chunks


def test_a_prompt_goes_in_chunks_and_only_the_last_samples() -> None:
    rig = Rig(max_num_batched_tokens=7)
    rig.add(20)
    spans = [rig.step()[0] for _ in range(3)]
    assert [len(s.tokens) for s in spans] == [7, 7, 6]
    assert [s.start for s in spans] == [0, 7, 14]
    assert [s.sample for s in spans] == [False, False, True]


def seconds_of(count: int) -> float:
    """Return what a step of so many rows takes: reading the weights, then something for each."""
    return 0.100 + 0.010 * count


def test_a_prompt_beside_a_request_that_decodes_goes_in_short_chunks() -> None:
    rig = Rig(k=2, blocks=1024, max_prefill_slowdown=2.0)
    rig.add(400, max_tokens=2)
    while spans := rig.look():
        rig.commit(seconds=seconds_of(sum(rows(spans).values())))
    rig.add(5, max_tokens=200)
    for _ in range(4):
        rig.commit(seconds=seconds_of(sum(rows(rig.look()).values())))
    rig.add(900)
    chunks = []
    for _ in range(34):
        spans = rig.look()
        chunks.append(len(spans[2].tokens) if 2 in spans else 0)
        assert len(spans[1].draft) == 2  # drafts are not what is bounded
        rig.commit(seconds=seconds_of(sum(rows(spans).values())))
    assert chunks.count(0) == 2
    assert 4 <= max(chunks) <= 12
    assert rows(rig.look())[1] == 3
    rig.commit()


def test_without_a_bound_a_prompt_fills_the_step() -> None:
    rig = Rig(blocks=1024)
    rig.add(5, max_tokens=50)
    for _ in range(4):
        rig.look()
        rig.commit(seconds=seconds_of(1))
    rig.add(900)
    assert len(rig.look()[1].tokens) == 511


def test_rows_of_prompts_are_counted_when_they_run() -> None:
    rig = Rig(max_num_batched_tokens=7)
    rig.add(20)
    counted = []
    for _ in range(5):  # the last two steps decode
        rig.step()
        counted.append(rig.scheduler.stats.prefilled)
    assert counted == [7, 14, 20, 20, 20]
    assert rig.scheduler.stats.prompt_tokens == 20


def test_a_request_that_nothing_makes_room_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of empty plans for ever, whatever the cause."""
    rig = Rig()
    rig.add(3)
    monkeypatch.setattr(BlockTable, "grow", lambda self, tokens: False)
    with pytest.raises(SpanError) as error:
        rig.look()
    assert error.value.request_id == 0


def test_the_row_budget_is_shared_in_order() -> None:
    rig = Rig(max_num_batched_tokens=10)
    for length in (4, 4, 4):
        rig.add(length)
    assert rows(rig.step()) == {0: 4, 1: 4, 2: 2}


def test_requests_about_to_emit_go_before_those_with_a_gap() -> None:
    rig = Rig(max_num_batched_tokens=8)
    behind, _ = rig.add(6), rig.add(2)
    rig.step()
    behind.computed = 0
    spans = rig.look()
    assert list(spans) == [1, 0]
    assert rows(spans) == {1: 1, 0: 7}


def test_no_more_requests_run_than_allowed() -> None:
    rig = Rig(max_num_seqs=2)
    for _ in range(3):
        rig.add(2, max_tokens=2)
    assert set(rig.step()) == {0, 1}
    assert set(rig.step()) == {0, 1}
    assert set(rig.step()) == {2}


# --------------------------------------------------------------------------------------------------------- drafts


def test_a_draft_fits_into_the_row_budget() -> None:
    rig = Rig(k=6, max_num_batched_tokens=9)
    rig.add(5, max_tokens=20)
    assert rows(rig.step()) == {0: 9}
    assert rig.proposer.budgets == [4]
    rig.step()
    assert rig.proposer.budgets == [4, 6]


def test_drafts_share_the_rows_that_known_tokens_leave() -> None:
    """Nobody's guesses keep anybody else from moving."""
    rig = Rig(k=6, max_num_batched_tokens=8)
    for _ in range(3):
        rig.add(1, max_tokens=20)
    spans = rig.step()
    assert [len(s.tokens) for s in spans.values()] == [1, 1, 1]
    assert [len(s.draft) for s in spans.values()] == [1, 2, 2]
    rig.add(1, max_tokens=20, speculative={"enabled": False})
    spans = rig.step()
    assert [len(s.tokens) for s in spans.values()] == [1, 1, 1, 1]
    assert [bool(s.draft) for s in spans.values()] == [True, True, True, False]


def test_drafts_wait_behind_prompts() -> None:
    rig = Rig(k=6, max_num_batched_tokens=8)
    rig.add(1, max_tokens=20)
    rig.step()
    rig.add(30)
    spans = rig.step()
    assert rows(spans) == {0: 1, 1: 7}


def test_no_draft_before_the_prompt_is_done() -> None:
    rig = Rig(k=3, max_num_batched_tokens=4)
    rig.add(8)
    assert len(rig.step()[0].draft) == 0
    assert rig.proposer.budgets == []
    assert len(rig.step()[0].draft) == 0, "the chunk took every row"


def test_a_draft_leaves_room_for_the_targets_own_token() -> None:
    rig = Rig(k=9)
    rig.add(2, max_tokens=4)
    assert len(rig.step()[0].draft) == 3
    assert len(rig.step()[0].draft) == 2
    rig.step()
    assert len(rig.step()[0].draft) == 0
    assert 0 not in rig.proposer.budgets


def test_a_fully_accepted_draft_ends_with_the_targets_token() -> None:
    rig = Rig(k=3)
    request = rig.add(2, max_tokens=4)
    rig.step(accept=3)
    assert request.output_tokens == [0, 0, 0, 1]
    assert request.finish_reason == "length"
    assert request.sources == ["zeros", "zeros", "zeros", "target"]


@pytest.mark.parametrize(
    ("speculative", "nodes"),
    [
        (None, 5),
        ({"enabled": False}, 0),
        ({"num_speculative_tokens": 2}, 2),
        ({"num_speculative_tokens": 50}, 5),
        ({"enabled": False, "num_speculative_tokens": 2}, 0),
    ],
    ids=str,
)
def test_a_request_overrides_speculation(speculative: Any, nodes: int) -> None:
    rig = Rig(k=5)
    rig.add(2, max_tokens=20, speculative=speculative)
    assert len(rig.step()[0].draft) == nodes
    assert bool(rig.proposer.seen) == (nodes > 0), "whoever does not speculate is not followed"


def test_the_proposer_is_told_everything_once() -> None:
    rig = Rig(k=2)
    request = rig.add(3, max_tokens=9)
    rig.step(accept=1)
    rig.step(accept=2)
    rig.look()  # it is shown new tokens when it is asked for more
    assert rig.proposer.seen[0] == request.tokens == [10, 11, 12, 0, 1, 0, 0, 1]
    rig.commit()
    while request.finish_reason is None:
        rig.step()
    assert rig.proposer.seen == {}


@pytest.mark.parametrize("learns", [True, False])
def test_a_proposer_that_learns_is_told_how_a_response_ends(learns: bool) -> None:
    rig = Rig(k=4)
    rig.proposer.learns = learns
    rig.add(3, max_tokens=6)
    told: list[int] = []
    rig.proposer.forget = lambda request_id: told.extend(rig.proposer.seen[request_id])  # type: ignore[method-assign]
    for _ in range(2):
        rig.step(accept=2)
    assert told == [10, 11, 12, 0, 0, 1, *((0, 0, 1) if learns else ())]


def test_the_proposer_is_told_of_a_request_when_it_runs() -> None:
    rig = Rig(k=2, max_num_seqs=1)
    first, second = rig.add(3, max_tokens=2), rig.add(3)
    rig.step()
    assert set(rig.proposer.seen) == {first.request_id}
    rig.step()
    rig.look()
    assert rig.proposer.seen == {second.request_id: [10, 11, 12]}


def test_a_draft_that_finds_no_blocks_is_dropped() -> None:
    rig = Rig(k=8, blocks=3)
    rig.add(4, max_tokens=4)
    rig.add(4, max_tokens=4)
    spans = rig.look()
    assert [len(s.draft) for s in spans.values()] == [3, 0]
    assert rig.pool.available == 0


def test_blocks_beyond_the_known_tokens_are_given_back() -> None:
    rig = Rig(k=8)
    request = rig.add(3, max_tokens=20)
    rig.look()
    assert len(request.table.blocks) == 3
    rig.commit(accept=0)
    assert len(request.table.blocks) == 1
    assert rig.pool.available == 63


# ----------------------------------------------------------------------------------------------------- preemption


def test_the_newest_is_preempted_and_comes_back_in_order() -> None:
    rig = Rig(blocks=6)
    requests = [rig.add(7, max_tokens=12) for _ in range(3)]
    rig.step()
    rig.step()  # all at 9 tokens known, 8 computed, two blocks each
    assert set(rig.step()) == {0, 1}, "the third's blocks go to the others"
    assert [r.counts.preemptions for r in requests] == [0, 0, 1]
    while not requests[1].counts.preemptions:
        rig.step()
    assert list(rig.scheduler._waiting) == requests[1:]
    assert requests[1].computed == 0
    assert requests[1].tokens[:9] == [*requests[1].prompt_tokens, 1, 1], "what is known stays known"
    while any(r.finish_reason is None for r in requests):
        rig.step()
    assert [len(r.output_tokens) for r in requests] == [12, 12, 12]
    assert rig.pool.available == 6


def test_the_lowest_priority_is_preempted_first() -> None:
    rig = Rig(blocks=4)
    low = rig.add(7, max_tokens=8, priority=2)
    rig.step()
    high, middle = rig.add(6, max_tokens=8), rig.add(7, max_tokens=8, priority=1)
    rig.step()
    assert set(rig.step()) == {high.request_id}
    assert (low.counts.preemptions, high.counts.preemptions) == (1, 0), "although it came first"
    assert rig.scheduler._waiting == [middle, low], "and now it waits behind those of a higher one"


class Counted(int):
    """A priority that counts how often one is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= int(other)


def test_a_long_queue_is_sorted_without_being_looked_through() -> None:
    """Arrivals go behind those of their priority, preempted ones before them; each finds its place in log n looks."""
    rig, rng = Rig(blocks=6, max_num_seqs=2, max_num_batched_tokens=64), random.Random(5)
    Counted.compared, count = 0, 2000
    added = [rig.add(1, priority=Counted(rng.randrange(3))) for _ in range(count)]
    assert rig.scheduler._waiting == sorted(added, key=lambda r: int(r.priority)), "which is stable"
    assert Counted.compared < count * 12
    first = rig.scheduler._waiting[rng.randrange(count)]
    rig.scheduler._waiting.remove(first)
    rig.scheduler._running.append(first)
    rig.scheduler.preempt(first)
    places = [r for r in rig.scheduler._waiting if r.priority == first.priority]
    assert places[0] is first


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    """Whoever was preempted would take the blocks away again, a chunk at a time."""
    rig = Rig(blocks=4, max_num_batched_tokens=5)
    first, second = rig.add(7, max_tokens=8), rig.add(7, max_tokens=8)
    while not second.counts.preemptions:
        rig.commit()
        spans = rig.look()
    assert set(spans) == {first.request_id}
    assert rig.pool.available > 0
    assert not second.table.blocks
    rig.commit()


def test_a_request_without_blocks_waits_for_a_plan_under_way() -> None:
    """The one that would lose its blocks to it is in the plan of another stage, which writes to them."""
    rig = Rig(blocks=4, pipeline_parallel_size=2)
    first, second = rig.add(7, max_tokens=16), rig.add(6, max_tokens=16)
    assert set(rig.step()) == {0, 1}
    assert set(rig.look()) == {0}
    other = rig.scheduler.plan()
    assert [span.request_id for span in other.spans] == [1]
    rig.commit()
    assert (len(first.tokens), rig.pool.available) == (9, 0)  # it needs a third block
    assert rig.look() == {}
    rig.plan = other
    rig.commit()
    assert len(second.output_tokens) == 2
    assert set(rig.look()) == {0}
    assert (second.counts.preemptions, first.counts.preemptions) == (1, 0)


def test_a_forced_preemption_while_a_step_is_under_way() -> None:
    """It waits for the step, which writes to the blocks."""
    rig = Rig(k=2)
    request, other = rig.add(5), rig.add(5)
    rig.look()
    rig.scheduler.preempt(request)
    assert request.table.blocks
    assert rig.commit(accept=1) == [request, other]
    assert not request.table.blocks
    assert len(request.output_tokens) == 2
    assert rig.step()[0].start == 0


def test_recomputation_covers_prompt_and_output() -> None:
    rig = Rig()
    request = rig.add(5)
    rig.step()
    rig.step()
    rig.scheduler.preempt(request)
    span = rig.look()[0]
    assert span.tokens == (10, 11, 12, 13, 14, 1, 1)
    assert span.sample
    assert request.counts.preemptions == 1


# ------------------------------------------------------------------------------------- priorities, deadlines, ends


def test_lower_priority_numbers_run_first() -> None:
    rig = Rig(max_num_seqs=1)
    for priority in (1, 0, 2, 0, 1):
        rig.add(1, max_tokens=1, priority=priority)
    assert [next(iter(rig.step())) for _ in range(5)] == [1, 3, 0, 4, 2]


def test_a_passed_deadline_aborts_waiting_and_running() -> None:
    rig = Rig(max_num_seqs=2)
    late = rig.add(2, deadline=1.5)
    kept = rig.add(2)
    waiting = rig.add(2, deadline=0.5)
    rig.step()
    assert waiting.finish_reason is None
    assert set(rig.step()) == {late.request_id, kept.request_id}
    assert waiting.finish_reason == "abort"
    assert set(rig.step()) == {kept.request_id}
    assert late.finish_reason == "abort"
    assert late.counts.finished == 2.0
    assert len(late.output_tokens) == 2


def test_an_abort_while_a_step_is_under_way() -> None:
    rig = Rig(k=3)
    request, other = rig.add(5), rig.add(5)
    rig.look()
    rig.scheduler.finish(request, "abort", 0.0)
    assert request.table.blocks  # which the step writes to
    assert rig.commit(accept=2) == [other]
    assert not request.table.blocks
    assert request.output_tokens == []
    assert rig.scheduler.emitted == len(other.output_tokens) == 3


def test_a_stop_token_ends_the_request_and_is_kept() -> None:
    rig = Rig()
    request = rig.add(2, stop_ids=frozenset({1}))
    rig.step()
    assert request.finish_reason == "stop"
    assert request.output_tokens == [1]
    assert request.stop_reason is None, "it was not among the request's own"
    assert rig.pool.available == 64


# -------------------------------------------------------------------------------------------------------- prefixes


def test_a_prefix_is_found_by_the_same_tenant_alone() -> None:
    rig = Rig(enable_prefix_caching=True)
    prompt = list(range(30, 43))
    rig.add(prompt, tenant="a", max_tokens=2)
    rig.step()
    same, other = rig.add(prompt, tenant="a"), rig.add(prompt, tenant="b")
    spans = rig.look()
    assert spans[same.request_id].start == same.counts.cached_tokens == 12
    assert spans[other.request_id].start == other.counts.cached_tokens == 0
    assert not set(same.table.blocks) & set(other.table.blocks)


def test_only_verified_tokens_are_shared() -> None:
    rig = Rig(k=8, enable_prefix_caching=True)
    rig.add([5, 6, 7], max_tokens=20)
    rig.look()
    rig.commit(accept=2)  # known: 5 6 7 0 0 1, of which 5 are computed
    drafted = rig.add([5, 6, 7, 0, 0, 0, 0, 0, 9])
    assert rig.look()[drafted.request_id].start == 4


def test_completions_of_a_prompt_wait_for_the_first_to_compute_it() -> None:
    rig = Rig(enable_prefix_caching=True, max_num_batched_tokens=8)
    leader = rig.add(14, max_tokens=3)
    followers = [rig.add(14, max_tokens=3, leader=leader) for _ in range(2)]
    other = rig.add(2)
    assert set(rig.step()) == {0}
    assert set(rig.step()) == {0, other.request_id}, "others do not wait"
    assert leader.computed == 14
    spans = rig.look()
    assert [spans[f.request_id].start for f in followers] == [12, 12]
    assert followers[0].table.blocks[:3] == followers[1].table.blocks[:3] == leader.table.blocks[:3]
    rig.commit()


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_completions_do_not_wait_for_a_leader_in_vain(end: str) -> None:
    rig = Rig(enable_prefix_caching=True, max_num_batched_tokens=8)
    leader = rig.add(30, max_tokens=2)
    follower = rig.add(30, max_tokens=2, leader=leader)
    rig.step()
    if end == "abort":
        rig.scheduler.finish(leader, "abort", 0.0)
    else:
        rig.scheduler.preempt(leader)
    for _ in range(12):
        rig.step()
    assert follower.finish_reason == "length"
    assert leader.finish_reason == ("abort" if end == "abort" else "length")


# ------------------------------------------------------------------------------------------------------ any workload


@settings(max_examples=150)
@given(st.integers(0, 10_000))
def test_any_workload(seed: int) -> None:
    """Rows within budget, blocks of one writer only, every token computed once and in order, everybody served."""
    rng = random.Random(seed)
    budget, most = rng.randint(1, 12), rng.randint(1, 5)
    rig = Rig(
        k=rng.randint(0, 6),
        blocks=rng.randint(8, 16),
        max_num_batched_tokens=budget,
        max_num_seqs=most,
        enable_prefix_caching=rng.random() < 0.5,
    )
    requests = []
    for _ in range(rng.randint(1, 8)):
        prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))]
        more = {"priority": rng.randint(0, 2), "tenant": rng.choice(["", "other"])}
        requests.append(rig.add(prompt, max_tokens=rng.randint(1, 12), **more))
        for _ in range(rng.choice([0, 0, 2])):
            requests.append(rig.add(prompt, max_tokens=rng.randint(1, 12), leader=requests[-1], **more))
    for _ in range(3000):
        if not any(r.finish_reason is None for r in requests):
            break
        spans = rig.look()
        assert spans, "somebody must move"
        assert sum(rows(spans).values()) <= budget
        assert len(spans) <= most
        written: set[int] = set()
        for i, span in spans.items():
            request = requests[i]
            assert span.tokens == tuple(request.tokens[span.start : span.end])
            assert span.start == request.computed
            assert span.sample == (span.end == len(request.tokens))
            assert span.sample or not span.draft
            assert len(span.draft) <= max(span.remaining - 1, 0)
            slots = {span.blocks[j // 4] * 4 + j % 4 for j in range(span.start, span.end + len(span.draft))}
            assert not slots & written
            written |= slots
            others = {b for r in requests if r is not request for b in r.table.blocks}
            assert not {slot // 4 for slot in slots} & others, "a shared block is written to"
        if rng.random() < 0.1:
            rig.scheduler.preempt(requests[rng.choice(list(spans))])
        if rng.random() < 0.05:
            rig.scheduler.finish(requests[rng.choice(list(spans))], "abort", 0.0)
        rig.commit(accept=rng.randint(0, 6))
    assert all(r.finish_reason is not None for r in requests)
    assert all(len(r.output_tokens) == r.max_tokens for r in requests if r.finish_reason == "length")
    assert rig.pool.available == rig.pool.num_blocks
    assert rig.proposer.seen == {}


# ---------------------------------------------------------------------------------------------------- pairs, states


class Pairs(DeviceProposer):
    """Keeps pairs of tokens and states, whatever they are."""

    cache = CacheSpec(1, 1, 8, 4)
    pairs = True

    def __init__(self) -> None:
        pass

    def propose(self, *given: Any) -> list[Proposal]:
        raise NotImplementedError


class PairRig(Rig):
    """A rig whose proposer sees the states that each plan runs, and checks that they are what it lacks."""

    def __init__(self, k: int = 2, **options: Any) -> None:
        super().__init__(k, proposer=Pairs(), **options)

    def propose(self, span: Span, verdict: Verdict) -> Proposal:
        state = span.catch_up.state
        if not span.catch_up.follow:
            assert not span.catch_up.rerun
            assert not span.catch_up.unseen
            return Proposal(state=state)
        first = max(state.computed, 1) - 1
        assert span.catch_up.rerun_start == first
        reached = first + len(span.catch_up.rerun)
        if reached == span.start:
            reached = span.end + len(verdict.path)
            known = span.catch_up.unseen + verdict.tokens
            assert len(known) == reached + 1 - state.computed
            assert len(span.blocks) * 4 > reached
        if reached == first:
            return Proposal(state=state)
        length = min(span.catch_up.budget, max(span.remaining - len(verdict.tokens) - 1, 0))
        drafts = span.sample and reached == span.end + len(verdict.path)
        return Proposal(Draft.chain([0] * (length if drafts else 0), "pairs"), ProposerState(reached + 1))


def unseen(request: Request) -> int:
    """How many computed tokens' states the proposer has yet to see."""
    return request.computed - request.drafting.layers.next_state


def again(spans: dict[int, Span]) -> dict[int, int]:
    return {i: len(span.catch_up.rerun) for i, span in spans.items()}


@pytest.mark.parametrize("rows", [3, 7, 64])
def test_a_proposer_of_pairs_keeps_up(rows: int) -> None:
    rig = PairRig(max_num_batched_tokens=rows)
    requests = [rig.add(n, max_tokens=12) for n in (1, 9, 4)]
    while any(r.finish_reason is None for r in requests):
        spans = rig.step(accept=1)
        assert sum(len(s.tokens) + len(s.draft) + len(s.catch_up.rerun) for s in spans.values()) <= rows
        assert not any(again(spans).values())
        for request in requests:
            if request.table.blocks and request.remaining > 1:
                assert unseen(request) == 0
                assert request.drafting.layers.computed == request.computed + 1


def test_after_a_prefix_the_last_row_runs_once_more() -> None:
    rig = PairRig(enable_prefix_caching=True)
    rig.add(range(10, 27), max_tokens=4)
    while rig.look():
        rig.commit()
    second = rig.add((*range(10, 26), 3, 4, 5), max_tokens=4)
    span = rig.step()[second.request_id]
    assert (span.start, span.catch_up.state.computed, span.tokens) == (16, 16, (3, 4, 5))
    assert (span.catch_up.rerun_start, span.catch_up.rerun) == (15, (25,))
    assert unseen(second) == 0


def test_of_a_prefix_that_it_has_not_seen_all_rows_run_once_more() -> None:
    """With the request's own where there are as many; else from what rows are left over."""
    rig = PairRig(enable_prefix_caching=True, max_num_batched_tokens=48)
    first = rig.add(range(10, 27), max_tokens=4, speculative=SpeculationOverride(enabled=False))
    assert not rig.step()[first.request_id].catch_up.follow
    while rig.look():
        rig.commit()
    second = rig.add((*range(10, 26), 3, 4, 5), max_tokens=9)
    seen = []
    for _ in range(3):
        seen.append(rig.step()[second.request_id])
    assert [(s.start, len(s.tokens), len(s.catch_up.rerun)) for s in seen] == [(16, 3, 12), (19, 1, 7), (20, 1, 0)]
    assert unseen(second) == 0
    assert len(second.drafting.pending) > 0


def test_a_long_prefix_is_seen_again_in_parts() -> None:
    """Else everybody would wait for steps that are as long as those of a prompt."""
    rig = PairRig(enable_prefix_caching=True, max_num_batched_tokens=64, blocks=256)
    rig.add(range(10, 412), max_tokens=4, speculative=SpeculationOverride(enabled=False))
    while rig.look():
        rig.commit()
    late = [rig.add((*range(10, 410), 3, i), max_tokens=99) for i in range(2)]
    steps = 0
    while any(unseen(request) or not request.drafting.pending for request in late):
        spans = rig.step()
        assert sum(again(spans).values()) <= 16
        assert all(span.sample for span in spans.values())
        steps += 1
        assert steps < 60, "nobody catches up"
    assert steps > 40


def test_only_who_drafts_takes_a_block_for_the_pair_after() -> None:
    for wish, blocks in ((None, 3), (SpeculationOverride(enabled=False), 2)):
        rig = PairRig(max_num_batched_tokens=8)
        rig.add(12, max_tokens=4, speculative=wish)
        (span,) = rig.step().values()
        assert len(span.tokens) == 8
        assert len(span.blocks) == blocks


def test_known_tokens_come_before_states_seen_again() -> None:
    rig = PairRig(enable_prefix_caching=True, max_num_batched_tokens=4)
    rig.add(range(10, 27), max_tokens=4)
    while rig.look():
        rig.commit()
    third = rig.add((*range(10, 26), 3), max_tokens=9)
    fourth = rig.add((*range(10, 26), 4, 5, 6, 7), max_tokens=9)
    spans = rig.step()
    assert again(spans) == {third.request_id: 1, fourth.request_id: 1}
    assert [len(s.tokens) for s in spans.values()] == [1, 1]


def test_where_rows_are_few_nothing_runs_twice() -> None:
    rig = PairRig(enable_prefix_caching=True, max_num_batched_tokens=1)
    rig.add(range(10, 19), max_tokens=2)
    while rig.look():
        rig.commit()
    second = rig.add((*range(10, 18), 3), max_tokens=5)
    while second.finish_reason is None:
        (span,) = rig.step().values()
        assert len(span.tokens) == 1
        assert not span.catch_up.rerun
