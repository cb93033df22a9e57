"""`parlay rank`."""

import argparse
import time
from typing import Any

from parlay import env

_RETRY = 1.0  # seconds between two tries to reach rank 0


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "rank",
        help="run a rank of an engine that is on another machine",
        description="Run a rank of an engine that was started with --tensor-parallel-size and --rank-address on "
        "another machine. When that engine ends, wait for the next. PARLAY_RANK_KEY must be the same on both.",
    )
    parser.add_argument("address", metavar="HOST:PORT", help="address of the engine, its --rank-address")
    parser.add_argument("--model", help="name or path of the model on this machine (default: the engine's own)")
    parser.add_argument(
        "--once", action="store_true", help="end when the engine ends, instead of waiting for the next one"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from parlay.engine.joining import parse_address
    from parlay.engine.rank import join
    from parlay.errors import RankError
    from parlay.log import logger

    address, key, reached = parse_address(options.address), env.rank_key(), True
    while True:
        try:
            join(address, key, options.model)
            reached = True
            logger.warning("the engine has ended")
        except RankError as error:
            reached = True
            logger.warning("%s", error)
        except OSError as error:
            if reached:  # said once, not every second
                logger.warning("no engine waits at %s yet (%s)", options.address, error)
            reached = False
            time.sleep(_RETRY)
            continue
        if options.once:
            return 0
