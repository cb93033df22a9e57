"""The engine's end of the link between two processes: two sockets, and a bell for threads beside the engine's."""

import socket
from contextlib import suppress
from typing import Self

import zmq

from parlay.link.protocol import Command, Outputs, decode_command, encode


class SocketTransport:
    """A transport of sockets, to be closed; the sockets belong to the caller."""

    def __init__(self, commands: "zmq.Socket[bytes]", reports: "zmq.Socket[bytes]") -> None:
        """Use a PULL socket for commands and a PUSH socket for reports."""
        self._commands, self._reports = commands, reports
        self._bell, self._button = socket.socketpair()
        self._button.setblocking(False)
        self._outputs: Outputs | None = None  # those that could not be sent, and as bytes
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bell.close()
        self._button.close()

    def receive(self) -> Command | None:
        """Return the next command that has come; None if there is none."""
        try:
            return decode_command(self._commands.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def wait(self, *, sending: bool, seconds: float | None = None) -> None:
        """Wait for a command or for `wake` and, if `sending`, until outputs may be taken again; not for longer."""
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        if sending:
            poller.register(self._reports, zmq.POLLOUT)
        if self._bell.fileno() in dict(poller.poll(None if seconds is None else int(1000 * seconds))):
            self._bell.recv(4096)

    def send(self, outputs: Outputs) -> bool:
        """Send outputs; False if nothing can be sent now, and the same outputs are to be given again."""
        if outputs is not self._outputs:
            self._outputs, self._data = outputs, encode(outputs)
        try:
            self._reports.send(self._data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._outputs = None
        return True

    def wake(self) -> None:
        """End a `wait`, this one or the next; any thread may."""
        with suppress(BlockingIOError):  # enough wake-ups are queued
            self._button.send(b".")
