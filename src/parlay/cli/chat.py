"""`parlay chat`: talk to a model in the terminal."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from parlay.cli.serving import Printer, add_model_flags, make_llm, make_params, summary
from parlay.errors import ConfigError, RequestError
from parlay.types.output import RequestOutput

_HELP = "/reset forgets the conversation, /undo the last exchange; /exit or the end of input leaves"
_MAX_TOKENS = 512


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model; every token in the colour of who guessed it",
        description="Talk to a model through its chat template. Answers are streamed, coloured by who guessed each "
        f"token. At the prompt, {_HELP}. Without a terminal every line of stdin is one message.",
    )
    parser.add_argument("--system", metavar="TEXT", help="what to tell the model before the conversation")
    parser.add_argument("--chat-template", metavar="TEXT", help="a template in place of the model's own")
    add_model_flags(parser, max_tokens=_MAX_TOKENS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Load the model, then answer message by message."""
    from rich.console import Console

    params = make_params(options, max_tokens=_MAX_TOKENS)
    if params.n != 1:
        raise ConfigError("a conversation goes on from one answer; leave --n at 1")
    llm = make_llm(options)
    notes = Console(stderr=True, highlight=False)
    printer = Printer(llm, params)
    start = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(start)
    if sys.stdin.isatty():
        notes.print(f"{llm.model_name}: {_HELP}", style="dim", markup=False)
    for text in _lines():
        if text == "/exit":
            break
        if text == "/reset":
            messages = list(start)
        elif text == "/undo":
            messages = messages[:-2] if len(messages) > len(start) else messages
        elif text.startswith("/"):
            notes.print(f"there is no {text.split()[0]}: {_HELP}", style="yellow", markup=False)
        elif text:
            asked = [*messages, {"role": "user", "content": text}]
            try:
                prompt = llm.chat_prompt(asked, chat_template=options.chat_template)
                outputs = llm.stream(prompt, params)
            except RequestError as error:
                if not sys.stdin.isatty():
                    raise
                notes.print(f"{error}; /reset begins anew", style="yellow", markup=False)
                continue
            answer, output = _show(printer, outputs)
            messages = [*asked, {"role": "assistant", "content": answer}]
            if output is not None and printer.console.is_terminal:
                printer.console.print(printer.palette.legend())
                notes.print(summary(output), style="dim", markup=False)
    return 0


def _show(printer: Printer, outputs: Iterator[RequestOutput]) -> tuple[str, RequestOutput | None]:
    """Stream one answer; an interrupt ends the answer, not the conversation, and gives no output."""
    printer.restart()
    answer, output = "", None
    try:
        for output in outputs:
            answer = output.outputs[0].text
            printer.show(output.outputs[0])
    except KeyboardInterrupt:
        outputs.close()  # type: ignore[attr-defined]
        output = None
    printer.console.print()
    return answer, output


def _lines() -> Iterator[str]:
    """Yield what the user writes, line by line; a terminal gets a prompt and, where there is one, a line editor."""
    if not sys.stdin.isatty():
        try:
            for line in sys.stdin:
                yield line.strip()
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not valid {error.encoding}: {error.reason}") from None
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its editing keys and its history
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            return
