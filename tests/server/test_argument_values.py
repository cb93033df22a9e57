"""Arguments that stand as bare text, by the types that their schema allows."""

import json
from typing import Any

import pytest

from parlay.server.openai.tool_formats import FORMATS
from parlay.server.openai.tool_readers import FreeReader
from parlay.server.openai.tools import Tools

ROOT = {"$defs": {"Code": {"enum": ["1", "2"]}, "Loop": {"$ref": "#/$defs/Loop"}, "a/b": {"type": "string"}}}
TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "012", "012"),
        ({"type": "string"}, '"a"', '"a"'),
        # As pydantic describes `str | None`, an enumeration and a union.
        (TEXT_OR_NULL, "012", "012"),
        (TEXT_OR_NULL, "12", "12"),
        (TEXT_OR_NULL, '{"a": 1}', '{"a": 1}'),
        (TEXT_OR_NULL, "null", None),
        (TEXT_OR_NULL, "None", None),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"$ref": "#/$defs/Code"}, "1", "1"),
        ({"allOf": [{"$ref": "#/$defs/Code"}]}, "1", "1"),
        ({"$ref": "#/$defs/a~1b"}, "1", "1"),
        ({"const": "7"}, "7", "7"),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": ["string", "integer"]}, "1.5", "1.5"),
        ({"type": ["string", "number"]}, "3", 3),
        ({"anyOf": [{"type": "array"}, {"type": "string"}]}, '["a"]', ["a"]),
        ({"anyOf": [{"type": "string"}, {}]}, "12", 12),  # anything
        # What nothing is known of.
        ({}, "12", 12),
        ({}, "a", "a"),
        ({"$ref": "#/$defs/Lost"}, "12", 12),
        ({"$ref": "#/$defs/Loop"}, "12", 12),
        ({"$ref": "https://example.org/a"}, "12", 12),
        # As templates write values of Python's.
        ({"type": "boolean"}, "True", True),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"type": "object"}, "{'a': None, 'b': [True]}", {"a": None, "b": [True]}),
        # No JSON, though Python reads it.
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "-Infinity", "-Infinity"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "array"}, "[1e999]", "[1e999]"),
        ({"type": "integer"}, "1" * 5000, "1" * 5000),  # digits that Python does not read
    ],
)
def test_values_by_their_schema(schema: Any, text: str, value: Any) -> None:
    tools = Tools({"f": {"type": "object", "properties": {"a": schema}, **ROOT}}, "auto")
    answer = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    for step in (1, len(answer)):
        reader, given = FreeReader(tools, FORMATS["qwen3_xml"]), ""
        for i in range(0, len(answer), step):
            for piece in reader.feed(answer[i : i + step], i + step >= len(answer)):
                assert isinstance(piece, dict)
                given += piece["function"]["arguments"]
        assert json.loads(given, parse_constant=pytest.fail) == {"a": value}
        assert type(json.loads(given)["a"]) is type(value)
