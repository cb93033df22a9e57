"""How a request changes the target's logits before a token is drawn from them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class RowProcessor(Protocol):
    """One request's changes to a row of logits, before temperature and filters.

    The result for a row may depend on the request, the output before the row and the row itself, on nothing else: not
    on which calls were made before. An object may remember things about `known` to save time: for one request `known`
    only ever grows.
    """

    def process(self, known: Sequence[int], path: Sequence[int], row: "Tensor") -> None:
        """Change the row from which the token after `known` and `path` is about to be drawn and emitted.

        Called once for each emitted token, in order, unless an answer is lost with a step.

        Args:
            known: tokens that earlier steps emitted.
            path: tokens that this step emitted after them.
            row: `[vocab]` float32, changed in place; `-inf` removes a token.
        """
        ...

    def process_draft(self, known: Sequence[int], path: Sequence[int], row: "Tensor") -> None:
        """Change a proposer's own row in the same way, as far as that is cheap; `path` then ends in nodes.

        Called at any node, any number of times. It decides what is drafted, never what is emitted.
        """
        ...


class LogitsProcessor(Protocol):
    """A user's function from the output's token ids and the logits `[vocab]` of the next token to new logits.

    It may change the logits it is given and return them.
    """

    def __call__(self, output: list[int], logits: "Tensor", /) -> "Tensor":
        """Return logits `[vocab]`."""
        ...
