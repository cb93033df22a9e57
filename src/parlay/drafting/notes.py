"""What drafting has to remember of a step between its plan and its result."""

from dataclasses import dataclass


@dataclass(slots=True)
class Notes:
    """Notes on one step.

    Attributes:
        emitting: requests that emit in it.
        offered: whether any of them may have a draft.
        fair: whether the geometric mean of requests' speeds counts, not the arithmetic one.
        plain: seconds that it is expected to take without drafts.
        drafts: whether it has any.
        gained: sum over its requests of what drafts have gained them, by the mean that counts.
        looks: whether the cost of steps is looked at in it.
        device: most nodes that a device proposer makes at its end.
        asking: seconds of asking host proposers, which are no part of its cost.
    """

    emitting: int = 1
    offered: bool = False
    fair: bool = False
    plain: float = 0.0
    drafts: bool = False
    gained: float = 0.0
    looks: bool = False
    device: int = 0
    asking: float = 0.0
