"""How far the weights of models are loaded, for those who show it."""

from collections.abc import Callable
from dataclasses import dataclass

# Called with the bytes of each tensor once it is in memory, in its final form.
OnRead = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far weights are loaded.

    Attributes:
        what: name of the weights that are being loaded.
        done: bytes in memory, those of models before this one included.
        total: bytes of all models.
    """

    what: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def ignore(_: object) -> None:
    """Do nothing."""
