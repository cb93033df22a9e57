"""Who runs in a step, with how many rows, in which blocks.

There is no prefill phase and no decode phase: a request has tokens known and tokens computed, and a step closes as
much of the gap as its row budget allows. Drafts are further rows of requests whose gap closes.
"""

import itertools
from collections.abc import Iterable, Iterator
from time import perf_counter

from parlay.config import EngineConfig
from parlay.engine.calibration import Calibration
from parlay.engine.request import Request, Rows
from parlay.engine.shape import shape
from parlay.engine.stats import EngineStats
from parlay.kv.pool import BlockPool
from parlay.proposers.base import DeviceProposer, HostProposer, Proposer
from parlay.proposers.prediction import DEFAULT_LENGTH
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.output import FinishReason, Rejected
from parlay.types.plan import Plan, Proposal, ProposerState, Span, SpanError, StepOutput, Verdict

# The further layer group whose keys and values blocks may hold besides the target's.
_PROPOSER = "proposer"


class Scheduler:
    """Keeps the queues; turns them into plans, and verdicts into progress.

    Attributes:
        pool: the cache blocks.
        emitted: tokens emitted since start.
        drafting: seconds that a host proposer took since start.
        stats: counters, of which those about requests are kept here.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        proposer: Proposer,
        draft_length: int,
        stats: EngineStats | None = None,
        *,
        predicted_length: int | None = None,
    ) -> None:
        """Begin with no requests.

        Args:
            config: the engine's options.
            pool: the cache blocks.
            proposer: who guesses.
            draft_length: most nodes of its drafts.
            stats: counters to use.
            predicted_length: most nodes of drafts from a prediction; None takes what is usual for those.
        """
        self._config = config
        self.pool = pool
        self.emitted = 0
        self.drafting = 0.0
        self.stats = stats or EngineStats()
        self._host = proposer if isinstance(proposer, HostProposer) else None
        self._device = isinstance(proposer, DeviceProposer)
        self._follows = proposer.cache is not None  # it wants to see every token
        self._pairs = isinstance(proposer, DeviceProposer) and proposer.pairs
        self._draft_length = draft_length
        self._longest_draft = max(draft_length, predicted_length or DEFAULT_LENGTH)
        self._calibration = Calibration()
        self._plan_ids = itertools.count()
        self._waiting: list[Request] = []
        self._running: list[Request] = []  # in order of admission

    @property
    def requests(self) -> Iterable[Request]:
        """Every unfinished request, running ones first."""
        return itertools.chain(self._running, self._waiting)

    @property
    def load(self) -> tuple[int, int]:
        """How many requests run and how many wait."""
        return len(self._running), len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request behind those of its priority and before those of a lower one."""
        request.tokens = list(request.prompt_tokens)
        if not request.draft_limit(self._longest_draft):
            request.prediction = None
        place = sum(r.priority <= request.priority for r in self._waiting)
        self._waiting.insert(place, request)

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """End a request and give back everything it holds; a step in flight will ignore it."""
        request.finish_reason = reason
        self.stats.finished[reason] += 1
        request.counts.finished = now
        request.table.release()
        request.prediction = None
        if self._host:
            self._host.forget(request.request_id)
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)

    def expire(self, now: float) -> list[Request]:
        """Abort the requests whose deadline has passed, and return them.

        Args:
            now: the engine's clock.
        """
        late = [r for r in self.requests if r.deadline is not None and r.deadline <= now]
        for request in late:
            self.finish(request, "abort", now)
        return late

    # ------------------------------------------------------------------------------------------------- planning

    def plan(self, now: float = 0.0) -> Plan:
        """Choose the spans of the next step and reserve their blocks; whoever gets the first ones got them `now`.

        Known tokens come first: of running requests, then of waiting ones. Drafts share what rows and blocks are
        left, so that nobody waits for somebody else's guesses.

        Raises:
            SpanError: the draft of one request could not be made; plan again without the request.
        """
        rows: dict[Request, Rows] = {}
        waiting = len(self._waiting)
        # Requests about to emit go first: a long prompt must not hold them up.
        for request in sorted(self._running, key=lambda r: r.gap > 1):
            if request in self._running and self._rows_left(rows):
                self._reserve(request, rows)
        # If blocks ran out, whoever was preempted would only take them away again.
        if len(self._waiting) == waiting:
            self._admit(rows, now)
        return Plan(next(self._plan_ids), tuple(self._spans(rows)))

    def _rows_left(self, rows: dict[Request, Rows]) -> int:
        return self._config.max_num_batched_tokens - sum(map(sum, rows.values()))

    def _reserve(self, request: Request, rows: dict[Request, Rows]) -> None:
        """Give a running request its rows and blocks, preempting until they fit, at last the request itself."""
        while not self._fits(request, rows):
            victim = self._victim()
            self.preempt(victim)
            rows.pop(victim, None)
            if victim is request:
                return

    def _fits(self, request: Request, rows: dict[Request, Rows]) -> bool:
        left, again = self._rows_left(rows), self._unseen(request)
        # States that a proposer lacks come first if they are few: without them it could not use those of this step,
        # which would then have to run once more too.
        if again > min(request.gap, left - again):
            again = 0
        count = min(request.gap, left - again)
        if not request.table.grow(request.computed + count):
            return False
        rows[request] = Rows(count, again)
        return True

    def _unseen(self, request: Request) -> int:
        """How many computed tokens' states the proposer wants to see."""
        return request.unseen if self._pairs and self._limit(request) > 0 else 0

    def _victim(self) -> Request:
        """Return the newest of the running requests of the lowest priority."""
        worst = max(r.priority for r in self._running)
        return next(r for r in reversed(self._running) if r.priority == worst)

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks; what it knows stays, what it computed is computed again later."""
        request.table.release()
        request.computed, request.proposer, request.draft = 0, ProposerState(), NO_DRAFT
        request.counts.preemptions += 1
        self.stats.preemptions += 1
        self._running.remove(request)
        place = sum(r.priority < request.priority for r in self._waiting)
        self._waiting.insert(place, request)

    def _admit(self, rows: dict[Request, Rows], now: float) -> None:
        """Start waiting requests while there are rows, and blocks that nobody has to be preempted for."""
        for request in list(self._waiting):
            if not self._rows_left(rows) or len(self._running) == self._config.max_num_seqs:
                return
            if self._config.enable_prefix_caching and not request.scoring_prompt:
                if request.leader is not None and request.leader.computing_prompt:
                    continue  # it will find the prompt's blocks instead of computing them too
                request.computed = request.table.adopt_prefix(request.tokens)
                request.proposer = ProposerState(request.table.valid_tokens(_PROPOSER, request.computed))
            if not self._fits(request, rows):
                request.table.release()
                request.computed, request.proposer = 0, ProposerState()
                return
            if not request.counts.preemptions:
                request.counts.admitted = now
                request.counts.cached_tokens = request.computed
                self.stats.prompt_tokens += len(request.prompt_tokens)
                self.stats.cached_tokens += request.computed
                if self._host and request.draft_limit(self._draft_length):
                    self._host.admit(request.request_id, request.tokens, request.tenant)
            self._waiting.remove(request)
            self._running.append(request)

    def _spans(self, rows: dict[Request, Rows]) -> Iterator[Span]:
        """Yield the spans, with drafts where rows and blocks are left: to each request an equal share."""
        drafting = sum(known == r.gap and self._limit(r) > 0 for r, (known, _) in rows.items())
        left = self._rows_left(rows)
        catching = max(2, self._config.max_num_batched_tokens // 4)  # rows that run again: everybody waits for them
        # A device proposer drafts for the next step, which will have about as many requests.
        next_share = self._config.max_num_batched_tokens // max(drafting, 1) - 1
        for request, (known, again) in rows.items():
            end, sample = request.computed + known, known == request.gap
            limit = self._limit(request)
            draft, budget = NO_DRAFT, max(min(limit, self._draft_length, next_share), 0) if self._device else 0
            if request.predicted:
                budget = 0  # what is predicted need not be guessed
            # States are only to be had now, so pairs are kept even where there is to be no draft.
            follow = self._follows and (limit > 0 if self._pairs else budget > 0)
            if sample and limit > 0:
                share = left // drafting
                draft = self._guess(request, min(limit, share), share)
                # Room for what a device proposer may write: after the token that the target adds, its own guesses.
                most = end + len(draft) + (1 + budget if budget or follow else 0)
                if not request.table.grow(min(most, request.longest)):
                    draft, budget, follow = NO_DRAFT, 0, False
                drafting -= 1
                left -= len(draft)
                # One request after another catches up: by a row a step none would, as the target goes on too.
                missing, room = self._unseen(request) - again if follow else 0, min(left, catching)
                further = missing if missing <= room else room if room > 1 else 0
                again, left, catching = again + further, left - further, catching - further
            elif self._pairs and follow and not request.table.grow(end + 1):
                budget, follow = 0, False  # there is no room for the pair of the token after these
            yield self._span(request, end, draft, budget, again, follow)

    def _limit(self, request: Request) -> int:
        """How many nodes a draft may have: the target always adds a token of its own."""
        longest = self._draft_length if request.prediction is None else self._longest_draft
        return min(request.draft_limit(longest), request.remaining - 1)

    def _guess(self, request: Request, limit: int, room: int) -> Draft:
        """Return a draft of at most `limit` nodes, or of `room` where a grammar forces some."""
        try:
            draft = self._draft(request, limit)
            if request.constraint is not None:
                draft = self._shape(request, draft, min(request.remaining - 1, room))
            return self._calibration.apply(draft, request.params)
        except Exception as error:
            raise SpanError(request.request_id) from error

    def _draft(self, request: Request, limit: int) -> Draft:
        if limit < 1:
            return NO_DRAFT
        if request.prediction is not None and (draft := request.prediction.propose(limit)):
            # It stands in for the guesses that a device proposer's layers hold.
            request.proposer = ProposerState(request.proposer.computed)
            return draft
        limit = min(limit, self._draft_length)
        if self._host is None or limit < 1:
            return request.draft.cut(limit)
        began = perf_counter()
        draft = self._host.propose(request.request_id, limit)
        self.drafting += perf_counter() - began
        return draft.cut(limit)

    def _shape(self, request: Request, draft: Draft, room: int) -> Draft:
        """Return a draft without what the request's grammar forbids, and with what it forces."""
        assert request.constraint is not None
        draft, intact = shape(draft, request.constraint, request.output_tokens, room)
        # A device proposer's layers hold its own guesses, which other nodes may now stand in for.
        state = request.proposer
        request.proposer = ProposerState(state.computed, min(state.ahead, intact))
        return draft

    def _span(self, request: Request, end: int, draft: Draft, budget: int, again: int, follow: bool) -> Span:
        tokens, state, sample = request.tokens, request.proposer, end == len(request.tokens)
        followed = end + (self._pairs and not sample)
        return Span(
            request_id=request.request_id,
            tokens=tuple(tokens[request.computed : end]),
            start=request.computed,
            blocks=tuple(request.table.blocks),
            seed=request.seed,
            params=request.params,
            processor=request.processor,
            output=tuple(request.output_tokens) if request.processor else (),
            draft=draft,
            sample=sample,
            stop_ids=request.stop_ids,
            scored=request.prompt_tokens[request.computed + 1 : end + 1] if request.scoring_prompt else (),
            remaining=request.remaining,
            proposer=state,
            behind=tuple(tokens[state.computed : followed]) if follow else (),
            again=tuple(tokens[state.next_state : state.next_state + again]) if follow else (),
            budget=budget,
            follow=follow,
        )

    # ----------------------------------------------------------------------------------------------- committing

    def commit(self, plan: Plan, output: StepOutput, now: float) -> list[Request]:
        """Turn a step's verdicts into progress.

        Returns:
            The requests that emitted tokens or finished, in the plan's order.

        Raises:
            SpanError: one request could not be committed; those after it have lost the step.
        """
        assert output.plan_id == plan.plan_id, "an answer to another plan"
        by_id = {r.request_id: r for r in self._running}
        moved = []
        for span, verdict, proposal in zip(plan.spans, output.verdicts, output.proposals, strict=True):
            request = by_id.get(span.request_id)
            if request is None:  # aborted or preempted while the step was in flight
                continue
            try:
                self._advance(request, span, verdict, proposal)
                if span.sample:
                    self._emit(request, span, verdict, now)
                    moved.append(request)
            except Exception as error:
                raise SpanError(request.request_id) from error
        return moved

    def _advance(self, request: Request, span: Span, verdict: Verdict, proposal: Proposal) -> None:
        """Count what was computed, and share the blocks that became full of verified tokens."""
        request.computed = span.end + len(verdict.path)
        request.tokens.extend(verdict.tokens)
        # What a preempted request computes again it has scored already.
        request.prompt_logprobs.extend(verdict.prompt_logprobs[len(request.prompt_logprobs) - span.start :])
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
        reason = None
        for depth, token in enumerate(verdict.tokens):
            self.emitted += 1
            request.sources.append(sources[depth])
            if verdict.logprobs is not None:
                request.logprobs.append(verdict.logprobs[depth])
            reason = self._ends(request, token, known + depth + 1)
            if reason is not None:
                del request.tokens[known + depth + 1 :]
                break
        # What is confirmed beyond the token that ends the request does not count.
        path = verdict.path[: len(request.tokens) - known]
        counts.accepted += len(path)
        counts.per_position.update(range(len(path)))
        self.stats.judge(span.draft.source, path, self._calibration.observe(span.draft, verdict, span.params))
        if request.params.return_rejected:
            at = known - len(request.prompt_tokens) + len(path)
            nodes = enumerate(zip(span.draft.tokens, span.draft.source, strict=True))
            request.rejected.extend(Rejected(at, *guess) for node, guess in nodes if node not in path)
        if self._host and request.draft_limit(self._draft_length):  # what ends a response is worth knowing too
            self._host.observe(request.request_id, request.tokens[known:])
        if reason is not None:
            self.finish(request, reason, now)
            return
        if verdict.error is not None:
            request.error = verdict.error
            self.finish(request, "abort", now)
            return
        if request.prediction is not None:
            request.prediction.observe(verdict.tokens)
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
