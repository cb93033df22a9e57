"""The input and output of one step: integers, seeds and tokens, nothing that lives on a device."""

from dataclasses import dataclass

from parlay.errors import RequestError
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.params import DrawParams


class SpanError(Exception):
    """An unexpected error while one request's part of a step was processed; its cause says what."""

    def __init__(self, request_id: int) -> None:
        super().__init__(f"request {request_id}")
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class ProposerState:
    """How far a device proposer's own cache layers have come for one request.

    Attributes:
        computed: verified tokens whose keys and values the proposer's layers hold. Where these hold pairs of a token
            and the state before it, the first token has none; it counts as soon as there are others.
        speculated: tokens of the pending draft that they hold beyond those, in chain order.
        since: the first of the verified tokens that they hold; a head that could not catch up sees none before it.
    """

    computed: int = 0
    speculated: int = 0
    since: int = 0

    @property
    def next_state(self) -> int:
        """Position of the first state that the proposer has not seen."""
        return max(self.computed, 1) - 1

    @property
    def next_pair(self) -> int:
        """Slot of the first pair that its layers lack; the state it needs is the one before."""
        return max(self.computed, 1)


@dataclass(frozen=True, slots=True)
class StateUse:
    """Where a request's rows find and leave the states of recurrent layers.

    Attributes:
        source: slot of the state that they continue from; -1 for none.
        accepted: places of the nodes that were accepted since, in order; they are applied to it first.
        stores: pairs of a number of tokens, beyond those of the source, and the slot that the state then goes to.
        places: places of the draft's nodes.
    """

    source: int = -1
    accepted: tuple[int, ...] = ()
    stores: tuple[tuple[int, int], ...] = ()
    places: tuple[int, ...] = ()


NO_STATES = StateUse()


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A device proposer's input for one request: what its cache layers lack, and how far it may draft.

    Attributes:
        state: the proposer's progress before this step.
        unseen: known tokens from `state.computed` up to and including the last of the span's, for a proposer of
            pairs also the one after it where it is known; empty unless it is to `follow`.
        rerun: known tokens from `rerun_start` on, which the target has computed but runs once more, storing nothing,
            for the states that a proposer of pairs lacks. Their rows come after those of all spans.
        budget: upper bound for the length of the draft that it makes at the end of this step; 0 for none.
        width: number of nodes of each level that it continues from, and of children of each; 1 for a chain.
        nodes: most nodes of a draft with branches.
        follow: whether its cache layers, if it has any, are to keep up; otherwise its gap grows.
        states: states of its own recurrent layers. The last that it stores is that of as many tokens as it comes to,
            which may be fewer than planned.
        tenant: tenant whose requests may share what layers with blocks of their own hold; None for none.
    """

    state: ProposerState = ProposerState()
    unseen: tuple[int, ...] = ()
    rerun: tuple[int, ...] = ()
    budget: int = 0
    width: int = 1
    nodes: int = 0
    follow: bool = False
    states: StateUse = NO_STATES
    tenant: str | None = None

    @property
    def rerun_start(self) -> int:
        """Position of the first state that a proposer of pairs has not seen."""
        return self.state.next_state


@dataclass(frozen=True, slots=True)
class Span:
    """What one request contributes to a step.

    Attributes:
        request_id: the request.
        tokens: known tokens to run through the target; the last of them is the root when `sample` is set.
        start: position of the first of `tokens`, which is how many the target has computed.
        draft: nodes to verify; empty unless `sample`.
        sample: whether `tokens` reaches the last known token, so that the step emits at least one token.
        blocks: the request's block table, covering tokens, nodes and what the proposer may write.
        seed: the request's 64-bit seed.
        params: how tokens are drawn and reported.
        stop_ids: token ids that end the request.
        scored: tokens of the prompt whose log-probabilities are asked for; the i-th follows the i-th of `tokens`.
        remaining: number of tokens that the request may still emit.
        catch_up: a device proposer's input.
        states: states of the target's recurrent layers.
    """

    request_id: int
    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    seed: int
    params: DrawParams
    draft: Draft = NO_DRAFT
    sample: bool = False
    stop_ids: frozenset[int] = frozenset()
    scored: tuple[int, ...] = ()
    remaining: int = 1
    catch_up: CatchUp = CatchUp()
    states: StateUse = NO_STATES

    @property
    def end(self) -> int:
        """Position after the last of `tokens`, where the first node goes."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: which rows to run, where to keep them, what may be drafted. It is data that can be kept or sent.

    What else decides tokens (processors, the distributions that nodes were drawn from) is kept by the verifier.

    Attributes:
        plan_id: number of the plan, counting upward.
        spans: spans of the requests that take part.
        forgotten: requests whose draft distributions are to be dropped, since they have ended or cannot use them.
        proposer_idle: whether a device proposer has nothing to do in this step, nor in the next.
    """

    plan_id: int
    spans: tuple[Span, ...]
    forgotten: tuple[int, ...] = ()
    proposer_idle: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position of the output, or of the prompt.

    Attributes:
        logprob: log-probability of the token there.
        rank: rank of the token there, 1 for the most likely.
        top: (token id, log-probability) of the most likely tokens, best first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided for one span.

    Attributes:
        tokens: emitted tokens: the accepted nodes', then the target's own; empty unless the span samples.
        path: indices of the accepted nodes, root to leaf.
        logprobs: one entry per emitted token, when asked for.
        prompt_logprobs: one entry per token of the span's `scored`.
        error: reason why the request cannot continue after these tokens, of which there may be none.
    """

    tokens: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a device proposer made for one span.

    Attributes:
        draft: the next draft.
        state: how far its cache layers have come.
        error: the error that the proposer raised.
        lasting: whether the proposer is then not used again for this request.
    """

    draft: Draft = NO_DRAFT
    state: ProposerState = ProposerState()
    error: Exception | None = None
    lasting: bool = True


NO_PROPOSAL = Proposal()  # compared by identity: the proposer was not asked, and its state is unchanged


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's seconds went.

    Attributes:
        forward, verify, propose: seconds of each part.
        typical: whether the target's pass was not recorded in this step, which takes several times as long.
        idle_steps: steps since a device proposer ran, which evicts the target's weights from caches.
    """

    forward: float = 0.0
    verify: float = 0.0
    propose: float = 0.0
    typical: bool = True
    idle_steps: int = 1 << 30


NO_TIMES = StepTimes()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The executor's answer to a plan: one verdict and one proposal for each span, in the plan's order."""

    plan_id: int
    verdicts: tuple[Verdict, ...]
    proposals: tuple[Proposal, ...]
    times: StepTimes = StepTimes()
