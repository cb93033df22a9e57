"""Reasoning apart from answers, however the answer is cut into pieces."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from answer_forms import grammars_of
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from parlay.checkpoints.find import find_model
from parlay.server.openai.chat import ChatShape
from parlay.server.openai.choice import ChoiceDelta
from parlay.server.openai.reasoning import MARKS, Calls, Marks, ReasoningReader, marks_of, reasoning_grammar
from parlay.server.openai.tool_formats import FORMATS
from parlay.server.openai.tool_readers import reader_of
from parlay.server.openai.tools import Tools
from parlay.types.structured import StructuredOutputsParams

THINK, R1, GRANITE, COHERE, GEMMA = (
    MARKS[name] for name in ("qwen3", "deepseek_r1", "granite", "cohere_command3", "gemma4")
)
GRANITE_33, APRIEL, APERTUS, DEEPSEEK, HY3, KIMI, MINIMAX, SOLAR = (
    MARKS[name]
    for name in ("granite33", "apriel", "apertus", "deepseek_v4", "hy_v3", "kimi_k3", "minimax_m3", "solar_open")
)
assert THINK is not None
assert R1 is not None
assert GRANITE is not None
assert COHERE is not None
assert GEMMA is not None
TOKENIZER = Tokenizer.from_file(str(find_model("tiny-code") / "tokenizer.json"))


def split(marks: Marks, prompt: str, pieces: list[str], calls: Calls | None = None) -> tuple[str, str]:
    reader = ReasoningReader(marks, prompt, TOKENIZER, calls)
    parts = [reader.feed(piece, i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return "".join(r for r, _ in parts), "".join(a for _, a in parts)


@pytest.mark.parametrize(
    ("marks", "prompt", "answer", "reasoning", "text"),
    [
        (THINK, "?", "<think>Well.</think>\n\nYes.", "Well.", "Yes."),
        (THINK, "?", "\n<think>\nWell.\n</think>Yes.", "\nWell.\n", "Yes."),
        (THINK, "?<think>\n", "Well.</think>Yes. <think>no</think>", "Well.", "Yes. <think>no</think>"),
        (THINK, "?", "No <think>reasoning</think>", "", "No <think>reasoning</think>"),
        (THINK, "?", "<think>cut off </thi", "cut off </thi", ""),
        (THINK, "?<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
        (THINK, "?", "<thin", "", "<thin"),
        (THINK, "?", "", "", ""),
        # As vLLM's parser of that name: what stands before the last mark is reasoning, and so is all without it.
        (R1, "?", "abc</think>\n\ndef", "abc", "def"),
        (R1, "?", "<think>abc</think>def", "abc", "def"),
        (R1, "?<think>", "abc</think>def", "abc", "def"),
        (R1, "?", "abc", "abc", ""),
        (R1, "?", "<th", "<th", ""),
        (R1, "?</think>", "def", "", "def"),  # as DeepSeek-V3.1's template ends a prompt without reasoning
        (COHERE, "?", "<|START_THINKING|>Well.<|END_THINKING|><|START_RESPONSE|>Yes <b>.<|END_RESPONSE|>", "Well.",
         "Yes <b>."),
        (COHERE, "?<|START_THINKING|><|END_THINKING|>", "<|START_TEXT|>Yes.", "", "Yes."),
        (COHERE, "?", "<|START_ACTION|>[]<|END_ACTION|>", "", "<|START_ACTION|>[]<|END_ACTION|>"),
        (COHERE, "?", "<|START_RESPONSE|>", "", ""),
        (GEMMA, "?", "<|channel>thought\nWell.\n<channel|>Yes.", "Well.\n", "Yes."),
        (GEMMA, "?", "<|channel>thought\n<channel|>Yes.", "", "Yes."),  # as larger models write without reasoning
        (GEMMA, "?<|channel>thought\n<channel|>", "Yes.", "", "Yes."),  # as its template ends a prompt without it
        (GEMMA, "?", "Yes.", "", "Yes."),
        (THINK, "?", "</think>\n\nYes.", "", "Yes."),
        (GRANITE_33, "?", "<think>Well.</think>\n\n<response>Yes: <response>.</response>\n", "Well.",
         "Yes: <response>."),
        (GRANITE_33, "?", "<think>Well.</think>Yes </response> or", "Well.", "Yes </response> or"),
        (GRANITE_33, "?", "<think>Well.</think><resp", "Well.", "<resp"),
        (GRANITE_33, "?", "<response>Yes.</response>", "", "<response>Yes.</response>"),  # what a user asked for
        (APRIEL, "?\nHere are my reasoning steps:\n", "Well.\n[BEGIN FINAL RESPONSE]\nYes.", "Well.\n", "Yes."),
        (APRIEL, "?", "Here are my reasoning steps:\nWell.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]\n",
         "\nWell.\n", "Yes."),
        (APERTUS, "?", "<|inner_prefix|>Well.<|inner_suffix|>Yes.", "Well.", "Yes."),
        (APERTUS, "?", '<|inner_prefix|>Well.<|tools_prefix|>[{"f": {}}]<|tools_suffix|>', "Well.",
         '<|tools_prefix|>[{"f": {}}]<|tools_suffix|>'),
        (DEEPSEEK, "?<think>", "Well.</think>Yes.", "Well.", "Yes."),
        (DEEPSEEK, "?<think>", "Well.<\uff5cDSML\uff5ctool_calls>\n", "Well.", "<\uff5cDSML\uff5ctool_calls>\n"),
        (HY3, "?<think:opensource>", "Well.</think:opensource>Yes.", "Well.", "Yes."),
        (HY3, "?<think:opensource></think:opensource>", "Yes.", "", "Yes."),
        (KIMI, "?<|open|>think<|sep|>", "Well.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response"
         "<|sep|><|close|>message<|sep|>", "Well.", "Yes."),
        (KIMI, "?<|open|>response<|sep|>", "A response.<|close|>response<|sep|><|close|>message<|sep|>", "",
         "A response."),
        (MINIMAX, "?", "<mm:think>Well.</mm:think>Yes.", "Well.", "Yes."),
        (MINIMAX, "?", "</mm:think>Yes.", "", "Yes."),
        (MINIMAX, "?", "<mm:think>Well.]<]minimax[>[<tool_call>", "Well.", "]<]minimax[>[<tool_call>"),
        (SOLAR, "?<|begin|>assistant", "<|think|>Well.<|end|><|begin|>assistant<|content|>Yes.<|end|>", "Well.",
         "Yes."),
        (SOLAR, "?<|think|><|end|><|begin|>assistant", "<|content|>Yes.<|end|>", "", "Yes."),
        (
            GRANITE,
            "",
            "Here's my thought process: Here's an idea. Here's my response: 42.",
            " Here's an idea. ",
            "42.",
        ),
    ],
)  # fmt: skip
@given(data=st.data())
def test_any_cut_gives_the_same_parts(
    marks: Marks, prompt: str, answer: str, reasoning: str, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    for places in (cuts, range(1, len(answer))):
        pieces = [answer[a:b] for a, b in zip([0, *places], [*places, len(answer)], strict=True)]
        assert split(marks, prompt, pieces) == (reasoning, text)


TOOLS = Tools({"f": {"type": "object"}}, "auto")
CALL, OTHER = '<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>', '<tool_call>{"name": "g"}</tool_call>'


@pytest.mark.parametrize(
    ("answer", "reasoning", "text"),
    [
        (f"<think>Well.\n{CALL}", "Well.\n", CALL),
        (f"<think>{OTHER} or <tool_call>, {CALL}\n{CALL}\n", f"{OTHER} or <tool_call>, ", f"{CALL}\n{CALL}\n"),
        (f"<think>I could write {CALL}, or not.", f"I could write {CALL}, or not.", ""),
        (f"<think>I could write {CALL}, but {CALL}", f"I could write {CALL}, but ", CALL),
        (f"<think>I write {CALL}</think>\n\n{CALL}", f"I write {CALL}", CALL),
        (f"<think>I write {CALL[:45]}", "I write ", CALL[:45]),
        ("<think>I write <tool_call>", "I write <tool_call>", ""),
        (f"Yes. {CALL}", "", f"Yes. {CALL}"),
    ],
)
@given(data=st.data())
def test_calls_behind_reasoning_without_an_end(answer: str, reasoning: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    for places in (cuts, range(1, len(answer))):
        pieces = [answer[a:b] for a, b in zip([0, *places], [*places, len(answer)], strict=True)]
        assert split(THINK, "?", pieces, (TOOLS, FORMATS["hermes"])) == (reasoning, text)


def test_tokens_of_reasoning_before_calls() -> None:
    for thought in ("Well.", f"I could write {CALL}, but no.\n"):
        before, after = (TOKENIZER.encode(part).ids for part in (f"<think>{thought}", CALL))
        reader = ReasoningReader(THINK, "?", TOKENIZER, (TOOLS, FORMATS["hermes"]))
        for i, token in enumerate((*before, *after)):
            reader.feed(TOKENIZER.decode([token]), i + 1 == len(before) + len(after), [token])
        assert reader.tokens == len(before)


LONG = "so it goes on, " * 200


@pytest.mark.parametrize(
    ("marks", "prompt", "answer"),
    [
        (THINK, "", "<think>a b c</think>\n\nd e f <think>g</think>"),
        (THINK, "<think>\n", f"{LONG}</think>{LONG}"),
        (THINK, "", "<think>\N{PARTY POPPER}</think>\N{PARTY POPPER}"),
        (THINK, "", "no reasoning at all"),
        (THINK, "", "<think>cut off </thi"),
        (THINK, "", "<thin"),
        (R1, "", f"{LONG}</think>x"),
        (R1, "</think>", "x y z"),
        (GRANITE, "", f"Here is my thought process: {LONG} Here is my response: 42 and more"),
        (GRANITE, "", "Here's my thought process: Hm. Here's my response: 42. Here is my response: 43"),
        (DEEPSEEK, "<think>", "Hm.\n\n<\uff5cDSML\uff5ctool_calls>\n"),
        (MINIMAX, "", "</mm:think>a b c"),
    ],
)
@given(data=st.data())
def test_tokens_of_reasoning_are_those_up_to_its_end(
    marks: Marks, prompt: str, answer: str, data: st.DataObject
) -> None:
    tokens = TOKENIZER.encode(answer).ids
    known = [0, *data.draw(st.lists(st.integers(0, len(tokens)), max_size=5).map(sorted)), len(tokens)]
    texts = [TOKENIZER.decode(tokens[:k], skip_special_tokens=False) for k in known]
    texts = [text.rstrip("\N{REPLACEMENT CHARACTER}") for text in texts]
    reader = ReasoningReader(marks, prompt, TOKENIZER)
    for i in range(1, len(known)):
        reader.feed(texts[i][len(texts[i - 1]) :], i + 1 == len(known), tokens[known[i - 1] : known[i]])
    begun = prompt.strip() == marks.begins[0] or answer.startswith(marks.begins) or (marks is R1 and not prompt)
    assert reader.tokens == (tokens_to_the_end(marks, answer) if begun else 0)


@cache
def tokens_to_the_end(marks: Marks, answer: str) -> int:
    tokens, stops = TOKENIZER.encode(answer).ids, (*marks.ends, *marks.called)
    ends = (k for k in range(len(tokens) + 1) if any(m in TOKENIZER.decode(tokens[:k]) for m in stops))
    return next(ends, len(tokens))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{%- set thinking_start_token = '<think>' -%}{%- set dsml_token = '\uff5cDSML\uff5c' -%}", "deepseek_v4"),
        (
            "Write your thoughts between <think></think> and write your response between <response></response>",
            "granite33",
        ),
        ("the final response after the marker [BEGIN FINAL RESPONSE].", "apriel"),
        ("{%- set think_begin_token = '<think{}>'.format(HYTK) %}", "hy_v3"),
        ("{{- open_tag('think') -}}{{- '<|end_of_msg|>' -}}", "kimi_k3"),
        ("{%- set think_begin_token = '<mm:think>' -%}", "minimax_m3"),
        ('{{- "<|begin|>assistant<|think|>" + message.reasoning + "<|end|>" }}', "solar_open"),
        ("{%- set inner_token = '<|inner_prefix|>' -%}", "apertus"),
    ],
)
def test_the_template_tells_the_marks(template: str, name: str) -> None:
    assert marks_of("auto", template) is MARKS[name]


def test_marks_by_name_and_by_template() -> None:
    assert marks_of("auto", "{{ '<think>' }}") == THINK
    assert marks_of("auto", "Here is my thought process:") == MARKS["granite"]
    assert marks_of("auto", "{{ '<|channel>thought\\n' + text + '\\n<channel|>' }}") == GEMMA
    assert marks_of("auto", None) is None
    assert marks_of("none", "<think>") is None
    assert marks_of("mistral", None) == MARKS["mistral"]
    assert marks_of("glm45", None) is THINK


MISTRAL = MARKS["mistral"]
assert MISTRAL is not None
SPECIAL = Tokenizer.from_file(str(find_model("tiny-code") / "tokenizer.json"))
SPECIAL.add_special_tokens(["[THINK]", "[/THINK]", "<|channel>", "<channel|>", "<|open|>", "<|close|>", "<|sep|>"])


@pytest.mark.parametrize(
    ("marks", "prompt", "answer", "fits"),
    [
        (THINK, "?", "[12]", True),
        (THINK, "?", "<think>Well, [</think>\n\n[12]", True),
        (THINK, "?", "\n<think>\nWell.</think>[12]", True),
        (THINK, "?", "<think>Well.</think>Sure: [12]", False),
        (THINK, "?", "Well.</think>[12]", False),
        (THINK, "?<think>\n", "Well.</think>\n\n[12]", True),
        (THINK, "?<think>\n", "[12]", False),  # the reasoning has begun, and has to end
        (THINK, "?<think>\n\n</think>\n\n", "[12]", True),
        (THINK, "?<think>\n\n</think>\n\n", "<think>Well.</think>[12]", False),
        (R1, "?", "Well.</think>[12]", True),
        (R1, "?", "<think>Well.</think>[12]", True),
        (R1, "?", "[12]", False),
        (GRANITE, "?", "Here's my thought process: Well. Here is my response: [12]", True),
        (GRANITE, "?", "[12]", True),
        (MISTRAL, "?", "[THINK]Well.[/THINK][12]", True),
        (MISTRAL, "?[THINK]", "Well.[/THINK]\n[12]", True),
        (MISTRAL, "?", "[12]", True),
        (GEMMA, "?", "<|channel>thought\nWell.\n<channel|>[12]", True),
        (GEMMA, "?", "<|channel>thought\n<channel|>[12]", True),
        (GEMMA, "?", "<|channel>Well.<channel|>[12]", False),
        (GEMMA, "?<|channel>thought\n<channel|>", "[12]", True),
        (GEMMA, "?", "[12]", True),
        (KIMI, "?<|open|>think<|sep|>", "Well, <b>.<|close|>think<|sep|>[12]", True),
        (KIMI, "?<|open|>think<|sep|>", "Well.<|close|>response<|sep|>[12]", False),
        (KIMI, "?<|open|>response<|sep|>", "[12]", True),
        (HY3, "?<think:opensource>", "Well.</think:opensource>[12]", True),
        (APRIEL, "?Here are my reasoning steps:", "Well.\n[BEGIN FINAL RESPONSE]\n[12]", True),
        (MINIMAX, "?", "<mm:think>Well.</mm:think>[12]", True),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        {"json": {"type": "array", "items": {"type": "integer"}}},
        {"regex": r"\[[0-9]+\]"},
        {"choice": ["[12]", "[13]"]},
        {"grammar": 'root ::= "[" number "]"\nnumber ::= [0-9]+'},
    ],
    ids=lambda form: next(iter(form)),
)
def test_a_form_begins_behind_the_reasoning(
    marks: Marks, prompt: str, answer: str, fits: bool, form: dict[str, Any]
) -> None:
    tokenizer = SPECIAL if marks.special else TOKENIZER
    before = reasoning_grammar(marks, prompt, tokenizer)
    constraint = grammars_of(tokenizer).start(StructuredOutputsParams.parse({**form, "prefix_grammar": before}))
    path = tokenizer.encode(answer).ids
    assert all(constraint.permits(path[:i], token) for i, token in enumerate([*path, 0])) is fits


def test_a_forced_call_begins_behind_the_reasoning() -> None:
    assert THINK is not None
    tools = Tools({"f": {}}, "named", "f")
    shape = SimpleNamespace(
        readers={0: reader_of(tools, FORMATS["hermes"])},
        thoughts={0: ReasoningReader(THINK, "?<think>", TOKENIZER)},
        fields=SimpleNamespace(include_reasoning=True),
    )
    found = []
    for text in ("We", "ll.", "</think>", '{"a"', ": 1}"):
        news = ChoiceDelta(text, (), (), None, "stop" if text.endswith("}") else None, None)
        reasoning, pieces = ChatShape._read(shape, 0, news)  # type: ignore[arg-type]
        found.append((reasoning, [piece["function"]["arguments"] for piece in pieces if isinstance(piece, dict)]))
    assert found == [("We", []), ("ll.", []), ("", []), ("", ['{"a"']), ("", [": 1}"])]
