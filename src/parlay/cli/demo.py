"""`parlay demo`: watch a model write, then compare every method with plain decoding."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay.cli.drafts import add_draft_flag, given_drafts
from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.config import SpeculativeConfig
from parlay.config.speculative import AUTO
from parlay.errors import ParlayError, RequestError
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from parlay.bench.repetitions import Repetitions
    from parlay.llm import LLM
    from parlay.types.prompt import Prompt

MODEL, TOY = "smollm2", "tiny-code"  # what is shown unless a model is named, and where that cannot be fetched
HEAD = Path("heads", "smollm2-eagle3")  # for MODEL; in a clone of the repository, where `make demo` runs
PROMPTS = (
    '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self):
        self._items = []

    def push(self, item):
''',
    '''import json
from pathlib import Path


def load_config(path):
    """Load a configuration file and return a dictionary."""
''',
    """class TestVector(unittest.TestCase):
    def test_add(self):
        a = Vector(1, 2)
        b = Vector(3, 4)
        self.assertEqual(a + b, Vector(4, 6))

    def test_sub(self):
""",
)
_CODE = 0.7  # temperature
_OFF = 0.1  # drafts per step, below which a method counts as off
_UNSEEN = 36  # further prompts of code, whose texts are not shown
_WARM_UP = "import os\n"  # every prompt runs once: a proposer may remember earlier prompts
QUESTIONS = (
    "Rewrite this paragraph so that every sentence begins with 'The': Rivers carve valleys over thousands of years. "
    "Glaciers widen them. Wind wears down what is left. People build their towns in the valleys that remain.",
    "Name five reasons why a bicycle is a good way to get to work, one short sentence each.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it in two sentences.",
    # From here on texts are not shown.
    "List the months of the year, each with the number of its days.",
    "Explain in four sentences how a bill becomes a law.",
    "Write an HTML table with three rows: name, age and city of three people.",
    "Write a short letter in which a tenant asks the landlord to repair the heating.",
    "Give a recipe for pancakes as a numbered list.",
)
_SHOWN = 3


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "demo",
        help="watch a model write, then compare every speculative method with plain decoding",
        description="Complete a few prompts, in the colours of who drafted each token, with the method that "
        "measurement chooses (auto); then measure each method alone, and plain decoding. The texts are the same. "
        f"Without MODEL it is {MODEL}, a chat model of 98 MB, with its EAGLE-3 head where that is in {HEAD}; where "
        f"it cannot be fetched, {TOY}, which comes with parlay.",
    )
    add_model(parser)
    parser.add_argument("--model", help="the model, as MODEL")
    add_draft_flag(parser)
    add_dequantize_flag(parser)
    parser.add_argument(
        "--max-tokens", type=int, default=96, help="emit at most this many tokens for each prompt (default: 96)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        help=f"sampling temperature; 0 is greedy (default: the model's own, {_CODE} for {TOY})",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling (default: 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the texts as they are written, run every method over the prompts, then print a table."""
    from rich.console import Console

    from parlay.bench.contenders import contenders, engines
    from parlay.bench.repetitions import Repetitions
    from parlay.bench.workloads import load_prefixes

    console = Console(highlight=False)
    with console.status("looking for the model"):
        options.model, drafts = _subject(options)
    with console.status(f"loading {options.model}"):
        chosen = contenders(options.model, None, (), drafts)
    _show(options, chosen, console)
    with console.status("loading every method"):
        llms = engines(options.model, chosen, 1, lengths="goodput", max_model_len=1024, dequantize=options.dequantize)
    repetitions = Repetitions(tuple(llms))
    completions: dict[str, list[CompletionOutput]] = {name: [] for name in llms}
    with console.status("running every method in turn") as status:
        plain = llms[next(iter(llms))]
        prompts, params = _prompts(plain, options)
        for llm in llms.values():
            llm.generate(_WARM_UP, params, use_tqdm=False)
        if params.ignore_eos:  # a text of a small model takes a twentieth of a second, so that three say little
            prompts |= {str(i): prefix.tokens for i, prefix in enumerate(load_prefixes(_UNSEEN))}
        for i, prompt in enumerate(prompts.values(), start=1):
            parts = {name: partial(_complete, llm, prompt, params) for name, llm in llms.items()}
            for name, output in repetitions.run(parts, status.update, f"prompt {i} of {len(prompts)},").items():
                completions[name].append(output)
    same = _compare(repetitions, completions, console)
    console.print(f"numerics: {plain.engine.numerics_id}", style="dim")
    return 0 if same else 1


def _subject(options: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Return the model, fetched if need be, and the checkpoints that draft for it."""
    from parlay.checkpoints.pull import pull

    drafts = given_drafts(options)
    if options.model is not None:
        return options.model, drafts
    try:
        pull(MODEL)
    except ParlayError as error:
        print(f"parlay: {MODEL} cannot be fetched; using {TOY}: {error}", file=sys.stderr)
        return TOY, drafts
    return MODEL, {"eagle3": str(HEAD)} | drafts if HEAD.is_dir() else drafts


def _show(options: argparse.Namespace, chosen: "Mapping[str, SpeculativeConfig]", console: "Console") -> None:
    """Stream each text in its colours, with an engine of its own: one that is measured sees every prompt once."""
    from parlay.cli.serving import Printer, summary
    from parlay.llm import LLM

    best = [name for name in chosen if name.startswith(AUTO)][-1]
    with console.status(f"loading {options.model} with {best}"):
        llm = LLM(
            options.model,
            speculative_config=chosen[best],
            max_model_len=1024,
            dequantize=options.dequantize,
            use_tqdm_on_load=False,
        )
        prompts, params = _prompts(llm, options)
        llm.generate(_WARM_UP, params, use_tqdm=False)
    printer = Printer(llm, params)
    for title, prompt in islice(prompts.items(), _SHOWN):
        printer.restart()
        console.print(title, style="dim", end="\n" if params.ignore_eos is False else "", markup=False)
        for output in llm.stream(prompt, params):
            printer.show(output.outputs[0], output.prompt_token_ids)
        console.print(f"\n{summary(output)}\n", style="dim", markup=False)
    console.print(printer.palette.legend())


def _compare(
    repetitions: "Repetitions", completions: "Mapping[str, list[CompletionOutput]]", console: "Console"
) -> bool:
    """Print a row for each method; whether all tokens are those of plain decoding."""
    from rich.table import Table

    plain, *others = completions
    table = Table("method", "tokens/s", "speed-up", "tokens per step", "same tokens")
    for column in table.columns[1:]:
        column.justify = "right"
    emitted = sum(len(c.token_ids) for c in completions[plain])
    plain_steps = sum(c.metrics.steps for c in completions[plain])
    same, off = True, []
    for name in (*others, plain):
        own = completions[name]
        equal = [c.token_ids for c in own] == [c.token_ids for c in completions[plain]]
        same = same and equal
        steps = sum(c.metrics.steps for c in own)
        speed_up = f"{repetitions.estimate(name).median:.2f}x"
        if name != plain and equal and sum(c.metrics.drafts for c in own) < _OFF * steps:
            off.append(f"{name} ({speed_up})")
            continue
        table.add_row(
            "plain" if name == plain else name,
            f"{emitted / sum(repetitions.seconds[name]):,.0f}",
            speed_up,
            f"{sum(c.metrics.emitted for c in own) / steps:.2f}",
            "[green]yes[/]" if equal else "[red]NO[/]",
        )
    console.print(table)
    if off:
        console.print(
            f"Off most of the time: {', '.join(off)}. Drafts are verified where they are expected to save more than "
            "they cost: look-ups where text repeats, heads and draft models beside longer steps than this model's "
            f"{1e3 * sum(repetitions.seconds[plain]) / plain_steps:.1f} ms.",
            style="dim",
        )
    return same


def _complete(llm: "LLM", prompt: "Prompt", params: SamplingParams) -> CompletionOutput:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]


def _prompts(llm: "LLM", options: argparse.Namespace) -> "tuple[dict[str, Prompt], SamplingParams]":
    """Return prompts by their titles, and how they are sampled.

    They are questions, or code to continue where the model cannot chat; code goes on beyond its end.
    """
    from parlay.bench.workloads import has_embedded_vocabulary

    params = replace(llm.get_default_sampling_params(), max_tokens=options.max_tokens, seed=options.seed)
    if options.temperature is not None:
        params = replace(params, temperature=options.temperature)
    code: dict[str, Prompt] = {title: title for title in PROMPTS}
    if has_embedded_vocabulary(llm.engine.codec):  # it has a chat template, but was trained on code alone
        temperature = _CODE if options.temperature is None else options.temperature
        return code, replace(params, temperature=temperature, ignore_eos=True)
    try:
        return {title: llm.chat_prompt([{"role": "user", "content": title}]) for title in QUESTIONS}, params
    except RequestError:
        return code, replace(params, ignore_eos=True)
