"""`parlay generate`: complete a prompt and stream the text."""

import argparse
import sys
from typing import Any

from parlay.cli.serving import Printer, add_model_flags, make_llm, make_params, summary
from parlay.errors import RequestError
from parlay.types.output import RequestOutput
from parlay.types.prompt import Prompt

_MAX_TOKENS = 128


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "generate",
        help="complete a prompt and stream the text",
        description="Complete a prompt. Text goes to stdout, coloured by who guessed each token when that is a "
        "terminal; a summary goes to stderr.",
    )
    parser.add_argument("prompt", nargs="?", help="the prompt; read from stdin when left out or -")
    parser.add_argument("--chat", action="store_true", help="put the prompt through the model's chat template")
    add_model_flags(parser, max_tokens=_MAX_TOKENS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Load the model, complete, print."""
    from rich.console import Console

    params = make_params(options, max_tokens=_MAX_TOKENS)
    llm = make_llm(options)
    prompt: Prompt = _read_stdin() if options.prompt in (None, "-") else options.prompt
    if options.chat:
        prompt = llm.chat_prompt([{"role": "user", "content": str(prompt)}])
    printer = Printer(llm, params)
    output: RequestOutput | None = None
    # Which completions are the best, only the end tells.
    outputs = llm.stream(prompt, params) if params.candidates == params.n else llm.generate(prompt, params)
    for output in outputs:
        if params.n == 1:
            printer.show(output.outputs[0])
    assert output is not None
    for one in output.outputs if params.n > 1 else ():
        printer.console.rule(f"{one.index}", style="dim")
        printer.show(one)
        printer.console.print()
    printer.console.print()
    Console(stderr=True, highlight=False).print(summary(output), style="dim")
    return 0


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not valid {error.encoding}: {error.reason}") from None
