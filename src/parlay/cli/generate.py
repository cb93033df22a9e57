"""`parlay generate`: complete a prompt and stream the text."""

import argparse
import sys
from typing import Any

from parlay.cli.report import make_console
from parlay.cli.serving import (
    EMPTY_ANSWER,
    Printer,
    add_model_flags,
    cut_off,
    make_llm,
    make_params,
    read_stdin,
    summary,
)
from parlay.cli.template import add_template_flag, read_template
from parlay.types.output import RequestOutput
from parlay.types.prompt import Prompt

_MAX_TOKENS = 128


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "generate",
        help="complete a prompt and stream the text",
        description="Complete a prompt, or answer it where the model has a chat template. Text goes to "
        "stdout, coloured by who drafted each token when that is a terminal; a summary goes to stderr. The exit "
        "status is 1 if a structured output was cut.",
    )
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="prompt, followed by what stdin has; - reads stdin alone"
    )
    parser.spare = "generate takes one prompt, in quotes if it has several words; write --model before a model"
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--chat",
        action="store_true",
        help="put the prompt through the model's chat template (default: if it has one; not for the embedded models, "
        "which complete code)",
    )
    form.add_argument("--raw", action="store_true", help="complete the prompt as it is, without a chat template")
    add_template_flag(form)
    add_model_flags(parser, word=False, max_tokens=_MAX_TOKENS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Load the model, complete, print."""
    make_params(options)  # errors are reported before anything is loaded
    notes = make_console(stderr=True, highlight=False)
    typed = options.prompt in (None, "-")
    if typed and sys.stdin.isatty():
        notes.print("reading the prompt from the keyboard; Ctrl-D after a line's end ends it", style="dim")
    template = read_template(options.chat_template)
    piped = "" if typed else read_stdin()
    llm = make_llm(options)
    params = make_params(options, **llm.sampling_defaults, max_tokens=_MAX_TOKENS)
    given = read_stdin(typed=True) if typed else "\n\n".join(part for part in (options.prompt, piped) if part)
    prompt: Prompt = given
    if options.chat or template or (not options.raw and llm.engine.codec.prefers_chat):
        prompt = llm.chat_prompt([{"role": "user", "content": given}], chat_template=template)
    printer = Printer(llm, params)
    output: RequestOutput | None = None
    # Which completions are the best is known only at the end.
    outputs = llm.stream(prompt, params) if params.candidates == params.n else llm.generate(prompt, params)
    for output in outputs:
        if params.n == 1:
            printer.show(output.outputs[0], output.prompt_token_ids)
    assert output is not None
    for one in output.outputs if params.n > 1 else ():
        printer.console.rule(f"{one.index}", style="dim")
        printer.show(one, output.prompt_token_ids)
        printer.console.print()
    printer.console.print()
    if not any(one.text for one in output.outputs):
        notes.print(EMPTY_ANSWER, style="yellow")
    cut = cut_off(output, params, llm.engine.max_model_len)
    notes.print(", ".join(part for part in (summary(output), cut) if part), style="dim")
    return 1 if cut and params.structured_outputs is not None else 0
