"""The system's limit on open files, connections and sockets among them."""

import errno
import resource

from parlay.errors import ConfigError
from parlay.log import logger

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_OWN = 256  # descriptors for everything but connections, where there are as many


def too_few_files() -> ConfigError:
    """Return the error of a process that may open no further file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ConfigError(f"{soft} files may be open at once, which is too few; raise the limit (ulimit -n)")


def room_for(connections: int) -> int:
    """Return how many of the wanted connections the process may have, its limit on open files raised for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OWN
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit >= wanted:
        return connections
    room = max(1, limit - min(_OWN, limit // 2))
    logger.warning(
        "%d files may be open at once: %d connections are accepted, not max_connections=%d; raise ulimit -n",
        limit,
        room,
        connections,
    )
    return room
