"""How drafting begins anew, after an error of its own or an exception from outside."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from parlay.drafting.account import Account
from parlay.drafting.calibration import Calibration
from parlay.drafting.candidates import Candidates
from parlay.drafting.controller import Controller
from parlay.drafting.device import Device
from parlay.drafting.harmless import Mishaps, requests_of
from parlay.drafting.hosts import Host
from parlay.drafting.notes import Notes
from parlay.drafting.state import Drafted
from parlay.drafting.trust import Trust
from parlay.types.draft import NO_DRAFT
from parlay.types.plan import ProposerState

_PAUSE = 16  # steps between refinements of the calibration, each of which takes a tenth of a millisecond


class Recovery:
    """The part of `Drafting` that holds what is learnt, and knows how to do without."""

    controller: Controller | None
    step: Notes
    _first: Controller | None  # as it was at the start
    _hosts: list[Host]
    _device: Device | None
    _mishaps: Mishaps
    _steps: int

    def admit(self, request: Drafted) -> None:
        """See `Drafting`."""
        raise NotImplementedError

    def reset(self, request: Drafted) -> None:
        """See `Drafting`."""
        raise NotImplementedError

    def _learn(self) -> None:
        """Begin with nothing learnt of acceptance, and of what asking costs and gains."""
        self._calibration, self._trust, self._account = Calibration(_PAUSE), Trust(), Account()
        self._find = Candidates(self._calibration, self._trust)

    def restart(self, requests: Iterable[Drafted]) -> None:
        """Begin anew with these requests, and with what was known at the start: all else may be in any state."""
        self._learn()
        self.controller, self.step = deepcopy(self._first), Notes()
        for host in self._hosts:
            host.reset()
        if self._device is not None:
            self._device.reset(self.controller)
        for request in requests:
            state = request.drafting
            state.clear()
            state.pending, state.layers, state.holding, state.lucky = NO_DRAFT, ProposerState(), None, False
            self.admit(request)

    def stumble(self, error: Exception, *given: Any) -> None:
        """Go on after an error in a method that was given this: without its drafts, and with nothing learnt."""
        self._mishaps.add(error, self._steps)
        self._learn()
        self.controller = deepcopy(self._first)
        if self._device is not None:
            self._device.restart(self.controller)
        for request in requests_of(given):
            self.reset(request)
