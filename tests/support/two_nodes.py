"""Two machines of a network, played by namespaces of this one: each has an address, and a cable joins them.

The second also has its own processes, temporary files and shared memory, so that it can be switched off.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
from serving import wait_for

FIRST, SECOND = "10.77.0.1", "10.77.0.2"
_CABLE = "cable"  # what each calls its end
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class TwoNodes:
    """The network; use it as a context manager, within which this thread, and all that it starts, are on the first.

    Attributes:
        log: where what runs on the second writes.
    """

    def __init__(self, log: IO[bytes]) -> None:
        """Lay the cable, or skip the test where the machine does not permit that."""
        self.log = log
        self._second: subprocess.Popen[bytes] | None = None
        self._names = [f"parlay-{os.getpid()}-{letter}" for letter in "ab"]
        try:
            for name in self._names:
                _ip("netns", "add", name)
            ends = ("type", "veth", "peer", "name", _CABLE, "netns", self._names[1])
            _ip("-n", self._names[0], "link", "add", _CABLE, *ends)
            for name, address in zip(self._names, (FIRST, SECOND), strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", _CABLE)
                for device in ("lo", _CABLE):
                    _ip("-n", name, "link", "set", device, "up")
                _ip("-n", name, "route", "add", "default", "dev", _CABLE)
                for server in _name_servers():  # whose silence every look-up of a name would wait for
                    _ip("-n", name, "route", "add", "unreachable", server)
            subprocess.run(["unshare", "--pid", "--mount", "--fork", "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self._remove()
            said = getattr(error, "stderr", None) or str(error).encode()
            pytest.skip(f"this machine permits no namespaces for two nodes: {said.decode().strip()}")

    def __enter__(self) -> "TwoNodes":
        self._outside = os.open("/proc/self/ns/net", os.O_RDONLY)
        with Path("/run/netns", self._names[0]).open() as inside:
            _enter(inside.fileno())
        return self

    def __exit__(self, *error: object) -> None:
        self.switch_off()
        _enter(self._outside)
        os.close(self._outside)
        for pid in self.processes(0) + self.processes(1):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._remove()

    def _remove(self) -> None:
        for name in self._names:
            if Path("/run/netns", name).exists():
                _ip("netns", "delete", name)

    def cut(self) -> None:
        """Pull the cable: what is sent from now on is lost, and no side is told."""
        _ip("-n", self._names[1], "link", "set", _CABLE, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("-n", self._names[1], "link", "set", _CABLE, "up")
        _ip("-n", self._names[1], "route", "replace", "default", "dev", _CABLE)

    def processes(self, node: int, words: str = "") -> list[int]:
        """Return the processes of a node whose command lines begin with these words."""
        network = Path("/run/netns", self._names[node]).stat().st_ino
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                same = (folder / "ns" / "net").stat().st_ino == network
                if same and int(folder.name) != os.getpid() and (folder / "cmdline").read_text().startswith(words):
                    found.append(int(folder.name))
        return found

    def switch_on(self, command: Sequence[str], private: Path) -> None:
        """Start a command that the second node runs again whenever it ends, as a service manager does.

        Args:
            command: to run.
            private: folder whose files are the second node's own.
        """
        script = 'mount -t tmpfs none /dev/shm && mount -t tmpfs none "$0" && while :; do "$@"; sleep 1; done'
        alone = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
        inside = ("nsenter", f"--net=/run/netns/{self._names[1]}", *alone, "sh", "-c", script, str(private))
        self._second = subprocess.Popen([*inside, *command], stdout=self.log, stderr=self.log)

    def switch_off(self) -> None:
        """End all that runs on the second node, at once."""
        if self._second is not None:
            self._second.kill()
            self._second.wait()
            self._second = None
            wait_for(lambda: not self.processes(1), 10)


def _name_servers() -> set[str]:
    words = [line.split() for line in Path("/etc/resolv.conf").read_text().splitlines()]
    return {more[0] for first, *more in filter(None, words) if first == "nameserver" and "." in more[0]}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _enter(network: int) -> None:
    """Move this thread to a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
