"""Rows in a file, written after every case, so that an interrupted benchmark continues where it stopped."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlay.bench.provenance import provenance
from parlay.errors import ConfigError, shown

_MACHINE = ("parlay", "torch", "python", "cpu", "threads")  # of `provenance`: the same for all rows of a file


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is of.

    Attributes:
        command: the command that writes it.
        case: keys of a row that say which case it is of.
    """

    command: str
    case: tuple[str, ...]


METHODS = FileKind("parlay bench methods", ("model", "workload", "batch", "temperature"))


class Record:
    """The rows of a benchmark, in a file if one is given.

    Each row says in `session`, an index into the file's list of sessions, by what commit and command it was measured.

    Attributes:
        rows: rows of this run and, from the file, of those before it.
    """

    def __init__(
        self,
        path: Path | None,
        question: Mapping[str, Any],
        parts: Mapping[str, Mapping[str, Any]],
        kind: FileKind = METHODS,
    ) -> None:
        """Read the file if it is there.

        Args:
            path: path of the file; None keeps rows in memory.
            question: the conditions of every row of the file, as plain data.
            parts: the conditions of some rows, as plain data by its name: digests of prompts as `workloads`, and
                others that a later run may add to, but not change.
            kind: what the file is of.

        Raises:
            ConfigError: it cannot be read or will not be writable, or is of another question or machine.
        """
        self.rows: list[dict[str, Any]] = []
        self._path = path
        self._question = json.loads(json.dumps(question))
        self._parts = {what: dict(known) for what, known in parts.items()}
        self._kind = kind
        self._sessions: list[dict[str, Any]] = []
        self._session: int | None = None
        if path is None:
            return
        if path.suffix != ".json" or not path.absolute().parent.is_dir():
            raise ConfigError(f"an output must be a .json file in an existing directory, not {shown(str(path))}")
        if path.exists():
            self._resume(path)

    def rows_of(self, **part: Any) -> list[dict[str, Any]]:
        """Return the rows that have these values."""
        return [row for row in self.rows if all(row[key] == value for key, value in part.items())]

    def check_numerics(self, numerics: str, **part: Any) -> None:
        """Refuse to continue with other numerics, such as another model's in the place of the first.

        Args:
            numerics: numerics id of the engines that are to be measured.
            part: what rows with the same numerics have in common.

        Raises:
            ConfigError: the file has rows of others.
        """
        there = dict.fromkeys(str(row["numerics"]) for row in self.rows_of(**part))
        self._refuse([f"numerics {other}, here {numerics}" for other in there if other != numerics])

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add the rows of a case, and write the file."""
        if self._session is None:
            self._session = len(self._sessions)
            self._sessions.append(provenance(row["numerics"] for row in rows))
        self.rows += [row | {"session": self._session} for row in rows]
        if self._path is not None:
            content = {
                "kind": self._kind.command,
                "question": self._question,
                **self._parts,
                "sessions": self._sessions,
                "rows": self.rows,
            }
            # An interrupted write leaves the old file.
            beside = self._path.with_name(self._path.name + ".part")
            beside.write_text(json.dumps(content, indent=1) + "\n")
            beside.replace(self._path)

    def _resume(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text("utf-8"))
            kind, question, sessions, rows = (content[key] for key in ("kind", "question", "sessions", "rows"))
            parts = {what: dict(content[what]) for what in self._parts}
            needed = (*self._kind.case, "method", "session", "numerics")
            complete = all(key in row for row in rows for key in needed)
            machines = [{key: session[key] for key in _MACHINE} for session in sessions]
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            kind, complete = None, False
        if kind != self._kind.command or not complete:
            raise ConfigError(f"{path} is not what `{self._kind.command}` writes; give another file")
        own = provenance()
        self._refuse(_differences(question, self._question))
        for machine in machines:
            self._refuse(_differences(machine, {key: own[key] for key in _MACHINE}))
        for what, there in parts.items():
            here, called = self._parts[what], "prompts" if what == "workloads" else what
            changed = [name for name, value in there.items() if here.get(name, value) != value]
            self._refuse([f"other {called} of {name}" for name in changed])
            self._parts[what] = there | here
        self._sessions, self.rows = sessions, rows

    def _refuse(self, differences: Sequence[str]) -> None:
        if differences:
            raise ConfigError(
                f"{self._path} was measured with {'; '.join(differences)}; give the same, or another file"
            )


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    names = [*there, *(name for name in here if name not in there)]
    return [
        f"{name} {shown(there.get(name))}, here {shown(here.get(name))}"
        for name in names
        if there.get(name) != here.get(name)
    ]
