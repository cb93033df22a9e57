"""gpt-oss's messages on channels: any cut gives the same parts, and nothing is lost of what is damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from parlay.checkpoints.find import find_model
from parlay.server.openai.harmony import HarmonyReader
from parlay.server.openai.reasoning import MARKS, marks_of, thoughts_reader
from parlay.server.openai.tool_formats import FORMATS, format_of
from parlay.server.openai.tool_readers import FreeReader
from parlay.server.openai.tools import Tools

TOKENIZER = Tokenizer.from_file(str(find_model("tiny-code") / "tokenizer.json"))
SPECIAL = ("start", "end", "message", "channel", "constrain", "call", "return")
TOKENIZER.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in SPECIAL])
TOOLS = Tools({"weather": {"type": "object"}, "f": {"type": "object"}}, "auto", given=("weather", "f"))
CALLS = "<|channel|>analysis<|message|>Ask.<|end|><|start|>assistant"


def read(pieces: list[str], tokens: list[list[int]] | None = None) -> tuple[str, str, list[tuple[str, str]], int]:
    """Return reasoning, text, calls, and tokens of reasoning."""
    reader, calls = HarmonyReader(TOKENIZER), FreeReader(TOOLS, FORMATS["openai"])
    reasoning, text, made = "", "", list[list[str]]()
    for i, piece in enumerate(pieces):
        finished = i == len(pieces) - 1
        new, answer = reader.feed(piece, finished, tokens[i] if tokens else ())
        reasoning += new
        for part in calls.feed(answer, finished):
            if isinstance(part, str):
                text += part
            elif "id" in part:
                made.append([part["function"]["name"], part["function"]["arguments"]])
            else:
                made[-1][1] += part["function"]["arguments"]
    return reasoning, text, [(name, arguments) for name, arguments in made], reader.tokens


CASES: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "an answer": (
        "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "Well.",
        "Yes.",
        [],
    ),
    "a call": (
        f'{CALLS}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{{"city": "Oslo"}}<|call|>',
        "Ask.",
        "",
        [("weather", '{"city": "Oslo"}')],
    ),
    "the recipient first": (
        f'{CALLS} to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{{"city": "Oslo"}}',
        "Ask.",
        "",
        [("weather", '{"city": "Oslo"}')],
    ),
    "without json": (f"{CALLS} to=functions.f<|channel|>commentary<|message|>{{}}", "Ask.", "", [("f", "{}")]),
    "a preamble": (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f"
        "<|message|>{}<|call|>",
        "",
        "I look.",
        [("f", "{}")],
    ),
    "reasoning twice": (
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>",
        "A\nB",
        "",
        [],
    ),
    "without an end": ("<|channel|>analysis<|message|>A<|start|>assistant<|channel|>final<|message|>B", "A", "B", []),
    "cut in reasoning": ("<|channel|>analysis<|message|>Well <|en", "Well <|en", "", []),
    "cut in a header": ("<|channel|>analysis<|message|>Well.<|end|><|start|>assis", "Well.", "", []),
    "cut in a call": (
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Os',
        "",
        "",
        [("weather", '{"city": "Os')],
    ),
    "an empty message": (
        "<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        "",
        "Hi",
        [],
    ),
    "two channels": ("<|channel|>analysis<|channel|>final<|message|>Hi", "", "Hi", []),
    "no channel": ("<|message|>Yes.", "", "Yes.", []),
    "text alone": ("assistants answer; <b>", "", "assistants answer; <b>", []),
    "no such function": (
        "<|channel|>commentary to=functions.other<|message|>{}<|call|>",
        "",
        "<|start|>assistant to=functions.other<|message|>{}",
        [],
    ),
    "nothing": ("", "", "", []),
}


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_any_cut_gives_the_same_parts(name: str, data: st.DataObject) -> None:
    answer, *expected = CASES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    for places in (cuts, range(1, len(answer))):
        pieces = [answer[a:b] for a, b in zip([0, *places], [*places, len(answer)], strict=True)]
        assert [*read(pieces)[:3]] == expected


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("an answer", CASES["an answer"][0].partition("<|start|>")[0]),
        ("text alone", ""),
        ("an empty message", ""),
        ("two channels", ""),
        ("a preamble", ""),
        ("reasoning twice", CASES["reasoning twice"][0]),
        ("cut in reasoning", CASES["cut in reasoning"][0]),
    ],
)
@given(data=st.data())
def test_tokens_of_reasoning_are_those_of_its_messages(name: str, counted: str, data: st.DataObject) -> None:
    tokens = TOKENIZER.encode(CASES[name][0]).ids
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    parts = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    pieces = [TOKENIZER.decode(part, skip_special_tokens=False) for part in parts]
    assert read(pieces, parts)[3] == len(TOKENIZER.encode(counted).ids)


@given(st.text(alphabet="<|>abeghilmnostc \n{}:=."), st.data())
def test_nothing_of_an_answer_without_marks_is_lost(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    reasoning, said, calls, _ = read([text[:cut], text[cut:]])
    assert (reasoning, calls) == ("", [])
    assert said == text or (not said and "".join(text.split()) in "<|start|>assistant<|channel|>to=<|constrain|>")


def test_it_is_found_by_the_template() -> None:
    template = "{{ '<|start|>assistant<|channel|>commentary ' }}"
    assert format_of("auto", template) is FORMATS["openai"]
    marks = marks_of("auto", template)
    assert marks is MARKS["openai_gptoss"]
    assert marks is not None
    assert isinstance(thoughts_reader(marks, "", TOKENIZER), HarmonyReader)
