"""Reasoning apart from answers, however the answer is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.server.openai.reasoning import MARKS, Marks, ReasoningReader, marks_of

THINK = MARKS["qwen3"]
assert THINK is not None


def split(marks: Marks, prompt: str, pieces: list[str]) -> tuple[str, str, int]:
    reader = ReasoningReader(marks, prompt)
    parts = [reader.feed(piece, i == len(pieces) - 1, tokens=1) for i, piece in enumerate(pieces)]
    return "".join(r for r, _ in parts), "".join(a for _, a in parts), reader.tokens


@pytest.mark.parametrize(
    ("prompt", "answer", "reasoning", "text"),
    [
        ("?", "<think>Well.</think>\n\nYes.", "Well.", "Yes."),
        ("?", "\n<think>\nWell.\n</think>Yes.", "\nWell.\n", "Yes."),
        ("?<think>\n", "Well.</think>Yes. <think>no</think>", "Well.", "Yes. <think>no</think>"),
        ("?", "No <think>reasoning</think>", "", "No <think>reasoning</think>"),
        ("?", "<think>cut off </thi", "cut off </thi", ""),
        ("?<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
        ("?", "<thin", "", "<thin"),
        ("?", "", "", ""),
    ],
)
@given(data=st.data())
def test_any_cut_gives_the_same_parts(
    prompt: str, answer: str, reasoning: str, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert split(THINK, prompt, pieces)[:2] == (reasoning, text)


def test_tokens_of_reasoning_are_counted() -> None:
    assert split(THINK, "", ["<think>", "a", "b", "</think>", "c", "d"])[2] in (3, 4)
    assert split(THINK, "", ["c", "d"])[2] == 0


def test_marks_by_name_and_by_template() -> None:
    assert marks_of("auto", "{{ '<think>' }}") == THINK
    assert marks_of("auto", "Here is my thought process:") == MARKS["granite"]
    assert marks_of("auto", None) is None
    assert marks_of("none", "<think>") is None
    assert marks_of("mistral", None) == MARKS["mistral"]
