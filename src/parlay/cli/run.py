"""`parlay run`: fetch a model if it is not here, load it, talk to it."""

import argparse
import sys
from typing import Any

from parlay.cli import chat
from parlay.cli.serving import make_llm
from parlay.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "run",
        help="fetch a model if need be, then talk to it",
        description="Fetch a model unless it is here, load it, and talk to it as `parlay chat` does; with a prompt, "
        "answer that alone. `parlay list --names` shows the short names.",
    )
    parser.add_argument(
        "name", help="a short name such as llama3.2:1b, a name on the hub, a directory or a GGUF file"
    )
    parser.add_argument("prompt", nargs="?", help="one message to answer (default: a conversation)")
    chat.add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fetch, load, then talk, or answer once."""
    from parlay.checkpoints.download import size_text
    from parlay.checkpoints.hub import Hub
    from parlay.library.pull import pull

    if hasattr(options, "model"):
        raise ConfigError(f"the model is named twice, {options.name!r} and --model {options.model!r}; leave one out")
    given = vars(options)
    hub = Hub(revision=given.get("revision"), token=given.get("hf_token"), cache_dir=given.get("download_dir"))
    pulled = pull(options.name, hub)
    if pulled.came:
        print(f"{options.name}: {size_text(pulled.size)} in {pulled.path}", file=sys.stderr)
    options.model = options.name
    return chat.run(options) if options.prompt is None else _answer(options)


def _answer(options: argparse.Namespace) -> int:
    from rich.console import Console

    chat.check_params(options)
    llm = make_llm(options)
    notes = Console(stderr=True, highlight=False)
    talk = chat.Conversation(llm, chat.params_for(options, llm), options.system, options.chat_template, notes)
    talk.say(options.prompt)
    return 0
