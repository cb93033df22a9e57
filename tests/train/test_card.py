"""A head's card can be read by machines, and its commands be given to a shell, whatever paths are called."""

import json
import shlex
from pathlib import Path

import pytest
from training import options

from parlay.train.data import Text
from parlay.train.model_card import Figures, card
from parlay.train.trainee import methods


@pytest.mark.parametrize("name", ["plain", "it's", 'a "head"', "a: b # c", "back\\slash", "[1]"])
def test_any_path(name: str) -> None:
    chosen = options(Path(name), Path(name), Path(name))
    figures = Figures(1.0, (0.5,))
    text = card("medusa", chosen, methods.load("medusa").Options(), ([Text.of([1], [2])], []), figures, figures, 3)
    lines = [line.strip() for line in text.splitlines()]
    (model,) = (line.removeprefix("base_model: ") for line in lines if line.startswith("base_model: "))
    assert json.loads(model) == name  # which is YAML too
    (served,) = (shlex.split(line) for line in lines if line.startswith("parlay generate"))
    assert served[served.index("--model") + 1] == name
    assert json.loads(served[served.index("--speculative-config") + 1]) == {"model": name}
    (trained,) = (shlex.split(line) for line in lines if line.startswith("parlay train"))
    assert trained[trained.index("--output") + 1] == name
