"""Distributions that hold for every combination of several things, of which the suite runs a covering part."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest


def crossed(turn: int = 0, **axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test with every combination of `axes`; `make soak` runs those that are not in the covering part.

    The suite runs each value of the longest axis once, beside the next values of the other axes in turn, so that it
    runs every value of every axis. Tests that share axes differ in `turn`, so that different values meet.

    Args:
        turn: where the other axes begin.
        axes: values by argument name.
    """
    longest = max(axes, key=lambda name: len(axes[name]))
    covering = set()
    for i in range(len(axes[longest])):
        place, combination = i + turn, []
        for name, values in axes.items():
            if name == longest:
                combination.append(i)
            else:
                place, value = divmod(place, len(values))
                combination.append(value)
        covering.add(tuple(combination))
    cases = []
    for combination in itertools.product(*(range(len(values)) for values in axes.values())):
        values = [axes[name][i] for name, i in zip(axes, combination, strict=True)]
        marks = () if combination in covering else pytest.mark.soak
        cases.append(pytest.param(*values, id="-".join(map(str, values)), marks=marks))
    return pytest.mark.parametrize(tuple(axes), cases)


def covering(test: Callable[..., None]) -> list[dict[str, Any]]:
    """Return the arguments with which the suite runs a test that is `crossed`."""
    [mark] = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    names, cases = mark.args
    return [dict(zip(names, case.values, strict=True)) for case in cases if not case.marks]
