"""Small JSON files of what was measured or checked once. A file that is lost or damaged is made anew."""

import json
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from zlib import crc32

from parlay.log import logger


def read_kept(file: Path | None) -> Any:
    """Return what a file holds; an empty object where it cannot be read."""
    try:
        return json.loads(file.read_text()) if file else {}
    except (OSError, ValueError, RecursionError):
        return {}


def seal(*parts: object) -> int:
    """Return a checksum of what an entry says, to be kept in it: a changed digit leaves a file readable."""
    return crc32(json.dumps(parts).encode())


def write_kept(file: Path | None, value: object) -> None:
    """Write a file as a whole, so that no process reads half of it; where that is impossible, leave it."""
    if file is None:
        return
    written: Path | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, prefix=f"{file.name}.", suffix=".new", delete=False) as whole:
            written = Path(whole.name)
            json.dump(value, whole)
        written.replace(file)
    except OSError as error:
        logger.debug("%s cannot be written (%s)", file, error)
        if written is not None:
            written.unlink(missing_ok=True)
