"""Files of what the target has written for a run, a JSON object a line: a stopped run does not write it again.

The first line names everything that the others depend on.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from parlay.errors import ConfigError

Entry = TypeVar("Entry")


@contextmanager
def usable(file: Path, what: str) -> Iterator[None]:
    """Say what to do where the system refuses to read or write a file of `what`, such as "responses".

    Raises:
        ConfigError: it does.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read or written: {error.strerror}; put that right, and the run goes on with "
            f"the {what} that are there"
        ) from None


def read_kept(file: Path, header: str, what: str, make: Callable[[Any], Entry]) -> list[Entry]:
    """Return the entries of a file; a last line that was cut off is dropped from it.

    Args:
        file: there may be none yet.
        header: its first line.
        what: it holds, such as "responses".
        make: an entry of a line's object; raises `ValueError`, `KeyError` or `TypeError` if it is invalid.

    Raises:
        ConfigError: it was written under another header, or is damaged.
    """
    if not file.exists():
        return []
    damaged = f"{file} is damaged; delete it, and the target writes its {what} again"
    try:
        content = file.read_text("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(damaged) from None
    whole = content[: content.rfind("\n") + 1]
    first, *lines = whole.split("\n")[:-1] or [header]
    if first != header:
        raise ConfigError(
            f"{file} holds {what} written with other options or data; give those again, or another output"
        )
    try:
        found = [make(json.loads(line)) for line in lines]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(damaged) from None
    if whole != content:
        file.write_text(whole, "utf-8")
    return found
