"""The project's logger."""

import logging
from collections import deque

from parlay import env

logger = logging.getLogger("parlay")


class _Once(logging.Filter):
    """Drops what was said lately: a command may start many engines, which all find the same."""

    def __init__(self) -> None:
        super().__init__()
        self._lately: deque[str] = deque(maxlen=100)

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message in self._lately:
            return False
        self._lately.append(message)
        return True


def configure() -> None:
    """Send the logger's records to stderr at the level PARLAY_LOG names; for programs, not for libraries."""
    from rich.console import Console
    from rich.logging import RichHandler

    logger.setLevel(env.log_level())
    if not logger.handlers:
        handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.addFilter(_Once())
        logger.addHandler(handler)
