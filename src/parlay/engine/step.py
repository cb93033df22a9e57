"""One step of the engine, both halves on one screen.

Rank 0 drives: it alone plans and commits. Every rank executes the same plan.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

from torch import Tensor

from parlay.engine.launched_drafts import LaunchedDrafts
from parlay.engine.request import Request
from parlay.engine.scheduler import Scheduler
from parlay.kernels.base import Kernels, StateMetadata
from parlay.kernels.uploads import sent
from parlay.log import logger
from parlay.proposers.base import DeviceProposer
from parlay.runner.batch import Batch, Segment, flatten, state_arrays
from parlay.runner.graphs import MOST_ROWS
from parlay.runner.runner import ModelRunner
from parlay.sampling.bound_processor import NO_PROCESSORS, Processors
from parlay.sampling.distribution import Distribution, separate
from parlay.sampling.sampler import SamplingMetadata, token_logprobs
from parlay.types.plan import (
    NO_PROPOSAL,
    NO_TIMES,
    Plan,
    Proposal,
    Span,
    SpanError,
    StepOutput,
    StepTimes,
    TokenLogprobs,
    Verdict,
)
from parlay.verification.coupled import sampling_metadata
from parlay.verification.overflow import refuse_overflow
from parlay.verification.verifier import COUPLED_VERIFIER, Verifier

# Drafting steps in a row that may fail with no request to blame, until their requests lose the proposer; and those in
# all that may fail before a verdict is known, until drafts wait for it.
_PATIENT = 3
_SCORED_AT_ONCE = 64  # rows of a prompt: logits of a whole prompt might not fit into memory


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A plan that was started: its rows, and the seconds that it took to start.

    Attributes:
        plan: the plan.
        offsets: first row of each segment of its batch, and the number of rows at the end.
        states: states that rows of recurrent layers continue from; None without such layers.
        seconds: time that it took to start.
        drafts: drafts that follow from its verdict where the host does not know it yet; None for those made later.
    """

    plan: Plan
    offsets: tuple[int, ...]
    states: StateMetadata | None
    seconds: float
    drafts: LaunchedDrafts | None


class Worker:
    """One rank: the target's runner and, if it drafts on the device, the proposer."""

    def __init__(
        self,
        kernels: Kernels,
        runner: ModelRunner,
        proposer: DeviceProposer | None,
        verify: Verifier = COUPLED_VERIFIER,
        processors: Processors = NO_PROCESSORS,
        *,
        processed_logprobs: bool = False,
    ) -> None:
        """Prepare the rank.

        Args:
            kernels: the operations to run with.
            runner: the target's runner.
            proposer: proposer that drafts at the end of a step; None without one.
            verify: function that decides which draft tokens are accepted.
            processors: logits processors by request id; the scheduler adds and removes them.
            processed_logprobs: report log-probabilities after processing instead of before.
        """
        self._processors = processors
        self._under_way = deque[_UnderWay]()
        self._distributions: dict[int, tuple[Distribution, ...]] = {}  # what pending draft tokens were drawn from
        self._processed_logprobs = processed_logprobs
        self._kernels, self._verify = kernels, verify
        self._runner, self._recordings = runner, runner.recordings
        self._proposer = proposer
        self._stale = False  # whether passes may be under way whose plans were dropped
        self._processing = False  # whether requests' processors are at work, or were when a step ended half-way
        self._failed_launches = 0  # steps whose drafts could not be made before the verdict was known
        self._failed = 0  # steps in a row in which drafting failed with no request to blame
        self._idle_steps = NO_TIMES.idle_steps  # steps since the proposer ran
        if proposer is not None:
            runner.tap(proposer.taps)

    @property
    def oldest(self) -> Plan | None:
        """The plan that was started first of those that are not finished."""
        return self._under_way[0].plan if self._under_way else None

    @property
    def has_room(self) -> bool:
        """Whether another plan may be started: each stage of the target's has one."""
        return len(self._under_way) < self._runner.pipeline.stages

    def drop(self, plan: Plan) -> None:
        """Forget a plan, if it was started."""
        self._under_way = deque(one for one in self._under_way if one.plan is not plan)

    def reset(self) -> bool:
        """Forget all plans and requests, after an exception that came from outside in the middle of anything.

        Returns:
            Whether requests' processors may be out of step with their tokens.
        """
        self._stale = True
        self._under_way.clear()
        self._distributions.clear()
        if self._proposer is not None:
            self._proposer.forget(None)
        return self._processing

    def execute(self, plan: Plan) -> StepOutput:
        """Start a plan and finish it; no other may be under way."""
        self.start(plan)
        return self.finish()

    def start(self, plan: Plan) -> None:
        """Run the plan's rows through the target, as far as this rank has its layers."""
        began = perf_counter()
        if self._stale:
            self._runner.discard()
            self._stale = False
        spans = plan.spans
        segments = [Segment(s.tokens, s.start, s.blocks, s.draft, states=s.states) for s in spans]
        segments += [
            Segment(s.catch_up.rerun, s.catch_up.rerun_start, s.blocks, stored=False)
            for s in spans
            if s.catch_up.rerun
        ]
        batch = flatten(segments, self._runner.block_size, recurrent=self._runner.recurrent)
        draws = sampling_metadata(spans, whole=True) if self._draws_in_pass(spans, batch) else None
        drafts = self._start(batch, plan, draws)
        self._under_way.append(_UnderWay(plan, batch.offsets, batch.states, perf_counter() - began, drafts))

    def _start(self, batch: Batch, plan: Plan, draws: SamplingMetadata | None) -> LaunchedDrafts | None:
        """Start a pass and, where they need not wait for the host, the drafts behind it.

        After an error drafts are made when the host has the verdict, where an error has somebody to blame.
        """
        drafts, proposer = None, self._proposer
        waits = draws is None or any(span.scored for span in plan.spans)
        if waits or proposer is None or self._failed_launches == _PATIENT:
            self._runner.start(batch, draws)
            return None
        try:
            drafts = LaunchedDrafts.place(proposer, plan, batch, self._runner.block_size)
        except Exception as error:
            self._note(error)
        self._runner.start(batch, draws, () if drafts is None else drafts.arrays)
        if drafts is None or not drafts.launch(self._runner):
            return None
        if drafts.error is not None:
            self._note(drafts.error)
        return drafts

    def _note(self, error: Exception) -> None:
        self._failed_launches += 1
        logger.warning("drafts are made after the verdict is known, which takes longer", exc_info=error)

    def finish(self) -> StepOutput:
        """Verify the drafts of the plan that was started first, keep accepted nodes, draft for the next one."""
        step, began = self._under_way.popleft(), perf_counter()
        plan, spans, offsets = step.plan, step.plan.spans, step.offsets
        if self._proposer is not None:
            for request_id in plan.forgotten:
                self._distributions.pop(request_id, None)
            self._proposer.forget(plan.forgotten)
        hidden, drafts = self._runner.finish(), step.drafts
        rows = [
            row
            for span, end in zip(spans, offsets[1 : len(spans) + 1], strict=True)
            if span.sample
            for row in range(end - len(span.draft) - 1, end)
        ]
        tokens = drafts.fetch() if drafts is not None else None
        decided = self._runner.drawn(rows, tokens) if rows else None
        if decided is not None:
            logits, drawn = decided
        else:
            logits, drawn = self._runner.logits(hidden, rows) if rows else hidden[:0].float(), None
        forwarded = perf_counter()
        self._processing = True
        kernels, logits = (self._kernels, logits) if drawn else self._drawing(spans, logits)
        verdicts = self._verify(
            kernels,
            spans,
            logits,
            self._processors,
            self._distributions,
            processed_logprobs=self._processed_logprobs,
            drawn=drawn,
        )
        verdicts = refuse_overflow(spans, logits, verdicts)
        for i, span in enumerate(spans):
            if span.scored:
                scores = tuple(self._score_prompt(span, offsets[i], hidden))
                verdicts[i] = replace(verdicts[i], prompt_logprobs=scores)
        if drafts is None or not drafts.moved:
            self._runner.move_accepted(spans, verdicts)
        verified = perf_counter()
        proposals = [NO_PROPOSAL] * len(spans)
        idle_steps = self._idle_steps
        if self._proposer is not None:
            proposals = self._propose(self._proposer, step, verdicts, hidden)
        self._processing = False
        launched = drafts.seconds if drafts is not None else 0.0
        forward = step.seconds + forwarded - began - launched
        recordings, self._recordings = self._recordings, self._runner.recordings
        times = StepTimes(
            forward,
            verified - forwarded,
            perf_counter() - verified + launched,
            recordings == self._recordings,
            idle_steps,
        )
        return StepOutput(plan.plan_id, tuple(verdicts), tuple(proposals), times)

    def _drawing(self, spans: Sequence[Span], logits: Tensor) -> tuple[Kernels, Tensor]:
        """Return the kernels that draw a step's tokens, with the logits in their memory.

        A GPU draws what kernels decide alone. Where processors, log-probabilities or a distribution's arithmetic take
        part, rows come to the host, whose kernels draw the same tokens.
        """
        own, host = self._kernels, self._kernels.host
        return (own, logits) if host is own or self._alone_decide(spans) else (host, logits.cpu())

    def _draws_in_pass(self, spans: Sequence[Span], batch: Batch) -> bool:
        """Whether a step's tokens may be drawn in its pass."""
        rows = len(batch.tokens)
        if not self._runner.draws(rows):
            return False
        known, nodes = sum(len(span.tokens) for span in spans), sum(len(span.draft) for span in spans)
        chosen = nodes + sum(span.sample for span in spans)
        # All rows get logits then: of many, most should need them.
        worth = rows <= MOST_ROWS or 2 * chosen >= rows
        return worth and rows == known + nodes and self._alone_decide(spans)

    def _alone_decide(self, spans: Sequence[Span]) -> bool:
        """Whether kernels alone decide a step's tokens."""
        return self._verify.rule is None and not any(self._read(span) for span in spans)

    def _read(self, span: Span) -> bool:
        """Whether something but kernels reads a span's logits."""
        return span.sample and (span.params.scored is not None or span.request_id in self._processors)

    def _propose(
        self, proposer: DeviceProposer, step: _UnderWay, verdicts: Sequence[Verdict], hidden: Tensor
    ) -> list[Proposal]:
        """Draft for the next step. A request that causes an error loses its proposer, and no request loses a token.

        An error that names no request costs only this step's drafts, unless the next steps fail too.
        """
        spans = step.plan.spans
        drafts = [bool(s.catch_up.budget or s.catch_up.follow) for s in spans]
        self._idle_steps = 0 if any(drafts) else self._idle_steps + 1
        try:
            with self._kernels.device_context():
                if step.drafts is not None and step.drafts.error is None:
                    proposals = step.drafts.proposals(spans, verdicts)
                else:
                    if step.states is not None and proposer.keeps_states and not step.plan.proposer_idle:
                        states = StateMetadata(*sent(self._kernels, state_arrays(step.states)))
                        proposer.save_states(states, hidden, self._runner.tapped)
                    if not any(drafts):
                        return [NO_PROPOSAL] * len(spans)
                    proposals = proposer.propose(spans, verdicts, hidden, self._runner.tapped)
            proposals = [
                self._keep_distributions(span, proposal) for span, proposal in zip(spans, proposals, strict=True)
            ]
        except Exception as error:
            cause = (error.__cause__ if isinstance(error, SpanError) else None) or error
            drafting = [span.request_id for span, own in zip(spans, drafts, strict=True) if own]
            self._failed += not isinstance(error, SpanError)
            lasting = isinstance(error, SpanError) or self._failed >= _PATIENT
            blamed = [error.request_id] if isinstance(error, SpanError) else drafting if lasting else drafting[:1]
            # Everything written beyond what the layers held before will be written again.
            return [
                Proposal(
                    state=replace(span.catch_up.state, speculated=0),
                    error=cause if span.request_id in blamed and isinstance(cause, Exception) else None,
                    lasting=lasting,
                )
                if own
                else NO_PROPOSAL
                for span, own in zip(spans, drafts, strict=True)
            ]
        if any(drafts):
            self._failed = 0
        return proposals

    def _keep_distributions(self, span: Span, proposal: Proposal) -> Proposal:
        """Return a proposal that is plain data."""
        if proposal is NO_PROPOSAL:
            return proposal
        if proposal.draft.q is None:
            self._distributions.pop(span.request_id, None)
            return proposal
        draft, self._distributions[span.request_id] = separate(proposal.draft)
        return replace(proposal, draft=draft)

    def _score_prompt(self, span: Span, first_row: int, hidden: Tensor) -> Iterator[TokenLogprobs]:
        """Yield the log-probabilities of a prompt's tokens; a few rows of logits at a time."""
        assert span.params.prompt_logprobs is not None
        for first in range(0, len(span.scored), _SCORED_AT_ONCE):
            tokens = span.scored[first : first + _SCORED_AT_ONCE]
            logits = self._runner.logits(hidden, [first_row + first + i for i in range(len(tokens))]).cpu()
            for row, token in zip(logits, tokens, strict=True):
                yield token_logprobs(self._kernels.host, row, token, span.params.prompt_logprobs)


def run_step(scheduler: Scheduler, worker: Worker) -> tuple[list[Request], StepTimes | None]:
    """Plan as many steps as there is room for, have them executed, commit the one that was planned first.

    Returns:
        The requests that emitted tokens or finished, and where the time went; None if there was nothing to run.
    """
    now = perf_counter()
    expired = scheduler.expire(now)
    while worker.has_room and (plan := scheduler.plan(now)).spans:
        with _taken_back_if_it_fails(plan, scheduler, worker):
            worker.start(plan)
    oldest = worker.oldest
    if oldest is None:
        return expired, None
    with _taken_back_if_it_fails(oldest, scheduler, worker):
        output = worker.finish()
        progressed = scheduler.commit(oldest, output, perf_counter(), lambda: perf_counter() - now)
    return expired + progressed, output.times


@contextmanager
def _taken_back_if_it_fails(plan: Plan, scheduler: Scheduler, worker: Worker) -> Iterator[None]:
    try:
        yield
    except BaseException:
        worker.drop(plan)
        scheduler.take_back(plan)
        raise
