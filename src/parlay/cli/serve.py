"""`parlay serve`: the engine behind OpenAI's protocol."""

import argparse
import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from threading import Timer
from typing import TYPE_CHECKING, Any

from parlay import env
from parlay.cli.flags import add_flags, add_foreign_flags, add_model, foreign_options, given
from parlay.cli.report import aligned
from parlay.cli.serving import add_speculation_flag, modern, speculation
from parlay.cli.settings import add_config_flag
from parlay.cli.template import read_template
from parlay.config import EngineConfig, ServerConfig, SpeculativeConfig
from parlay.errors import ConfigError

if TYPE_CHECKING:  # the front's libraries take time, which other commands do not need
    from starlette.types import ASGIApp

    from parlay.server.admission import Admission
    from parlay.server.keys import Keys
    from parlay.server.logs import Log
    from parlay.server.remote.client import EngineClient

_SWITCH = 0.001  # seconds that a thread of the front computes while the event loop waits
_LAST = 5.0  # seconds for threads to end once everything else has


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP with OpenAI's protocol",
        description="Serve a model over HTTP with OpenAI's protocol. SIGTERM ends it in order. The server lists its "
        "endpoints and their fields at /docs; docs/serving.md explains them.",
    )
    add_model(parser)
    add_speculation_flag(parser)
    add_config_flag(parser)
    add_flags(parser, ServerConfig)
    add_flags(parser, EngineConfig)
    add_foreign_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Load the model, then serve until told to end."""
    values = given(EngineConfig, vars(options))
    values.setdefault("model", EngineConfig().model)
    own = given(ServerConfig, vars(options))
    config = ServerConfig.parse(own)
    config = replace(config, chat_template=read_template(config.chat_template))
    values, asked = modern(values | foreign_options(vars(options), own), speculation(options))
    speculative = SpeculativeConfig.parse(asked)
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
        import zmq  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"serving needs {error.name}; run: pip install 'parlay[serve]'") from None
    end = Timer(_LAST, os._exit, (0,))
    end.daemon = True
    try:
        with suppress(asyncio.CancelledError):  # told to end while it loaded
            asyncio.run(_serve_and_end(values, speculative, config, end))
    finally:
        end.cancel()
    return 0


async def _serve_and_end(
    values: dict[str, Any], speculative: SpeculativeConfig, config: ServerConfig, end: Timer
) -> None:
    """Serve; then `end` ends the process even if a thread of the event loop does not.

    The loop waits for its threads, and one that is busy with a text for ever serves no request any more.
    """
    try:
        await _serve(values, speculative, config)
    finally:
        end.start()


async def _serve(values: dict[str, Any], speculative: SpeculativeConfig, config: ServerConfig) -> None:
    from parlay.cli.announce import facts, figures, loading
    from parlay.garbage_collection import freeze_loaded
    from parlay.loading_bar import loading_bar
    from parlay.server.admission import Admission
    from parlay.server.browsers import LOOPBACK
    from parlay.server.keys import read_keys
    from parlay.server.listen import Server, bind
    from parlay.server.logs import log_line, log_text, report_speed
    from parlay.server.remote.client import EngineClient

    keys = read_keys(config, env.api_keys())
    if not keys and speculative.remember_responses is None:
        # One client's answers must not show in the sources, or in the speed, of another's.
        speculative = replace(speculative, remember_responses=False)
    sockets = bind(config)
    if config.host not in LOOPBACK and not keys:
        print("parlay: anyone who reaches this address can use the model; set --api-key-file", file=sys.stderr)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # the server's own, once it listens
    people = config.log_format == "text" or (config.log_format == "auto" and sys.stderr.isatty())
    log = log_text if people else log_line
    shown = people and sys.stderr.isatty() and values.get("use_tqdm_on_load", True)
    async with AsyncExitStack() as stack:
        with loading_bar(loading(values["model"]), show=shown) as on_progress:
            client = EngineClient(
                speculative_config=speculative,
                data_parallel_size=config.data_parallel_size,
                engine_timeout=config.engine_timeout,
                on_progress=on_progress,
                **values,
            )
            engine = await stack.enter_async_context(client)
        if config.chat_template is not None:
            engine.codec.use_template(config.chat_template)
        admission = Admission(config.max_open, config.max_open_per_key)
        app = _make_app(engine, config, keys, admission, log)
        freeze_loaded()
        sys.setswitchinterval(_SWITCH)
        host, port = sockets[0].getsockname()[:2]
        url = f"http://{'localhost' if host in ('0.0.0.0', '::') else f'[{host}]' if ':' in host else host}:{port}/"
        if people:
            for line in aligned(facts(engine, config, url).items()):
                print(f"  {line}", file=sys.stderr)
        else:
            log({"time": round(time.time(), 3), "event": "ready", **figures(engine, config, url)})
        if config.log_interval:
            speed = asyncio.create_task(report_speed(engine.stats, log, config.log_interval))
            stack.callback(speed.cancel)
        await Server(app, config, admission).serve(sockets)


def _make_app(
    engine: "EngineClient", config: ServerConfig, keys: "Keys", admission: "Admission", log: "Log"
) -> "ASGIApp":
    """Return the application with its metrics and its page."""
    from parlay.server.app import create_app
    from parlay.server.metrics import PrometheusMetrics
    from parlay.server.page import content_security_policy, page

    html, methods = page(), engine.facts.methods
    method = "+".join(methods[1:]) or methods[0]
    return create_app(
        engine,
        config,
        keys=keys,
        admission=admission,
        methods=methods,
        metrics=PrometheusMetrics(engine.model_name, method, engine.replicas, engine.numerics_id),
        page=(html, content_security_policy(html)),
        log=log,
    )
