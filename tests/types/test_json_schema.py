"""Schemas whose objects are closed: what was valid with the listed properties alone still is."""

import json
from typing import Any

import jsonschema
import pytest

from parlay import LLM, SamplingParams
from parlay.checkpoints.find import find_model
from parlay.sampling.grammar import Grammars
from parlay.text.tokenizer import TextCodec
from parlay.types.json_schema import closed
from parlay.types.structured import StructuredOutputsParams

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
B = {"type": "object", "properties": {"b": {"type": "integer"}}}


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(find_model("tiny-code"))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (A, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "array", "items": A}, [{"a": 1}], [{"b": 1}]),
        ({"anyOf": [A, B]}, {"b": 1}, {"b": 1, "c": 2}),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, {"a": 1}, {"c": 1}),
        ({"type": "object", "properties": {"x": A}}, {"x": {"a": 1}}, {"x": {"b": 1}}),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": A}}, {"a": 1}, {"c": 1}),
        ({"type": "object", "additionalProperties": A}, {"x": {"a": 1}}, {"x": {"b": 1}}),
    ],
)
def test_objects_are_closed(schema: Any, good: Any, bad: Any) -> None:
    strict = json.loads(closed(json.dumps(schema)))
    jsonschema.validate(good, strict)
    jsonschema.validate(bad, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, strict)
    assert closed(json.dumps(strict)) == json.dumps(strict)


@pytest.mark.parametrize(
    ("schema", "good"),
    [
        ({"allOf": [A, B]}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A}}, {"a": 1, "b": 2}),
        ({**A, "$ref": "#/$defs/b", "$defs": {"b": B}}, {"a": 1, "b": 2}),
        ({**A, "anyOf": [B]}, {"a": 1, "b": 2}),
        ({**A, "additionalProperties": True}, {"a": 1, "b": 2}),
        ({**A, "patternProperties": {"^b": {}}}, {"a": 1, "b": 2}),
        ({"type": "object"}, {"a": 1}),
        ({"type": "object", "properties": {}}, {"a": 1}),
        ({"type": "object", "properties": {"properties": {"type": "integer"}}}, {"properties": 3}),
        ({"enum": [{"properties": {"a": 1}}]}, {"properties": {"a": 1}}),
    ],
)
def test_what_is_open_on_purpose_stays_so(schema: Any, good: Any) -> None:
    jsonschema.validate(good, schema)
    jsonschema.validate(good, json.loads(closed(json.dumps(schema))))


@pytest.mark.parametrize(
    ("schema", "text", "permitted"),
    [
        (B | {"additionalProperties": False}, '{"b":1,"b":', False),
        ({"properties": {**A["properties"], **B["properties"]}, "type": "object"}, '{"b":1,"a":2,"b":', False),
        (A, '{"a":1,"x":2', True),
        (A, '{"a":1,"x":2,"a":', False),
        (A, '{"a":1,"x":2,"x":', True),  # nobody keeps a list of names that the schema does not have
        ({"type": "object"}, '{"x":1,"x":', True),
        ({"allOf": [A, B]}, '{"a":1,"b":2,"a":', False),
    ],
)
def test_listed_names_come_once(schema: Any, text: str, permitted: bool, codec: TextCodec) -> None:
    grammars = Grammars(codec.tokenizer, codec.tokenizer.get_vocab_size(), [0])
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True, disable_additional_properties=False)
    *before, last = codec.encode(text)
    constraint = grammars.start(form)
    path: list[int] = []
    for token in before:
        if not constraint.permits(path, token):
            break
        path.append(token)
    assert (path == before and constraint.permits(path, last)) is permitted


def test_the_switch() -> None:
    llm = LLM("tiny-code", speculative_config=None, max_model_len=256)
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    (output,) = llm.generate(["x = "], SamplingParams(temperature=0, max_tokens=64, structured_outputs=form))
    assert output.outputs[0].text == '{"a":1}'
    kept = StructuredOutputsParams(json=schema, disable_additional_properties=False)
    assert json.loads(str(kept.json)) == schema
