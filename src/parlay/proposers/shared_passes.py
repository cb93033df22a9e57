"""Passes of a proposer that several ranks run together, each on its share of the layers.

Rank 0 drafts. The others hold the same proposer, loaded with their shares of its weights and cache, and do nothing by
themselves: where rank 0 calls a method that is marked as `shared`, they are sent its name and arguments, and make the
same call. Within it the ranks hand each other what they compute, so that each number is computed as on one rank.

So such a method takes whole numbers, tensors and batches, by place. Whatever it reads that changes is among these, in
the cache, or written by itself before. It calls no other such method. The rest of drafting is for rank 0 alone:
requests, drawing, the target's output layer. Where ranks share a proposer, none of its passes is recorded.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from parlay.proposers.base import DeviceProposer
from parlay.runner.orders import Call, no_broadcast

Given = ParamSpec("Given")
Own = TypeVar("Own", bound=DeviceProposer)
Result = TypeVar("Result")

_MARK = "shared_pass"


def shared(work: Callable[Concatenate[Own, Given], Result]) -> Callable[Concatenate[Own, Given], Result]:
    """Mark a method of which the other ranks that share the proposer make each call too.

    Raises:
        RankError: when it is called and a rank is lost.
    """

    @wraps(work)
    def announced(self: Own, /, *given: Given.args, **named: Given.kwargs) -> Result:
        if self.broadcast is no_broadcast:
            return work(self, *given, **named)
        assert not named
        with self.broadcast(Call.of(work.__name__, given)):
            return work(self, *given)  # type: ignore[call-arg]

    setattr(announced, _MARK, True)
    return announced


def follow(proposer: DeviceProposer, call: Call) -> None:
    """Make a call that rank 0 makes, on another rank.

    Raises:
        RankError: a rank is lost.
        ValueError: the proposer has no such pass.
    """
    work: Any = getattr(type(proposer), call.name, None)
    if not hasattr(work, _MARK):
        raise ValueError(f"{type(proposer).__module__} has no pass {call.name!r} that ranks share")
    work(proposer, *call.arguments)
