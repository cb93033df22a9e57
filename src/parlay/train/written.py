"""Files of what the target has written for a run, a JSON object per line: a stopped run does not write it again.

The first line names everything that the others depend on.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from parlay.errors import ConfigError
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.train.options import TrainOptions
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

AT_ONCE = 64
_SHAPING = ("dtype", "max_length", "max_model_len", "seed")

Entry = TypeVar("Entry")
Tick = Callable[[int], None]


class WrittenFile:
    """A file of entries, such as prompts or responses."""

    def __init__(self, file: Path, what: str, options: TrainOptions, *shaping: str, **about: str) -> None:
        """Read and write nothing yet.

        Args:
            file: the file, which need not be there yet.
            what: it holds, such as "responses".
            options: options of the run.
            shaping: further options that the entries depend on.
            about: what else they depend on.
        """
        self._file, self._what, self._options = file, what, options
        shaped = {name: value for name, value in asdict(options).items() if name in (*_SHAPING, *shaping)}
        where = {} if options.device == "cpu" else {"device": options.device}
        self._header = json.dumps({**shaped, **where, **about}, sort_keys=True)

    @contextmanager
    def io_errors(self) -> Iterator[None]:
        """Turn an OSError of reading or writing the file into an error with a remedy.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"{self._file} cannot be read or written: {error.strerror}; fix that and run the same command "
                f"again to resume with the {self._what} in it"
            ) from None

    def read(self, make: Callable[[Any], Entry]) -> list[Entry]:
        """Return the entries; a last line that was cut off is dropped from the file.

        Args:
            make: an entry of a line's object; raises `ValueError`, `KeyError` or `TypeError` if it is invalid.

        Raises:
            ConfigError: it was written with other options or data, or is damaged.
        """
        if not self._file.exists():
            return []
        damaged = f"{self._file} is damaged; delete it, and the target writes its {self._what} again"
        try:
            content = self._file.read_text("utf-8")
        except UnicodeDecodeError:
            raise ConfigError(damaged) from None
        whole = content[: content.rfind("\n") + 1]
        first, *lines = whole.split("\n")[:-1] or [self._header]
        if first != self._header:
            raise ConfigError(
                f"{self._file} holds {self._what} written with other options or data; use those again, or another "
                "output"
            )
        try:
            found = [make(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(damaged) from None
        if whole != content:
            self._file.write_text(whole, "utf-8")
        return found

    @contextmanager
    def open_append(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Open the file to add entries behind those that are there."""
        with self._file.open("a", encoding="utf-8", buffering=1) as out:
            if not out.tell():
                out.write(self._header + "\n")
            yield lambda entry: print(json.dumps(entry), file=out)

    def writer(self) -> Callable[[Sequence[list[int]], Sequence[SamplingParams]], list[CompletionOutput]]:
        """Load the target; return what gives its answers to some prompts."""
        options = self._options
        llm = LLM(
            options.target,
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            max_num_seqs=AT_ONCE,
            speculative_config=None,
            use_tqdm_on_load=False,
            device="cpu" if describe_model(options.target).library_model is not None else options.device,
        )

        def answers(prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[CompletionOutput]:
            found = llm.generate(list(prompts), list(params), use_tqdm=False)
            for one in found:
                if one.error is not None:
                    raise one.error
            return [one.outputs[0] for one in found]

        return answers
