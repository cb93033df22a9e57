"""Common parts of the measuring commands: progress, tables, the last line of JSON, numbers from the command line."""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_ENDLESS = 10_000  # characters

Columns = dict[str, tuple[str, str]]


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


def report(rows: Sequence[dict[str, Any]], columns: Columns, **more: Any) -> None:
    """Print a table of some columns, then everything as one line of JSON; the rows' `numerics` are provenance."""
    from parlay.bench.provenance import provenance

    table(rows, columns)
    numerics = [row.pop("numerics") for row in rows if "numerics" in row]
    print(json.dumps({"rows": rows, **more, "provenance": provenance(numerics)}))


def table(rows: Sequence[dict[str, Any]], columns: Columns) -> None:
    """Print some columns of rows, each a title and a format; what is None stays empty."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    # Ten columns have to fit a terminal of eighty.
    shown = Table(*(title for title, _ in columns.values()), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for row in rows:
        shown.add_row(*("" if row[key] is None else form.format(row[key]) for key, (_, form) in columns.items()))
    paper().print(shown)


def paper(**options: Any) -> "Console":
    """Return the console for tables: a terminal has its width, and a file or a pipe as much as a table needs."""
    from rich.console import Console

    console = Console(**options)
    return console if console.is_terminal else Console(width=_ENDLESS, **options)
