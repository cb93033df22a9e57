"""Schemas as pydantic, zod, PHP and others write them: served, and what is not enforced is named."""

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import re
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import openai
import pydantic
import pytest
import torch
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, ConfigDict, Field

from parlay import RequestError
from parlay.checkpoints.find import find_model
from parlay.sampling.compiling import fault
from parlay.sampling.grammar import Grammars
from parlay.sampling.patterns import without_assertions
from parlay.sampling.schema import check_schema, served_schema
from parlay.text.tokenizer import TextCodec
from parlay.types.structured import StructuredOutputsParams

ZOD = json.loads((Path(__file__).parent / "zod.json").read_text())
BYTES = LLTokenizer("byte")
CODEC = TextCodec(find_model("tiny-code"))
VOCAB, EOS = 4096, 0


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether the value may be written under what is enforced of the schema."""
    served, _ = served_schema(schema, fault)
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(served), log_level=0)
    text = list(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    return bool(matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting())


def dropped(schema: dict[str, Any]) -> list[str]:
    return [str(one) for one in served_schema(schema, fault)[1]]


# ---------------------------------------------------------------------------------------------------------- pydantic


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Inner(BaseModel):
    v: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Node(BaseModel):
    v: int
    kids: list["Node"] = []


class Pair(NamedTuple):
    a: int
    b: str


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


TYPES: dict[str, Any] = {
    **{
        kind.__name__: kind
        for kind in (
            *(bool, bytes, complex, dict, float, int, list, str, pathlib.Path, re.Pattern, uuid.UUID),
            *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal),
            *(ipaddress.IPv4Address, ipaddress.IPv6Network, Colour, Inner, Node, Pair, Closed, Open),
        )
    },
    **{
        name: getattr(pydantic, name)
        for name in (
            *("AnyUrl", "AwareDatetime", "Base64Bytes", "Base64Str", "ByteSize", "DirectoryPath", "FilePath"),
            *("FutureDatetime", "HttpUrl", "IPvAnyAddress", "IPvAnyNetwork", "Json", "JsonValue", "NaiveDatetime"),
            *(
                "NegativeFloat",
                "PastDate",
                "PositiveInt",
                "PostgresDsn",
                "SecretBytes",
                "SecretStr",
                "UUID1",
                "UUID4",
            ),
        )
    },
    "any": Any,
    "none": None,
    "optional": str | None,
    "union": int | str | list[int],
    "literal": Literal["a", 1, True, None],
    "set": set[str],
    "frozenset": frozenset[int],
    "tuple": tuple[int, str],
    "empty tuple": tuple[()],
    "any tuple": tuple[int, ...],
    "dict of literals": dict[Literal["a", "b"], int],
    "dict of an enum": dict[Colour, int],
    "dict of integers": dict[int, str],
    "dict of uuids": dict[uuid.UUID, int],
    "dict of a pattern": dict[Annotated[str, Field(pattern="^k")], int],
    "discriminated": Annotated[Cat | Dog, Field(discriminator="kind")],
    "extra": Annotated[str, Field(json_schema_extra={"foo": 1, "x-order": 2, "nullable": True})],
    "bounds": Annotated[float, Field(ge=-1.5, lt=2.25)],
    "huge bounds": Annotated[float, Field(ge=-1e308, le=1e308)],
    "decimal places": Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)],
    "multiple": Annotated[float, Field(multiple_of=0.01)],
    "length": Annotated[list[int], Field(min_length=1, max_length=3)],
    "e-mail": Annotated[str, Field(json_schema_extra={"format": "idn-email"})],
    "look-ahead": Annotated[str, Field(json_schema_extra={"pattern": r"^(?!foo)\w+\b$"})],
}
NOT_ENFORCED = {
    "set": ["#/properties/x/uniqueItems is not enforced"],
    "frozenset": ["#/properties/x/uniqueItems is not enforced"],
    "dict of uuids": ["#/properties/x/propertyNames is not enforced"],
    "huge bounds": ["#/properties/x/maximum is not enforced", "#/properties/x/minimum is not enforced"],
    "look-ahead": ["#/properties/x/pattern is enforced in part"],
}


def model(name: str) -> type[BaseModel]:
    return pydantic.create_model("M", x=(TYPES[name], ...))


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_pydantic_is_served(name: str) -> None:
    schema = model(name).model_json_schema()
    assert dropped(schema) == NOT_ENFORCED.get(name, [])
    strict = openai.pydantic_function_tool(model(name))["function"]["parameters"]
    served, _ = served_schema(strict, fault)
    assert not fault(served)
    if name not in NOT_ENFORCED:  # so the offline interface serves it too
        assert check_schema(schema) == served_schema(schema, fault)[0]


# --------------------------------------------------------------------------------------------------------------- zod


ZOD_NOT_ENFORCED = {
    "float32": ["maximum is not enforced", "minimum is not enforced"],
    "float64": ["maximum is not enforced", "minimum is not enforced"],
    "never": ["not is not enforced"],
    "hostname": ["pattern is enforced in part"],
    "emoji": ["pattern is enforced in part"],
    "isoduration": ["pattern is enforced in part"],
    "recordIntKey": ["propertyNames is not enforced"],  # of at least three characters
}


@pytest.mark.parametrize("target", ["draft-2020-12", "draft-7", "openapi-3.0"])
def test_every_type_of_zod_is_served(target: str) -> None:
    for name, schema in ZOD[target].items():
        served, found = served_schema(schema, fault)
        assert not fault(served), name
        expected = ZOD_NOT_ENFORCED.get(name, []) if name != "recordIntKey" or target != "openapi-3.0" else []
        assert [str(one) for one in found] == [f"#/properties/x/{one}" for one in expected], name


def test_answers_satisfy_what_is_served() -> None:
    grammars = Grammars(CODEC.tokenizer, VOCAB, [EOS])
    generator = torch.Generator().manual_seed(5)
    closing = [*CODEC.encode('"'), *CODEC.encode("}"), *CODEC.encode("]"), *CODEC.encode('"}')]
    schemas = [model(name).model_json_schema() for name in TYPES] + list(ZOD["draft-2020-12"].values())
    complete = 0
    for schema in schemas[::2]:
        if "\\p{" in json.dumps(schema):  # which the validator does not know
            continue
        served, missing = served_schema(schema, fault)
        constraint = grammars.start(StructuredOutputsParams(json=served, whitespace_pattern=" "))
        tokens: list[int] = []
        while len(tokens) < 60 and EOS not in tokens:
            row = torch.randn(VOCAB, generator=generator)
            row[EOS] += 30
            row[closing] += 8
            constraint.process(tokens[:-1], tokens[-1:], row)
            tokens.append(int(row.argmax()))
        if tokens[-1] == EOS:
            complete += 1
            value = json.loads(CODEC.decode(tokens[:-1]))
            Draft202012Validator(served if missing else schema).validate(value)
    assert complete > 30


# ------------------------------------------------------------------------------------------------------------ others


OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}}}
TAGGED = [
    {"type": "object", "properties": {"t": {"const": name}, name: {"type": "integer"}}, "required": ["t"]}
    for name in ("a", "b")
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "nullable": True}, [None, "a"], [1]),  # OpenAPI 3.0
        # Gemini's: https://ai.google.dev/api/caching#Schema
        ({"type": "STRING", "nullable": True}, [None, "a"], [1]),
        ({"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}, [{"a": 1}], [1, {"a": "b"}]),
        ({"type": ["String", "NULL"]}, [None, "a"], [1]),
        ({"enum": ["a", "b"], "type": "string", "nullable": True}, [None, "b"], ["c"]),
        ({"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "nullable": True}, [None, 3], ["c"]),
        ({**OBJECT, "required": None}, [{}, {"x": 1}], [3]),  # PHP
        ({"type": "object", "properties": [], "additionalProperties": False}, [{}], [{"a": 1}]),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1.0}, [["a"]], [[]]),  # Lua, JavaScript
        ({"type": "object", "propertyNames": {"type": "string"}}, [{"a": 1}], [1]),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{}, {"a": 1}], [{"c": 1}]),
        ({"propertyNames": {"pattern": "^k"}, "type": "object"}, [{"k1": 1}], [{"a": 1}]),
        ({**OBJECT, "unevaluatedProperties": False}, [{"x": 1}], [{"y": 1}]),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"format": "int32", "type": "integer"}}}},
         [3], ["a"]),
        ({"$schema": "http://json-schema.org/schema#", "type": "boolean"}, [True], [1]),
        ({"$id": "https://example.org/s", "$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}, [None], [1]),
        ({"$defs": {"a": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}, [None], [1]),
        ({"oneOf": TAGGED}, [{"t": "a", "a": 1}], [{"t": "c"}]),
        ({"oneOf": [{"$ref": "#/definitions/a"}, {"$ref": "#/definitions/b"}],
          "definitions": {"a": TAGGED[0], "b": TAGGED[1]}}, [{"t": "b", "b": 1}], [{"t": "c"}]),
        ({"type": "object", "properties": {"$ref": {"type": "string"}, "format": {"type": "integer"}},
          "additionalProperties": False}, [{"$ref": "#/a", "format": 3}], [{"format": "a"}]),
        ({"const": {"$ref": "#/nowhere", "uniqueItems": True}}, [{"$ref": "#/nowhere", "uniqueItems": True}], [{}]),
        ({"enum": ["a", 1, None, [1], {"format": "x"}]}, [None, [1], {"format": "x"}], ["b"]),
        ({"const": None}, [None], [0]),
        ({"type": ["string", "null"], "format": "uri-reference"}, ["../a", None], [1]),
        ({"prefixItems": [{"type": "integer"}], "type": "array", "items": False}, [[1]], [[1, 2], ["a"]]),
        ({"enum": [f"value {i}" for i in range(3000)]}, ["value 2999"], ["value 3000"]),
        ({"properties": {"x": False, "y": True}, "type": "object"}, [{"y": [1]}], [{"x": 1}]),
        ({"type": "object", "properties": {"x": {"not": {}}, "y": {}}}, [{"y": 1}], [{"x": 1}]),
    ],
)  # fmt: skip
def test_nothing_is_lost(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert dropped(schema) == []
    assert [accepts(schema, value) for value in good] == [True] * len(good)
    assert [accepts(schema, value) for value in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("schema", "told", "good"),
    [
        ({"properties": {"a/b": {"uniqueItems": True}}}, "#/properties/a~1b/uniqueItems", {"a/b": 1}),
        ({"anyOf": [{"type": "null"}, {"not": {"const": 1}}]}, "#/anyOf/1/not", 1),
        ({"type": "array", "items": {"contains": {"const": 1}, "minContains": 2}}, "#/items/contains", [[]]),
        ({**OBJECT, "dependentRequired": {"x": ["y"]}}, "#/dependentRequired", {"x": 1}),
        ({**OBJECT, "if": {"required": ["x"]}, "then": False}, "#/if", {"x": 1}),
        ({**OBJECT, "anyOf": [{}], "unevaluatedProperties": False}, "#/unevaluatedProperties", {"x": 1}),
        ({"type": "object", "minProperties": 3}, "#/minProperties", {}),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 1}]}, "#/oneOf", "a"),
        ({"anyOf": [], "type": "string"}, "#/anyOf has a value that the keyword does not take", "a"),
        ({"type": ["OBJECT", "any"]}, "#/type has", 1),
        ({"type": "dict", "properties": {"x": {"type": "float"}}}, "#/type has", {"x": 1}),  # the BFCL's types
        ({"type": "string", "maxlength": 3}, "#/maxlength is no keyword (did you mean 'maxLength'?)", "abcd"),
        ({"type": "string", "pattern": "("}, "#/pattern is not enforced", "abc"),
        ({"$dynamicRef": "#node"}, "#/$dynamicRef", 1),
        ({"type": "object", "dependentSchemas": {"a": {"maxProperties": 1}}}, "#/dependentSchemas", {"a": 1}),
        ({"type": "object", "propertyNames": {"minLength": 2}}, "#/propertyNames", {"a": 1}),
        ({"type": "string", "x-guidance": {"whitespace_flexible": False}}, "#/x-guidance", "a"),
        ({"$defs": {"d": {"uniqueItems": True}}, "type": "array", "items": {"$ref": "#/$defs/d"}},
         "#/$defs/d/uniqueItems", [[1, 1]]),
    ],
)  # fmt: skip
def test_what_is_lost_is_named(schema: dict[str, Any], told: str, good: Any) -> None:
    (first, *_) = dropped(schema)
    assert first.startswith(told)
    assert accepts(schema, good)
    offline = Grammars(CODEC.tokenizer, VOCAB, [EOS])
    with pytest.raises(RequestError):
        offline.start(StructuredOutputsParams(json=schema))


@pytest.mark.parametrize(
    ("pattern", "bare"),
    [
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+-]?0*\d*\.?\d*$"),  # pydantic 2's Decimal
        (r"^(?=.{1,253}\.?$)[a-z](?:[a-z(?=]*)$", r"^[a-z](?:[a-z(?=]*)$"),
        (r"\bfoo\B\\b[\b](?<=a(b)(?!c))x", r"foo\\b[\b]x"),
        (r"(?<year>\d{4})-(?:a|b)", r"(?<year>\d{4})-(?:a|b)"),
    ],
)
def test_assertions_are_left_out(pattern: str, bare: str) -> None:
    assert without_assertions(pattern) == bare


def test_the_space_between_parts_is_bounded() -> None:
    grammars = Grammars(CODEC.tokenizer, VOCAB, [EOS])
    form = StructuredOutputsParams(json={"type": "array", "items": {"const": 1}}, whitespace_pattern=" ")
    constraint, two = grammars.start(form), CODEC.encode("[ 1, 1 ]")
    assert all(constraint.permits(two[:i], token) for i, token in enumerate([*two, EOS][:-1]))
    row = torch.zeros(VOCAB)
    grammars.start(form).process(CODEC.encode("[ "), [], row)
    assert not any(CODEC.decode([int(token)]).startswith(" ") for token in torch.nonzero(row == 0).flatten())
    with pytest.raises(RequestError, match="whitespace_pattern applies to JSON only; leave it out with regex"):
        StructuredOutputsParams(regex="a", whitespace_pattern=" ")
