"""Asking the proposers that guess from tokens alone: whom, how often, and what happens when one breaks.

A proposer whose guesses are not used is asked less and less often, and sooner again when a guess that was left out
would have been right. One that raises, or returns what is no draft, loses the request that it did so for: the draft
is only a guess, so the request goes on without it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from parlay.errors import brief
from parlay.log import logger
from parlay.proposers.base import HostProposer, Proposer
from parlay.types.draft import NO_DRAFT, Draft

_MOST_REFUSED = 4  # drafts in a row that count: after them a proposer is asked in every 16th step


@dataclass(frozen=True, slots=True)
class Method:
    """A proposer that is loaded.

    Attributes:
        name: by which a request may ask for it.
        proposer: itself.
        length: most nodes of its drafts.
    """

    name: str
    proposer: Proposer
    length: int


class Faults:
    """How often each proposer has failed a request.

    Attributes:
        counts: by method.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, method: str, request_id: int, error: BaseException) -> None:
        """Take note of a failure, and say so."""
        self.counts[method] += 1
        what = f"{type(error).__name__}: {brief(str(error))}"
        logger.error(
            "the proposer %s failed on request %d, which goes on without it (%s)",
            *(method, request_id, what),
            exc_info=error,
        )


@dataclass(slots=True, eq=False)
class Turn:
    """How one request stands with a host proposer.

    Attributes:
        asked: whether it was asked in this step.
        refused: how many of its drafts in a row were not used.
        rest: for how many steps it is not asked, since that was so.
    """

    asked: bool = False
    refused: int = 0
    rest: int = 0

    def used(self) -> None:
        """Take note that its draft is verified."""
        self.refused = 0

    def unused(self) -> None:
        """Take note that its draft is not worth verifying."""
        self.refused = min(self.refused + 1, _MOST_REFUSED)
        self.rest = (1 << self.refused) - 1

    def missed(self) -> None:
        """Take note that what was left out would have been right: it is asked sooner."""
        self.refused = max(self.refused - 2, 0)
        self.rest = min(self.rest, (1 << self.refused) - 1)


class Host:
    """One host proposer and the requests that it guesses for.

    Attributes:
        name: of the method.
        length: most nodes of its drafts.
        seconds: that it took to guess since start.
    """

    def __init__(self, method: Method, vocab_size: int | None, failed: Callable[[str, int, Exception], None]) -> None:
        """Begin without requests.

        Args:
            method: with a host proposer.
            vocab_size: ids of guesses are below; None to take them as they are.
            failed: is told of what goes wrong.
        """
        assert isinstance(method.proposer, HostProposer)
        self.name, self.length, self.seconds = method.name, method.length, 0.0
        self._proposer: HostProposer = method.proposer
        self._vocab_size = vocab_size
        self._failed = failed
        self._turns: dict[int, Turn] = {}

    def admit(self, request_id: int, prompt: Sequence[int], tenant: str | None) -> None:
        """Show it a request that runs for the first time; tenant None if nothing is to be remembered."""
        self._turns[request_id] = Turn()
        try:
            self._proposer.admit(request_id, prompt, tenant)
        except Exception as error:
            self._fail(request_id, error)

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Tell it what a request has emitted."""
        if request_id in self._turns:
            try:
                self._proposer.observe(request_id, tokens)
            except Exception as error:
                self._fail(request_id, error)

    def forget(self, request_id: int) -> None:
        """Drop a request; unknown ones are ignored."""
        if self._turns.pop(request_id, None) is not None:
            try:
                self._proposer.forget(request_id)
            except Exception as error:
                self._failed(self.name, request_id, error)

    def turn(self, request_id: int) -> Turn | None:
        """Return how a request stands with it; None for one that it does not guess for."""
        return self._turns.get(request_id)

    def ask(self, request_id: int, budget: int) -> Draft:
        """Return its draft of at most `budget` nodes; none while it rests."""
        turn = self._turns.get(request_id)
        if turn is None:
            return NO_DRAFT
        turn.asked = not turn.rest
        if turn.rest:
            turn.rest -= 1
            return NO_DRAFT
        began = perf_counter()
        try:
            draft = self._proposer.propose(request_id, min(budget, self.length)).cut(budget)
            if draft.tokens:
                check_draft(draft, self._vocab_size)
        except Exception as error:
            self._fail(request_id, error)
            draft = NO_DRAFT
        self.seconds += perf_counter() - began
        return draft

    def _fail(self, request_id: int, error: Exception) -> None:
        self._failed(self.name, request_id, error)
        self.forget(request_id)


def check_draft(draft: Draft, vocab_size: int | None) -> None:
    """Make sure that a draft is a tree of tokens.

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
    if not all(-1 <= parent < node for node, parent in enumerate(draft.parents)):
        raise ValueError("its draft is no tree: a node does not come after its parent")
