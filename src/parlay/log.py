"""The project's logger."""

import logging
from collections import OrderedDict

from parlay import env
from parlay.errors import visible

_KEPT = 100  # messages

logger = logging.getLogger("parlay")


class _Once(logging.Filter):
    """Drops a repeated warning: a command may start many engines, which all find the same. Errors are counted."""

    def __init__(self) -> None:
        super().__init__()
        self._times: OrderedDict[str, int] = OrderedDict()  # of the messages seen last

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        times = self._times[message] = self._times.pop(message, 0) + 1
        record.__dict__["times"] = times  # for the formatter
        if len(self._times) > _KEPT:
            self._times.popitem(last=False)
        return times == 1 or record.levelno >= logging.ERROR


class _Visible(logging.Formatter):
    """Formats a record for a terminal, which must not obey what a client or a file has put into a message."""

    def format(self, record: logging.LogRecord) -> str:
        times = getattr(record, "times", 1)
        again = f" ({times} times by now)" if times > 1 else ""
        message, newline, rest = super().format(record).partition("\n")
        return visible(f"{message}{again}{newline}{rest}", keep="\n\t")


def configure() -> None:
    """Send the logger's records to stderr at the level PARLAY_LOG names; for programs, not for libraries."""
    from rich.console import Console
    from rich.logging import RichHandler

    logger.setLevel(env.log_level())
    if not logger.handlers:
        handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.addFilter(_Once())
        handler.setFormatter(_Visible("%(message)s"))
        logger.addHandler(handler)
