"""Common parts of the commands that talk to a model: flags, starting the engine, and printing text as it comes."""

import argparse
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay.cli.flags import add_flags, add_foreign_flags, add_model, add_threads_flag, foreign_options, given
from parlay.cli.settings import add_config_flag
from parlay.config import EngineConfig, modernise
from parlay.config.speculative import DEFAULT, Speculation
from parlay.config.vllm_0_6 import OLDER
from parlay.errors import ConfigError, RequestError, shown
from parlay.types.output import CompletionOutput, RequestOutput
from parlay.types.params import SamplingParams

if TYPE_CHECKING:
    from rich.text import Text

    from parlay.llm import LLM

# With a single request --seed means that request's seed.
_ENGINE_ONLY = frozenset({"seed"})
# Functions cannot be written on a command line, and log-probabilities are not shown there.
_PYTHON_ONLY = frozenset({"logits_processors", "logprobs", "prompt_logprobs"})


def add_model_flags(
    parser: argparse.ArgumentParser,
    *,
    sampling: bool = True,
    word: bool = True,
    default: str = "auto",
    model: str | None = None,
    **defaults: object,
) -> None:
    """Add the flags of an engine, of speculation and, unless the command has its own, of sampling.

    Args:
        parser: parser of the command.
        sampling: whether it has flags of sampling.
        word: whether MODEL may be given without --model.
        default: how it speculates without --speculative-config.
        model: what the help says of the model without --model; None for the engine's own.
        **defaults: the command's own, as given to `make_params`.
    """
    if word:
        add_model(parser)
    else:
        add_threads_flag(parser)
    add_speculation_flag(parser, default)
    add_config_flag(parser)
    if sampling:
        add_flags(parser, SamplingParams, _PYTHON_ONLY, defaults)
    add_flags(parser, EngineConfig, _ENGINE_ONLY, {} if model is None else {"model": model})
    add_foreign_flags(parser)


def add_speculation_flag(parser: argparse.ArgumentParser, default: str = "auto") -> None:
    """Add `--speculative-config`, which `speculation` reads."""
    parser.add_argument(
        "--speculative-config",
        metavar="METHOD|HEAD|JSON",
        help="what drafts: a method such as ngram, a head's or draft model's directory or name, or "
        f'\'{{"method": "ngram", "num_speculative_tokens": 5}}\'; none decodes plainly (default: {default})',
    )


def make_llm(options: argparse.Namespace) -> "LLM":
    """Start the engine that the flags describe."""
    from parlay.llm import LLM

    values, speculative = modern(engine_options(options), speculation(options))
    return LLM(speculative_config=speculative, **values)


def speculation(options: argparse.Namespace) -> Speculation:
    """Return the flags' speculative config; without any, the engine's default.

    Raises:
        ConfigError: it is JSON with a mistake.
    """
    asked: str | None = options.speculative_config
    return DEFAULT if asked is None else read_speculation(asked)


def read_speculation(text: str) -> Speculation:
    """Return a speculative config that may be the path or name of a head or draft model too.

    Raises:
        ConfigError: it is JSON with a mistake.
    """
    from parlay.checkpoints.find import embedded

    bare = text.strip()
    if bare[:1] in ("{", "["):
        try:
            json.loads(bare)
        except (ValueError, RecursionError):
            raise ConfigError(
                f"--speculative-config {shown(text)} is not valid JSON; write '{_in_json(bare)}', the quotes included"
            ) from None
    elif "/" in bare or bare in embedded() or Path(bare).exists():
        return {"model": bare}
    return text


def _in_json(text: str) -> str:
    """Return in JSON what was probably meant, such as `{method: ngram}`; else an example."""
    import yaml

    try:
        meant = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        meant = None
    good = isinstance(meant, dict) and meant and None not in meant.values()
    return json.dumps(meant if good else {"method": "ngram", "num_speculative_tokens": 5})


def modern(options: Mapping[str, Any], asked: Any) -> tuple[dict[str, Any], Any]:
    """Return options and speculative config in today's words, as `modernise` does; what it warns of is one line.

    Raises:
        ConfigError: see `modernise`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left, speculative = modernise(options, asked)
    for one in caught:
        if not issubclass(one.category, DeprecationWarning):
            print(f"parlay: {one.message}", file=sys.stderr)
    older = [f"--{name.replace('_', '-')}" for name in OLDER if options.get(name) is not None]
    if older:
        are = "are older flags" if len(older) > 1 else "is an older flag"
        print(
            f"parlay: {' and '.join(older)} {are}; write --speculative-config '{json.dumps(speculative)}'",
            file=sys.stderr,
        )
    return left, speculative


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the engine's options that the flags give, vLLM's other ones included."""
    return given(EngineConfig, vars(options), _ENGINE_ONLY) | foreign_options(vars(options))


def make_params(options: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """Return the sampling parameters that the flags describe."""
    return SamplingParams.parse(defaults | given(SamplingParams, vars(options)))


class Printer:
    """Shows completions on stdout while they grow; on a terminal with colours of who drafted, and words wrapped."""

    def __init__(self, llm: "LLM", params: SamplingParams, *, coloured: bool = True) -> None:
        from rich.console import Console

        from parlay.cli.colour import Palette

        self.console = Console(highlight=False, soft_wrap=True)
        self.palette = Palette()
        self.coloured = coloured and self.console.color_system is not None and not self.console.no_color
        self._tokenizer = llm.engine.codec.tokenizer
        self._skip = params.skip_special_tokens
        self.restart()

    def restart(self) -> None:
        """Start with another prompt's completions."""
        from parlay.cli.colour import Colourer
        from parlay.cli.wrap import Wrapper

        self._colourers: dict[int, Colourer] = {}
        self._wrapper = Wrapper()

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
            self._write(text)
        else:  # exactly the text: rich would expand tabs
            sys.stdout.write(text.plain)
            sys.stdout.flush()

    def _write(self, text: "Text") -> None:
        if self.console.is_dumb_terminal:  # which cannot take a word back
            self.console.print(text if self.coloured else text.plain, end="", markup=False)
            return
        for piece, style in pieces_of(text):
            shown = style if self.coloured or "strike" in style else ""
            for part, kept in self._wrapper.add(piece, shown, self.console.width - 1):
                if part.startswith("\x1b"):
                    self.console.file.write(part)
                elif part:
                    self.console.print(part, style=kept or None, end="", markup=False)
        self.console.file.flush()


def pieces_of(text: "Text") -> list[tuple[str, str]]:
    """Return a text's pieces with the style of each, which is empty where the text has none."""
    pieces, end = [], 0
    for span in sorted(text.spans):
        pieces += [(text.plain[end : span.start], ""), (text.plain[span.start : span.end], str(span.style))]
        end = span.end
    return [piece for piece in (*pieces, (text.plain[end:], "")) if piece[0]]


def read_stdin(*, typed: bool = False) -> str:
    """Return the text that is piped to the command; none from a terminal, unless it is `typed` there, then as it is.

    Raises:
        RequestError: it is not valid in its encoding.
    """
    if not typed and (sys.stdin is None or sys.stdin.isatty()):
        return ""
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not valid {error.encoding}: {error.reason}") from None
    except OSError:  # closed, or none of a program's that runs this
        return ""
    return text if typed else text.strip("\n")


def cut_off(output: RequestOutput, params: SamplingParams, context: int) -> str:
    """Return what to say of an answer that was cut before its end; nothing of one that was not.

    Args:
        output: the finished output.
        params: sampling parameters of the answer.
        context: tokens that prompt and answer may have together.
    """
    cut = [one for one in output.outputs if one.finish_reason == "length"]
    if not cut:
        return ""
    full = params.max_tokens is None or len(cut[0].token_ids) < params.max_tokens
    why = f"the context of {context:,} tokens is full" if full else f"--max-tokens {params.max_tokens}"
    some = "" if len(output.outputs) == 1 else f"{len(cut)} of {len(output.outputs)} answers "
    shape = "; the structured output is incomplete" if params.structured_outputs is not None else ""
    return f"{some}cut off: {why}{shape}"


EMPTY_ANSWER = "the model's answer is empty"


def summary(output: RequestOutput) -> str:
    """Return one line about a finished output: its speed, and what became of drafts."""
    emitted, steps, drafted, accepted = (
        sum(getattr(o.metrics, name) for o in output.outputs) for name in ("emitted", "steps", "drafted", "accepted")
    )
    seconds = max(o.metrics.finished for o in output.outputs) - output.metrics.arrival
    first = output.metrics.first_token - output.metrics.arrival
    return (
        f"{emitted} tokens in {seconds:.2f} s ({emitted / seconds:,.0f} tokens/s), first after {first * 1e3:.0f} ms, "
        f"{emitted / max(steps, 1):.2f} tokens per step"
        + (f", {accepted} of {drafted} draft tokens accepted" if drafted else "")
    )
