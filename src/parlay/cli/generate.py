"""`parlay generate`: complete a prompt and stream the text."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from parlay.cli.flags import add_flags
from parlay.config import EngineConfig
from parlay.errors import RequestError
from parlay.types.output import CompletionOutput, RequestOutput
from parlay.types.params import SamplingParams

# With a single request --seed means that request's seed.
_ENGINE_ONLY = frozenset({"seed"})


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
    parser.add_argument(
        "--speculative-config",
        metavar="JSON",
        help='how to speculate, such as \'{"method": "ngram", "num_speculative_tokens": 5}\'',
    )
    add_flags(parser, EngineConfig, skip=_ENGINE_ONLY)
    add_flags(parser, SamplingParams, skip={"speculative", "logits_processors"})
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Load the model, complete, print."""
    from rich.console import Console

    from parlay.cli.colour import Colourer, Palette
    from parlay.llm import LLM, Prompt

    given = vars(options)
    params = SamplingParams.parse({"max_tokens": 128} | _given(SamplingParams, given))
    engine_options = {k: v for k, v in _given(EngineConfig, given).items() if k not in _ENGINE_ONLY}
    llm = LLM(speculative_config=options.speculative_config, **engine_options)
    prompt: Prompt = _read_stdin() if options.prompt in (None, "-") else options.prompt
    if options.chat:
        prompt = llm.chat_prompt([{"role": "user", "content": str(prompt)}])
    console = Console(highlight=False, soft_wrap=True)
    palette, tokenizer = Palette(), llm.engine.codec.tokenizer
    colourers = [
        Colourer(tokenizer, palette, skip_special_tokens=params.skip_special_tokens) for _ in range(params.n)
    ]

    def show(one: CompletionOutput) -> None:
        text = colourers[one.index].update(one.token_ids, one.sources, one.text)
        if console.is_terminal:
            console.print(text, end="")
        else:  # exactly the text: rich would expand tabs
            sys.stdout.write(text.plain)
            sys.stdout.flush()

    output: RequestOutput | None = None
    for output in llm.stream(prompt, params):
        if params.n == 1:
            show(output.outputs[0])
    assert output is not None
    for one in output.outputs if params.n > 1 else ():
        console.rule(f"{one.index}", style="dim")
        show(one)
        console.print()
    console.print()
    Console(stderr=True, highlight=False).print(_summary(output), style="dim")
    return 0


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not valid {error.encoding}: {error.reason}") from None


def _given(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: values[f.name] for f in fields(cls) if f.name in values}


def _summary(output: RequestOutput) -> str:
    emitted = sum(o.metrics.emitted for o in output.outputs)
    steps = sum(o.metrics.steps for o in output.outputs)
    seconds = max(o.metrics.finished for o in output.outputs) - output.metrics.arrival
    first = output.metrics.first_token - output.metrics.arrival
    return (
        f"{emitted} tokens in {seconds:.2f} s ({emitted / seconds:,.0f} tokens/s), first after {first * 1e3:.0f} ms, "
        f"{emitted / max(steps, 1):.2f} tokens a step"
    )
