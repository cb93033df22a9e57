"""A model's answers, and what proposers with weights would have guessed after each token: decoding without a model.

With coupled sampling the tokens of an answer do not depend on drafts, so a recorded answer is the one that any
proposer, length and schedule would have led to. Proposers on the host run again on its tokens. Those with weights
need the model: their chains are recorded, one after every position.

A file is gzipped JSON, one line for the trace and one for each request. Of a chain it keeps how many of its tokens
were right, the first that was not, and the proposer's probability of each node: quantised to a 64th of the range of
log-odds, one character a node. Tokens after a wrong one can never be accepted, and become `NEVER`.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

from parlay.errors import ConfigError
from parlay.types.draft import Draft

FORMAT = "parlay trace 1"
NEVER = 1 << 30  # a token that no vocabulary has: a node that is always rejected
_LEVELS = 64
_SURE = 5.0  # largest log-odds that are distinguished
_FIRST = 48  # of the characters that stand for levels: digits, letters and some signs, none of which JSON escapes
_SILENT = "-"  # of a proposer that gives no probabilities


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request.

    Attributes:
        prompt: its tokens.
        output: the answer's.
        chains: by proposer, what it guesses after the first, second ... token of the answer, before the last.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    chains: Mapping[str, tuple[Draft, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of one workload at one temperature.

    Attributes:
        model: that answered.
        workload: what was asked.
        temperature: of sampling; a prompt's seed was its place.
        numerics: id of the arithmetic that the tokens came from.
        requests: in the order in which they are to be asked.
    """

    model: str
    workload: str
    temperature: float
    numerics: str
    requests: tuple[Recorded, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        """The proposers whose chains were recorded."""
        return tuple(self.requests[0].chains) if self.requests else ()


def write(path: Path, trace: Trace) -> None:
    """Write a trace; the same trace gives the same bytes."""
    head = {
        "format": FORMAT,
        "model": trace.model,
        "workload": trace.workload,
        "temperature": trace.temperature,
        "numerics": trace.numerics,
    }
    lines = [head, *map(_packed, trace.requests)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        ConfigError: there is none, or it is none.
    """
    try:
        head, *rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
        if head["format"] != FORMAT:
            raise ConfigError(f"{path} has the format {head['format']!r}, not {FORMAT!r}; record it again")
        asked = head["workload"], head["temperature"]
        return Trace(head["model"], *asked, head["numerics"], tuple(map(_unpacked, rows)))
    except OSError as error:
        raise ConfigError(f"there is no trace to read: {error}") from None
    except (ValueError, KeyError, TypeError, IndexError, EOFError, zlib.error) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not what `python -m benchmarks.record` writes: {error}") from None


def read_all(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield the traces of files, and of all files of directories, by name.

    Raises:
        ConfigError: as `read`, or a directory has none.
    """
    for path in paths:
        files = sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path]
        if not files:
            raise ConfigError(f"there is no trace (*.jsonl.gz) in {path}; `python -m benchmarks.record` writes them")
        yield from map(read, files)


def right(chain: Sequence[int], follows: Sequence[int]) -> int:
    """Return how many of a chain's first tokens are what follows."""
    agree = 0
    for guess, token in zip(chain, follows, strict=False):
        if guess != token:
            break
        agree += 1
    return agree


def _packed(request: Recorded) -> dict[str, Any]:
    chains: dict[str, Any] = {}
    for method, drafts in request.chains.items():
        agree = [right(d.tokens, request.output[i + 1 :]) for i, d in enumerate(drafts)]
        chains[method] = {
            "right": agree,
            "wrong": [d.tokens[n] for d, n in zip(drafts, agree, strict=True) if n < len(d)],
            "sure": " ".join(
                _SILENT * len(d) if d.probs is None else "".join(map(_character, d.probs)) for d in drafts
            ),
        }
    return {"prompt": request.prompt, "output": request.output, "chains": chains}


def _unpacked(row: Mapping[str, Any]) -> Recorded:
    output = tuple(row["output"])
    chains = {}
    for method, packed in row["chains"].items():
        wrong, drafts = iter(packed["wrong"]), []
        sure = packed["sure"].split(" ") if packed["right"] else []
        for i, (agree, levels) in enumerate(zip(packed["right"], sure, strict=True)):
            tokens = [*output[i + 1 : i + 1 + agree]]
            if agree < len(levels):
                tokens += [next(wrong), *[NEVER] * (len(levels) - agree - 1)]
            probs = None if _SILENT in levels else [_PROBS[ord(c) - _FIRST] for c in levels]
            drafts.append(Draft.chain(tokens, method, probs))
        chains[method] = tuple(drafts)
    return Recorded(tuple(row["prompt"]), output, chains)


def _character(prob: float) -> str:
    odds = 0.0
    if 0 <= prob <= 1:  # broken weights may give anything
        odds = _SURE if prob == 1 else -_SURE if prob == 0 else log(prob / (1 - prob))
    level = round((max(-_SURE, min(odds, _SURE)) + _SURE) / (2 * _SURE) * (_LEVELS - 1))
    character = chr(_FIRST + level)
    return "~" if character == "\\" else character


def _prob(level: int) -> float:
    return 1 / (1 + exp(_SURE - level * 2 * _SURE / (_LEVELS - 1)))


_PROBS = {level: _prob(level) for level in range(_LEVELS)}
_PROBS[ord("~") - _FIRST] = _prob(ord("\\") - _FIRST)
