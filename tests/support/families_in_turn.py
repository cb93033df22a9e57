"""Families take turns where those with the same blocks share the code that a test is about."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from crossing import crossed
from families import FAMILIES, SMALL

from parlay.models.select import describe_model

# One of every family, with what it alone has switched on.
ONE_EACH = ("llama-biases", "llama-dynamic", "llama-longrope-long", "mistral", "qwen2-windows", "qwen3", "granite")
ONE_EACH += (
    "phi3-partial",
    "gemma2",
    "gemma3",
    "mixtral",
    "qwen3moe",
    "opt",
    "smollm3-listed",
    "seedoss",
    "ernie4_5",
)
ONE_EACH += ("glm", "glm4", "exaone4-windows", "ministral3")
ONE_EACH += ("gemma4", "gemma4-inputs", "gemma4-experts", "gemma4unified")
ONE_EACH += ("olmo3", "olmoe", "minimaxm2", "arcee", "hunyuan", "cohere2")
ONE_EACH += ("deepseekv3", "deepseekv2", "glm4moelite")
ONE_EACH += ("qwen2moe", "granitemoe", "glm4moe", "ernie4_5_moe", "mellum", "gptoss")
ONE_EACH += ("mistral4", "exaonemoe", "youtu")
ONE_EACH += ("apertus", "hyv3", "cohere2moe", "llama4")
ONE_EACH += ("graniteswa-bases", "granitemoeswa-shared", "afmoe", "laguna-heads", "hunyuanmoe", "solaropen", "dots1")
ONE_EACH += ("mimov2flash-wide", "step3p5", "hyperclovax")


def _attributes(value: Any, name: str) -> Iterator[str]:
    """Yield the name of all that differs from its default, of numbers without their size."""
    if is_dataclass(value):
        yield f"{name}: {type(value).__name__}"
        for field in fields(value):
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if getattr(value, field.name) != default:
                yield from _attributes(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, tuple):
        for one in value:
            yield from _attributes(one, name)
    elif isinstance(value, dict):
        yield from (f"{name}.{key}" for key in value)
    elif isinstance(value, bool | str):
        yield f"{name}={value}"
    else:
        yield name if value else f"{name}=0"


@cache
def attributes(family: str) -> frozenset[str]:
    """Return what distinguishes a family of `FAMILIES` from a plain Llama."""
    prefix, changes = FAMILIES[family]
    raw = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    raw["architectures"] = [prefix.removesuffix("Text") + "ForCausalLM"]
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(raw))
        config = describe_model(folder)
    return frozenset((*_attributes(config.style, "style"), *_attributes(config.rotary, "rotary"))) | (
        {"tied"} if config.tie_embeddings else set()
    )


def distinctions(family: str, *, pairs: bool) -> set[tuple[str, ...]]:
    """Return the attributes of a family; with `pairs` also what it combines, but for details of those."""
    own = sorted(attributes(family))
    blocks = [one for one in own if one.startswith(("style.", "rotary.")) and one.count(".") == 1]
    return {(one,) for one in own} | (set(combinations(blocks, 2)) if pairs else set())


def covering(families: Sequence[str], *, pairs: bool = False) -> list[str]:
    """Return some families that have among them all that distinguishes any."""
    found = {family: distinctions(family, pairs=pairs) for family in families}
    left, chosen = set[tuple[str, ...]]().union(*found.values()), list[str]()
    while left:
        best = max(families, key=lambda family: len(found[family] & left))
        chosen.append(best)
        left -= found[best]
    return chosen


def in_turn(
    families: Sequence[str], *, pairs: bool = False, turn: int = 0, others: Sequence[str] = (), **axes: Sequence[Any]
) -> pytest.MarkDecorator:
    """Parametrise a test with `name`, of which the suite runs a covering part, and `axes` as `crossed` does.

    Args:
        families: the names.
        pairs: whether any two attributes that meet in a family must meet in the suite, too.
        turn: where families and axes begin, so that others are chosen.
        others: further names, which the suite runs.
        axes: further values by argument name.
    """
    some = [*covering([*families[turn:], *families[:turn]], pairs=pairs), *others]
    rest = [name for name in families if name not in some]
    names, cases = crossed(turn, name=some, **axes).args
    if rest:
        cases += [
            pytest.param(*c.values, id=c.id, marks=pytest.mark.soak) for c in crossed(name=rest, **axes).args[1]
        ]
    return pytest.mark.parametrize(names, cases)
