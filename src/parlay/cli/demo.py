"""`parlay demo`: watch the embedded model write code, plainly and with every proposer."""

import argparse
from time import perf_counter
from typing import Any

from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

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
_WARM_UP = "import os\n"  # every prompt is asked once: a proposer may remember what it was asked before


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "demo",
        help="watch the embedded model write code, plainly and with every proposer",
        description="Complete a few prompts with the embedded model: plainly, then with each proposer.",
    )
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

    from parlay.cli.colour import Colourer, Palette
    from parlay.llm import LLM
    from parlay.proposers.select import embedded_configs

    console = Console(highlight=False)
    params = SamplingParams(
        max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed, ignore_eos=True
    )
    with console.status("loading tiny-code"):
        llms = {
            name: LLM(speculative_config=config, enable_prefix_caching=False)
            for name, config in embedded_configs().items()
        }
    seconds = dict.fromkeys(llms, 0.0)
    completions: dict[str, list[CompletionOutput]] = {name: [] for name in llms}
    with console.status("running every method in turn") as status:
        for llm in llms.values():
            llm.generate(_WARM_UP, params)
        for prompt in PROMPTS:
            for name, llm in llms.items():
                status.update(name)
                began = perf_counter()
                output = llm.generate(prompt, params)[0].outputs[0]
                seconds[name] += perf_counter() - began
                completions[name].append(output)
    plain, *others = llms
    palette = Palette(others)
    tokenizer = llms[plain].engine.codec.tokenizer
    console.print(palette.legend())
    for i, prompt in enumerate(PROMPTS):
        for name in others:
            one = completions[name][i]
            text = Text(prompt, style="dim")
            text.append_text(Colourer(tokenizer, palette).update(one.token_ids, one.sources, one.text))
            title = f"{name}: {one.metrics.acceptance_length:.2f} tokens a step"
            console.print(Panel(text, title=title, title_align="left"))
    table = Table("method", "tokens/s", "speed-up", "acceptance length", "same tokens")
    for column in table.columns[1:]:
        column.justify = "right"
    emitted = sum(len(c.token_ids) for c in completions[plain])
    same = True
    for name in llms:
        own = completions[name]
        equal = [c.token_ids for c in own] == [c.token_ids for c in completions[plain]]
        same = same and equal
        length = sum(c.metrics.emitted for c in own) / sum(c.metrics.steps for c in own)
        table.add_row(
            "plain" if name == plain else name,
            f"{emitted / seconds[name]:,.0f}",
            f"{seconds[plain] / seconds[name]:.2f}x",
            f"{length:.2f}",
            "[green]yes[/]" if equal else "[red]NO[/]",
        )
    console.print(table)
    console.print(f"numerics: {llms[plain].engine.numerics_id}", style="dim")
    return 0 if same else 1
