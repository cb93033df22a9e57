"""Common parts of the commands that talk to a model: flags, starting the engine, and printing text as it comes."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parlay.cli.flags import add_flags, add_foreign_flags, foreign_options, given
from parlay.cli.settings import add_config_flag
from parlay.config import EngineConfig
from parlay.config.speculative import DEFAULT, Speculation
from parlay.types.output import CompletionOutput, RequestOutput
from parlay.types.params import SamplingParams

if TYPE_CHECKING:
    from parlay.llm import LLM

# With a single request --seed means that request's seed.
_ENGINE_ONLY = frozenset({"seed"})
# Functions cannot be written on a command line, and log-probabilities are not shown there.
_PYTHON_ONLY = frozenset({"logits_processors", "logprobs", "prompt_logprobs"})


def add_model_flags(parser: argparse.ArgumentParser, *, sampling: bool = True, **defaults: object) -> None:
    """Add the flags of an engine, of speculation and, unless the command has its own, of sampling.

    `defaults` are the command's own, as given to `make_params`.
    """
    parser.add_argument(
        "--speculative-config",
        metavar="METHOD|JSON",
        help='how to speculate: a method such as ngram, or \'{"method": "ngram", "num_speculative_tokens": 5}\'; '
        "none decodes plainly (default: auto)",
    )
    add_config_flag(parser)
    add_flags(parser, EngineConfig, skip=_ENGINE_ONLY)
    add_foreign_flags(parser)
    if sampling:
        add_flags(parser, SamplingParams, _PYTHON_ONLY, defaults)


def make_llm(options: argparse.Namespace) -> "LLM":
    """Start the engine that the flags describe."""
    from parlay.llm import LLM

    return LLM(speculative_config=speculation(options), **engine_options(options))


def speculation(options: argparse.Namespace) -> Speculation:
    """Return the flags' speculative config, as it was written; without any, the engine's default."""
    asked: Speculation = options.speculative_config
    return DEFAULT if asked is None else asked


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the engine's options that the flags give, vLLM's other ones included."""
    return given(EngineConfig, vars(options), _ENGINE_ONLY) | foreign_options(vars(options))


def make_params(options: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """Return the sampling parameters that the flags describe."""
    return SamplingParams.parse(defaults | given(SamplingParams, vars(options)))


class Printer:
    """Shows completions on stdout while they grow, coloured by who guessed each token when that is a terminal."""

    def __init__(self, llm: "LLM", params: SamplingParams) -> None:
        from rich.console import Console

        from parlay.cli.colour import Palette

        self.console = Console(highlight=False, soft_wrap=True)
        self.palette = Palette()
        self._tokenizer = llm.engine.codec.tokenizer
        self._skip = params.skip_special_tokens
        self.restart()

    def restart(self) -> None:
        """Begin with another prompt's completions."""
        from parlay.cli.colour import Colourer

        self._colourers: dict[int, Colourer] = {}

    def show(self, one: CompletionOutput, prompt: Sequence[int]) -> None:
        """Print the part of a prompt's completion that was not printed before."""
        from parlay.cli.colour import Colourer

        if one.index not in self._colourers:
            self._colourers[one.index] = Colourer(
                self._tokenizer, self.palette, prompt, skip_special_tokens=self._skip
            )
        # Rejected nodes are shown at a terminal, and are no part of the text that a file or a pipe gets.
        rejected = one.rejected if one.rejected and self.console.is_terminal else ()
        finished = one.finish_reason is not None
        text = self._colourers[one.index].update(one.token_ids, one.sources, one.text, rejected, finished=finished)
        if self.console.is_terminal:
            self.console.print(text, end="")
        else:  # exactly the text: rich would expand tabs
            sys.stdout.write(text.plain)
            sys.stdout.flush()


SAID_NOTHING = "the model ended its answer at once, without a text"


def summary(output: RequestOutput) -> str:
    """Return one line about the speed of a finished output."""
    emitted = sum(o.metrics.emitted for o in output.outputs)
    steps = sum(o.metrics.steps for o in output.outputs)
    seconds = max(o.metrics.finished for o in output.outputs) - output.metrics.arrival
    first = output.metrics.first_token - output.metrics.arrival
    return (
        f"{emitted} tokens in {seconds:.2f} s ({emitted / seconds:,.0f} tokens/s), first after {first * 1e3:.0f} ms, "
        f"{emitted / max(steps, 1):.2f} tokens a step"
    )
