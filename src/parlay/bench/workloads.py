"""The evaluation protocol's workloads, made from held-out prefixes, and text in which nothing repeats.

The prefixes are frozen with the embedded model, 512 of 128 tokens each, and 32 tokens are generated after each.

`completion` continues a prefix. `edit` shows a piece of code and the beginning of the same piece with one
name changed: the answer repeats the code, except for the name. `agent` runs the same few tasks again and again
with another heading, as agents do: answers repeat earlier answers. `random` continues random tokens, each once: there
is nothing to look up.

`completion` and `edit` are the embedded model's own. `agent` and `random` are made for any model, in its own tokens.
With the embedded model's vocabulary all are frozen with it.
"""

import gzip
import json
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from random import Random

from parlay.checkpoints.find import ASSETS
from parlay.errors import ConfigError
from parlay.text.tokenizer import TextCodec
from parlay.types.params import SamplingParams

TOKENS, TOKENS_OF_FILES = 32, 128  # after each prompt
_PROMPTS = 512
_ATTEMPTS = 16  # at each of an agent's tasks
_SHOWN = 80  # tokens of the code that is to be edited
_BEGUN = 24  # tokens of the edited code that are there already
_RANDOM = 128  # tokens of a random prompt


@dataclass(frozen=True, slots=True)
class Prefix:
    """One prompt: a held-out prefix, or a prompt of a workload or a file."""

    number: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, and how much is to follow each.

    Attributes:
        name: its name in rows.
        prompts: prompts numbered 0, 1 ...; by default the numbers are their seeds.
        max_tokens: most tokens per completion.
        ignore_eos: whether all completions have that length.
        in_order: whether later prompts depend on earlier ones, so that a part of them is another workload.
    """

    name: str
    prompts: tuple[Prefix, ...]
    max_tokens: int = TOKENS
    ignore_eos: bool = True
    in_order: bool = False

    @property
    def digest(self) -> str:
        """Names what is run: other prompts or another length give another digest."""
        content = repr((self.max_tokens, self.ignore_eos, [prompt.tokens for prompt in self.prompts]))
        return sha256(content.encode()).hexdigest()[:16]

    @property
    def longest(self) -> int:
        """Most tokens of a sequence, prompt and completion together."""
        return max(len(prompt.tokens) for prompt in self.prompts) + self.max_tokens

    def params(self, prompt: Prefix, temperature: float, passes: int = 0) -> SamplingParams:
        """Return a prompt's sampling parameters; seeds are others after `passes` passes through all prompts."""
        return SamplingParams(
            temperature=temperature,
            seed=prompt.number + passes * len(self.prompts),
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
        )


def load_prefixes(count: int | None = None) -> list[Prefix]:
    """Return the first `count` prefixes, all by default."""
    with gzip.open(ASSETS / "evaluation" / "prefixes.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [Prefix(i, tuple(row["token_ids"])) for i, row in enumerate(rows)][:count]


def workload(name: str, count: int | None = None, codec: TextCodec | None = None) -> list[Prefix]:
    """Return `count` prompts of a workload, all 512 by default; a prompt's number is its seed.

    Fewer are the first ones; of an agent's loop it is tasks that are left out, not attempts at them.

    Args:
        name: a name of `WORKLOADS`.
        count: number of prompts.
        codec: the model's tokenizer; None takes the embedded one.

    Raises:
        ConfigError: there is no such workload in this vocabulary.
    """
    codec = codec or _embedded()
    if name in EMBEDDED_ONLY and not has_embedded_vocabulary(codec):
        raise ConfigError(
            f"the workload {name!r} is in tiny-code's tokens, which {codec.path} does not have; take "
            f"{' or '.join(other for other in WORKLOADS if other not in EMBEDDED_ONLY)}, or give a file of prompts"
        )
    return WORKLOADS[name](_PROMPTS if count is None else min(count, _PROMPTS), codec)


@cache
def _embedded() -> TextCodec:
    return TextCodec(ASSETS / "tiny-code")


def has_embedded_vocabulary(codec: TextCodec) -> bool:
    """Whether a tokenizer has the tokens of `tiny-code`, as those of models that were widened from it have."""
    return bool(codec.tokenizer.get_vocab() == _embedded().tokenizer.get_vocab())


def usual_workloads(codecs: Iterable[TextCodec]) -> tuple[str, ...]:
    """Return the names of the default workloads for models with these tokenizers, the same for all."""
    if all(map(has_embedded_vocabulary, codecs)):
        return ("completion",)
    return tuple(name for name in WORKLOADS if name not in EMBEDDED_ONLY)


def _completions(count: int, codec: TextCodec) -> list[Prefix]:
    return load_prefixes(count)


def _edits(count: int, codec: TextCodec) -> list[Prefix]:
    return [Prefix(prefix.number, tuple(edit(codec, prefix))) for prefix in load_prefixes(count)]


def edit(codec: TextCodec, prefix: Prefix) -> list[int]:
    """Return the prompt that shows the beginning of a prefix, and the beginning of it with a name changed."""
    before = codec.decode(prefix.tokens[:_SHOWN])
    name = _commonest_name(before)
    after = re.sub(rf"\b{name}\b", f"{name}_2", before) if name else before
    shown = codec.encode(before.rstrip("\n") + "\n\n\n", add_special_tokens=False)
    return shown + codec.encode(after, add_special_tokens=False)[:_BEGUN]


def _commonest_name(text: str) -> str | None:
    names = Counter(word for word in re.findall(r"\b[A-Za-z_]\w{2,}\b", text) if not keyword.iskeyword(word))
    return names.most_common(1)[0][0] if names else None  # the first of equals


def _agent(count: int, codec: TextCodec) -> list[Prefix]:
    tasks = load_prefixes(-(-count // _ATTEMPTS))
    own = has_embedded_vocabulary(codec)
    made: list[Prefix] = []
    for attempt in range(_ATTEMPTS):
        heading = f"# Attempt {attempt + 1}\n"
        # With tiny-code's vocabulary a task is the prefix itself: after a heading its text may be encoded otherwise.
        begun = codec.encode(heading, add_special_tokens=False) if own else []
        for task in tasks:
            tokens = [*begun, *task.tokens] if own else codec.encode(heading + _embedded().decode(task.tokens))
            made.append(Prefix(len(made), tuple(tokens)))
    return made[:count]


def _random(count: int, codec: TextCodec) -> list[Prefix]:
    special = codec.tokenizer.get_added_tokens_decoder()  # which mean something to a model, as the end of a text does
    ids = sorted(set(codec.tokenizer.get_vocab().values()) - set(special))
    return [Prefix(i, tuple(Random(i).sample(ids, min(_RANDOM, len(ids))))) for i in range(count)]


WORKLOADS: dict[str, Callable[[int, TextCodec], list[Prefix]]] = {
    "completion": _completions,
    "edit": _edits,
    "agent": _agent,
    "random": _random,
}
EMBEDDED_ONLY = ("completion", "edit")
REMEMBERED = ("agent",)  # of which later prompts depend on earlier ones
