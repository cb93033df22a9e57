"""What a draft model with a vocabulary of its own has computed of each request.

Its tokens are not the target's, and may be more or fewer. So they lie in blocks of their own, and every request's
text is kept in its tokens, with how many of these its layers hold. Where a text goes on otherwise than it was
drafted, or where further text changes how its end is spelled, what is held up to there stays valid.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from parlay.kv.pool import BlockPool
from parlay.kv.table import BlockTable
from parlay.proposers.draft_head import Start
from parlay.proposers.methods.draft_model.progress import Gap, ran
from parlay.proposers.methods.draft_model.translation import TranslatedText, Translator
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, ProposerState, Span, Verdict


@dataclass(slots=True)
class KnownText:
    """One request's text, and what the layers hold of it.

    Attributes:
        text: the text in the draft model's tokens.
        table: table of its blocks.
        shares: whether other requests may find its blocks in the prefix cache.
        computed: number of the text's tokens, and of those `ahead`, that have their keys and values there.
        ahead: nodes behind the text that were run.
        step: number of the step in which it was read last.
    """

    text: TranslatedText
    table: BlockTable
    shares: bool = False
    computed: int = 0
    ahead: list[int] = field(default_factory=list)
    step: int = 0


@dataclass(frozen=True, slots=True)
class OtherGap(Gap):
    """A gap of a text that is kept in the draft model's tokens."""

    tokens: Sequence[int]
    begin: int
    blocks: Sequence[int]
    known: KnownText
    translator: Translator

    def state(self, count: int) -> ProposerState:
        """Return how many of the target's tokens that is, about; never all as long as there is a gap."""
        text = self.known.text
        if count == len(self.tokens):
            return ProposerState(text.count)
        return ProposerState(max(min(text.count * (self.begin + count) // len(text.own), text.count - 1), 0))

    def close(self, count: int) -> None:  # noqa: D102
        known, text = self.known, self.known.text
        known.computed = self.begin + count
        if known.shares:
            known.table.publish(text.own, min(known.computed, text.settled))

    def proposal(self, start: Start, draft: Draft) -> Proposal:  # noqa: D102
        known = self.known
        known.ahead = self.translator.own_of(draft.tokens[: ran(start, draft)])
        known.computed = len(known.text.own) + len(known.ahead)
        made = self.translator.write(known.text, draft, start.nodes)
        return Proposal(made, ProposerState(known.text.count))


class OtherVocabulary:
    """The texts of all requests, and the blocks that they share."""

    def __init__(self, translator: Translator, pool: BlockPool, longest: int) -> None:
        """Start without requests.

        Args:
            translator: translator between the two vocabularies.
            pool: blocks of the draft model's layers.
            longest: most tokens of a text in the draft model's own.
        """
        self._translator, self._pool, self._longest = translator, pool, longest
        self._known: OrderedDict[int, KnownText] = OrderedDict()  # the one that was read last comes last
        self._step = 0

    def forget(self, requests: Sequence[int] | None) -> None:
        """Give back the blocks of requests, of all if None."""
        for request in list(self._known) if requests is None else requests:
            known = self._known.pop(request, None)
            if known is not None:
                known.table.release()

    def begin_step(self) -> None:
        """Start a step, in which requests that draft keep their blocks."""
        self._step += 1

    def gap(self, span: Span, verdict: Verdict, length: int) -> Gap:
        """Return what the layers lack of a request before they can draft `length` tokens, with room for all that.

        Where there is no room nothing is to be run.
        """
        computed, further = span.catch_up.state.computed, span.catch_up.unseen + verdict.tokens
        known = self._known.get(span.request_id)
        if known is None or not computed <= known.text.count <= computed + len(further):
            self.forget([span.request_id])
            tenant = span.catch_up.tenant
            known = KnownText(self._translator.begin(), BlockTable(self._pool, tenant or ""), tenant is not None)
            self._known[span.request_id] = known
            if computed:  # its text was given up for lack of room: it is to be given from the beginning
                return OtherGap((), 0, (), known, self._translator)
        self._known.move_to_end(span.request_id)
        known.step, text = self._step, known.text
        new = not text.count
        self._read(known, further[text.count - computed :])
        if new and known.shares:
            known.computed = known.table.adopt_prefix(text.own[: text.settled])
        begin = min(known.computed, max(len(text.own) - 1, 0))  # the last one's state is needed anew
        known.computed, known.ahead = begin, []
        end = len(text.own) + max(length, 0)
        if end > self._longest or not self._grow(known.table, end):
            return OtherGap((), begin, known.table.blocks, known, self._translator)
        return OtherGap(text.own[begin:], begin, known.table.blocks, known, self._translator)

    def _read(self, known: KnownText, further: Sequence[int]) -> None:
        """Read further tokens of the target's, and find what stays valid."""
        text, settled = known.text, known.text.settled
        before = text.own[settled:] + known.ahead
        self._translator.read(text, further)
        settled = min(settled, text.settled)
        same = next(
            (i for i, (a, b) in enumerate(zip(before, text.own[settled:], strict=False)) if a != b),
            min(len(before), len(text.own) - settled),
        )
        known.computed = min(known.computed, settled + same)

    def _grow(self, table: BlockTable, tokens: int) -> bool:
        """Take blocks for so many tokens, if need be from the requests that have been idle for longest."""
        while not table.grow(tokens):
            oldest = next(iter(self._known.items()), None)
            if oldest is None or oldest[1].step == self._step:
                return False
            self.forget([oldest[0]])
        return True
