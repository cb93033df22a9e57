"""The engine's process: loads an engine, serves the front that started it, ends with it."""

import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Event, Thread

import zmq

from parlay import env, log
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.errors import ParlayError
from parlay.garbage_collection import freeze_loaded, raise_threshold
from parlay.link.protocol import EngineLoading, Failure, KeepAlive, encode
from parlay.log import logger
from parlay.system import stay_on
from parlay.types.progress import Progress

COMMANDS, REPORTS = "commands", "reports"  # the sockets' files
PULSE = 1.0  # seconds between two signs of life of a process that loads
MESSAGES = 8  # most messages under way to the context, on either side


def main(
    folder: str,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    variables: Mapping[str, str],
    processors: frozenset[int],
) -> None:
    """Serve the front that has bound the sockets in `folder`, until it stops or dies.

    First set `variables`, and stay on `processors`, if there are any.

    A model that cannot be loaded is reported to the front. An engine that fails ends the process, which the front
    notices.
    """
    # The front decides when to end: a terminal's interrupt and a service manager's SIGTERM reach both processes.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    raise_threshold()
    env.adopt(variables)
    stay_on(processors)  # so do all threads and ranks that are started from here on
    loaded = Event()
    Thread(target=_watch, args=(folder, loaded), name="parlay-watch", daemon=True).start()
    context = zmq.Context()
    commands, reports = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    commands.setsockopt(zmq.RCVHWM, 0)
    reports.setsockopt(zmq.SNDHWM, MESSAGES)
    try:
        commands.connect(f"ipc://{folder}/{COMMANDS}")
        reports.connect(f"ipc://{folder}/{REPORTS}")
        try:
            log.configure()
            from parlay.engine.engine import Engine  # loads torch, by now with the watch set
            from parlay.link.engine_server import EngineServer, describe_engine
            from parlay.server.remote.transport import SocketTransport

            def report_progress(progress: Progress) -> None:
                with suppress(zmq.Again):  # the front is busy
                    reports.send(encode(EngineLoading(progress)), zmq.NOBLOCK)

            engine = Engine(config, speculative, report_progress)
        except Exception as error:
            if not isinstance(error, ParlayError):
                logger.exception("the engine could not start")
            reports.send(encode(Failure.of(error, "the engine could not start")))
            return
        reports.send(encode(describe_engine(engine)))
        loaded.set()
        freeze_loaded()
        with SocketTransport(commands, reports) as transport:
            EngineServer(engine, transport).run()
    finally:
        loaded.set()
        context.destroy(linger=1000)


def _watch(folder: str, loaded: Event) -> None:
    """Tell the front that the process runs until it is `loaded`, which may take long in one piece.

    End the process when its parent ends, in any state, and clean up: nothing else will.
    """
    parent = parent_process()
    assert parent is not None
    with zmq.Context() as context, context.socket(zmq.PUSH) as reports:  # a thread needs a socket of its own
        reports.setsockopt(zmq.LINGER, 0)
        reports.connect(f"ipc://{folder}/{REPORTS}")
        while not loaded.is_set() and not wait([parent.sentinel], PULSE):
            with suppress(zmq.Again):
                reports.send(encode(KeepAlive()), zmq.NOBLOCK)
    wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
