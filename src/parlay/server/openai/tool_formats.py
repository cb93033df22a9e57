"""The formats in which families of models write tool calls, by vLLM's names; `tool_parsers` read them.

Sources: the chat templates of the families, and for `pythonic` the prompt format of Llama 3.2 and 4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

from parlay.config.server import ToolParser
from parlay.server.openai import atem
from parlay.server.openai import tool_grammars as rules
from parlay.server.openai import tool_parsers as parse
from parlay.server.openai.gemma_calls import gemma_calls
from parlay.server.openai.harmony import CALL, RECIPIENT, final
from parlay.server.openai.python_calls import python_calls
from parlay.server.openai.tool_grammars import Mark
from parlay.server.openai.tool_parsers import Parameters
from parlay.server.openai.tool_scanner import Scanner, Wait

Search = Callable[[Scanner, int, Parameters], Wait[None]]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    Attributes:
        marks: texts at which calls begin, anywhere.
        openers: first characters of an answer that may be a call as a whole.
        calls: reads the calls behind a mark.
        whole: reads those that an answer consists of.
        special: whether marks are special tokens, which must be asked for.
        grammar: rules of the calls; see `tool_grammars`.
        bare: rules of calls without a mark, where the model writes such.
        head: what stands before an answer that is no call, as a grammar has it.
        forced: whether calls that must be made are written like others, whose arguments are JSON, instead of as a
            list in JSON.
    """

    marks: tuple[str, ...]
    openers: str
    calls: Search
    whole: Search
    special: bool = False
    grammar: rules.Rules = rules.tagged
    bare: rules.Rules | None = None
    head: Callable[[Mark], str] | None = None
    forced: bool = False

    def search(self, answer: Scanner, parameters: Parameters, *, alone: bool = False) -> Wait[None]:
        """Find the calls in an answer while it grows; the space around them is no text.

        Args:
            answer: as it grows.
            parameters: of the functions that there are.
            alone: whether an answer is either calls or none at all.
        """
        begin = yield from answer.space(0)
        if (yield from answer.char(begin)) in tuple(self.openers):
            yield from self.whole(answer, begin, parameters)
        if alone and not answer.called and not (yield from answer.starts_any(self.marks, begin)):
            while not answer.ended:
                answer.say(answer.end)
                yield
            answer.say(answer.end)
            return
        at = solid = answer.done  # behind the last character that is no space
        bare = answer.called > 0  # nothing but space has come since a call
        while True:
            place, mark = answer.first(self.marks, at)
            if new := answer.cut(at, place).rstrip():
                solid = at + len(new)
            bare = bare and solid == answer.done
            if not mark and answer.ended:
                answer.say(answer.done if bare else place)
                return
            answer.say(solid)
            if not mark:
                at = place
                yield
                continue
            before, at = answer.called, place + len(mark)
            yield from self.calls(answer, at, parameters)
            if answer.called > before:
                at, bare = answer.done, True
            solid = at


_llama = partial(parse.several, between=";")
FORMATS = {
    "hermes": ToolFormat(("<tool_call>",), "{[", parse.tagged, parse.json_calls),
    **{
        name: ToolFormat(
            (tags.begin,), "{[", partial(parse.xml, tags=tags), parse.json_calls, grammar=partial(rules.xml, tags)
        )
        for name, tags in {
            "qwen3_xml": rules.QWEN,
            "seed_oss": rules.SEED,
            "glm45": rules.GLM,
            "minimax_m2": rules.MINIMAX,
        }.items()
    },
    **{
        name: ToolFormat(
            around[:1],
            "",
            partial(parse.between, end=around[1], read=python_calls),
            parse.nothing,
            special=True,
            grammar=partial(rules.python, around=around, lines=lines),
        )
        for name, around, lines in (
            ("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>"), False),
            ("olmo3", ("<function_calls>", "</function_calls>"), True),
        )
    },
    **{
        name: ToolFormat(
            (form.begin,),
            "{[",
            partial(parse.headed, form=form),
            parse.json_calls,
            special=True,
            grammar=partial(rules.headed, form),
        )
        for name, form in {
            "deepseek_v3": rules.DEEPSEEK,
            "deepseek_v31": rules.DEEPSEEK_31,
            "kimi_k2": rules.KIMI,
        }.items()
    },
    "cohere_command3": ToolFormat(
        ("<|START_ACTION|>",),
        "{[",
        partial(parse.json_list, end="<|END_ACTION|>"),
        parse.json_calls,
        special=True,
        grammar=rules.cohere,
    ),
    "gemma4": ToolFormat(
        (rules.GEMMA[0],),
        "",
        partial(parse.between, end=rules.GEMMA[1], read=gemma_calls),
        parse.nothing,
        special=True,
        grammar=rules.gemma,
    ),
    **{
        name: ToolFormat(
            around[:1],
            "{[",
            partial(parse.json_list, end=around[1]),
            parse.json_calls,
            special=True,
            grammar=partial(rules.listed, around=around),
        )
        for name, around in (
            ("granite", ("<|tool_call|>", "")),
            ("nemotron_json", ("<TOOLCALL>", "</TOOLCALL>")),
            ("apriel", ("<tool_calls>", "</tool_calls>")),
        )
    },
    "gigachat3": ToolFormat(
        ("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n"),
        "",
        partial(parse.json_list, end="<|message_sep|>"),
        parse.nothing,
        special=True,
        grammar=rules.gigachat,
    ),
    "minicpm5": ToolFormat(
        (rules.MINICPM.function[0],),
        "{[",
        partial(parse.functions, tags=rules.MINICPM),
        parse.json_calls,
        grammar=partial(rules.xml, rules.MINICPM),
    ),
    "llama3_json": ToolFormat(
        ("<|python_tag|>",),
        "{[",
        _llama,
        _llama,
        special=True,
        grammar=rules.llama,
        bare=partial(rules.llama, bare=True),
    ),
    "mistral": ToolFormat(
        ("[TOOL_CALLS]",), "{[", parse.mistral, parse.json_calls, special=True, grammar=rules.mistral
    ),
    "muse_glimmer": ToolFormat(
        (atem.TAGS.begin,),
        "",
        partial(parse.xml, tags=atem.TAGS),
        parse.nothing,
        special=True,
        grammar=atem.calls,
        head=atem.final,
    ),
    "openai": ToolFormat(
        (CALL, RECIPIENT),
        "",
        parse.harmony,
        parse.harmony,
        special=True,
        grammar=rules.harmony,
        head=final,
        forced=True,
    ),
    "pythonic": ToolFormat((), "[<", parse.pythonic, parse.pythonic, special=True, grammar=rules.python),
}
assert {*FORMATS, "auto"} == {*get_args(ToolParser)}

FORCED = ToolFormat(
    (), "[", parse.json_calls, partial(parse.json_calls, forced=True)
)  # what the grammar of calls that must be made writes

# Text by which a template that uses a format is recognised; the first match counts.
_SIGNS = (
    ("<|channel|>commentary", "openai"),
    ("<atem:function_calls>", "muse_glimmer"),
    ("<seed:tool_call>", "seed_oss"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<arg_key>", "glm45"),
    ('<function name="', "minicpm5"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("'\\n' + '```json'", "deepseek_v3"),
    ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "deepseek_v31"),
    ("<|START_ACTION|>", "cohere_command3"),
    ("<|tool_list_start|>", "lfm2"),
    ("List of tools: [", "lfm2"),
    ("<function_calls>", "olmo3"),
    ("<|tool_call>call:", "gemma4"),
    ("<|tool_call|>", "granite"),
    ("<TOOLCALL>", "nemotron_json"),
    ("<tool_calls>[", "apriel"),
    ("<|function_call|>", "gigachat3"),
    ("<|role_sep|>", "gigachat3"),
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("[func_name1(", "pythonic"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
)


def format_of(parser: ToolParser, template: str | None) -> ToolFormat:
    """Return a format by name; with `auto` the one that a chat template uses, or else the most usual one."""
    if parser != "auto":
        return FORMATS[parser]
    return FORMATS[next((name for sign, name in _SIGNS if sign in (template or "")), "hermes")]
