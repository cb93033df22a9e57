"""PARD: a small language model that drafts all tokens in one pass, from masks behind the text.

Idea: An et al. 2025 (arXiv 2504.18583). An ordinary draft model is trained further with a mask's token in place of
those not known yet: each mask sees the text and the masks before it, and predicts the token after its place. So the
masks run in the pass that reads the text's newest tokens, and a draft costs one reading of the weights, however long
it is. All masks are one token, so that drafts may be longer than those it was trained with (eight tokens), by half.

What the layers keep of masks lies where the next step's tokens go, and is never read again.

Loses where a token depends on the one before it, since the two are drafted apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.errors import ConfigError, ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.heads import HeadConfig
from parlay.proposers.base import Runtime
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import DraftHead, Start
from parlay.proposers.masks import mask_of
from parlay.proposers.methods.draft_model.choice import Vocabulary
from parlay.proposers.methods.draft_model.progress import SameVocabulary
from parlay.proposers.methods.draft_model.proposer import Options
from parlay.proposers.methods.draft_model.proposer import Proposer as DraftModel
from parlay.proposers.methods.draft_model.translation import Translator
from parlay.proposers.methods.pard import format as form
from parlay.proposers.vocabulary import difference
from parlay.runner.graphs import MOST_ROWS
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, ProposerState

__all__ = ["Options", "Proposer"]


@dataclass(frozen=True, slots=True)
class _Masked(SameVocabulary):
    """A gap behind which masks are run; what the layers hold of these is never read."""

    def proposal(self, start: Start, draft: Draft) -> Proposal:
        return Proposal(draft, ProposerState(start.position))


class Proposer(DraftModel):
    """Drafts from the newest token and masks behind it."""

    source = "pard"
    default_length = 8
    max_depth = max_draft_tokens = 16
    path_free = True
    at_once = True
    in_one_pass = True
    same = _Masked

    def resolve_vocabulary(self, options: Options, config: ModelConfig) -> tuple[Vocabulary, Translator | None]:  # noqa: D102
        head, target, own = HeadConfig(config.path, config.raw), self._target, ("auto", "same")
        kind = config.raw.get(form.KIND)
        if kind not in form.KINDS:
            raise ModelError(f"{head.file}: {form.KIND}={shown(kind)} is not supported; only {form.KINDS[0]!r} is")
        self._mask = mask_of(head, form.MASKS, min(config.vocab_size, target.config.vocab_size))
        self.filler = self._mask  # masks come right behind the newest token
        if config.recurrent:
            raise ModelError(
                f"{config.path} has recurrent layers, whose states masks would change; take a parallel draft model "
                "without them"
            )
        if options.vocabulary not in own:
            raise ConfigError(
                f"vocabulary={options.vocabulary!r} is for draft models that draft one token after another; leave it "
                "out"
            )
        known = options.vocabulary == "same" and target.tokenizer is None  # on further ranks
        differs = None if known else difference(config, target.config, target.tokenizer)
        if differs is not None:
            raise ModelError(f"{differs}; a parallel draft model must share the target's vocabulary")
        return "same", None

    def load(self, runtime: Runtime) -> None:  # noqa: D102
        super().load(runtime)
        self._first = torch.zeros(MOST_ROWS, dtype=torch.int64)  # each request's row of the newest token

    def masks(self, levels: int, rows: int) -> tuple[int, ...]:  # noqa: D102
        return (self._mask,) * min(levels - 1, rows)

    def levels_of(self, levels: int, masks: Sequence[int]) -> int:  # noqa: D102
        return len(masks) + 1

    def place(self, starts: Sequence[Start], width: int = 1) -> None:
        """Do nothing: the masks run with the known tokens."""

    def shift(self, shift: Shift) -> None:
        """Do nothing: masks fill the rows of tokens that were not emitted."""

    def begin(self, states: Tensor, rows: Tensor) -> None:  # noqa: D102
        self._states_of_rows = states
        self._first[: len(rows)] = rows

    paths = DraftHead.paths  # draft tokens have no keys and values of their own

    def advance(self, level: int, rows: int, width: int = 1) -> None:
        """Do nothing: all states are computed where the gap is closed."""

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self.score_at(level * MOST_ROWS + torch.arange(rows))

    def score_at(self, places: Tensor) -> Tensor:  # noqa: D102
        rows = self._first[places % MOST_ROWS] + places // MOST_ROWS
        # Behind a verdict on the device there may be no place for the last levels, which then nobody wants.
        rows = rows.clamp(max=len(self._states_of_rows) - 1)
        return self.logits(self._states_of_rows.index_select(0, rows))
