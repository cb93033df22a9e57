"""Common parts of the measuring commands: progress, tables, the last line of JSON, numbers from the command line."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ENDLESS = 10_000  # characters

Columns = dict[str, tuple[str, str]]

# What short titles of columns mean, by the columns' keys.
LEGEND = {
    "speed_up": "times plain decoding",
    "decode_speed_up": "the same after the first token",
    "acceptance_length": "tokens per step",
    "same_tokens": "whether all tokens are those of plain decoding",
}


def count(text: str) -> int:
    """Return a number of at least 1 from the command line."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show progress on stderr; gives a function that changes the label."""
    from rich.console import Console

    with Console(stderr=True).status("loading") as status:
        yield lambda label: status.update(label)


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, which `report` and `print_json` read."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print everything as a last line of JSON too (default: where stdout is no terminal)",
    )


def report(options: argparse.Namespace, rows: Sequence[dict[str, Any]], columns: Columns, **more: Any) -> None:
    """Print a table of some columns and, for programs, everything as JSON; the rows' `numerics` are provenance."""
    from parlay.bench.provenance import provenance

    table(rows, columns)
    numerics = [row.pop("numerics") for row in rows if "numerics" in row]
    print_json(options, {"rows": rows, **more, "provenance": provenance(numerics)})


def print_json(options: argparse.Namespace, values: dict[str, Any]) -> None:
    """Print one line of JSON if `--json` asks for it or stdout is no terminal."""
    if options.json or not sys.stdout.isatty():
        print(json.dumps(values))


def table(rows: Sequence[dict[str, Any]], columns: Columns) -> None:
    """Print some columns of rows, each a title and a format; what is None stays empty."""
    shown = plain_table(*(title for title, _ in columns.values()))
    for row in rows:
        shown.add_row(*cells(row, columns))
    make_console().print(shown)
    for line in notes(rows, columns):
        make_console(style="dim", highlight=False).print(line)


def plain_table(*titles: str) -> "Table":
    """Return an empty table, so narrow that ten columns fit a terminal of eighty."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(*titles, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def aligned(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each name and what there is to say of it, the latter below each other."""
    known = list(pairs)
    width = max(len(name) for name, _ in known)
    return [f"{name:{width}}  {text}" for name, text in known]


def cells(row: dict[str, Any], columns: Columns) -> list[str]:
    """Return a row's values as a table shows them."""
    return [_cell(row, key, form) for key, (_, form) in columns.items()]


def _cell(row: dict[str, Any], key: str, form: str) -> str:
    value = row[key]
    if key == "interval" and value is None and row.get("repetitions"):  # too few for an interval
        return f"({row['repetitions']} run{'s' * (row['repetitions'] > 1)})"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    text = "" if value is None else form.format(value)
    return f"{text} *" if key == "interval" and row.get("precise") is False else text


def notes(rows: Sequence[dict[str, Any]], columns: Columns) -> Iterator[str]:
    """Yield what a table's marks and short titles mean."""
    if "interval" in columns and any(row.get("precise") is False for row in rows):
        yield "* or (runs): wider than --precision, or too few repetitions for an interval; give more --minutes"
    meanings = [f"{title}: {LEGEND[key]}" for key, (title, _) in columns.items() if key in LEGEND]
    if meanings:
        yield "; ".join(meanings)


def make_console(**options: Any) -> "Console":
    """Return the console for tables: a terminal has its width, and a file or a pipe as much as a table needs."""
    from rich.console import Console

    console = Console(**options)
    return console if console.is_terminal else Console(width=_ENDLESS, **options)
