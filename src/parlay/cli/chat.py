"""`parlay chat`: talk to a model in the terminal."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from parlay.cli.conversation import Conversation
from parlay.cli.report import aligned, make_console
from parlay.cli.serving import add_model_flags, make_llm, make_params
from parlay.cli.template import add_template_flag, read_template
from parlay.errors import ConfigError, RequestError
from parlay.types.params import SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from parlay.llm import LLM

# Commands at the prompt: what follows them, and what they do.
_COMMANDS = {
    "/help": ("", "lists the commands"),
    "/reset": ("", "forgets the conversation"),
    "/undo": ("", "forgets the last exchange"),
    "/plain": ("", "answers again without speculation, and compares"),
    "/set": ("[NAME VALUE]", "changes a sampling parameter, such as /set temperature 0.7; alone it shows them"),
    "/save": ("FILE", "writes the conversation to a file"),
    "/load": ("FILE", "goes on with a conversation that was saved"),
    "/exit": ("", "leaves, as Ctrl-D does"),
}
# What other programs call them.
_ALIASES = {
    "/?": "/help",
    "/h": "/help",
    "/clear": "/reset",
    "/new": "/reset",
    "/show": "/set",
    "/bye": "/exit",
    "/quit": "/exit",
    "/q": "/exit",
}
_BLOCK = '"""'
_BLOCKS = f"a message that begins with {_BLOCK} goes on until the next {_BLOCK}"
MODEL = "smollm2"  # the model if none is named
# The default temperature where neither user nor model gives one: at 1 small models become incoherent.
_SAMPLING = {"temperature": 0.7, "top_p": 0.9}


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model; every token in the colour of who drafted it",
        description="Talk to a model through its chat template. Answers are streamed, and draft tokens have the "
        "colour of who drafted them. At the prompt /help lists the commands, Ctrl-C ends an answer or clears the "
        "line, and Ctrl-D leaves. Without a terminal every line of stdin is one message. Without MODEL it is "
        f"{MODEL}.",
    )
    parser.spare = "chat takes no prompt; `parlay run MODEL PROMPT` gives one answer"
    add_flags(parser)
    parser.set_defaults(run=run)


def add_flags(parser: argparse.ArgumentParser, *, model: str = MODEL) -> None:
    """Add the flags of a conversation."""
    parser.add_argument("--system", metavar="TEXT", help="system message that begins the conversation")
    add_template_flag(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="show speed, acceptance by position and seed of every answer"
    )
    own: dict[str, Any] = {name: f"the model's own, else {value}" for name, value in _SAMPLING.items()}
    own |= {"max_tokens": "as many as the context has room for", "seed": "drawn anew by every start"}
    add_model_flags(parser, model=model, **own)


def check(options: argparse.Namespace) -> str | None:
    """Report what is wrong with a conversation's flags before anything is loaded; returns its chat template.

    Raises:
        ConfigError: they ask for several answers, or the template is none.
        RequestError: a sampling parameter is out of range.
    """
    if make_params(options).n != 1:
        raise ConfigError("chat needs one completion per turn; leave --n at 1")
    return read_template(options.chat_template)


def params_for(options: argparse.Namespace, llm: "LLM") -> SamplingParams:
    """Return the sampling parameters of a conversation."""
    plain = llm.engine.config.generation_config in ("vllm", "none")
    defaults = llm.sampling_defaults or ({} if plain else _SAMPLING)
    return make_params(options, **{"max_tokens": None, **defaults})


def run(options: argparse.Namespace) -> int:
    """Load the model, then answer message by message."""
    template = check(options)
    notes = make_console(stderr=True, highlight=False)
    if "model" not in options:
        options.model = MODEL
        notes.print(f"no model was given; using {MODEL}, and `parlay list --names` has others", style="dim")
    return talk(options, template, notes, figures="all" if options.verbose else "line")


def talk(options: argparse.Namespace, template: str | None, notes: "Console", figures: str) -> int:
    """Load the model, then answer message by message; `figures` are those of `Conversation`."""
    llm = make_llm(options)
    conversation = Conversation(llm, params_for(options, llm), options.system, template, notes, figures=figures)
    if sys.stdin.isatty():
        notes.print(f"{llm.model_name}. /help lists the commands, Ctrl-D leaves.", style="dim", markup=False)
        if not llm.engine.codec.prefers_chat and template is None:
            notes.print(f"this model completes code; `parlay chat {MODEL}` talks", style="yellow", markup=False)
    cut = False
    for text in _messages(_lines(notes)):
        try:
            if not re.match(r"/[a-z?]+(\s|$)", text):
                cut |= bool(text) and conversation.answer(text)
            elif not _run_command(conversation, notes, text):
                break
        except KeyboardInterrupt:
            notes.print("stopped", style="dim")
        except ConfigError as error:
            notes.print(str(error), style="yellow", markup=False)
        except RequestError as error:
            if not sys.stdin.isatty():
                raise
            notes.print(f"{error}; /reset starts a new conversation", style="yellow", markup=False)
    return 1 if cut else 0


def _run_command(conversation: Conversation, notes: "Console", text: str) -> bool:
    """Carry out a command; whether the conversation goes on."""
    written, *rest = text.split(maxsplit=1)
    name, rest = _ALIASES.get(written, written), [] if written == "/show" else rest
    actions: dict[str, Callable[..., None]] = {
        "/help": lambda: notes.print(_help(), style="dim", markup=False),
        "/reset": conversation.reset,
        "/undo": conversation.undo,
        "/plain": conversation.repeat_plainly,
        "/set": conversation.set if rest else conversation.show_params,
        "/save": conversation.save,
        "/load": conversation.load,
    }
    if name == "/exit":
        return False
    if name not in actions:
        raise ConfigError(f"unknown command {written}; /help lists the commands")
    takes, does = _COMMANDS[name]
    words = rest[0].removeprefix("parameter ").split(maxsplit=1) if name == "/set" and rest else rest
    if len(words) != len(takes.strip("[]").split()) and (words or takes[:1] not in ("", "[")):
        raise ConfigError(f"{name} {takes}".rstrip() + f": {does}")
    actions[name](*words)
    return True


def _help() -> str:
    lines = ((f"{name} {takes}".rstrip(), does) for name, (takes, does) in _COMMANDS.items())
    return "\n".join([*aligned(lines), _BLOCKS])


def _messages(lines: Iterator[str]) -> Iterator[str]:
    """Yield messages: lines, and blocks of lines between marks."""
    for line in lines:
        if not line.strip().startswith(_BLOCK):
            yield line.strip()
            continue
        block = [line.strip().removeprefix(_BLOCK)]
        while not block[-1].rstrip().endswith(_BLOCK):
            more = next(lines, None)
            if more is None:
                break
            block.append(more)
        yield "\n".join(block).rstrip().removesuffix(_BLOCK).strip("\n")


def _lines(notes: "Console") -> Iterator[str]:
    """Yield the user's input, line by line; a terminal gets a prompt and, where there is one, a line editor."""
    if not sys.stdin.isatty():
        try:
            for line in sys.stdin:
                yield line.rstrip("\n")
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not valid {error.encoding}: {error.reason}") from None
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its editing keys and its history
    interrupted = False
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        except KeyboardInterrupt:  # clears the line; a second one leaves
            notes.print()
            if interrupted:
                return
            interrupted = True
            notes.print("Ctrl-D or /exit leaves, Ctrl-C again too", style="dim")
            continue
        interrupted = False
        yield line
