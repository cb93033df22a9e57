"""Calls in answers, however the answer is cut into pieces."""

import json
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
        ('<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f"}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "b</tool_call>',
         ', "b</tool_call>', [("f", {"a": 1})]),
        (" \n ", " \n ", []),
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
            assert arguments in whole


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
    assert texts == ["", '{"a": "x', '\\"y', "\\nz", '", "b": ', "12", "}", ""]


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "qwen3_xml"])
def test_a_call_that_is_cut_off_has_its_arguments_so_far(name: str) -> None:
    mark = FORMATS[name].marks[0]
    answer = "Yes. " + mark + '{"name": "f", "arguments": {"a": "\\'
    assert feed(FreeReader(TOOLS, FORMATS[name]), [answer]) == ("Yes.", [("f", '{"a": "\\')])


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


@pytest.mark.parametrize(("name", "answer", "expected"), RECORDED)
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
        ("in the format [func_name1(params_name1=params_value1)]", "pythonic"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
    ],
)
def test_the_template_tells_the_format(template: str | None, name: str) -> None:
    assert format_of("auto", template) is FORMATS[name]
    assert format_of("mistral", template) is FORMATS["mistral"]


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
