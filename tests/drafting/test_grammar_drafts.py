"""Drafts under a grammar: pruned, gone on with, and counted right by a device proposer's layers."""

import random
from functools import cache
from typing import Any

import pytest

from parlay import StructuredOutputsParams
from parlay.checkpoints.find import find_model
from parlay.drafting.grammar_drafts import constrain_draft
from parlay.sampling.grammar import Constraint, Grammars
from parlay.text.tokenizer import TextCodec
from parlay.types.draft import NO_DRAFT, ROOT, Draft


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(find_model("tiny-code"))


@pytest.fixture(scope="module")
def grammars(codec: TextCodec) -> Grammars:
    return Grammars(codec.tokenizer, 4096, [0])


def start(grammars: Grammars, **form: Any) -> Constraint:
    return grammars.start(StructuredOutputsParams(**form))


def test_a_forced_stretch_without_a_proposer(grammars: Grammars, codec: TextCodec) -> None:
    constraint = start(grammars, choice=["import numpy as np"])
    draft, intact = constrain_draft(NO_DRAFT, constraint, [], 99)
    assert draft == Draft.chain([*codec.encode("import numpy as np"), 0], "grammar")
    assert intact == 0
    for room in range(4):
        assert constrain_draft(NO_DRAFT, constraint, [], room)[0] == draft.cut(room)


def test_a_chain_is_cut_where_it_leaves_the_grammar_and_goes_on(grammars: Grammars, codec: TextCodec) -> None:
    constraint = start(grammars, regex="[a-z] = value")
    good, bad = codec.encode("x"), codec.encode("?")
    guess = Draft.chain([*good, *bad, *good], "ngram", [0.9, 0.8, 0.7])
    draft, intact = constrain_draft(guess, constraint, [], 99)
    assert intact == 1
    assert codec.decode(draft.tokens[:-1]) == "x = value"
    assert draft.is_chain
    assert draft.source == ("ngram", *["grammar"] * (len(draft) - 1))
    assert draft.probs == (0.9, *[1.0] * (len(draft) - 1))


def test_what_stands_in_for_a_guess_is_not_the_guess(grammars: Grammars, codec: TextCodec) -> None:
    constraint = start(grammars, choice=["import os"])
    draft, intact = constrain_draft(Draft.chain(codec.encode("def f"), "draft_model"), constraint, [], 99)
    assert intact == 0
    assert set(draft.source) == {"grammar"}


def test_against_asking_for_every_path(grammars: Grammars, codec: TextCodec) -> None:
    """The slow twin asks a fresh constraint about each node's whole path."""
    rng = random.Random(0)
    form = {"regex": "(ab|ac|b)+c{2}d"}
    alphabet = [t for text in ("a", "b", "c", "d", "ab", "cc") for t in codec.encode(text)]
    pruned = grown = 0

    @cache
    def permitted(path: tuple[int, ...]) -> bool:
        constraint = start(grammars, **form)
        return all(constraint.permits(path[:i], token) for i, token in enumerate(path))

    for _ in range(300):
        size, room = rng.randint(0, 8), rng.randint(0, 10)
        guess = Draft(
            tuple(rng.choice(alphabet) for _ in range(size)),
            tuple(rng.randint(ROOT, i - 1) for i in range(size)),
            ("tree",) * size,
        )
        paths: list[list[int]] = []
        for token, parent in zip(guess.tokens, guess.parents, strict=True):
            paths.append([*([] if parent == ROOT else paths[parent]), token])
        twin = [path for path in paths if permitted(tuple(path))][:room]
        draft, intact = constrain_draft(guess, start(grammars, **form), [], room)
        found: list[list[int]] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            assert parent < len(found)
            found.append([*([] if parent == ROOT else found[parent]), token])
        kept = draft.source.count("tree")
        assert found[:kept] == twin
        assert set(draft.source[kept:]) <= {"grammar"}
        assert len(draft) <= room
        assert guess.tokens[:intact] == draft.tokens[:intact]
        assert guess.parents[:intact] == draft.parents[:intact]
        assert intact == kept or paths[: intact + 1] != found[: intact + 1]
        for path in found:
            assert permitted(tuple(path))
        pruned += kept < size
        grown += len(draft) > kept
    assert pruned > 50
    assert grown > 20
