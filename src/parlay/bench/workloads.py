"""The evaluation protocol's three workloads: what the held-out prefixes are asked as.

`completion` asks for what follows a prefix. `edit` shows a piece of code and the beginning of the same piece with one
name changed: the answer repeats what is there, but for the name. `agent` asks for the same few tasks again and again
with another heading, as agents do: answers repeat earlier answers. All are frozen with the embedded model.
"""

import keyword
import re
from collections import Counter
from collections.abc import Callable

from parlay.bench.protocol import Prefix, load_prefixes
from parlay.engine.tokenizer import TextCodec
from parlay.models.select import ASSETS

_PROMPTS = 512
_ATTEMPTS = 16  # at each of an agent's tasks
_SHOWN = 80  # tokens of the code that is to be edited
_BEGUN = 24  # tokens of the edited code that are there already


def workload(name: str, count: int | None = None) -> list[Prefix]:
    """Return `count` prompts of a workload, all 512 by default; a prompt's number is its seed.

    Fewer are the first ones; of an agent's loop it is tasks that are left out, not attempts at them.

    Args:
        name: of `WORKLOADS`.
        count: how many.
    """
    return WORKLOADS[name](_PROMPTS if count is None else min(count, _PROMPTS))


def _edits(count: int) -> list[Prefix]:
    codec = TextCodec(ASSETS / "tiny-code")
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


def _agent(count: int) -> list[Prefix]:
    codec = TextCodec(ASSETS / "tiny-code")
    tasks = load_prefixes(-(-count // _ATTEMPTS))
    made: list[Prefix] = []
    for attempt in range(_ATTEMPTS):
        heading = codec.encode(f"# Attempt {attempt + 1}\n", add_special_tokens=False)
        for task in tasks:
            made.append(Prefix(len(made), (*heading, *task.tokens)))
    return made[:count]


WORKLOADS: dict[str, Callable[[int], list[Prefix]]] = {"completion": load_prefixes, "edit": _edits, "agent": _agent}
