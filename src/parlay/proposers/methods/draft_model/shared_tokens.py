"""Which tokens two vocabularies have in common: those of the same bytes, and special tokens of the same name or role.

Source: token-level intersection of Timor et al. 2025 (arXiv 2502.05202), here by bytes, so that byte-level BPE's `Ġ`,
SentencePiece's `▁` and its bytes `<0x0A>` are what they stand for.
"""

from functools import cached_property

import torch
from torch import Tensor

from parlay.text.spelling import Spelling


class SharedTokens:
    """The tokens of a draft model that its target has too.

    Attributes:
        draft, target: the two vocabularies.
        to_target: the target's ids of the draft model's tokens that both have.
        to_draft: the draft model's ids of the target's tokens that both have; no two have the same counterpart.
    """

    def __init__(self, draft: Spelling, target: Spelling) -> None:
        self.draft, self.target = draft, target
        self.to_target = {token: target.ids[data] for data, token in draft.ids.items() if data in target.ids}
        self._texts = len(self.to_target)
        for name, token in draft.special.items():
            if name in target.special:
                self.to_target[token] = target.special[name]
        ends = draft.end, target.end
        if ends[0] is not None and ends[1] is not None and ends[1] not in self.to_target.values():
            self.to_target[ends[0]] = ends[1]
        self.to_draft = {own: token for token, own in self.to_target.items()}

    @property
    def share(self) -> float:
        """Share of the draft model's tokens of text that the target has too."""
        return self._texts / max(len(self.draft.ids), 1)

    @property
    def weighted_share(self) -> float:
        """The same, weighted by how frequent each token is, as far as a vocabulary's order shows that.

        Tokenizers number what they merge in the order of its frequency, which falls as one over the number (Zipf).
        """
        merged = sorted(token for data, token in self.draft.ids.items() if len(data) > 1)
        weights = [(1 / place, token in self.to_target) for place, token in enumerate(merged, 1)]
        both, every = sum(weight for weight, has in weights if has), sum(weight for weight, _ in weights)
        return both / every if every else self.share

    @property
    def is_empty(self) -> bool:
        """Whether they have no token of text in common."""
        return self._texts == 0

    @cached_property
    def rows(self) -> Tensor:
        """The draft model's shared tokens, ascending: int64 `[S]`."""
        return torch.tensor(sorted(self.to_target))

    @cached_property
    def ids(self) -> Tensor:
        """The target's ids of `rows`, int64 `[S]`."""
        return torch.tensor([self.to_target[token] for token in self.rows.tolist()])
