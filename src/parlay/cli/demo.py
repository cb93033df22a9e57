"""`parlay demo`: watch a model write, with a method chosen by measurement, with each method alone, and plainly."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from parlay.cli.drafts import add_draft_flag, given_drafts
from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.errors import RequestError
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

if TYPE_CHECKING:
    from parlay.llm import LLM
    from parlay.types.prompt import Prompt

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
_UNSEEN = 36  # further prompts, whose texts are not shown
_WARM_UP = "import os\n"  # every prompt is asked once: a proposer may remember earlier prompts
QUESTIONS = (
    "Rewrite this paragraph so that every sentence begins with 'The': Rivers carve valleys over thousands of years. "
    "Glaciers widen them. Wind wears down what is left. People build their towns in the valleys that remain.",
    "Name five reasons why a bicycle is a good way to get to work, one short sentence each.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it in two sentences.",
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "demo",
        help="watch a model write, with every speculative method and plainly",
        description="Complete a few prompts: with the method that measurement chooses (auto), with each method "
        "alone, and plainly. The texts are the same; the colours show who guessed.",
    )
    add_model(parser, "tiny-code")
    add_draft_flag(parser)
    add_dequantize_flag(parser)
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens a prompt (default: 96)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (default: 0.7)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise when the temperature is above 0")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run every method over the prompts, show the texts, then a table."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from parlay.bench.contenders import contenders, engines
    from parlay.bench.paired import Turns, estimate
    from parlay.bench.protocol import load_prefixes
    from parlay.cli.colour import Colourer, Palette

    console = Console(highlight=False)
    with console.status(f"loading {options.model}"):
        chosen = contenders(options.model, None, (), given_drafts(options))
        llms = engines(options.model, chosen, 1, lengths="goodput", max_model_len=1024, dequantize=options.dequantize)
    turns = Turns(tuple(llms))
    completions: dict[str, list[CompletionOutput]] = {name: [] for name in llms}
    with console.status("running every method in turn") as status:
        plain, *others = llms
        prompts, chats = _prompts(llms[plain])
        params = SamplingParams(
            max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed, ignore_eos=not chats
        )
        for llm in llms.values():
            llm.generate(_WARM_UP, params)
        shown = len(prompts)
        if not chats:  # a text of a small model takes a twentieth of a second, so that three say little
            prompts += [prefix.tokens for prefix in load_prefixes(_UNSEEN)]
        for prompt in prompts:
            parts = {name: partial(_complete, llm, prompt, params) for name, llm in llms.items()}
            for name, output in turns.take(parts, status.update).items():
                completions[name].append(output)
    palette = Palette(others)
    tokenizer = llms[plain].engine.codec.tokenizer
    console.print(palette.legend())
    for i, prompt in enumerate(prompts[:shown]):
        for name in others:
            one = completions[name][i]
            text = Text(str(prompt["prompt"]) if isinstance(prompt, dict) else str(prompt), style="dim")
            text.append_text(Colourer(tokenizer, palette).update(one.token_ids, one.sources, one.text))
            title = f"{name}: {one.metrics.acceptance_length:.2f} tokens a step"
            console.print(Panel(text, title=title, title_align="left"))
    table = Table("method", "tokens/s", "speed-up", "acceptance length", "same tokens")
    for column in table.columns[1:]:
        column.justify = "right"
    emitted = sum(len(c.token_ids) for c in completions[plain])
    same = True
    for name in (*others, plain):
        own = completions[name]
        equal = [c.token_ids for c in own] == [c.token_ids for c in completions[plain]]
        same = same and equal
        length = sum(c.metrics.emitted for c in own) / sum(c.metrics.steps for c in own)
        table.add_row(
            "plain" if name == plain else name,
            f"{emitted / sum(turns.seconds[name]):,.0f}",
            f"{estimate(turns.ratios(name)).median:.2f}x",
            f"{length:.2f}",
            "[green]yes[/]" if equal else "[red]NO[/]",
        )
    console.print(table)
    console.print(f"numerics: {llms[plain].engine.numerics_id}", style="dim")
    return 0 if same else 1


def _complete(llm: "LLM", prompt: "Prompt", params: SamplingParams) -> CompletionOutput:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]


def _prompts(llm: "LLM") -> "tuple[list[Prompt], bool]":
    """Return the prompts, and whether they are questions: code to continue where the model cannot chat."""
    from parlay.bench.workloads import has_embedded_vocabulary

    if has_embedded_vocabulary(llm.engine.codec):  # it has a chat template, but was trained on code alone
        return list(PROMPTS), False
    try:
        return [llm.chat_prompt([{"role": "user", "content": question}]) for question in QUESTIONS], True
    except RequestError:
        return list(PROMPTS), False
