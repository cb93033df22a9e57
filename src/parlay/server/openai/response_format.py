"""The form of an answer: what `response_format`, `tools` and `tool_choice` make of it together."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from parlay.errors import RequestError
from parlay.sampling.compiling import fault
from parlay.sampling.schema import served_schema
from parlay.server.errors import ApiError
from parlay.server.openai.fields import FormFields
from parlay.server.openai.tool_formats import ToolFormat
from parlay.server.openai.tool_grammars import SpelledMarks, forced
from parlay.server.openai.tools import Tools
from parlay.types.json_schema import closed

# Small models never stop writing space where they may; this is what printers of JSON write, as llama.cpp has it too.
SPACE = r" |\r?\n[ \t]{0,20}"
_OWN = "structured_outputs"
_AS_IT_IS = {"disable_additional_properties": False}  # objects of the schema are closed already, or are to be open
_COMPACT = {"whitespace_flexible": False}
_OBJECT = {"type": "object"}
_MOST_NAMED = 8  # keywords, in warnings
_MANY = 1 << 15  # characters of functions' schemas, above which compiling takes long


@dataclass(frozen=True, slots=True)
class Names:
    """What a client calls things.

    Attributes:
        form: the field with the form of an answer.
        format: the path of the format, for messages.
        parameters: the field with a function's parameters; with a place for the function's number.
        strict: functions that are strict, where their descriptions do not say so: the model would read it.
        strict_format: whether the answer's schema is strict, where its description does not say so.
    """

    form: str = "response_format"
    format: str = "response_format"
    parameters: str = "tools[{}].function.parameters"
    strict: frozenset[str] = frozenset()
    strict_format: bool = False


CHAT = Names()
RESPONSES = Names("text", "text.format", "tools[{}].parameters")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an answer is written and read.

    Attributes:
        structured: the engine's structured outputs; None for a free answer.
        calls: how calls are read.
        alone: whether an answer is either calls or none at all.
        special: whether calls have special tokens, which answers have to show.
        warnings: texts for the client.
        source: the field that it comes from.
        headed: whether the form has the headers of messages, where the model writes such.
    """

    structured: dict[str, Any] | None
    calls: ToolFormat
    alone: bool = False
    special: bool = False
    warnings: tuple[str, ...] = ()
    source: str = _OWN
    headed: bool = False

    def named(self, error: ApiError) -> ApiError:
        """Return an error of the engine about the form with the name of the field that it comes from."""
        if error.param != _OWN or self.source == _OWN:
            return error
        return ApiError(error.status, str(error).replace(_OWN, self.source), param=self.source, code=error.code)


def needs_compiling(body: Mapping[str, Any]) -> bool:
    """Whether a body has schemas that are compiled to see what is enforced, which takes milliseconds."""
    outer = (body.get("text"), body.get("output_config"))
    forms = [body.get("response_format"), body.get("output_format"), *(one for one in outer if isinstance(one, dict))]
    choice = body.get("tool_choice") or "auto"
    mode = choice.get("type") if isinstance(choice, dict) else choice
    return any(forms) or (bool(body.get("tools")) and mode not in ("auto", "none"))


def form_of(
    fields: FormFields, tools: Tools, style: ToolFormat, tokenizer: Tokenizer, given: Any, names: Names
) -> AnswerForm:
    """Return the form of the answer to a request.

    Args:
        fields: the request.
        tools: the request's tools.
        style: how the model writes calls.
        tokenizer: the model's tokenizer.
        given: `structured_outputs`, if there are any.
        names: names of fields, for messages.

    Raises:
        ApiError: a schema cannot be served, or the form is decided twice.
    """
    wanted = _wanted(fields.response_format, names)
    must = tools.mode in ("required", "named")
    if given is not None and (must or wanted is not None):
        also = "tool_choice" if must else names.format
        raise ApiError(400, f"{also} and structured_outputs each decide the answer's form; give one", param=also)
    if given is not None or (wanted is None and not must):
        if isinstance(given, Mapping):
            given = {"disable_additional_properties": fields.disable_additional_properties, **given}
        return AnswerForm(given, style)
    made = _Making(fields, tools, names, [])
    if must and style.forced:
        form = _calls(made, style, tokenizer)
    elif tools.mode == "named":
        schema = made.parameters(tools.named)
        form = AnswerForm({"json": schema, "disable_any_whitespace": True, **_AS_IT_IS}, style)
    elif tools.mode == "required":
        rules, schemas = forced([*tools.parameters], tools.several), made.enforced()
        form = AnswerForm({"grammar": _grammar("start: calls", rules, schemas, _COMPACT)}, style)
    else:
        assert wanted is not None
        sent, strict = wanted
        schema = {"type": "object"} if sent is None else made.schema(sent, names.format, strict, names.form)
        if tools.mode == "auto":
            form = _either(made, schema, style, tokenizer, any_object=sent is None)
        else:
            form = AnswerForm({"json": schema, "whitespace_pattern": SPACE, **_AS_IT_IS}, style)
    return replace(form, warnings=made.warnings(), source="tools" if must else names.form)


def _wanted(response_format: dict[str, Any] | None, names: Names) -> tuple[dict[str, Any] | None, bool] | None:
    """Return the schema, None for any object, and whether it is strict; None without a form."""
    kind = (response_format or {"type": "text"}).get("type")
    if response_format is None or kind == "text":
        return None
    described = response_format.get("json_schema")
    if "schema" in response_format and described is None:  # as llama.cpp and Together have it
        described = response_format
    schema = described.get("schema") if isinstance(described, dict) else None
    if kind == "json_object" and schema is None:
        return None, False
    if kind not in ("json_object", "json_schema") or not isinstance(schema, dict):
        raise ApiError(
            400, "response_format is {'type': 'text'}, {'type': 'json_object'} or {'type': 'json_schema', "
            "'json_schema': {'name': ..., 'schema': {...}}}", param=names.form,
        )  # fmt: skip
    return schema, names.strict_format or (described or {}).get("strict") is True


def _either(
    made: "_Making", schema: dict[str, Any], style: ToolFormat, tokenizer: Tokenizer, any_object: bool
) -> AnswerForm:
    """Return the form of an answer that is by the schema, or calls.

    An answer by the schema must not look like calls. Of any object, what looks like calls is calls.
    """
    marks = SpelledMarks(tokenizer)
    bare = style.bare if any_object or _never_has(schema, "name") else None
    schemas = made.enforced()
    rules = (bare or style.grammar)(schemas, marks, made.tools.several)
    if not rules:
        made.dropped.append(
            f"{made.names.format}: no tool can be called beside it, since their names are no identifiers"
        )
        return AnswerForm({"json": schema, "whitespace_pattern": SPACE, **_AS_IT_IS}, style, alone=True)
    space = {"whitespace_pattern": SPACE}
    head = style.head(marks) + " " if style.head is not None else ""
    answer = f"start: calls | answer\nanswer: {head}%json {_line({**schema, 'x-guidance': space})}"
    calls = style if any_object or bare or not style.marks else replace(style, openers="")
    return AnswerForm(
        {"grammar": _grammar(answer, rules, schemas, space)}, calls, alone=True, special=marks.special, headed=True
    )


def _calls(made: "_Making", style: ToolFormat, tokenizer: Tokenizer) -> AnswerForm:
    """Return the form of calls that must be made, in the model's own format."""
    named = made.tools.named
    schemas = {named: made.parameters(named)} if named else made.enforced()
    rules = style.grammar(schemas, SpelledMarks(tokenizer), made.tools.several)
    grammar = _grammar("start: calls", rules, schemas, {"whitespace_pattern": SPACE})
    return AnswerForm({"grammar": grammar}, style, alone=True, special=style.special, headed=True)


def _never_has(schema: Mapping[str, Any], name: str) -> bool:
    """Whether no value of the schema has a property of that name, as far as its beginning shows."""
    if {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"} & schema.keys():
        return False
    kinds = schema.get("type")
    if isinstance(kinds, str) and kinds != "object":
        return True
    return schema.get("additionalProperties") is False and name not in schema.get("properties", {})


@dataclass(frozen=True, slots=True)
class _Making:
    fields: FormFields
    tools: Tools
    names: Names
    dropped: list[str]

    @property
    def strict(self) -> frozenset[str]:
        """Functions whose schema has to be enforced as a whole."""
        return self.tools.strict | self.names.strict

    def parameters(self, name: str) -> dict[str, Any]:
        """Return the schema of a function's arguments, as far as it is enforced."""
        number = list(self.tools.given).index(name)
        where = self.names.parameters.format(number)
        schema = {"type": "object", **self.tools.parameters[name]}  # which arguments are, said or not
        return self.schema(schema, where, name in self.strict, "tools")

    def enforced(self) -> dict[str, Any]:
        """Return the schemas of all functions' arguments; any object where the model chooses from very many."""
        size = sum(len(_line(schema)) for schema in self.tools.parameters.values())
        if self.tools.mode == "required":
            return {name: self.parameters(name) for name in self.tools.parameters}
        return {
            name: self.parameters(name) if name in self.strict else self.chosen(name) if size <= _MANY else _OBJECT
            for name in self.tools.parameters
        }

    def chosen(self, name: str) -> dict[str, Any]:
        """Return the same of a function that need not be called: any object where its schema cannot be served."""
        where = self.names.parameters.format(list(self.tools.given).index(name))
        try:
            schema = self.parameters(name)
            trouble = f"{where}: {found}" if (found := fault(schema)) else ""
        except ApiError as error:
            trouble = str(error)
        if not trouble:
            return schema
        self.dropped.append(f"not enforced: {trouble}")
        return _OBJECT

    def schema(self, schema: dict[str, Any], where: str, strict: bool, param: str) -> dict[str, Any]:
        """Return what is enforced of a schema.

        Raises:
            ApiError: nothing of it can be, or a strict one cannot be enforced as a whole.
        """
        try:
            served, dropped = served_schema(schema, fault)
        except RequestError as error:
            raise ApiError(400, f"{where}: {error}", param=param) from None
        if dropped and strict:
            raise ApiError(
                400, f"{where}: {dropped[0]}, which strict demands; leave the keyword or strict out", param=param
            )
        self.dropped.extend(f"{where}: {one}" for one in dropped)
        return dict(json.loads(closed(_line(served)))) if self.fields.disable_additional_properties else served

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about what is not enforced."""
        found = list(dict.fromkeys(self.dropped))
        more = len(found) - _MOST_NAMED
        return (*found[:_MOST_NAMED], *([f"{more} further keywords are not enforced"] if more > 0 else []))


def _grammar(start: str, rules: list[str], schemas: Mapping[str, Any], space: Mapping[str, Any]) -> str:
    """Return a grammar with the functions' arguments, as far as the rules have them in JSON."""
    used = set(re.findall(r"\ba[0-9]+\b", " ".join(rules)))
    arguments = (f"a{i}: %json {_line({**one, 'x-guidance': space})}" for i, one in enumerate(schemas.values()))
    return "\n".join([start, *(rule for rule in arguments if rule.partition(":")[0] in used), *rules])


def _line(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)
