"""Ranks forked from a process that has torch and the package imported, which saves each of them seconds.

`LocalRanks` starts a program for each rank. Here that program is this file as `_ask`: it hands its descriptors and
environment to the process that waits as `_serve`, which forks, and ends when the fork has ended. If it is killed, so
is the fork. Nothing else differs: rank 0 sees processes, connections and shared memory as always. With `parlay` and
arguments in place of descriptors, that command runs in the fork; with `code` and Python's source, that.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMANDS = "parlay", "code"  # that use this process's own input and outputs
MOST_FILES = 8  # descriptors that a rank is given
MOST_BYTES = 1 << 20  # of an environment


@contextmanager
def forking(folder: Path) -> Iterator[tuple[str, ...]]:
    """Keep a process that forks ranks; yield the command that starts one.

    To it descriptors are appended, or `parlay` and the arguments of that command, or `code` and Python's source.
    """
    path = folder / "ranks.sock"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", str(door.fileno())],
            pass_fds=[door.fileno()],
            stdin=subprocess.PIPE,  # which ends with this process
        )
    try:
        yield (sys.executable, "-S", "-E", __file__, str(path))
    finally:
        server.kill()
        server.communicate()  # closes the pipe too


def _ask(path: str, arguments: list[str]) -> None:
    """Have a rank forked with these descriptors, or a command with those of this process, and wait for its end."""
    files = [0, 1, 2] if arguments[0] in COMMANDS else list(map(int, arguments))
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        text = json.dumps([arguments, dict(os.environ)]).encode()
        socket.send_fds(link, [len(text).to_bytes(4, "little")], files)
        link.sendall(text)
        for file in set(files):
            os.close(file)
        status = link.recv(1)
        sys.exit(status[0] if status else 1)


def _serve(listening: int) -> None:
    from parlay import env

    env.prepare_process()
    from parlay.cli import main
    from parlay.engine import joined_ranks, rank

    assert joined_ranks  # what ranks on other machines need is loaded too
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    threading.Thread(target=_end_with, args=(0,), daemon=True).start()
    with socket.socket(fileno=listening) as door:
        while True:
            link, _ = door.accept()
            if os.fork():
                link.close()
                continue
            door.close()
            size, files, _, _ = socket.recv_fds(link, 4, MOST_FILES)
            left, text = int.from_bytes(size, "little"), b""
            while len(text) < left:
                text += link.recv(left - len(text))
            arguments, variables = json.loads(text)
            os.environ.clear()
            os.environ.update(variables)
            threading.Thread(target=_end_with, args=(link.fileno(),), daemon=True).start()
            try:
                status = 0
                if arguments[0] in COMMANDS:
                    for here, there in enumerate(files):
                        os.dup2(there, here)
                        os.close(there)
                    if arguments[0] == "parlay":
                        status = main.main(arguments[1:])
                    else:
                        exec(arguments[1], {"__name__": "__main__"})
                else:
                    rank.main(*files)
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                link.sendall(b"\x01")
                os._exit(1)
            link.sendall(bytes([status]))
            os._exit(0)


def _end_with(file: int) -> None:
    """End this process when the other side of a connection is closed."""
    os.read(file, 1)
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(int(sys.argv[2]))
    else:
        _ask(sys.argv[1], sys.argv[2:])
