"""Calls in answers, however the answer is cut into pieces."""

import json
import re
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.server.errors import ApiError
from parlay.server.openai.fields import ChatFields
from parlay.server.openai.tool_formats import FORMATS, format_of
from parlay.server.openai.tool_readers import CallReader, FreeReader, NamedReader, reader_of
from parlay.server.openai.tools import Tools, read_tools

NS = "]<]minimax[>["  # before each of MiniMax-M3's tags
TOOLS = Tools({"f": {"type": "object"}, "g": {"type": "object"}}, "auto")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<tool_call>"}}\n</tool_call>'


def feed(reader: CallReader, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls that a reader makes of pieces, put together as clients do."""
    text = ""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for i, piece in enumerate(pieces):
        for new in reader.feed(piece, i == len(pieces) - 1):
            if isinstance(new, str):
                assert new
                text += new
                continue
            assert ("id" in new) == ("name" in new["function"]) == (new["index"] not in names)
            names.setdefault(new["index"], new["function"].get("name", ""))
            arguments[new["index"]] = arguments.get(new["index"], "") + new["function"]["arguments"]
    assert list(names) == list(range(reader.called))
    return text, [(names[i], arguments[i]) for i in names]


def read(reader: CallReader, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    """Return the same with the arguments' values."""
    text, calls = feed(reader, pieces)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def cut(answer: str, data: Any) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    return [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        ("Just text.", "Just text.", []),
        ("Look:\n" + CALL.replace("<tool_call>\"", '"'), "Look:", [("f", {"a": ""})]),
        (CALL.replace('"<tool_call>"', "1") * 2, "", [("f", {"a": 1})] * 2),
        ('{"name": "g", "parameters": {"b": [1]}}', "", [("g", {"b": [1]})]),
        ('[{"name": "g", "arguments": {}}, {"name": "f", "arguments": {}}]', "", [("g", {}), ("f", {})]),
        ('{"name": "h", "arguments": {}}', '{"name": "h", "arguments": {}}', []),
        ("a < b <tool_ca", "a < b <tool_ca", []),
        ("broken <tool_call>{", "broken <tool_call>{", []),
        ('{"name": "f", "arguments": 3}', '{"name": "f", "arguments": 3}', []),
        ('{"arguments": {"a": 1}, "id": [2], "name": "f"} ', "", [("f", {"a": 1})]),
        ('{"x": "}", "name": "f", "arguments": {}, "y": {"z": "]"}}\n', "", [("f", {})]),
        ('[{"name": "f", "arguments": {}}, {"name": "h", "arguments": {}}]',
         ', {"name": "h", "arguments": {}}]', [("f", {})]),
        ("One " + CALL + "\n two " + CALL + " <tool_call>x\n", "One\n two <tool_call>x\n",
         [("f", {"a": "<tool_call>"})] * 2),
        ('<tool_call>{"name": "h", "arguments": {}}</tool_call> <tool_call>{"name": "g", "arguments": {}}',
         '<tool_call>{"name": "h", "arguments": {}}</tool_call>', [("g", {})]),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\"}"}</tool_call>', "", [("f", {"a": '"}'})]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
        ('<tool_call>{"type": "function", "name": "f"}', "", [("f", {})]),
        ('<tool_call>{"name": "f", "a": 1}', '<tool_call>{"name": "f", "a": 1}', []),  # arguments in the wrong place
        ('{"name": "f"}', '{"name": "f"}', []),  # any answer in JSON may have a name
        ('<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [("f", {})]),
        ('<tool_call>{"arguments": null, "name": "f"}</tool_call>', "", [("f", {})]),
        ('<tool_call>{"name": "f", "arguments": "{\\n \\"a\\": \\"}\\\\n\\"}"}</tool_call>', "",
         [("f", {"a": "}\n"})]),
        ('<tool_call>{"name": "f", "arguments": "[1]"}', '<tool_call>{"name": "f", "arguments": "[1]"}', []),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "b</tool_call>',
         ', "b</tool_call>', [("f", {"a": 1})]),
        (" \n ", " \n ", []),
        ('<tool_call>{"name": "f", "arguments": {\n"a": "if x:\n\ty = \\"}\\"\r\n",\n"b": {"c\n": 1}}}', "",
         [("f", {"a": 'if x:\n\ty = "}"\r\n', "b": {"c\n": 1}})]),
        ('<tool_call>{"arguments": {"a": "\n"}, "name": "f"}', "", [("f", {"a": "\n"})]),
    ],
)  # fmt: skip
@given(data=st.data())
def test_free_answers(answer: str, text: str, calls: Any, data: Any) -> None:
    assert read(FreeReader(TOOLS, FORMATS["hermes"]), cut(answer, data)) == (text, calls)


PIECES = st.text(max_size=12) | st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<function=f>",
        "f(a=1)",
        "[",
        "]",
        "{}",
        "{",
        "}",
        ",",
        ";",
        '"',
        "\\",
        " \n",
        "f",
        '{"name": "f", "arguments": ',
        '{"name": "g", "parameters": {"a": "',
        '{"arguments": {}, "name": "f"}',
        '"x": [1, {}]',
        "</function>",
        "<parameter=a>",
        "\n</parameter>",
        "<|python_start|>",
        "<|python_end|>",
        f'{NS}<tool_call>{NS}<invoke name="f">',
        f"{NS}<a>",
        f"{NS}</a>",
        f"{NS}</invoke>",
        '<\uff5cDSML\uff5ctool_calls><\uff5cDSML\uff5cinvoke name="f">',
        '<\uff5cDSML\uff5cparameter name="a" string="',
        'true">',
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>',
        '<|open|>argument key="a" type="number"<|sep|>',
        "<tool_calls><tool_call>f<tool_sep>",
        "<|tools_prefix|>",
        '{"f": ',
    ]
)


@pytest.mark.parametrize("name", FORMATS)
@given(pieces=st.lists(PIECES, max_size=9), data=st.data())
def test_the_pieces_change_nothing_and_nothing_is_lost(name: str, pieces: list[str], data: Any) -> None:
    """Whole, in these pieces, in others and letter by letter: the same text, the same calls."""
    whole = "".join(pieces)
    expected = feed(FreeReader(TOOLS, FORMATS[name]), [whole])
    for parts in ([*pieces, ""], cut(whole, data), [*whole, ""]):
        assert feed(FreeReader(TOOLS, FORMATS[name]), parts) == expected
    text, calls = expected
    if not calls:
        assert text == whole
    rest = whole
    for piece in FreeReader(TOOLS, FORMATS[name]).feed(whole, True):
        found = piece if isinstance(piece, str) else piece["function"]["name"]
        at = rest.find(found)
        assert at >= 0, "in the order of the answer"
        rest = rest[at + len(found) :]
    if name in ("hermes", "llama3_json", "mistral"):  # the others have no JSON to be passed on
        for _, arguments in calls:
            assert escaped(arguments) in escaped(whole) or arguments == "{}"


def escaped(text: str) -> str:
    return re.sub(r"[\x00-\x1f]", lambda found: json.dumps(found[0])[1:-1], text)


def test_a_call_comes_as_it_grows() -> None:
    reader = FreeReader(TOOLS, FORMATS["hermes"])
    assert reader.feed("Look: ", False) == ["Look:"]
    assert reader.feed('<tool_call>{"name": "f", "arg', False) == []
    (call,) = reader.feed('uments": {"a": [1', False)
    assert isinstance(call, dict)
    assert call["id"].startswith("call_")
    assert (call["index"], call["type"]) == (0, "function")
    assert call["function"] == {"name": "f", "arguments": '{"a": [1'}
    assert reader.feed(", 2]", False) == [{"index": 0, "function": {"arguments": ", 2]"}}]
    assert reader.feed("}", False) == [{"index": 0, "function": {"arguments": "}"}}]
    assert reader.feed("}</tool_", False) == []
    assert reader.feed("call> \n", False) == []
    assert reader.feed("x", False) == [" \nx"]
    assert reader.feed(" ", True) == [" "]


def test_values_of_texts_come_as_they_grow() -> None:
    tools = Tools({"f": {"properties": {"a": {"type": "string"}, "b": {}}}}, "auto")
    reader = FreeReader(tools, FORMATS["qwen3_xml"])
    texts = []
    for piece in (
        "<tool_call><function=f>", "<parameter=a>\nx", '"y\n', "z\n</para", "meter><parameter=b>1", "2</parameter>",
        "</function>", "</tool_call>",
    ):  # fmt: skip
        texts.append("".join(p["function"]["arguments"] for p in reader.feed(piece, False) if isinstance(p, dict)))
    assert texts == ["", '{"a": "x', '\\"y', "\\nz", '", "b": ', "", "12}", ""]


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "qwen3_xml"])
def test_a_call_that_is_cut_off_has_its_arguments_so_far(name: str) -> None:
    mark = FORMATS[name].marks[0]
    answer = "Yes. " + mark + '{"name": "f", "arguments": {"a": "\\'
    assert feed(FreeReader(TOOLS, FORMATS[name]), [answer]) == ("Yes.", [("f", '{"a": "\\')])


@pytest.mark.parametrize("name", ["qwen3_xml", "deepseek_v4", "minimax_m3", "kimi_k3", "hy_v3"])
def test_a_text_that_is_cut_off_has_nothing_of_the_mark_behind_it(name: str) -> None:
    answer = next(answer for form, answer, _ in RECORDED + RECENT if form == name and "Paris" in answer)
    whole = '{"city": "Paris'
    begin, end = answer.find("Paris"), answer.find("days")
    found = {n: feed(FreeReader(WEATHER, FORMATS[name]), [answer[:n]])[1][0][1] for n in range(begin, end)}
    assert all(whole.startswith(one.removesuffix('"')) for one in found.values())
    assert whole in found.values()


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("hermes", "", ""),
        ("hermes", "Yes.", ""),
        ("hermes", 'Yes. <tool_call>{"name": "f", "arguments": {"a": "', '"}}</tool_call>'),
        ("hermes", '{"result": ["', '"]}'),
        ("hermes", '{"arguments": {"a": "', '"}, "name": "f"}'),
        ("llama3_json", '{"name": "f", "parameters": {"a": [', "]}}"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "', '"}'),
        ("mistral", "[TOOL_CALLS]", ""),
        ("pythonic", "[f(a='", "')]"),
        ("qwen3_xml", "<tool_call><function=g><parameter=a>", "</parameter></function></tool_call>"),
        ("qwen3_xml", "<tool_call><function=f><parameter=a>", "</parameter></function></tool_call>"),
        ("minimax_m3", f'{NS}<tool_call>{NS}<invoke name="f">{NS}<a>', f"{NS}</a>{NS}</invoke>"),
        ("minimax_m3", f'{NS}<tool_call>{NS}<invoke name="g">{NS}<a>', f"{NS}</a>{NS}</invoke>"),
        ("apertus", '<|tools_prefix|>[{"f": {"a": "', '"}}]'),
    ],
)
def test_long_answers_take_no_long_time(name: str, begin: str, end: str) -> None:
    """Each letter is looked at about once; a second look at all that came takes a minute."""
    tools = Tools({"f": {"type": "object"}, "g": {"properties": {"a": {"type": "string"}}}}, "auto")
    answer = begin + "y \n" * 40_000 + end
    before = process_time()
    feed(FreeReader(tools, FORMATS[name]), [answer[i : i + 4] for i in range(0, len(answer), 4)])
    assert process_time() - before < 6


# As the families' models write them, after their own chat templates.
WEATHER = Tools(
    {
        "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        "time": {"type": "object", "properties": {}},
        "plan": {
            "type": "object",
            "properties": {"steps": {"type": "object"}, "list": {"type": "array"}, "free": {}},
        },
    },
    "auto",
)
PARIS, NOW = ("weather", {"city": "Paris", "days": 2}), ("time", {})
BEGIN, ONE, SEP, END, CLOSE = (  # DeepSeek's
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
)
RECORDED = [
    (
        "hermes",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        ("", [PARIS, NOW]),
    ),
    (
        "qwen3_xml",
        "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
        ("I look.", [PARIS, NOW]),
    ),
    (
        "qwen3_xml",
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>",
        ("", [("weather", {"city": "12"})]),
    ),
    (
        "seed_oss",
        "I look.\n<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
        ("I look.", [PARIS]),
    ),
    (
        "glm45",
        "I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>time\n</tool_call>",
        ("I look.", [PARIS, NOW]),
    ),
    ("glm45", "<tool_call>time</tool_call> and", (" and", [NOW])),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="time">\n</invoke>\n</minimax:tool_call>',
        ("", [PARIS, NOW]),
    ),
    (
        "deepseek_v3",
        f'I look.{BEGIN}{ONE}function{SEP}weather\n```json\n{{"city": "Paris", "days": 2}}\n```{END}\n'
        f"{ONE}function{SEP}time\n```json\n{{}}\n```{END}{CLOSE}",
        ("I look.", [PARIS, NOW]),
    ),
    (
        "deepseek_v31",
        f'{BEGIN}{ONE}weather{SEP}{{"city": "Paris", "days": 2}}{END}{ONE}time{SEP}{{}}{END}{CLOSE} and',
        (" and", [PARIS, NOW]),
    ),
    ("deepseek_v31", f"{BEGIN}{ONE}other{SEP}{{}}", (f"{BEGIN}{ONE}other{SEP}{{}}", [])),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris", "days": 2}<|tool_call_end|><|tool_call_begin|>functions.time:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ("", [PARIS, NOW]),
    ),
    (
        "cohere_command3",
        'Yes.<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris", '
        '"days": 2}},\n    {"tool_call_id": "1", "tool_name": "time", "parameters": {}}\n]<|END_ACTION|>',
        ("Yes.", [PARIS, NOW]),
    ),
    (
        "gemma4",
        'I look.<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|><|tool_call>call:time{}<tool_call|>',
        ("I look.", [PARIS, NOW]),
    ),
    (
        "gemma4",
        '<|tool_call>call:weather{<|"|>city<|"|>:<|"|>a}, "b": [<|"|>,days:[1.5,true,{in:null,x:[]}]}<tool_call|>No.',
        ("No.", [("weather", {"city": 'a}, "b": [', "days": [1.5, True, {"in": None, "x": []}]})]),
    ),
    ("gemma4", "<|tool_call>call:weather{ city: Paris, days: 2 }<tool_call|>", ("", [PARIS])),
    (
        "gemma4",
        '<|tool_call>call:weather{city:<|"|>Paris}<tool_call|>',
        ('<|tool_call>call:weather{city:<|"|>Paris}<tool_call|>', []),
    ),
    ("gemma4", "<|tool_call>call:other{}<tool_call|>", ("<|tool_call>call:other{}<tool_call|>", [])),
    (
        "granite",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, '
        '{"name": "time", "arguments": {}}]',
        ("", [PARIS, NOW]),
    ),
    ("granite", "<|tool_call|> no", ("<|tool_call|> no", [])),
    *(
        (
            name,
            f'I look.\n{begin}[{{"name": "weather", "arguments": {{"city": "Paris", "days": 2}}}}, '
            f'{{"name": "time", "arguments": {{}}}}]{end} and',
            ("I look. and", [PARIS, NOW]),
        )
        for name, begin, end in (
            ("nemotron_json", "<TOOLCALL>", "</TOOLCALL>"),
            ("apriel", "<tool_calls>", "</tool_calls>"),
        )
    ),
    *(
        (
            "gigachat3",
            f'I look.{begin}{{"name": "weather", "arguments": {{"city": "Paris", "days": 2}}}}<|message_sep|>',
            ("I look.", [PARIS]),
        )
        for begin in (
            "<|function_call|>",
            "function call<|role_sep|>\n",
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
        )
    ),
    ("gigachat3", "a function call<|role_sep|> no", ("a function call<|role_sep|> no", [])),
    (  # as a template shows objects that are no JSON
        "seed_oss",
        "<seed:tool_call>\n<function=plan>\n<parameter=steps>{'a': [1, True, None], 'b': 'it\\'s'}</parameter>\n"
        "<parameter=list>('x',)</parameter>\n<parameter=free>{'a': 1}</parameter>\n</function>\n</seed:tool_call>",
        ("", [("plan", {"steps": {"a": [1, True, None], "b": "it's"}, "list": "('x',)", "free": "{'a': 1}"})]),
    ),
    (  # line ends as they are, and quotes of the other kind
        "lfm2",
        '<|tool_call_start|>[weather(city=\'one "two"\nthree\\n\', days={"a": "x\ny"}), time()]<|tool_call_end|>',
        ("", [("weather", {"city": 'one "two"\nthree\n', "days": {"a": "x\ny"}}), NOW]),
    ),
    (
        "lfm2",
        'I look.<|tool_call_start|>[weather(city="Paris", days=2), time()]<|tool_call_end|>Done.',
        ("I look.Done.", [PARIS, NOW]),
    ),
    ("lfm2", "<|tool_call_start|>[weather(city=", ("<|tool_call_start|>[weather(city=", [])),
    (
        "olmo3",
        'I look.\n<function_calls>\nweather(city="Paris", days=2)\ntime()\n</function_calls>',
        ("I look.", [PARIS, NOW]),
    ),
    (
        "olmo3",
        '<function_calls>weather(city="a\\nb", days=null)</function_calls>',
        ("", [("weather", {"city": "a\nb", "days": None})]),
    ),
    ("olmo3", "<function_calls>x = 1</function_calls>", ("<function_calls>x = 1</function_calls>", [])),
    (
        "minicpm5",
        'I look.\n<function name="weather"><param name="city">Paris</param><param name="days">2</param></function>\n'
        '<function name="time"></function>',
        ("I look.", [PARIS, NOW]),
    ),
    (
        "minicpm5",
        '<function name="weather"><param name="city"><![CDATA[a </param>\n<b]]></param><param name="days">'
        "<![CDATA[2]]></param></function> and",
        (" and", [("weather", {"city": "a </param>\n<b", "days": 2})]),
    ),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}', ("", [PARIS])),
    (
        "llama3_json",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 2}}; '
        '{"name": "time", "parameters": {}}',
        ("", [PARIS, NOW]),
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, '
        '{"name": "time", "arguments": {}}]',
        ("", [PARIS, NOW]),
    ),
    (
        "mistral",
        'Yes.[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]time[CALL_ID]9aF[ARGS]{}',
        ("Yes.", [PARIS, NOW]),
    ),
    ("pythonic", '[weather(city="Paris", days=2), time()]', ("", [PARIS, NOW])),
    ("pythonic", "<|python_start|>[weather(city='Paris', days=2)]<|python_end|>", ("", [PARIS])),
    ("pythonic", "[time(), 3]", ("[time(), 3]", [])),
    ("mistral", "[TOOL_CALLS]weather[ARGS]{} and more", (" and more", [("weather", {})])),
    ("mistral", "[TOOL_CALLS]other[ARGS]{}", ("[TOOL_CALLS]other[ARGS]{}", [])),
    ("llama3_json", '{"name": "time", "parameters": {}} is it.', (" is it.", [NOW])),
    ("llama3_json", '{"name": "other", "parameters": {}}', ('{"name": "other", "parameters": {}}', [])),
]


def dsml(calls: str, before: str = "") -> str:
    tag, close = f"<\uff5cDSML\uff5c{before}", f"</\uff5cDSML\uff5c{before}"
    return (
        f'{tag}{calls}>\n{tag}invoke name="weather">\n{tag}parameter name="city" string="true">Paris'
        f"{close}parameter>\n"
        f'{tag}parameter name="days" string="false">2{close}parameter>\n{close}invoke>\n'
        f'{tag}invoke name="time">\n\n{close}invoke>\n{close}{calls}>'
    )


def hunyuan(suffix: str) -> str:
    pairs = "".join(
        f"<arg_key{suffix}>{key}</arg_key{suffix}>\n<arg_value{suffix}>{value}</arg_value{suffix}>\n"
        for key, value in (("city", "Paris"), ("days", "2"))
    )
    calls = f"weather<tool_sep{suffix}>\n{pairs}", f"time<tool_sep{suffix}>\n"
    listed = "".join(f"<tool_call{suffix}>{call}</tool_call{suffix}>\n" for call in calls)
    return f"<tool_calls{suffix}>\n{listed}</tool_calls{suffix}>"


def xtml(call: str, index: int, **arguments: tuple[str, str]) -> str:
    """Return a call as Kimi K3 writes it, of arguments' types and texts."""
    listed = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'
        for key, (kind, text) in arguments.items()
    )
    return f'<|open|>call tool="{call}" index="{index}"<|sep|>{listed}<|close|>call<|sep|>'


def minimax(*calls: str) -> str:
    listed = "".join(f"{NS}<invoke {call}{NS}</invoke>\n" for call in calls)
    return f"{NS}<tool_call>\n{listed}{NS}</tool_call>"


def inner(key: str, *values: str) -> str:
    return f"{NS}<{key}>{''.join(values)}{NS}</{key}>"


MARKS_WITHIN = 'a </ ]<]minimax[>[ <\uff5cDSML\uff5c </parameter> <|open|> }] \\u00e9 \u00e9 "\n <arg_key>'
RECENT = [
    *(
        (name, f"I look.\n\n{dsml(calls, before)}", ("I look.", [PARIS, NOW]))
        for name in ("deepseek_v32", "deepseek_v4", "deepseek_v41")
        for calls, before in (("function_calls", ""), ("tool_calls", ""), ("calls", " "))
    ),
    *(("hy_v3", f"I look.{hunyuan(suffix)} and", ("I look. and", [PARIS, NOW])) for suffix in (":opensource", "")),
    (
        "kimi_k3",
        "I look.<|open|>tools<|sep|>"
        + xtml("weather", 1, city=("string", "Paris"), days=("number", "2"))
        + xtml("time", 2)
        + "<|close|>tools<|sep|>",
        ("I look.", [PARIS, NOW]),
    ),
    (
        "minimax_m3",
        "I look." + minimax(f'name="weather">{inner("city", "Paris")}{inner("days", "2")}', 'name="time">'),
        ("I look.", [PARIS, NOW]),
    ),
    (  # lists and objects, one within another of the same name, and empty ones
        "minimax_m3",
        minimax(
            'name="plan">'
            + inner("steps", inner("steps", inner("item", "1"), inner("item", inner("a", "x"))), inner("b", "true"))
            + inner("list", inner("item", inner("item", "c")), inner("item", "- d"))
            + inner("free", inner("item", "2.50"))
        ),
        ("", [("plan", {"steps": {"steps": [1, {"a": "x"}], "b": True}, "list": [["c"], "- d"], "free": [2.5]})]),
    ),
    (
        "minimax_m3",
        minimax('name="plan">' + inner("steps") + inner("list") + inner("free")),
        ("", [("plan", {"steps": {}, "list": [], "free": ""})]),
    ),
    (
        "solar_open",
        "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather<|tool_call:args|>"
        '{"city": "Paris", "days": 2}<|tool_call:end|><|tool_call:begin|>0<|tool_call:name|>time<|tool_call:args|>{}'
        "<|tool_call:end|><|calls|>",
        ("", [PARIS, NOW]),
    ),
    (
        "apertus",
        'I look.<|tools_prefix|>[{"weather": {"city": "Paris", "days": 2}}, {"time": {}}]<|tools_suffix|> and',
        ("I look. and", [PARIS, NOW]),
    ),
    ("apertus", '<|tools_prefix|>{"time": {}}<|tools_suffix|>', ("", [NOW])),
    ("apertus", '<|tools_prefix|>[{"time": 1}]', ('<|tools_prefix|>[{"time": 1}]', [])),
    (
        "minimax",
        'I look.\n<tool_calls>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n'
        '{"name": "time", "arguments": {}}\n</tool_calls>',
        ("I look.", [PARIS, NOW]),
    ),
    (
        "functionary_v31",
        'I look.<function=weather>{"city": "Paris", "days": 2}</function><function=time>{}</function> and',
        ("I look. and", [PARIS, NOW]),
    ),
    (
        "llama4_pythonic",
        "I look.\n\n<|python_start|>[weather(city='Paris', days=2), time()]<|python_end|>",
        ("I look.", [PARIS, NOW]),
    ),
    ("llama4_pythonic", "[weather(city='Paris', days=2)]", ("", [PARIS])),
    ("llama4_pythonic", "<|python_start|>[weather(city='Paris', days=2)]", ("", [PARIS])),
    # In the singular, and without the namespace (ggml-org/llama.cpp#17376).
    (
        "kimi_k2",
        "<|tool_call_section_begin|><|tool_call_begin|>weather:3<|tool_call_argument_begin|>"
        '{"city": "Paris", "days": 2}<|tool_call_end|><|tool_calls_section_end|>',
        ("", [PARIS]),
    ),
    # Without its tag on a line of its own (ollama/ollama#16686), and elsewhere as any text.
    (
        "qwen3_xml",
        "I look.\n\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
        ("I look.", [PARIS]),
    ),
    ("qwen3_xml", "<function=time></function>\n<function=time></function>", ("", [NOW, NOW])),
    (
        "qwen3_xml",
        "A call is `<function=time></function>`.\n<function=other>",
        ("A call is `<function=time></function>`.\n<function=other>", []),
    ),
    (
        "deepseek_v4",
        '<\uff5cDSML\uff5cinvoke name="time"></\uff5cDSML\uff5cinvoke></\uff5cDSML\uff5ctool_calls>',
        ("", [NOW]),
    ),
    # The end of a value in a value (vllm-project/vllm#44060).
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city"><parameter>\n <b></b>\n</parameter> x\n'
        '</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
        ("", [("weather", {"city": "<parameter>\n <b></b>\n</parameter> x\n", "days": 2})]),
    ),
    (
        "qwen3_xml",
        "<tool_call>\n<function=plan>\n<parameter=free>\n</parameter>\n</parameter>\n</function>\n</tool_call>",
        ("", [("plan", {"free": "</parameter>"})]),
    ),
    (  # the mark before a value is lost now and then (vllm-project/vllm#49248)
        "glm45",
        "<tool_call>weather<arg_key>city</arg_key>Paris</arg_value><arg_key>days</arg_key><arg_value>2</arg_value>"
        "</tool_call>",
        ("", [PARIS]),
    ),
    ("glm45", "<tool_call>weather<arg_key>city</arg_key></tool_call> and", (" and", [("weather", {})])),
    # JSON in place of parameters (sgl-project/sglang#38924).
    (
        "deepseek_v4",
        '<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name="weather">{"city": "Paris", "days": 2}'
        "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>",
        ("", [PARIS]),
    ),
    # What a tag says of a value counts more than what the schema does.
    (
        "deepseek_v4",
        dsml("tool_calls").replace(">Paris<", ">12<").replace('string="false">2', 'string="true">2'),
        ("", [("weather", {"city": "12", "days": "2"}), NOW]),
    ),
    (
        "deepseek_v4",
        dsml("tool_calls").replace('string="true">Paris', 'string="false">"Paris"'),
        ("", [PARIS, NOW]),
    ),
    (
        "deepseek_v4",
        dsml("tool_calls").replace(' string="true"', "").replace(' string="false"', ""),
        ("", [PARIS, NOW]),
    ),
    *(
        (name, text.replace("TEXT", MARKS_WITHIN), ("", [("weather", {"city": MARKS_WITHIN})]))
        for name, text in (
            ("deepseek_v32", dsml("function_calls").partition("\n<\uff5cDSML\uff5cparameter name=\"days\"")[0]
             .replace("Paris", "TEXT") + "</\uff5cDSML\uff5cinvoke></\uff5cDSML\uff5cfunction_calls>"),
            ("kimi_k3", f"<|open|>tools<|sep|>{xtml('weather', 1, city=('string', 'TEXT'))}<|close|>tools<|sep|>"),
            ("minimax_m3", minimax(f'name="weather">{inner("city", "TEXT")}')),
            ("hy_v3", "<tool_calls:opensource><tool_call:opensource>weather<tool_sep:opensource><arg_key:opensource>"
             "city</arg_key:opensource><arg_value:opensource>TEXT</arg_value:opensource></tool_call:opensource>"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "expected"), RECORDED + RECENT)
@given(data=st.data())
def test_recorded_answers_of_each_family(name: str, answer: str, expected: Any, data: Any) -> None:
    assert read(FreeReader(WEATHER, FORMATS[name]), cut(answer, data)) == expected


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "hermes"),
        ("{{ messages }}", "hermes"),
        ("{{ '<tool_call>' }}", "hermes"),
        ("<tool_call>\n<function=example>", "qwen3_xml"),
        ("<seed:tool_call>\n<function=example>", "seed_oss"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", "glm45"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax_m2"),
        ("[{'tool_call_id': '0'}] <|START_ACTION|>", "cohere_command3"),
        ("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma4"),
        ("respond only with <|tool_call|> followed by a JSON list of tools used", "granite"),
        ("{{ '<TOOLCALL>[' }}", "nemotron_json"),
        ("{{- '<tool_calls>[' -}}", "apriel"),
        ('role_sep="<|role_sep|>\\n"', "gigachat3"),
        ("{{ '<|function_call|>' }}", "gigachat3"),
        ("{{ 'List of tools: <|tool_list_start|>[' }}", "lfm2"),
        ("{{ 'List of tools: [' }}", "lfm2"),
        ("{{ '<function_calls>' }}", "olmo3"),
        ('<function name="function-name"><param name="param-name">param-value</param></function>', "minicpm5"),
        (f"{{{{ '{BEGIN}' + '{SEP}' + name + '\\n' + '```json' + '\\n' }}}}", "deepseek_v3"),
        (f"{{{{ '{BEGIN}{ONE}'+ name }}}}", "deepseek_v31"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        (
            "{%- set dsml_token = '\uff5cDSML\uff5c' -%}{{ '\n\n<' + dsml_token + 'function_calls>\n' }}",
            "deepseek_v32",
        ),
        ("{%- set dsml_token = '\uff5cDSML\uff5c' -%}{{ '\n\n<' + dsml_token + 'tool_calls>\n' }}", "deepseek_v4"),
        ("{{ '\n\n<\uff5cDSML\uff5c calls>\n' }}", "deepseek_v41"),
        ("{%- set toolcall_begin_token = ']<]minimax[>[' ~ '<tool_call>' -%}", "minimax_m3"),
        ("please respond with <tool_calls></tool_calls> XML tags, and provide tool-name", "minimax"),
        ("{%- set toolsep_token = '<tool_sep{}>'.format(HYTK) %}", "hy_v3"),
        ("<tool_call>{function-name}<tool_sep>\n<arg_key>{arg-key-1}</arg_key>", "hy_v3"),
        ("{{- close_tag('message') -}}{{- '<|end_of_msg|>' -}}", "kimi_k3"),
        ('{{- "<|tool_call:begin|>" + tool_call.id +"<|tool_call:name|>" }}', "solar_open"),
        ("{%- set tool_calls_token = '<|tools_prefix|>' -%}", "apertus"),
        ('<function=example_function_name>{"example_name": "example_value"}</function>', "functionary_v31"),
        ("{{ '<|python_start|>' }} in the format [func_name1(params_name1=params_value1)]", "llama4_pythonic"),
        ("in the format [func_name1(params_name1=params_value1)]", "pythonic"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
    ],
)
def test_the_template_tells_the_format(template: str | None, name: str) -> None:
    assert format_of("auto", template) is FORMATS[name]
    assert format_of("mistral", template) is FORMATS["mistral"]
    assert format_of("qwen3_coder", template) is FORMATS["qwen3_xml"]


def forced() -> CallReader:
    reader = reader_of(Tools(TOOLS.parameters, "required"), FORMATS["mistral"])
    assert reader is not None
    return reader


@given(st.data())
def test_forced_lists(data: Any) -> None:
    answer = '[{"name":"f","arguments":{"a":"}]"}},{"name":"g","arguments":{}}]'
    assert read(forced(), cut(answer, data)) == ("", [("f", {"a": "}]"}), ("g", {})])
    start = '[{"name":"f","arg'
    assert feed(forced(), [start[:4], start[4:]]) == (start, [])
    assert read(forced(), ['[{"name":"f","arguments":', "3", "}]"]) == ("", [("f", 3)])


@pytest.mark.parametrize("end", range(len('[{"name":"f","arguments":'), len('[{"name":"f","arguments":{"a":"}]"}}')))
def test_a_forced_call_that_is_cut_off_has_its_arguments_so_far(end: int) -> None:
    answer = '[{"name":"f","arguments":{"a":"}]"}}'[:end]
    assert feed(forced(), [answer]) == ("", [("f", answer.removeprefix('[{"name":"f","arguments":'))])


def test_a_forced_call_that_is_cut_off_before_its_name_is_one_if_there_is_one_function() -> None:
    answer = '[{"name":"f","arguments":'
    for end in range(len(answer)):
        one = reader_of(Tools({"f": {}}, "required"), FORMATS["mistral"])
        assert one is not None
        assert feed(one, [answer[:end]]) == ("", [("f", "")])


def test_what_stands_around_forced_calls_is_no_text() -> None:
    first, answer = '[{"name":"f","arguments":{"a":"1"}}', '[{"name":"f","arguments":{"a":"1"}}, {"name":"g","arg'
    for end in range(len(first), len(answer) + 1):
        assert feed(forced(), [answer[:end]]) == ("", [("f", '{"a":"1"}')])


def test_arguments_of_the_named_function_come_as_they_grow() -> None:
    named = NamedReader(Tools({"f": {}}, "named", "f"))
    assert read(named, ['{"a"', ": 1", "}"]) == ("", [("f", {"a": 1})])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"function": {"name": "a"}}, {"function": {"name": "a"}}]}, "tools"),
        ({"tools": [{"function": {"name": "a"}}], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [{"function": {"name": "a"}}], "tool_choice": {"function": {"name": "b"}}}, "tool_choice"),
    ],
)
def test_wrong_tools_are_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_tools(ChatFields(**body))
    assert (caught.value.status, caught.value.param) == (400, param)
