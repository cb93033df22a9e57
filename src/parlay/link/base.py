"""A link between an asynchronous engine and whoever computes for it: a thread, a process, or what may come."""

from typing import Protocol

from parlay.link.protocol import Command, Outputs


class Link(Protocol):
    """The end of those who ask. What comes back, and the link's end, are calls to whoever made it."""

    def send(self, command: Command) -> None:
        """Queue a command, which arrives after those before it; nothing waits, and nothing happens after the end.

        Raises:
            RequestError: it cannot travel.
        """


class Door(Protocol):
    """The end of whoever computes; its alone, but for `ring`."""

    def receive(self) -> Command | None:
        """Return the next command that has come; None if there is none."""

    def wait(self, *, sending: bool) -> None:
        """Wait for a command or for `ring` and, if `sending`, until outputs may be taken again."""

    def send(self, outputs: Outputs) -> bool:
        """Send outputs; False if nothing can be taken now, and the same are to be given again."""

    def ring(self) -> None:
        """End a `wait`, this one or the next; any thread may."""
