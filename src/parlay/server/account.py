"""What the server knows of one request while it lasts."""

import time
from contextlib import ExitStack
from typing import Any

from parlay.server.errors import CLIENT_LEFT
from parlay.server.gate import Seat
from parlay.server.keys import ANYONE


class Account:
    """The facts about one request, for its line in the log; in the scope's state under `account`.

    Attributes:
        held: what the request holds until it ends.
        body: the share of `held` that its body takes, which may be given back earlier.
        seat: its open completions, if it was admitted.
    """

    def __init__(self) -> None:
        self.request_id = ""
        self.client = ANYONE
        self.arrival = time.perf_counter()
        self.facts: dict[str, Any] = {}  # for the log
        self.outputs: dict[int, Any] = {}  # the newest of each prompt
        self.status = CLIENT_LEFT
        self.held = ExitStack()
        self.body = self.held.enter_context(ExitStack())
        self.seat: Seat | None = None
