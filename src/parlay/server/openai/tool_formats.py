"""The formats in which families of models write tool calls, by vLLM's names; `tool_parsers` read them.

`functionary_v31` has no name in vLLM, whose name of `solar_open` is that of the authors' plugin.

Sources: the chat templates of the families, and for `pythonic` the prompt format of Llama 3.2 and 4.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from parlay.config.server import ToolParser
from parlay.server.openai import atem, tag_calls, tags
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
        lone: texts at which calls begin on lines of their own, where models leave out a mark.
        openers: first characters of an answer that may be a call as a whole.
        calls: reads the calls behind a mark.
        whole: reads the calls that an answer consists of.
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
    lone: tuple[str, ...] = ()

    def search(self, answer: Scanner, parameters: Parameters, *, alone: bool = False) -> Wait[None]:
        """Find the calls in an answer while it grows; the space around them is no text.

        Args:
            answer: the growing answer.
            parameters: parameters of the functions that there are.
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
        marks = (*self.marks, *self.lone)
        at = solid = answer.done  # behind the last character that is no space
        bare = answer.called > 0  # nothing but space has come since a call
        while True:
            place, mark = answer.first(marks, at)
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
_DSML = tags.DEEPSEEK_32, tags.DEEPSEEK_4, tags.DEEPSEEK_41


def _tagged(*spellings: tags.Tags, special: bool = False, bare: bool = False) -> ToolFormat:
    """Return the format of calls with values between tags.

    Args:
        spellings: the tags' spellings; the first one is what grammars write.
        special: whether marks are special tokens.
        bare: whether models leave out the outermost tags now and then.
    """
    begins = tuple(dict.fromkeys(one.begin for one in spellings))
    lone = tuple(dict.fromkeys(one.function[0] for one in spellings)) if bare else ()
    read, write = partial(tag_calls.xml, spellings=spellings), partial(tags.xml, spellings[0])
    return ToolFormat(begins, "{[", read, parse.json_calls, special=special, grammar=write, lone=lone)


def _headed(form: rules.Headed) -> ToolFormat:
    """Return the format of calls with marks around names."""
    begins = (form.begin, *filter(None, (form.other,)))
    read, write = partial(parse.headed, form=form), partial(rules.headed, form)
    return ToolFormat(begins, "{[", read, parse.json_calls, special=True, grammar=write)


def _listed(begin: str, end: str) -> ToolFormat:
    """Return the format of a list in JSON between marks."""
    read, write = partial(parse.json_list, end=end), partial(rules.listed, around=(begin, end))
    return ToolFormat((begin,), "{[", read, parse.json_calls, special=True, grammar=write)


def _python(begin: str, end: str, *, lines: bool = False) -> ToolFormat:
    """Return the format of calls in Python's notation between marks."""
    read = partial(parse.between, end=end, read=python_calls)
    write = partial(rules.python, around=(begin, end), lines=lines)
    return ToolFormat((begin,), "", read, parse.nothing, special=True, grammar=write)


FORMATS = {
    "hermes": ToolFormat(("<tool_call>",), "{[", partial(parse.tagged, tag="</tool_call>"), parse.json_calls),
    "qwen3_xml": _tagged(tags.QWEN, bare=True),  # ollama/ollama#16686
    "seed_oss": _tagged(tags.SEED),
    "glm45": _tagged(tags.GLM),
    "minimax_m2": _tagged(tags.MINIMAX),
    "minimax_m3": _tagged(tags.MINIMAX_3, special=True),
    # Models write the tags of their forerunners now and then.
    "deepseek_v32": _tagged(*_DSML, special=True, bare=True),
    "deepseek_v4": _tagged(tags.DEEPSEEK_4, *_DSML, special=True, bare=True),
    "deepseek_v41": _tagged(tags.DEEPSEEK_41, *_DSML, special=True, bare=True),
    "hy_v3": _tagged(tags.HUNYUAN, tags.HUNYUAN_PREVIEW),
    "kimi_k3": _tagged(tags.KIMI_3, special=True),
    "deepseek_v3": _headed(rules.DEEPSEEK),
    "deepseek_v31": _headed(rules.DEEPSEEK_31),
    "kimi_k2": _headed(rules.KIMI),
    "solar_open": _headed(rules.SOLAR),
    "granite": _listed("<|tool_call|>", ""),
    "nemotron_json": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "apriel": _listed("<tool_calls>", "</tool_calls>"),
    "lfm2": _python("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": _python("<function_calls>", "</function_calls>", lines=True),
    "minimax": ToolFormat(
        ("<tool_calls>",),
        "{[",
        partial(parse.tagged, tag="</tool_calls>"),
        parse.json_calls,
        grammar=partial(rules.lines, around=("<tool_calls>", "</tool_calls>")),
    ),
    "apertus": ToolFormat(
        ("<|tools_prefix|>",),
        "{[",
        partial(parse.keyed, end="<|tools_suffix|>"),
        parse.json_calls,
        special=True,
        grammar=partial(rules.keyed, around=("<|tools_prefix|>", "<|tools_suffix|>")),
    ),
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
    "gigachat3": ToolFormat(
        ("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n"),
        "",
        partial(parse.json_list, end="<|message_sep|>"),
        parse.nothing,
        special=True,
        grammar=rules.gigachat,
    ),
    "minicpm5": ToolFormat(
        (tags.MINICPM.function[0],),
        "{[",
        partial(tag_calls.bare, tags=tags.MINICPM),
        parse.json_calls,
        grammar=partial(tags.xml, tags.MINICPM),
    ),
    "functionary_v31": ToolFormat(
        (tags.FUNCTIONARY.function[0],),
        "{[",
        partial(tag_calls.bare, tags=tags.FUNCTIONARY),
        parse.json_calls,
        grammar=partial(tags.bodied, tags.FUNCTIONARY),
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
        partial(tag_calls.xml, spellings=(atem.TAGS,)),
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
    "llama4_pythonic": replace(_python("<|python_start|>", "<|python_end|>"), openers="[", whole=parse.pythonic),
}
_ALIASES = {  # further names in vLLM
    "glm47": "glm45",
    "granite4": "hermes",
    "llama4_json": "llama3_json",
    "mimo": "qwen3_xml",
    "poolside_v1": "glm45",
    "qwen3_coder": "qwen3_xml",
}
assert {*FORMATS, *_ALIASES, "auto"} == {*get_args(ToolParser)}

FORCED = ToolFormat(
    (), "[", parse.json_calls, partial(parse.json_calls, forced=True)
)  # what the grammar of calls that must be made writes

# Text by which a template that uses a format is recognised; the first match counts.
_SIGNS = (
    ("<|channel|>commentary", "openai"),
    ("<|end_of_msg|>", "kimi_k3"),
    ("<\uff5cDSML\uff5c calls", "deepseek_v41"),
    ("dsml_token + ' calls", "deepseek_v41"),
    ("<\uff5cDSML\uff5cfunction_calls", "deepseek_v32"),
    ("dsml_token + 'function_calls", "deepseek_v32"),
    ("\uff5cDSML\uff5c", "deepseek_v4"),
    ("]<]minimax[>[", "minimax_m3"),
    ('<function name="', "minicpm5"),
    ("<tool_sep", "hy_v3"),
    ("<|tool_call:begin|>", "solar_open"),
    ("<|tools_prefix|>", "apertus"),
    ("<atem:function_calls>", "muse_glimmer"),
    ("<seed:tool_call>", "seed_oss"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<arg_key>", "glm45"),
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
    ("<tool_calls></tool_calls> XML tags", "minimax"),
    ("<|function_call|>", "gigachat3"),
    ("<|role_sep|>", "gigachat3"),
    ("<function=example_function_name>{", "functionary_v31"),
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "llama4_pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
)


def format_of(parser: ToolParser, template: str | None) -> ToolFormat:
    """Return a format by name; with `auto` the one that a chat template uses, or else the most usual one."""
    if parser != "auto":
        return FORMATS[_ALIASES.get(parser, parser)]
    return FORMATS[next((name for sign, name in _SIGNS if sign in (template or "")), "hermes")]
