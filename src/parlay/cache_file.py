"""Small JSON files of what was measured or checked once on this machine, for the next start.

Nothing depends on them: a file that is lost, damaged, of another version or not writable is made anew. Each entry has
a checksum, for a changed digit leaves a file readable. Processes that write at once lose nothing of each other's.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from zlib import crc32

from parlay import env
from parlay.log import logger


class CacheFile:
    """Entries by their names, in one file of the user's cache folder. They are what JSON can hold."""

    def __init__(self, name: str, version: int, *, most: int = 64, folder: Path | None = None) -> None:
        """Read and write nothing yet.

        Args:
            name: name of the file, without its ending.
            version: version of the entries' format; entries of another version are not read.
            most: entries that are stored; those that were changed longest ago make room.
            folder: where the file is; None takes the user's cache folder, if there is one.
        """
        folder = folder or env.cache_dir()
        self._file = None if folder is None else folder / f"{name}.json"
        self._version, self._most = version, most

    def read(self) -> dict[str, Any]:
        """Return the sound entries, those that were changed last at the end."""
        try:
            raw = json.loads(self._file.read_text()) if self._file else {}
            entries = raw["entries"] if raw and raw["version"] == self._version else {}
            return {name: value for name, (check, value) in entries.items() if check == _checksum(name, value)}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            logger.debug("%s cannot be used and is made anew (%s)", self._file, error)
            return {}

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Give the entries to be changed; the file is written behind the block, and no other process meanwhile."""
        with ExitStack() as stack:
            if self._file is not None:
                with suppress(OSError):  # where there are no locks, the last one to write wins
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                    lock = stack.enter_context(self._file.with_suffix(".lock").open("w"))
                    fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.read()
            entries = dict(before)
            yield entries
            latest = sorted(entries, key=lambda name: name not in before or entries[name] != before[name])
            sealed = {name: (_checksum(name, entries[name]), entries[name]) for name in latest[-self._most :]}
            self._write({"version": self._version, "entries": sealed})

    def _write(self, content: dict[str, Any]) -> None:
        if self._file is None:
            return
        new: Path | None = None
        try:
            with NamedTemporaryFile("w", dir=self._file.parent, suffix=".new", delete=False) as whole:
                new = Path(whole.name)
                whole.write(json.dumps(content))  # `dump` encodes in Python, several times as slowly
            new.replace(self._file)
        except OSError as error:
            logger.debug("%s cannot be written (%s)", self._file, error)
            if new is not None:
                new.unlink(missing_ok=True)


def _checksum(name: str, value: object) -> int:
    return crc32(json.dumps([name, value]).encode())
