"""Who runs in a step, with how many rows, in which blocks.

There is no prefill phase and no decode phase: a request has tokens known and tokens computed, and a step closes as
much of the gap as its row budget allows. Drafts are further rows of requests whose gap closes.
"""

import itertools
from collections import deque
from collections.abc import Iterable

from parlay.config import EngineConfig
from parlay.engine.request import Request
from parlay.kv.pool import BlockPool
from parlay.proposers.base import HostProposer, Proposer
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.output import FinishReason
from parlay.types.plan import Plan, Proposal, ProposerState, Span, StepOutput, Verdict

# The further layer group whose keys and values blocks may hold besides the target's.
_PROPOSER = "proposer"


class Scheduler:
    """Keeps the queues; turns them into plans, and verdicts into progress.

    Attributes:
        pool: the cache blocks.
        emitted: tokens emitted since start.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool, proposer: Proposer, draft_length: int) -> None:
        self._config = config
        self.pool = pool
        self.emitted = 0
        self._proposer = proposer
        self._host = proposer if isinstance(proposer, HostProposer) else None
        self._draft_length = draft_length
        self._plan_ids = itertools.count()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # in order of admission

    @property
    def requests(self) -> Iterable[Request]:
        """Every unfinished request, running ones first."""
        return itertools.chain(self._running, self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request behind those of its priority and before those of a lower one."""
        request.tokens = list(request.prompt_tokens)
        if self._host and request.draft_limit(self._draft_length):
            self._host.observe(request.request_id, request.tokens)
        place = len(self._waiting)
        while place and self._waiting[place - 1].priority > request.priority:
            place -= 1
        self._waiting.insert(place, request)

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """End a request and give back everything it holds; a step in flight will ignore it."""
        request.finish_reason = reason
        request.counts.finished = now
        request.table.release()
        if self._host:
            self._host.forget(request.request_id)
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)

    # ------------------------------------------------------------------------------------------------- planning

    def plan(self, now: float) -> Plan:
        """Choose the spans of the next step and reserve their blocks.

        Args:
            now: the engine's clock; requests past their deadline are aborted.
        """
        for request in [r for r in self.requests if r.deadline is not None and r.deadline <= now]:
            self.finish(request, "abort", now)
        spans: dict[int, Span] = {}
        rows_left = self._config.max_num_batched_tokens
        waiting = len(self._waiting)
        # Requests about to emit go first: a long prompt must not hold them up.
        for request in sorted(self._running, key=lambda r: r.gap > 1):
            if rows_left and request in self._running and self._reserve(request, rows_left, spans):
                rows_left = self._config.max_num_batched_tokens - _rows(spans)
        if len(self._waiting) > waiting:
            # Blocks ran out. Whoever was preempted would only take them away again.
            return Plan(next(self._plan_ids), tuple(spans.values()))
        while self._waiting and rows_left and len(self._running) < self._config.max_num_seqs:
            if not self._admit(self._waiting[0], rows_left, spans):
                break
            rows_left = self._config.max_num_batched_tokens - _rows(spans)
        return Plan(next(self._plan_ids), tuple(spans.values()))

    def _admit(self, request: Request, rows_left: int, spans: dict[int, Span]) -> bool:
        """Start a waiting request if its first rows fit without preempting anybody."""
        if self._config.enable_prefix_caching:
            request.computed = request.table.adopt_prefix(request.tokens)
            valid = request.table.valid_tokens(_PROPOSER, request.computed)
            request.proposer = ProposerState(valid)
        span = self._fit(request, rows_left)
        if span is None:
            request.table.release()
            request.computed, request.proposer = 0, ProposerState()
            return False
        if not request.counts.preemptions:
            request.counts.cached_tokens = min(request.computed, len(request.prompt_tokens))
        self._waiting.popleft()
        self._running.append(request)
        spans[request.request_id] = span
        return True

    def _reserve(self, request: Request, rows_left: int, spans: dict[int, Span]) -> bool:
        """Give a running request its rows and blocks, preempting the newest requests until they fit."""
        while True:
            span = self._fit(request, rows_left)
            if span is not None:
                spans[request.request_id] = span
                return True
            newest = self._running[-1]
            self.preempt(newest)
            spans.pop(newest.request_id, None)
            if newest is request:
                return False

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks; what it knows stays, what it computed is computed again later."""
        request.table.release()
        request.computed, request.proposer, request.draft = 0, ProposerState(), NO_DRAFT
        request.counts.preemptions += 1
        self._running.remove(request)
        self._waiting.appendleft(request)

    def _fit(self, request: Request, rows_left: int) -> Span | None:
        """Return the request's span if the pool has blocks for it: with a draft if that fits, else without."""
        count = min(request.gap, rows_left)
        end = request.computed + count
        sample = count == request.gap
        limit = min(request.draft_limit(self._draft_length), request.remaining - 1)
        draft = self._draft(request, min(limit, rows_left - count)) if sample and limit > 0 else NO_DRAFT
        # Room for what a device proposer may write: the token that the target adds, then its own guesses.
        budget = max(limit, 0) if self._proposer.cache is not None else 0
        ahead = 1 + budget if sample and budget else 0
        if not request.table.grow(min(end + len(draft) + ahead, self._longest(request))):
            if not request.table.grow(end):
                return None
            draft, budget = NO_DRAFT, 0
        return Span(
            request_id=request.request_id,
            tokens=tuple(request.tokens[request.computed : end]),
            start=request.computed,
            blocks=tuple(request.table.blocks),
            seed=request.seed,
            params=request.params,
            draft=draft,
            sample=sample,
            stop_ids=request.stop_ids,
            remaining=request.remaining,
            proposer=request.proposer,
            behind=tuple(request.tokens[request.proposer.computed : end]) if budget else (),
            budget=budget,
            propose=budget > 0,
        )

    def _draft(self, request: Request, limit: int) -> Draft:
        if limit < 1:
            return NO_DRAFT
        if self._host:
            return self._host.propose(request.request_id, limit)
        return request.draft.cut(limit)

    def _longest(self, request: Request) -> int:
        """Tokens that the request can ever have."""
        return len(request.prompt_tokens) + request.max_tokens

    # ----------------------------------------------------------------------------------------------- committing

    def commit(self, plan: Plan, output: StepOutput, now: float) -> list[Request]:
        """Turn a step's verdicts into progress.

        Returns:
            The requests that emitted tokens or finished, in the plan's order.
        """
        assert output.plan_id == plan.plan_id, "an answer to another plan"
        by_id = {r.request_id: r for r in self._running}
        moved = []
        for span, verdict, proposal in zip(plan.spans, output.verdicts, output.proposals, strict=True):
            request = by_id.get(span.request_id)
            if request is None:  # aborted or preempted while the step was in flight
                continue
            self._advance(request, span, verdict, proposal)
            if span.sample:
                self._emit(request, span, verdict, now)
                moved.append(request)
        return moved

    def _advance(self, request: Request, span: Span, verdict: Verdict, proposal: Proposal) -> None:
        """Count what was computed, and share the blocks that became full of verified tokens."""
        request.computed = span.end + len(verdict.path)
        request.tokens.extend(verdict.tokens)
        before = request.proposer.computed
        request.proposer, request.draft = proposal.state, proposal.draft
        if self._config.enable_prefix_caching:
            request.table.publish(request.tokens, request.computed)
            request.table.mark_valid(_PROPOSER, before, proposal.state.computed)

    def _emit(self, request: Request, span: Span, verdict: Verdict, now: float) -> None:
        """Record emitted tokens one by one, since any of them may end the request."""
        counts = request.counts
        counts.first_token = counts.first_token or now
        counts.steps += 1
        counts.drafts += len(span.draft) > 0
        counts.drafted += len(span.draft)
        sources = [span.draft.source[node] for node in verdict.path] + ["target"]
        known = len(request.tokens) - len(verdict.tokens)
        for depth, token in enumerate(verdict.tokens):
            self.emitted += 1
            request.sources.append(sources[depth])
            if depth < len(verdict.path):
                counts.accepted += 1
                counts.per_position[depth] += 1
            if verdict.logprobs is not None:
                request.logprobs.append(verdict.logprobs[depth])
            reason = self._ends(request, token, known + depth + 1)
            if reason is not None:
                del request.tokens[known + depth + 1 :]
                self.finish(request, reason, now)
                return
        if self._host and request.draft_limit(self._draft_length):
            self._host.observe(request.request_id, verdict.tokens)
        request.table.trim(max(len(request.tokens), request.proposer.computed + request.proposer.ahead))

    def _ends(self, request: Request, token: int, known: int) -> FinishReason | None:
        """Return why the request ends with this token, if it does."""
        if token in request.stop_ids:
            # End-of-sequence is the ordinary way to stop and needs no further reason.
            request.stop_reason = token if token in request.params.stop_token_ids else None
            return "stop"
        stop = request.detokenizer.append(token) if request.detokenizer else None
        if stop is not None:
            request.stop_reason = stop
            return "stop"
        return "length" if known - len(request.prompt_tokens) >= request.max_tokens else None

    def check(self) -> None:
        """Recount every block; all tables must belong to running requests.

        Raises:
            AssertionError: the pool and the tables disagree.
        """
        self.pool.check(r.table.blocks for r in self.requests)
        for request in self._waiting:
            assert not request.table.blocks, f"waiting request {request.request_id} holds blocks"


def _rows(spans: dict[int, Span]) -> int:
    return sum(len(s.tokens) + len(s.draft) for s in spans.values())
