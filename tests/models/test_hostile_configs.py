"""Configs of all families with one value that does not belong there: a description, or an error of ours."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from asking import random_seed
from families import FAMILIES, OTHERS, SMALL, step_config

from parlay.errors import ModelError
from parlay.models.select import describe_files, families

VALUES = ["x", "", [], {}, [0], [[]], ["x"], {"x": 1}, {"x": []}, None, True, False, 0, -1, 1.5, 1 << 70, 1e308, -0.5]
CASES = 12  # of each
LEFT_OUT = ("phi3-partial",)  # which transformers refuses to make
NAMES = [
    name
    for name, (prefix, _) in sorted((FAMILIES | OTHERS).items())
    if name not in LEFT_OUT and prefix.removesuffix("Text").lower() in families.names()
]


@cache
def config_of(name: str) -> str:
    """Return a family's config as transformers writes it."""
    prefix, changes = (FAMILIES | OTHERS)[name]
    values = {**SMALL, **changes}
    suffix = "TextConfig" if prefix == "Gemma3" else "Config"
    made = step_config(values) if prefix == "Step3p5" else getattr(transformers, prefix + suffix)(**values)
    raw = made.to_dict()
    raw = raw.get("text_config", raw)
    return json.dumps({**raw, "architectures": [prefix.removesuffix("Text") + "ForCausalLM"]}, default=str)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in inner for path in [(*above, key), *places(one, (*above, key))]]


def troubles(path: Path, name: str, rng: random.Random, cases: int) -> list[str]:
    """Return what else than an error of ours came of a family's config with a value changed."""
    whole, found = config_of(name), []
    paths = places(json.loads(whole))
    for _ in range(cases):
        raw, (*above, last), value = json.loads(whole), rng.choice(paths), rng.choice(VALUES)
        inner = raw
        for key in above:
            inner = inner[key]
        inner[last] = value
        (path / "config.json").write_text(json.dumps(raw))
        try:
            describe_files(path)
        except ModelError:
            continue
        except Exception as error:
            found.append(f"{name}: {[*above, last]} = {value!r}: {type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_does_not_belong(tmp_path: Path, name: str) -> None:
    assert not troubles(tmp_path, name, random.Random(random_seed()), CASES)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_many_values(tmp_path: Path, name: str) -> None:
    assert not troubles(tmp_path, name, random.Random(random_seed()), 100 * CASES)
