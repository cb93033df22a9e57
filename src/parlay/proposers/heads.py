"""What proposers share that guess a chain from the target's last hidden state alone.

Such a head keeps nothing of a request. The state it starts from is one that the target has computed in the very step
at whose end the head drafts, so it is right whatever came before: chunks, a cached prefix, preemption, other
completions of the prompt, steps without a draft.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from parlay.errors import ConfigError
from parlay.models.heads import HeadConfig, read_head
from parlay.models.loader import Checkpoint
from parlay.proposers.base import DeviceProposer, Runtime, TargetInfo, draft_length
from parlay.proposers.draws import Draws
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, Span, Verdict

MOST_ROWS = 64  # requests that draft at once; more take turns


@dataclass(frozen=True, slots=True)
class Options:
    """Options of what guesses with weights of its own, with vLLM's names.

    Attributes:
        model: directory of a head or draft model, or its name on the hub; fetched as the engine's model is, with its
            `hf_token` into its `download_dir`.
        revision: branch, tag or commit of one on the hub.
        draft_tensor_parallel_size: ranks it is split over; only 1 so far.
    """

    model: str
    revision: str | None = None
    draft_tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        if self.draft_tensor_parallel_size != 1:
            raise ConfigError(
                f"draft_tensor_parallel_size={self.draft_tensor_parallel_size} is not served yet; leave it at 1"
            )


@dataclass(frozen=True, slots=True)
class Start:
    """Where one request drafts from.

    Attributes:
        index: of its span.
        row: of the target's hidden states: the one from which it chose its newest token.
        token: that token.
        position: of the first token to guess.
        length: how many tokens to draft.
    """

    index: int
    row: int
    token: int
    position: int
    length: int


def starts(spans: Sequence[Span], verdicts: Sequence[Verdict], most: int) -> list[Start]:
    """Return where those requests draft from that are to draft, at most `most` tokens each; longest first."""
    return sorted(_starts(spans, verdicts, most), key=lambda start: -start.length)


def _starts(spans: Sequence[Span], verdicts: Sequence[Verdict], most: int) -> Iterator[Start]:
    row = 0
    for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
        first_node = row + len(span.tokens)
        row = first_node + len(span.draft)
        length = min(draft_length(span, verdict), most) if span.catch_up.budget else 0
        if length > 0:
            last = first_node + verdict.path[-1] if verdict.path else first_node - 1
            yield Start(i, last, verdict.tokens[-1], span.end + len(verdict.tokens), length)


class HeadProposer(DeviceProposer):
    """A proposer whose every draft follows from one hidden state and one token.

    A subclass computes one guess of all requests at a time. Since those with the longest drafts come first, later
    guesses are made for fewer and fewer leading rows, all in the same memory; each such pass is recorded once.

    Attributes:
        source: who guessed, in drafts.
        head: the checkpoint.
    """

    source: ClassVar[str]
    head: HeadConfig

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._target = target
        self.head = read_head(options.model, replace(target.hub, revision=options.revision))
        with Checkpoint(self.head.path, head=True) as weights:
            self.default_length = self.describe(weights)

    def load(self, runtime: Runtime) -> None:
        """Read the head's weights and allocate what its passes write to."""
        self._kernels = runtime.kernels
        self._passes: dict[tuple[int, int, bool], Callable[[], object]] = {}
        most, dtype = self.default_length, self._target.dtype
        self._hidden = torch.zeros((MOST_ROWS, self._target.config.hidden_size), dtype=dtype)
        # Row 0 has the tokens that drafts begin with, row i the i-th guesses and how likely they are to the head.
        self._tokens = torch.zeros((most + 1, MOST_ROWS), dtype=torch.int64)
        self._probs = torch.zeros((most + 1, MOST_ROWS))
        self._draws = Draws(most, MOST_ROWS)
        with Checkpoint(self.head.path, head=True) as weights:
            self.read(weights, runtime)

    @abstractmethod
    def describe(self, weights: Checkpoint) -> int:
        """Compare the files' headers with config and target, and count `weight_bytes`.

        Returns:
            How many tokens the head can guess in a row.

        Raises:
            ModelError: they do not fit.
        """

    @abstractmethod
    def read(self, weights: Checkpoint, runtime: Runtime) -> None:
        """Read the weights into the form that the kernels want."""

    @abstractmethod
    def guess(self, step: int, rows: int) -> None:
        """Make guess `step`, counted from 0, of the leading `rows`, by kernels alone.

        It reads `_hidden`, `_tokens[step]` and what earlier guesses left, and calls `choose`, unless `finish` does
        what remains.
        """

    def choose(self, step: int, logits: Tensor, ids: Tensor | None = None) -> None:
        """Draw guess `step` of the leading rows from float32 `logits` `[rows, D]`, see `Draws.draw`."""
        rows, after = len(logits), step + 1
        self._draws.draw(self._kernels, step, logits, self._tokens[after, :rows], self._probs[after, :rows], ids)

    def finish(self, counts: Sequence[int]) -> None:
        """Do what remains after all guesses; of the i-th there are `counts[i]`."""

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Sequence[Tensor] = ()
    ) -> list[Proposal]:
        """Draft a chain for each request that is to draft."""
        proposals = [Proposal(state=span.catch_up.state) for span in spans]
        every = starts(spans, verdicts, self.default_length)
        for first in range(0, len(every), MOST_ROWS):
            turn = every[first : first + MOST_ROWS]
            self._draws.prepare([spans[start.index] for start in turn], [start.position for start in turn])
            for start, draft in zip(turn, self._draft(turn, hidden), strict=True):
                proposals[start.index] = Proposal(draft, spans[start.index].catch_up.state)
        return proposals

    def _draft(self, turn: list[Start], hidden: Tensor) -> list[Draft]:
        rows = len(turn)
        self._kernels.embed(hidden, torch.tensor([start.row for start in turn]), self._hidden[:rows])
        self._tokens[0, :rows] = torch.tensor([start.token for start in turn])
        counts = [sum(start.length > step for start in turn) for step in range(turn[0].length)]
        for step, count in enumerate(counts):
            self._guess(step, count)
        self.finish(counts)
        made = slice(1, len(counts) + 1)
        tokens = self._tokens[made, :rows].T.tolist()
        probs = self._probs[made, :rows].T.tolist()
        return [
            Draft.chain(own[: start.length], self.source, likely[: start.length])
            for start, own, likely in zip(turn, tokens, probs, strict=True)
        ]

    def _guess(self, step: int, rows: int) -> None:
        """Run `guess`, from its recording if there is one."""
        known = self._passes.get((step, rows, self._draws.filtered))
        if known is not None:
            known()
            return
        work = partial(self.guess, step, rows)
        replay = self._kernels.record(work)
        if replay is None:  # nothing can be recorded here, and nothing has run
            work()
        self._passes[step, rows, self._draws.filtered] = replay or work
