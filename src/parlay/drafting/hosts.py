"""Asking the host proposers, which need nothing but tokens: which, how often, and what happens when one fails.

A proposer whose drafts are not used is asked less and less often, and sooner again when a node that was left out
would have been accepted. One that raises, or returns an invalid draft, is not asked again for that request.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parlay.errors import brief
from parlay.log import logger
from parlay.proposers.base import HostProposer, Proposer
from parlay.types.draft import NO_DRAFT, Draft

_MOST_REFUSED = 4  # unused drafts in a row that count: after them a proposer is asked in every 16th step
_SILENT, _PAUSE = 16, 1  # after so many empty drafts it is asked in every second step
NEVER = 1 << 62  # the step in which a failed one is asked again


@dataclass(frozen=True, slots=True)
class Method:
    """A proposer that is loaded.

    Attributes:
        name: by which a request may ask for it.
        proposer: itself.
        length: most nodes of its drafts on one path; of a host proposer's without branches.
        width: of a device proposer's drafts, see `CatchUp`; 1 for chains alone.
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
        counts: by method.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, method: str, request_id: int, error: BaseException, *, lasting: bool = True) -> None:
        """Count and log a failure; `lasting` if the request has no more drafts of the proposer."""
        self.counts[method] += 1
        what = f"{type(error).__name__}: {brief(str(error))}"
        logger.error(
            "the proposer %s failed on request %d, which goes on without %s (%s)",
            *(method, request_id, "it" if lasting else "this step's draft", what),
            exc_info=error,
        )


@dataclass(slots=True, eq=False)
class Turn:
    """The state of one request with one host proposer.

    Attributes:
        prompt: how many tokens the request's prompt has.
        tenant: whose requests may use what it learns; None for nobody.
        refused: how many of its drafts in a row were not used.
        silent: how many empty drafts it returned in a row.
        wake: the first step in which it is asked again; `NEVER` once it has failed the request.
        shown: how many of the request's tokens it has been given.
    """

    prompt: int
    tenant: str | None
    refused: int = 0
    silent: int = 0
    wake: int = 0
    shown: int = 0

    @property
    def lost(self) -> bool:
        """Whether it has failed the request."""
        return self.wake == NEVER

    def used(self) -> None:
        """Record that its draft is verified."""
        self.refused = 0

    def unused(self, step: int) -> None:
        """Record that its draft is not worth verifying."""
        self.refused = min(self.refused + 1, _MOST_REFUSED)
        self.wake = step + (1 << self.refused)

    def missed(self, step: int) -> None:
        """Record that a node that was left out would have been accepted: it is asked sooner."""
        self.refused = max(self.refused - 2, 0)
        self.wake = min(self.wake, step + (1 << self.refused))


class Host:
    """One host proposer and the requests that it drafts for.

    It is given a request's tokens when it is asked, and at the end if they may help other requests: nothing is paid
    for tokens that are not needed.

    Attributes:
        name: of the method.
        length: most nodes of its chains.
    """

    def __init__(
        self,
        method: Method,
        vocab_size: int | None,
        failed: Callable[[str, int, Exception], None],
    ) -> None:
        """Begin without requests.

        Args:
            method: with a host proposer.
            vocab_size: draft tokens have ids below this; None skips the check.
            failed: called with each failure.
        """
        assert isinstance(method.proposer, HostProposer)
        self.name, self.length, self._most = method.name, method.length, method.most
        self._proposer: HostProposer = method.proposer
        self._vocab_size = vocab_size
        self._failed = failed
        self._turns: dict[int, Turn] = {}

    def admit(self, request_id: int, prompt: int, tenant: str | None) -> Turn:
        """Register a request with a prompt of so many tokens; tenant None if nothing is to be remembered."""
        turn = self._turns[request_id] = Turn(prompt, tenant)
        return turn

    def forget(self, request_id: int, tokens: Sequence[int]) -> None:
        """Drop a request, after giving it tokens that may help others; unknown requests are ignored."""
        turn = self._turns.get(request_id)
        if turn is None:
            return
        if self._proposer.learns and turn.tenant is not None:
            self._show(request_id, turn, tokens)
        if self._turns.pop(request_id, None) is not None and turn.shown:
            try:
                self._proposer.forget(request_id)
            except Exception as error:
                self._failed(self.name, request_id, error)

    def reset(self) -> None:
        """Drop all requests, and whatever the proposer has learnt."""
        self._turns.clear()
        self._proposer.reset()

    def ask(self, request_id: int, turn: Turn, tokens: Sequence[int], budget: int, step: int, branch: bool) -> Draft:
        """Return its draft of at most `budget` nodes to follow `tokens`; if `branch`, a tree; none in a pause."""
        if turn.wake > step:
            return NO_DRAFT
        self._show(request_id, turn, tokens)
        if turn.lost:
            return NO_DRAFT
        try:
            if branch:
                draft = self._proposer.branch(request_id, min(budget, self._most)).cut(budget)
            else:
                draft = self._proposer.propose(request_id, min(budget, self.length)).cut(budget)
            if draft.tokens:
                check_draft(draft, self._vocab_size)
                turn.silent = 0
                return draft
        except Exception as error:
            self._fail(request_id, error)
            return NO_DRAFT
        turn.silent += 1
        turn.wake = step + 1 + (_PAUSE if turn.silent > _SILENT else 0)
        return draft

    def _show(self, request_id: int, turn: Turn, tokens: Sequence[int]) -> None:
        """Give it the tokens that it has not seen."""
        first = turn.shown
        if first == len(tokens) or turn.lost:
            return
        turn.shown = len(tokens)
        try:
            if not first:
                first = turn.prompt
                self._proposer.admit(request_id, tokens[:first], turn.tenant)
            if first < len(tokens):
                self._proposer.observe(request_id, tokens[first:])
        except Exception as error:
            self._fail(request_id, error)

    def _fail(self, request_id: int, error: Exception) -> None:
        self._failed(self.name, request_id, error)
        turn = self._turns.get(request_id)
        if turn is not None:
            turn.wake = NEVER
            self.forget(request_id, ())


def check_draft(draft: Draft, vocab_size: int | None) -> None:
    """Check that a draft is a tree of tokens.

    Raises:
        ValueError: it is not.
    """
    tokens, nodes = draft.tokens, len(draft.tokens)
    if set(map(type, tokens)) != {int} or min(tokens) < 0:
        raise ValueError("its draft holds something that is no token id")
    if vocab_size is not None and max(tokens) >= vocab_size:
        raise ValueError(f"its draft holds token {max(tokens)}, beyond the vocabulary of {vocab_size}")
    if {len(draft.parents), len(draft.source), nodes if draft.probs is None else len(draft.probs)} != {nodes}:
        raise ValueError("its draft has more of one kind than of another: tokens, parents, sources, probabilities")
    kinds = set(map(type, draft.parents)) - {int} | set(map(type, draft.source)) - {str}
    if kinds or not all(issubclass(kind, int | float) for kind in set(map(type, draft.probs or ()))):
        raise ValueError("its draft holds parents, sources or probabilities that are none")
    if not (draft.is_chain or all(-1 <= parent < node for node, parent in enumerate(draft.parents))):
        raise ValueError("its draft is no tree: a node does not come after its parent")
