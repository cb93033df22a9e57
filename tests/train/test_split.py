"""What is held out has nothing of what is learnt from, and is the share that was asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import options, write_target

from parlay.errors import ConfigError
from parlay.train.data import Text, sample, split
from parlay.train.options import TrainOptions
from parlay.train.responses import write_responses
from parlay.train.run import TrainProgress, train
from parlay.train.teacher import Teacher
from parlay.train.trainee import methods


def chosen(**more: Any) -> TrainOptions:
    return options(Path("target"), Path("data"), Path("output"), **more)


def document(number: int, parts: int, first: int, length: int = 5) -> list[Text]:
    return [Text.of([1, 2], [3] * (length - 2), number, first + i) for i in range(parts)]


def size(texts: list[Text]) -> int:
    return sum(len(text.tokens) for text in texts)


def test_whole_documents_are_held_out() -> None:
    texts = [text for number in range(10) for text in document(number, 7, 7 * number)]
    learnt, held = split(texts, chosen(held_out=0.2))
    assert len(held) == 14
    assert len({text.document for text in held}) == 2
    assert not {text.document for text in held} & {text.document for text in learnt}
    assert {id(text) for text in (*learnt, *held)} == {id(text) for text in texts}


def test_of_a_single_document_the_end_is_held_out() -> None:
    texts = document(3, 70, 0)
    assert split(texts, chosen(held_out=0.2)) == (texts[:-14], texts[-14:])


@pytest.mark.parametrize("seed", range(6))
def test_a_large_document_does_not_take_more_than_the_share(seed: int) -> None:
    texts = [*document(0, 20, 0), *document(1, 200, 20), *document(2, 2000, 220)]
    learnt, held = split(texts, chosen(held_out=0.02, seed=seed))
    assert 0.005 * size(texts) < size(held) <= 0.02 * size(texts)
    assert learnt


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(4, 90)), min_size=1, max_size=9), min_size=1, max_size=9
    ),
    st.floats(0.01, 0.9),
)
def test_any_documents(shape: list[list[tuple[int, int]]], share: float) -> None:
    """Each has parts, given as how many more texts than one there are of it, and of what length."""
    texts, part = [], 0
    for number, parts in enumerate(shape):
        for more, length in parts:
            texts += [Text.of([1], [2] * (length - 1), number, part) for _ in range(more + 1)]
            part += 1
    if part == 1:
        with pytest.raises(ConfigError, match="a single text"):
            split(texts, chosen(held_out=share))
        return
    learnt, held = split(texts, chosen(held_out=share))
    assert learnt
    assert held
    assert len(learnt) + len(held) == len(texts)
    assert not {text.part for text in learnt} & {text.part for text in held}
    divided = {text.document for text in learnt} & {text.document for text in held}
    assert len(divided) <= 1
    assert size(held) <= share * size(texts) or len({text.part for text in held}) == 1


@pytest.mark.parametrize("documents", [1, 4])
def test_responses_are_held_out_with_their_prompts(documents: int, tmp_path: Path) -> None:
    """Also if they were written before."""
    target = write_target(tmp_path / "target")
    texts = [replace(Text.of([i] * 3, [5, 6], 10 + i % documents), part=i) for i in range(8)]
    asked = options(target, tmp_path, tmp_path, generate=22, response_tokens=4, held_out=0.3)
    for _ in range(2):
        found = write_responses(tmp_path / "responses.jsonl", texts, asked, "target", 64)
        assert len(found) == 22
        assert all(text.part == text.tokens[0] for text in found)
        assert all(text.document == 10 + text.part % documents for text in found)
        learnt, held = split(found, asked)
        assert not {text.tokens[0] for text in learnt} & {text.tokens[0] for text in held}


def test_a_sample_is_from_all_over() -> None:
    texts = document(0, 100, 0)
    assert sample(texts, 100) == sample(texts, 1000) == texts
    assert sample(texts, 10) == texts[::10]
    assert sample(texts, 40) == texts[::3]


def test_nothing_is_learnt_from_what_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even which tokens are common."""
    data = tmp_path / "data"
    data.mkdir()
    for i in range(10):
        (data / f"{i}.txt").write_text(chr(65 + i) * 60)
    given: list[Text] = []
    known = methods.load("medusa").Trainee.__init__

    def spy(self: Any, own: Any, teacher: Teacher, texts: list[Text]) -> None:
        given.extend(texts)
        known(self, own, teacher, texts)

    monkeypatch.setattr(methods.load("medusa").Trainee, "__init__", spy)
    asked = options(write_target(tmp_path / "target"), data, tmp_path / "head", generate=0, epochs=1)
    seen: list[TrainProgress] = []
    train("medusa", asked, watch=seen.append)
    letters = {int(text.tokens[-1]) for text in given}
    assert len(letters) == 9
    assert "9 texts" in (tmp_path / "head" / "README.md").read_text()
    assert "1 more texts were held out" in (tmp_path / "head" / "README.md").read_text()
