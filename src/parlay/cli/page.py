"""A measurement as one page of Markdown, to attach where figures are exchanged: what was measured, and on what."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parlay.cli.report import Columns, cells, notes
from parlay.errors import ConfigError, brief, shown


def check_page(path: Path) -> None:
    """Refuse a page that could not be written, before anything is measured.

    Raises:
        ConfigError: it is no Markdown file in a folder that exists.
    """
    if path.suffix != ".md" or not path.absolute().parent.is_dir():
        raise ConfigError(f"a report must be a .md file in an existing directory, not {shown(str(path))}")


def write_page(path: Path, title: str, rows: Sequence[dict[str, Any]], columns: Columns) -> None:
    """Write some columns of rows, and the provenance of these.

    Args:
        path: path of the page.
        title: its first line.
        rows: rows as measured, with their `numerics`.
        columns: the columns to write, each a title and a format.

    Raises:
        ConfigError: it cannot be written.
    """
    from parlay import env
    from parlay.bench.provenance import provenance
    from parlay.kernels.select import instruction_sets

    facts = provenance(str(row["numerics"]) for row in rows)
    environment = " ".join(f"{name}={value}" for name, value in env.arithmetic().items())
    about = {
        "command": f"`{facts['command']}`",
        "processor": facts["cpu"],
        "threads": facts["threads"],
        "instruction sets": ", ".join(instruction_sets()) or "no native kernels",
        "environment": environment or "nothing that alters arithmetic",
        "system": platform.platform(),
        "versions": f"parlay {facts['parlay']}, torch {facts['torch']}, Python {facts['python']}",
        "commit": f"{facts['commit']}{', modified' * facts['modified']}" if facts["commit"] else "",
        "numerics": ", ".join(f"`{one}`" for one in facts["numerics"]),
    }
    lines = [
        f"# {title}",
        "",
        *_table(("", ""), [(name, str(value)) for name, value in about.items() if value]),
        "",
        *_table([name for name, _ in columns.values()], [cells(row, columns) for row in rows]),
        "",
        *(f"- {note.replace('*', chr(92) + '*')}" for note in notes(rows, columns)),
    ]
    try:
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {brief(str(error))}") from None


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(titles), _line(["---"] * len(titles)), *map(_line, rows)]


def _line(row: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
