"""The link to several engines alone, over replicas that this test plays."""

from typing import Any

import pytest

from parlay import ConfigError, RequestError
from parlay.engine.memory import Memory
from parlay.link.protocol import Abort, Add, Command, EngineReady
from parlay.server.remote.replicas import Replicas, check_alike

SIZE = 4
TALK = tuple(range(40))


class Played:
    """A replica that keeps what it is told, until the test ends it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = "ready"
        self.open: dict[int, Any] = {}
        self.commands: list[Command] = []

    @property
    def load(self) -> int:
        return len(self.open)

    def add(self, add: Add, stream: Any) -> None:
        if "logits_processors" in add.params:
            raise RequestError("not through here")
        self.open[add.key] = stream
        self.commands.append(add)

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def leave(self, key: int) -> None:
        self.open.pop(key, None)


class Line:
    """Two replicas, and who got what."""

    def __init__(self) -> None:
        self.replicas = Played(0), Played(1)
        self.link = Replicas(self.replicas, SIZE, lambda key: f"stream {key}")  # type: ignore[arg-type,return-value]
        self.link._index._capacity = 100
        self.key = -1

    def begin(self, prompt: tuple[int, ...], **params: Any) -> int:
        """Return who gets a request; it stays open."""
        self.key += 1
        self.link.send(Add(self.key, prompt, params))
        (number,) = (r.number for r in self.replicas if r.open.get(self.key) == f"stream {self.key}")
        return number

    def ask(self, prompt: tuple[int, ...]) -> int:
        number = self.begin(prompt)
        self.link.leave(self.key)
        return number


def test_a_conversation_goes_home() -> None:
    line = Line()
    homes = [line.ask(TALK), line.ask(TALK[::-1])]
    assert homes == [0, 1]
    assert [line.ask((*TALK, 1)), line.ask((*TALK[::-1], 1)), line.ask((*TALK, 1, 2))] == [0, 1, 0]


def test_whoever_died_has_nothing_any_more() -> None:
    line = Line()
    assert line.ask(TALK) == 0
    line.link.lost(line.replicas[0])  # type: ignore[arg-type]
    assert line.ask(TALK) == 1, "whose turn it is"


def test_only_those_that_are_ready_are_asked() -> None:
    line = Line()
    assert line.ask(TALK) == 0
    line.replicas[0].state = "restarting"
    assert line.link.serving
    assert line.ask(TALK) == 1
    line.replicas[1].state = "restarting"
    assert not line.link.serving


def test_an_abort_goes_to_whoever_has_the_request() -> None:
    line = Line()
    assert [line.begin((i,)) for i in range(2)] == [0, 1]
    line.link.send(Abort(1))
    assert Abort(1) not in line.replicas[0].commands
    assert line.replicas[1].commands[-1] == Abort(1)
    line.link.leave(1)
    assert [replica.load for replica in line.replicas] == [1, 0]


def test_what_cannot_travel_is_nobodys() -> None:
    line = Line()
    with pytest.raises(RequestError):
        line.begin(TALK, logits_processors=[])
    assert line.ask(TALK[::-1]) == 0, "it was nobody's turn"
    assert line.ask(TALK) == 1, "and nobody has it"


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("m-1/float32/avx2/exact", None),
        ("m-2/float32/avx2/exact", "m-2 instead of m-1;"),
        ("m-1/float32/avx512/up-to-floating-point", "avx512 instead of avx2, up-to-floating-point instead of exact;"),
        ("m-1/float32/avx2/exact/block", "m-1/float32/avx2/exact/block instead of m-1/float32/avx2/exact;"),
    ],
)
def test_what_differs_is_said(other: str, difference: str | None) -> None:
    served, found = (
        EngineReady(name, 8, 8, "", (), {}, Memory(0, 0, 0, 0)) for name in ("m-1/float32/avx2/exact", other)
    )
    if difference is None:
        check_alike(served, found, 3)
        return
    with pytest.raises(ConfigError, match=f"replica 3 would give other tokens .* has {difference}"):
        check_alike(served, found, 3)
