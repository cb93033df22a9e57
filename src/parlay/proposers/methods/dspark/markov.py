"""How a token influences the next one: a bias of low rank on the next one's logits.

Three kinds: by the token alone; by the token and a gate, which reads the state of the next one's row; by a small
recurrent network along the draft.

Source: `speculators`, `models/dspark/model_definitions.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from parlay.models.layers import OutputLayer

KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True)
class Inner:
    """A linear layer between token and bias, in float32.

    Attributes:
        weight: `[outputs, inputs]`.
        bias: `[outputs]`.
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, *parts: Tensor) -> Tensor:
        """Return `[rows, outputs]` of inputs side by side."""
        return linear(torch.cat(parts, -1).float(), self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Markov:
    """The biases of one head.

    Attributes:
        kind: one of `KINDS`.
        table: `[V, r]`, of the token before.
        output: makes logits of `[rows, r]`.
        inner: the gate, or the recurrent network; None for the first kind.
    """

    kind: str
    table: Tensor
    output: OutputLayer
    inner: Inner | None

    @property
    def rank(self) -> int:
        """Columns of a token's entry."""
        return self.table.shape[1]

    def entries(self, tokens: Tensor) -> Tensor:
        """Return the entries `[rows, r]` of tokens `[rows]`; those that it lacks have the last one's."""
        return self.table[tokens.clamp(max=len(self.table) - 1)]

    def bias(self, before: Tensor, hidden: Tensor, state: Tensor, out: Tensor) -> Tensor:
        """Return float32 biases `[rows, D]` in `out`.

        Args:
            before: entries of the tokens before, `[rows, r]`.
            hidden: states of the rows that predict the next ones, `[rows, d]`.
            state: float32 `[rows, r]`, read and written by the third kind.
            out: float32 `[rows, D]`.
        """
        features = before
        if self.inner is not None and self.kind == "gated":
            features = (self.inner(hidden, before).sigmoid() * before.float()).to(before.dtype)
        elif self.inner is not None:
            features = self.step(before, hidden, state).to(before.dtype)
        return self.output(features.contiguous(), out)

    def step(self, before: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
        """Take one step of the recurrent network: change `state`, and return its output `[rows, r]`."""
        assert self.inner is not None
        gate, candidate, output = self.inner(state, before, hidden).chunk(3, -1)
        gate = gate.sigmoid()
        state.copy_(gate * state + (1 - gate) * candidate.tanh())
        return output.tanh()
