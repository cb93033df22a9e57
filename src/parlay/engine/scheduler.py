"""Which requests run in a step, with how many rows, in which blocks.

There is no separate prefill or decode phase: a request has known and computed tokens, and each step computes as many
of the tokens between the two as its row budget allows. Drafts are further rows of requests whose known tokens are all
computed in this step; `parlay.drafting` makes them.
"""

import itertools
from bisect import insort_left, insort_right
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter

from parlay.config import EngineConfig
from parlay.drafting.drafting import Drafting
from parlay.drafting.state import Outcome, Rows, StepDrafts, StepPart
from parlay.engine.prefill_budget import PrefillBudget
from parlay.engine.request import Request
from parlay.engine.stats import EngineStats
from parlay.kv.pool import BlockPool
from parlay.kv.recurrent_states import StatePool
from parlay.sampling.bound_processor import BoundProcessor, OutputTokens
from parlay.types.output import FinishReason, Rejected
from parlay.types.plan import Plan, Span, SpanError, StepOutput, Verdict

_priority = attrgetter("priority")


class Scheduler:
    """Keeps the queues; turns them into plans, and verdicts into progress.

    Attributes:
        pool: the cache blocks.
        states: slots of recurrent layers' states; None for a model without them.
        draft_states: slots of the proposer's own recurrent states; None for a proposer without them.
        drafting: the object that makes the drafts.
        processors: logits processors of unfinished requests, by request id.
        emitted: number of tokens emitted since start.
        stats: counters; the scheduler updates those about requests.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        drafting: Drafting,
        stats: EngineStats | None = None,
        processors: dict[int, BoundProcessor] | None = None,
        states: StatePool | None = None,
        draft_states: StatePool | None = None,
    ) -> None:
        """Start without requests; the verifier reads the same `processors`."""
        self._config, self._stages = config, config.pipeline_parallel_size
        self.pool, self.states, self.draft_states = pool, states, draft_states
        rooms = [one.sequences for one in (states, draft_states) if one is not None]
        self._most = min([config.max_num_seqs, *rooms])
        self.drafting = drafting
        self.processors: dict[int, BoundProcessor] = {} if processors is None else processors
        self.emitted = 0
        self.stats = stats or EngineStats()
        self._plan_ids = itertools.count()
        self._waiting: list[Request] = []  # by priority; within one in order of arrival, preempted requests first
        self._running: list[Request] = []  # in order of admission
        self._under_way: dict[int, Request] = {}  # by id: those in plans that are not committed
        self._drafts = deque[tuple[Plan, StepDrafts]]()  # these plans, in order
        self._preempted: set[Request] = set()  # of those: requests that lose their blocks afterwards
        self._left = self._left_for_prompts = 0  # rows left in the plan being made
        slowdown = config.max_prefill_slowdown
        self._budget = None if slowdown is None else PrefillBudget(config.max_num_batched_tokens, slowdown)
        self._half: Request | None = None  # the one whose tokens are being committed

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
        if request.processor is not None:
            output = OutputTokens(request.tokens, len(request.prompt_tokens))
            self.processors[request.request_id] = BoundProcessor(request.processor, output)
        self.drafting.add(request)
        insort_right(self._waiting, request, key=_priority)

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """End a request and free all that it holds; its blocks only after a plan under way, which writes to them."""
        request.finish_reason = reason
        self.stats.finished[reason] += 1
        request.counts.finished = now
        self._preempted.discard(request)
        if not self.is_under_way(request):
            request.table.release()
        self.drafting.forget(request)
        self.processors.pop(request.request_id, None)
        if request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
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
        """Choose the spans of the next step and reserve their blocks; a request's first ones are dated `now`.

        Known tokens come first: of running requests, then of waiting ones. Drafts share the rows and blocks that are
        left, so that no request waits for another's draft. A request is in one plan at a time; where several are
        under way, each has an equal part of the requests.

        Raises:
            SpanError: one request cannot run; plan again without the request.
        """
        rows: dict[Request, Rows] = {}
        self._left = self._config.max_num_batched_tokens
        self._left_for_prompts = self._left
        waiting = len(self._waiting)
        free = [r for r in self._running if not self.is_under_way(r)]
        # Requests about to emit go first: a long prompt must not delay them.
        part = sorted(free, key=lambda r: r.gap > 1)[: self._part(len(free))]
        short = self._reserve_rows([r for r in part if r.gap <= 1], rows)
        if self._budget is not None:
            self._left_for_prompts = self._budget.rows(len(rows))
        short = self._reserve_rows([r for r in part if r.gap > 1], rows) or short
        # If blocks ran out, an admitted request would only take them from those that lack them.
        if not short and len(self._waiting) == waiting:
            self._admit(rows, now)
            if not rows and self._waiting and not (self._running or self._under_way):
                # No other request holds blocks: it would wait for ever.
                raise SpanError(self._waiting[0].request_id) from RuntimeError("it does not fit into an empty cache")
        if not rows:
            return Plan(next(self._plan_ids), ())
        left = self._left if self.states is None else min(self._left, self.states.places)
        most = self._config.max_num_batched_tokens - (self._left - left)
        drafts = self.drafting.plan(rows.items(), left, most, waiting=bool(self._waiting))
        spans = tuple(map(self._span, rows, rows.values(), drafts.parts))
        plan = Plan(next(self._plan_ids), spans, drafts.forgotten, drafts.proposer_idle)
        self._under_way |= {request.request_id: request for request in rows}
        self._drafts.append((plan, drafts))
        return plan

    def _part(self, free: int) -> int:
        """Return how many of the running requests a plan takes, of those that are in no other one."""
        more = max(self._stages - len(self._drafts), 1)
        return min(-(-len(self._running) // self._stages), -(-free // more))

    def _reserve_rows(self, requests: Iterable[Request], rows: dict[Request, Rows]) -> bool:
        """Give running requests what is left, one after another; return whether one waits for blocks."""
        short = False
        for request in requests:
            if self._room(request) and request in self._running:
                short = not self._reserve(request, rows) or short
        return short

    def _room(self, request: Request) -> int:
        """Return how many rows the plan being made has left for a request."""
        return self._left if request.gap <= 1 else min(self._left, self._left_for_prompts)

    def _reserve(self, request: Request, rows: dict[Request, Rows]) -> bool:
        """Give a running request its rows and blocks, preempting until they fit, at last the request itself.

        Returns:
            Whether it has them; if not, it waits for a plan under way, or for blocks.
        """
        while not self._fits(request, rows):
            victim = self._victim()
            if self.is_under_way(victim):
                return False
            self.preempt(victim)
            self._left += sum(rows.pop(victim, ()))
            if victim is request:
                return False
        return True

    def _fits(self, request: Request, rows: dict[Request, Rows]) -> bool:
        left, again, prompt = self._room(request), self.drafting.rerun(request), request.gap > 1
        # States that a proposer lacks come first if they are few: without them it could not use those of this step,
        # which would then have to run once more too.
        if again > min(request.gap, left - again):
            again = 0
        count = min(request.gap, left - again)
        if not request.table.grow(request.computed + count):
            return False
        rows[request] = Rows(count, again)
        self._left -= count + again
        self._left_for_prompts -= count + again if prompt else 0
        return True

    def _victim(self) -> Request:
        """Return the newest of the running requests of the lowest priority."""
        worst = max(r.priority for r in self._running)
        return next(r for r in reversed(self._running) if r.priority == worst)

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks; its known tokens stay, and are computed again later."""
        if self.is_under_way(request):
            self._preempted.add(request)
            return
        self._preempted.discard(request)
        request.table.release()
        request.computed = 0
        self.drafting.reset(request)
        request.counts.preemptions += 1
        self.stats.preemptions += 1
        insort_left(self._waiting, request, key=_priority)  # first, so that it is always in a queue
        self._running.remove(request)

    def _admit(self, rows: dict[Request, Rows], now: float) -> None:
        """Start waiting requests while there are rows and free blocks, without preempting others."""
        for request in list(self._waiting):
            if not min(self._left, self._left_for_prompts) or len(self._running) == self._most:
                return
            looks = self._config.enable_prefix_caching and not request.scoring_prompt
            if looks:
                if request.leader is not None and request.leader.computing_prompt:
                    continue  # it will find the prompt's blocks instead of computing them too
                request.computed = request.table.adopt_prefix(request.tokens)
                self.drafting.adopt(request)
            if not self._fits(request, rows):
                request.table.release()
                request.computed = 0
                self.drafting.reset(request)
                return
            if not request.counts.preemptions:
                request.counts.admitted = now
                request.counts.cached_tokens = request.computed
                self.stats.prompt_tokens += len(request.prompt_tokens)
                self.stats.queried_tokens += len(request.prompt_tokens) if looks else 0
                self.stats.cached_tokens += request.computed
                self.drafting.admit(request)
            self._running.append(request)  # first, so that it is always in a queue
            self._waiting.remove(request)

    def _span(self, request: Request, rows: Rows, part: StepPart) -> Span:
        end = request.computed + rows.known
        return Span(
            request_id=request.request_id,
            tokens=tuple(request.tokens[request.computed : end]),
            start=request.computed,
            blocks=tuple(request.table.blocks),
            seed=request.seed,
            params=request.draw,
            draft=part.draft,
            sample=end == len(request.tokens),
            stop_ids=request.stop_ids,
            scored=request.prompt_tokens[request.computed + 1 : end + 1] if request.scoring_prompt else (),
            remaining=request.remaining,
            catch_up=part.catch_up,
            states=request.table.begin(
                end, len(part.draft), len(request.prompt_tokens), keep=self._config.enable_prefix_caching
            ),
        )

    # ----------------------------------------------------------------------------------------------- committing

    def commit(
        self, plan: Plan, output: StepOutput, now: float, elapsed: Callable[[], float] = lambda: 0.0
    ) -> list[Request]:
        """Turn a step's verdicts into progress.

        Args:
            plan: the step's plan.
            output: the results of executing it.
            now: the engine's clock.
            elapsed: function that returns the step's seconds so far; called late, since committing takes time too.

        Returns:
            The requests that emitted tokens or finished, in the plan's order.

        Raises:
            SpanError: one request could not be committed; for those after it the step is lost.
        """
        assert output.plan_id == plan.plan_id, "an answer to another plan"
        drafts = next((drafts for one, drafts in self._drafts if one is plan), StepDrafts())
        requests, progressed, failed = self.take_back(plan), list[Request](), None
        outcomes: list[Outcome] = []
        for span, verdict, proposal in zip(plan.spans, output.verdicts, output.proposals, strict=True):
            request = requests[span.request_id]
            if request.finish_reason is not None:  # aborted while the step was under way
                continue
            self._half = request
            try:
                self._advance(request, span, verdict)
                rows = min(span.start + len(span.tokens), len(request.prompt_tokens)) - span.start
                self.stats.prefilled += max(rows, 0)
                if span.sample:
                    self._emit(request, span, verdict, now)
                    progressed.append(request)
            except Exception as error:
                failed = SpanError(request.request_id)
                failed.__cause__ = error
                break
            outcomes.append(Outcome(request, span, verdict, proposal, request.finish_reason is not None))
        self._half = None
        judged = self.drafting.learn(drafts, plan, output, outcomes, elapsed)
        if self._budget is not None and output.times.typical:
            prompts = [len(span.tokens) for span in plan.spans if len(span.tokens) > 1]
            self._budget.observe(len(plan.spans) - len(prompts), sum(prompts), elapsed())
        for outcome, nodes in zip(outcomes, judged, strict=True):
            self.stats.reliability.judge(nodes)
            if outcome.span.sample and not outcome.ended:
                own = requests[outcome.span.request_id]
                own.table.trim(max(len(own.tokens), self.drafting.reach(own)))
        if failed is not None:
            raise failed
        for request in requests.values():
            if request in self._preempted:
                self.preempt(request)
        return progressed

    def take_back(self, plan: Plan) -> dict[int, Request]:
        """End a plan under way, and free what its aborted requests held; return its requests.

        Without a commit, a later plan does its work.
        """
        own = next((one for one in self._drafts if one[0] is plan), None)
        if own is None:
            return {}
        self._drafts.remove(own)
        requests = {span.request_id: self._under_way.pop(span.request_id) for span in plan.spans}
        for request in requests.values():
            if request.finish_reason is not None:
                request.table.release()
        return requests

    def is_under_way(self, request: Request) -> bool:
        """Whether a request is in a plan that is not committed."""
        return request.request_id in self._under_way

    def _advance(self, request: Request, span: Span, verdict: Verdict) -> None:
        """Count what was computed, and share the blocks that became full of verified tokens."""
        request.computed = span.end + len(verdict.path)
        request.tokens.extend(verdict.tokens)
        # What a preempted request computes again it has scored already.
        request.prompt_logprobs.extend(verdict.prompt_logprobs[len(request.prompt_logprobs) - span.start :])
        request.table.advance(verdict.path, request.tokens)
        if self._config.enable_prefix_caching:
            request.table.publish(request.tokens, request.computed)

    def _emit(self, request: Request, span: Span, verdict: Verdict, now: float) -> None:
        """Record emitted tokens one by one, since any of them may end the request."""
        counts = request.counts
        counts.first_token = counts.first_token or now
        counts.steps += 1
        if not span.draft.tokens:
            counts.undrafted[request.drafting.why] += 1
        sources = [span.draft.source[node] for node in verdict.path] + ["target"]
        known = len(request.tokens) - len(verdict.tokens)
        reason = None
        for depth, token in enumerate(verdict.tokens):
            self.emitted += 1
            request.sources.append(sources[depth])
            if verdict.logprobs is not None:
                request.logprobs.append(verdict.logprobs[depth])
            reason = request.ends(token, known + depth + 1)
            if reason is not None:
                del request.tokens[known + depth + 1 :]
                break
        # Nodes accepted beyond the token that ends the request do not count.
        path = verdict.path[: len(request.tokens) - known]
        unfollowed = 0 < len(path) == len(request.tokens) - known
        if span.draft.tokens:
            counts.draft_stats.add(len(span.draft), range(len(path)), unfollowed=unfollowed)
            counts.per_step.append((len(span.draft), len(path)))
        self.stats.judge(span.draft.source, path, request.drafting.why, unfollowed=unfollowed)
        if request.params.return_rejected:
            at = known - len(request.prompt_tokens) + len(path)
            nodes = enumerate(zip(span.draft.tokens, span.draft.source, strict=True))
            request.rejected.extend(Rejected(at, *drafted) for node, drafted in nodes if node not in path)
        if reason is not None:
            self.finish(request, reason, now)
        elif verdict.error is not None:
            request.error = verdict.error
            self.finish(request, "abort", now)

    def recover(self, now: float, *, processing: bool = True) -> None:
        """Recover from an exception that came from outside in the middle of anything.

        All blocks are returned to the pool, all plans are dropped, and every unfinished request goes back to the
        waiting queue with its tokens. Only those end whose tokens were being committed or, if the step was
        `processing`, that have a processor.
        """
        running, half = set(self._running), self._half
        every = list(dict.fromkeys([*self._running, *self._waiting, *self._under_way.values()]))
        self._under_way, self._drafts, self._preempted, self._half, self._left = {}, deque(), set(), None, 0
        for request in every:
            request.table.drop()
            request.computed = 0
            request.counts.preemptions += request.counts.admitted > 0
            broken = request is half or (processing and request in running and request.processor is not None)
            if broken and request.finish_reason is None:
                request.interrupt(now)
                self.stats.finished["abort"] += 1
        self.pool.reset()
        for states in (self.states, self.draft_states):
            if states is not None:
                states.reset()
        self._running = []
        self._waiting = sorted((r for r in every if r.finish_reason is None), key=lambda r: r.priority)
        for request_id in self.processors.keys() - {request.request_id for request in self._waiting}:
            del self.processors[request_id]
        self.drafting.restart(self._waiting)

    def check(self) -> None:
        """Recount every block; all tables must belong to running requests.

        Raises:
            AssertionError: the pool and the tables disagree.
        """
        ended = (r for r in self._under_way.values() if r.finish_reason is not None)
        tables = [r.table for r in itertools.chain(self.requests, ended)]
        self.pool.check(table.blocks for table in tables)
        if self.states is not None:
            self.states.check(table.states for table in tables if table.states is not None)
        if self.draft_states is not None:
            self.draft_states.check(table.draft_states for table in tables if table.draft_states is not None)
        for request in self._waiting:
            assert not request.table.blocks, f"waiting request {request.request_id} holds blocks"
