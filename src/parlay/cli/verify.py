"""`parlay verify`: whether this machine keeps the same-tokens guarantee, and its numerics id."""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import make_console, plain_table
from parlay.errors import ConfigError

if TYPE_CHECKING:
    from parlay.same_tokens.offline import Comparison

_LONGEST = 1024  # tokens of a prompt and its completion


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "verify",
        help="check on this machine that a model's tokens depend on nothing but the request",
        description="Print the numerics id, which names everything that the bits of a token depend on besides the "
        "request; run the kernels' self-check in full; then decode a few prompts plainly and with every proposer, "
        "alone, together, in chunks, from the cache, preempted and with drafts that go on and off, with several "
        "kinds of parameters, and compare token ids and the bits of log-probabilities; and test whether tokens are "
        "drawn as likely as the model says. It ends at the first difference. The exit status is 0 if all of it "
        "holds, 1 if not.",
    )
    add_model(parser, "tiny-code")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="type of weights (default: the model's)",
    )
    add_dequantize_flag(parser)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="what computes (default: cpu; cuda is a GPU)"
    )
    parser.add_argument(
        "--url",
        help="check a running server of OpenAI's protocol instead, parlay's or another: the same requests alone, "
        "again, together, among others and streamed; a key is taken from OPENAI_API_KEY",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="your own prompts: JSON lines with 'turns', 'messages' or 'prompt', .jsonl or .jsonl.gz",
    )
    parser.add_argument("--max-tokens", type=int, default=32, help="tokens of each completion (default: 32)")
    parser.add_argument(
        "--draws",
        type=int,
        default=2000,
        help="completions to test the sampled distribution with, 0 for none (default: 2000)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer kinds of parameters, at most 16 tokens and 300 draws"
    )
    parser.add_argument(
        "--speculative-config",
        metavar="JSON",
        help='compare plain decoding with this alone, such as \'{"method": "draft_model", "model": "DIR"}\'; '
        "by default with every proposer that can serve the model",
    )
    parser.add_argument("--json", action="store_true", help="print everything once more as a last line of JSON")
    parser.add_argument("--junit", metavar="FILE.xml", help="write the results as JUnit's XML, for CI")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check, decode, print; 0 only if everything holds."""
    if options.max_tokens < 1:
        raise ConfigError(f"--max-tokens must be at least 1, not {options.max_tokens}")
    if options.draws < 0:
        raise ConfigError(f"--draws must be at least 0, not {options.draws}")
    if options.junit is not None and not Path(options.junit).absolute().parent.is_dir():
        raise ConfigError(f"--junit {options.junit} cannot be written: there is no such directory")
    return _model(options) if options.url is None else _server(options)


def _model(options: argparse.Namespace) -> int:
    """Compare a model's answers with plain decoding's."""
    from rich.console import Console

    from parlay.bench.provenance import provenance
    from parlay.cli.serving import read_speculation
    from parlay.config import SpeculativeConfig
    from parlay.config.speculative import PLAIN, plain
    from parlay.config.verification import COUPLED
    from parlay.numerics.identify import inspect
    from parlay.proposers.select import resolve_methods
    from parlay.same_tokens.offline import compare

    comparison = _comparison(options)
    speculative, verification = None, COUPLED
    if options.speculative_config is not None:
        config = SpeculativeConfig.parse(read_speculation(options.speculative_config))
        names = [str(one.method) for one in resolve_methods(config)]
        speculative, verification = {PLAIN: plain(), "+".join(names): config}, config.verification
    console = make_console(highlight=False, soft_wrap=True)
    with Console(stderr=True).status("loading") as status:
        numerics, findings = inspect(
            options.model,
            options.dtype,
            lambda label: status.update(f"self-check: {label}"),
            dequantize=options.dequantize,
            device=options.device,
        )
        facts = provenance([str(numerics)]) | _machine()
        _print_facts(console, facts)
        checks = [
            {"case": str(case), "same": not found.row_counts, "rows": found.row_counts}
            for case, found in findings.items()
        ]
        _print_checks(console, checks)
        found = compare(
            options.model,
            comparison,
            dtype=options.dtype,
            dequantize=options.dequantize,
            device=options.device,
            speculative=speculative,
            tick=status.update,
        )
        rows = list(_until_different(found))
    holds = all(check["same"] for check in checks) and _same(rows)
    _print_rows(console, rows)
    console.print(_verdict(verification, holds=holds))
    return _finish(options, holds, rows, checks=checks, provenance=facts)


def _server(options: argparse.Namespace) -> int:
    """Compare a server's answers with each other."""
    from rich.console import Console

    from parlay import env
    from parlay.bench.prompts import read_texts
    from parlay.same_tokens.offline import PROMPTS
    from parlay.same_tokens.server import compare_server

    texts = [str(one) for one in PROMPTS] if options.prompts is None else read_texts(Path(options.prompts))
    with Console(stderr=True).status("waiting for the server") as status:
        found = compare_server(options.url, env.api_key(), texts, options.max_tokens, status.update)
        rows = list(_until_different(found))
    console = make_console(highlight=False, soft_wrap=True)
    _print_rows(console, rows)
    verdict = "[green]one request, one answer[/]" if _same(rows) else "[bold red]one request has several answers[/]"
    console.print(f"{options.url}: {verdict}")
    return _finish(options, _same(rows), rows)


def _until_different(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield row
        if not _same([row]):
            return


def _same(rows: Iterable[dict[str, Any]]) -> bool:
    return all(row.get("same", True) for row in rows)


def _verdict(verification: str, *, holds: bool) -> str:
    """Return what the results mean for a kind of verification."""
    from parlay.config.verification import COUPLED, LOSSY

    if verification == COUPLED:
        good, bad = "holds here, bit for bit", "does NOT hold here to the bit"
        good, bad = f"the same-tokens guarantee {good}", f"the same-tokens guarantee {bad}"
    elif verification in LOSSY:
        good = (
            "greedy tokens are the same, bit for bit; sampled ones are lossy, which these draws are too few to show"
        )
        bad = "lossy, as it must be"
    else:
        good = "greedy tokens are the same, bit for bit; sampled ones have the target's distribution"
        bad = "NOT what it promises"
    verdict = good if holds else bad
    if verification != COUPLED:
        verdict = f"verification={verification!r}: {verdict}"
    return f"[green]{verdict}[/]" if holds else f"[bold red]{verdict}[/]"


def _finish(options: argparse.Namespace, holds: bool, rows: list[dict[str, Any]], **more: Any) -> int:
    """Write the results where `--junit` and `--json` ask for it, and return the exit status."""
    from parlay.same_tokens.junit import write_junit

    if options.junit is not None:
        write_junit(options.junit, more.get("checks", ()), rows)
    if options.json:
        print(json.dumps({"holds": holds, **more, "rows": rows}))
    return 0 if holds else 1


def _comparison(options: argparse.Namespace) -> "Comparison":
    """Return the comparison; a model's tokenizer is read if prompts have to be."""
    from parlay.bench.prompts import read_prompts
    from parlay.checkpoints.find import find_model
    from parlay.same_tokens.offline import KINDS, PROMPTS, QUICK, Comparison
    from parlay.text.tokenizer import TextCodec

    prompts: Any = PROMPTS
    if options.prompts is not None:
        codec = TextCodec(find_model(options.model))
        prompts = [one.tokens for one in read_prompts(Path(options.prompts), codec, _LONGEST - options.max_tokens)]
    if options.quick:
        kinds = {name: KINDS[name] for name in QUICK}
        return Comparison(prompts, kinds, min(options.max_tokens, 16), min(options.draws, 300))
    return Comparison(prompts, KINDS, options.max_tokens, options.draws)


def _machine() -> dict[str, Any]:
    from parlay import env
    from parlay.kernels.select import instruction_sets

    return {"instruction_sets": instruction_sets(), "environment": env.arithmetic()}


def _print_facts(console: Any, facts: dict[str, Any]) -> None:
    console.print(f"[bold]{facts['numerics'][0]}[/]")
    environment = " ".join(f"{name}={value}" for name, value in facts["environment"].items())
    for name, value in (
        ("cpu", facts["cpu"]),
        ("instruction sets", ", ".join(facts["instruction_sets"]) or "no native kernels"),
        ("threads", facts["threads"]),
        ("torch", facts["torch"]),
        ("environment", environment or "nothing that alters arithmetic"),
    ):
        console.print(f"  {name:<17} {value}", markup=False)


def _print_checks(console: Any, checks: list[dict[str, Any]]) -> None:
    table = plain_table("self-check", "rows alone and among others")
    for check in checks:
        counts = ", ".join(map(str, check["rows"][:6])) + (", ..." if len(check["rows"]) > 6 else "")
        table.add_row(check["case"], _mark(check["same"], f"differ among {counts}"))
    console.print(table)


def _print_rows(console: Any, rows: list[dict[str, Any]]) -> None:
    kinds = list(dict.fromkeys(row["parameters"] for row in rows if "tokens" in row))
    table = plain_table("method", "prompts", *kinds)
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "tokens" in row:
            drafted = f" [dim]{row['accepted']} of {row['tokens']} drafted[/]" if row["accepted"] else ""
            cell = _mark(row["same"], row["difference"]) + drafted
            lines.setdefault((row["method"], row["way"]), []).append(cell)
    for key, cells in lines.items():
        table.add_row(*key, *cells)
    console.print(table)
    tests = plain_table(
        "method", "sampled distribution", "draws", "cells", "standard deviations from what is expected"
    )
    for row in rows:
        if "draws" in row:
            mark = _mark(row["same"], row["difference"])
            figures = f"{row['draws']:,}", str(row["cells"]), f"{mark} {row['deviation']:+.1f}"
            tests.add_row(row["method"], row["parameters"], *figures)
    if tests.row_count:
        console.print(tests)
    for row in rows:
        if "skipped" in row:
            console.print(f"{row['method']} was left out: {row['skipped']}", style="yellow", markup=False)


def _mark(good: bool, otherwise: str | None) -> str:
    return "[green]same[/]" if good else f"[bold red]{otherwise}[/]"
