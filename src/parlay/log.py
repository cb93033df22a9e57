"""The project's logger."""

import logging

from parlay import env

logger = logging.getLogger("parlay")


def configure() -> None:
    """Send the logger's records to stderr at the level PARLAY_LOG names; for programs, not for libraries."""
    from rich.console import Console
    from rich.logging import RichHandler

    logger.setLevel(env.log_level())
    if not logger.handlers:
        logger.addHandler(RichHandler(console=Console(stderr=True), show_path=False))
