"""Proposers as drafting sees them, and those on the host, which need nothing but tokens."""

from collections import Counter
from dataclasses import dataclass

from parlay.drafting.prediction import SOURCE as PREDICTION
from parlay.drafting.state import DraftedRequest
from parlay.errors import brief
from parlay.log import logger
from parlay.proposers.base import HostProposer, Proposer
from parlay.types.draft import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class LoadedProposer:
    """A proposer that is loaded.

    Attributes:
        name: name by which a request may ask for it.
        proposer: the proposer itself.
        length: most nodes on one path of its drafts; for a host proposer, of drafts without branches.
        width: width of a device proposer's drafts, see `CatchUp`; 1 for chains alone.
        nodes: most nodes of a draft with branches; a chain has no more than `length`.
        shaped: whether drafts are to branch regardless of the gain.
    """

    name: str
    proposer: Proposer
    length: int
    width: int = 1
    nodes: int = 0
    shaped: bool = False

    @property
    def most(self) -> int:
        """Most nodes of any of its drafts."""
        return max(self.length, self.nodes)


class Faults:
    """How often each proposer has failed a request.

    Attributes:
        counts: number of failures by method.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, method: str, request_id: int, error: BaseException, *, lasting: bool = True) -> None:
        """Count and log a failure; `lasting` if the request has no more drafts of the proposer."""
        self.counts[method] += 1
        what = f"{type(error).__name__}: {brief(str(error))}"
        logger.error(
            "the proposer %s failed on request %d, which continues without %s (%s)",
            *(method, request_id, "it" if lasting else "this step's draft", what),
            exc_info=error,
        )


@dataclass(slots=True, eq=False)
class _Shown:
    """What a host proposer has seen of one request; `tenant` may use what it learns, None for no tenant."""

    tenant: str | None
    tokens: int = 0
    failed: bool = False


class HostDrafts:
    """One host proposer and the requests that it drafts for.

    It is given a request's tokens when it drafts, and at the end if they may help other requests: no time is spent
    on tokens that are not needed. One that raises, or returns an invalid draft, is not asked again for that request.

    Attributes:
        name: name of the method.
        length: most nodes of its chains.
    """

    def __init__(self, method: LoadedProposer, vocab_size: int | None, faults: Faults) -> None:
        """Start without requests.

        Args:
            method: method with a host proposer.
            vocab_size: bound of draft tokens' ids, which are checked; None skips the check.
            faults: counter and log of failures.
        """
        assert isinstance(method.proposer, HostProposer)
        self.name, self.length, self._most = method.name, method.length, method.most
        self._proposer: HostProposer = method.proposer
        self._vocab_size, self._faults = vocab_size, faults
        self._shown: dict[int, _Shown] = {}

    def admit(self, request: DraftedRequest, tenant: str | None) -> None:
        """Register a request that runs for the first time; tenant None if nothing of it is to be remembered."""
        self._shown[request.request_id] = _Shown(tenant)

    def forget(self, request: DraftedRequest) -> None:
        """Drop a request, after giving the proposer tokens that may help others; unknown requests are ignored."""
        shown = self._shown.get(request.request_id)
        if shown is None:
            return
        if self._proposer.learns and shown.tenant is not None:
            self._show(request, shown)
        self._drop(request.request_id)

    def reset(self) -> None:
        """Drop all requests, and whatever the proposer has learnt."""
        self._shown.clear()
        self._proposer.reset()

    def ask(self, request: DraftedRequest, budget: int, *, branch: bool) -> Draft:
        """Return its draft of at most `budget` nodes to follow a request's tokens; if `branch`, a tree."""
        shown = self._shown.get(request.request_id)
        if shown is None or shown.failed:
            return NO_DRAFT
        self._show(request, shown)
        if shown.failed:
            return NO_DRAFT
        try:
            if branch:
                draft = self._proposer.branch(request.request_id, min(budget, self._most)).cut(budget)
            else:
                draft = self._proposer.propose(request.request_id, min(budget, self.length)).cut(budget)
            if draft.tokens:
                check_draft(draft, self._vocab_size)
        except Exception as error:
            self._fail(request.request_id, error)
            return NO_DRAFT
        return draft

    def _show(self, request: DraftedRequest, shown: _Shown) -> None:
        """Give it the tokens that it has not seen."""
        first, tokens, own = shown.tokens, request.tokens, request.request_id
        if first == len(tokens) or shown.failed:
            return
        shown.tokens = len(tokens)
        try:
            if not first:
                first = len(request.prompt_tokens)
                self._proposer.admit(own, tokens[:first], shown.tenant)
            if first < len(tokens):
                self._proposer.observe(own, tokens[first:])
        except Exception as error:
            self._fail(own, error)

    def _fail(self, request_id: int, error: Exception) -> None:
        self._faults.add(self.name, request_id, error)
        shown = self._shown.get(request_id)
        if shown is not None:
            shown.failed = True
            self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        shown = self._shown.pop(request_id, None)
        if shown is not None and shown.tokens:
            try:
                self._proposer.forget(request_id)
            except Exception as error:
                self._faults.add(self.name, request_id, error)


class Predictions:
    """The predictions of all requests, as a proposer on the host."""

    name = PREDICTION

    def ask(self, request: DraftedRequest, budget: int, *, branch: bool) -> Draft:
        """Return the next tokens of a request's prediction, at most `budget`; it has no branches."""
        follower = request.drafting.prediction
        if follower is None:
            return NO_DRAFT
        follower.observe(request.output_tokens)
        return follower.propose(budget)

    def forget(self, request: DraftedRequest) -> None:
        """Drop what a request had predicted."""
        request.drafting.prediction = None


def check_draft(draft: Draft, vocab_size: int | None) -> None:
    """Check that a draft is a tree of tokens.

    Raises:
        ValueError: it is not.
    """
    tokens, nodes = draft.tokens, len(draft.tokens)
    if set(map(type, tokens)) != {int} or min(tokens) < 0:
        raise ValueError("its draft has an invalid token id")
    if vocab_size is not None and max(tokens) >= vocab_size:
        raise ValueError(f"its draft has token {max(tokens)}, beyond the vocabulary of {vocab_size}")
    if {len(draft.parents), len(draft.source), nodes if draft.probs is None else len(draft.probs)} != {nodes}:
        raise ValueError("its draft's tokens, parents, sources and probabilities differ in number")
    kinds = set(map(type, draft.parents)) - {int} | set(map(type, draft.source)) - {str}
    if kinds or not all(issubclass(kind, int | float) for kind in set(map(type, draft.probs or ()))):
        raise ValueError("its draft has invalid parents, sources or probabilities")
    if not (draft.is_chain or all(-1 <= parent < node for node, parent in enumerate(draft.parents))):
        raise ValueError("its draft is not a tree: a node does not come after its parent")
