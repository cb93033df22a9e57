"""A link between an asynchronous engine and what computes for it: a thread or a process."""

from typing import Protocol

from parlay.link.protocol import Command, Outputs


class Link(Protocol):
    """The asynchronous engine's end. Outputs, and the link's end, are calls to the object that made it."""

    def send(self, command: Command) -> None:
        """Queue a command, which arrives after those before it; never blocks, and does nothing after the end.

        Raises:
            RequestError: it cannot be sent.
        """


class Transport(Protocol):
    """The computing end; used by that thread or process alone, except `wake`."""

    def receive(self) -> Command | None:
        """Return the next command that has come; None if there is none."""

    def wait(self, *, sending: bool, seconds: float | None = None) -> None:
        """Wait for a command or for `wake` and, if `sending`, until outputs may be sent again; not for longer."""

    def send(self, outputs: Outputs) -> bool:
        """Send outputs; False if nothing can be sent now, and the same outputs are to be given again."""

    def wake(self) -> None:
        """End a `wait`, this one or the next; any thread may."""
