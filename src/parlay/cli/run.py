"""`parlay run`: fetch a model if it is not here, load it, talk to it."""

import argparse
import sys
from typing import Any

from parlay.cli import chat
from parlay.cli.conversation import Conversation
from parlay.cli.report import make_console
from parlay.cli.serving import make_llm, read_stdin
from parlay.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "run",
        help="fetch a model if need be, then talk to it",
        description="Fetch a model unless it is here, load it, and talk to it as `parlay chat` does; with a prompt, "
        "answer that alone, with what stdin has after it. `parlay list --names` shows the short names. An answer "
        "goes on until it ends or the context is full, unless --max-tokens is given. The exit status is 1 if a "
        "structured answer was cut.",
    )
    parser.joins = True
    chat.add_flags(parser, model="none, it must be named")
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="one message to answer (default: a conversation)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fetch, load, then talk, or answer once."""
    from parlay.checkpoints.download import size_text
    from parlay.checkpoints.hub import Hub
    from parlay.checkpoints.pull import pull

    if "model" not in options:
        raise ConfigError(
            f"name a model, such as `parlay run {chat.MODEL}`; `parlay list --names` shows the short names"
        )
    template = chat.check(options)
    given = vars(options)
    hub = Hub(revision=given.get("revision"), token=given.get("hf_token"), cache_dir=given.get("download_dir"))
    pulled = pull(options.model, hub)
    if pulled.came:
        print(f"{options.model}: {size_text(pulled.size)} in {pulled.path}", file=sys.stderr)
    notes, figures = make_console(stderr=True, highlight=False), "all" if options.verbose else "none"
    if options.prompt is None:
        return chat.talk(options, template, notes, figures)
    prompt = "\n\n".join(part for part in (options.prompt, read_stdin()) if part)
    llm = make_llm(options)
    params = chat.params_for(options, llm)
    cut = Conversation(llm, params, options.system, template, notes, figures=figures).answer(prompt)
    return 1 if cut else 0
