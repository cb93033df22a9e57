"""Ranks forked from a process that has torch and the package imported, which saves each of them seconds.

`LocalRanks` starts a program for each rank. Here that program is this file as `_ask`: it hands its descriptors and
environment to the process that waits as `_serve`, which forks, and ends when the fork has ended. If it is killed, so
is the fork. Nothing else differs: rank 0 sees processes, connections and shared memory as always.
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

MOST_FILES = 8  # descriptors that a rank is given
MOST_BYTES = 1 << 20  # of an environment


@contextmanager
def forking(folder: Path) -> Iterator[tuple[str, ...]]:
    """Keep a process that forks ranks; yield the command that starts one, to which descriptors are appended."""
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


def _ask(path: str, files: list[int]) -> None:
    """Have a rank forked with these descriptors, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        text = json.dumps(dict(os.environ)).encode()
        socket.send_fds(link, [len(text).to_bytes(4, "little")], files)
        link.sendall(text)
        for file in set(files):
            os.close(file)
        status = link.recv(1)
        sys.exit(status[0] if status else 1)


def _serve(listening: int) -> None:
    from parlay import env

    env.prepare_process()
    from parlay.engine import rank

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
            os.environ.clear()
            os.environ.update(json.loads(text))
            threading.Thread(target=_end_with, args=(link.fileno(),), daemon=True).start()
            try:
                rank.main(*files)
            except BaseException:
                link.sendall(b"\x01")
                os._exit(1)
            link.sendall(b"\x00")
            os._exit(0)


def _end_with(file: int) -> None:
    """End this process when the other side of a connection is closed."""
    os.read(file, 1)
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(int(sys.argv[2]))
    else:
        _ask(sys.argv[1], [int(text) for text in sys.argv[2:]])
