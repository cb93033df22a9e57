"""The page at `/docs`: everything of the OpenAPI document, and nothing from elsewhere."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest
from openai.types.chat import ChatCompletionMessageParam
from serving import Live, NoEngine

from parlay.server.openapi import schemas
from parlay.server.reference import kind


class Texts(HTMLParser):
    """Words of a page, and whether its tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.add(data)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(NoEngine(), api_key=("a-key-for-docs",)) as server:
        yield server


def test_every_endpoint_and_every_field_is_there(live: Live) -> None:
    answer = live.http.get("/docs")  # browsers send no key
    assert answer.status_code == 200
    document = live.http.get("/openapi.json", headers={"Authorization": "Bearer a-key-for-docs"}).json()
    parser = Texts()
    parser.feed(answer.text)
    assert not parser.open
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in parser.words
            assert operation["summary"] in parser.words
    for name in ("CompletionFields", "ChatFields", "ResponseFields", "TokenizeFields", "DetokenizeFields"):
        assert set(document["components"]["schemas"][name]["properties"]) <= parser.words, name
    anchors = re.findall(r'href="#([^"]+)"', answer.text)
    assert anchors == re.findall(r'<section id="([^"]+)"', answer.text)
    assert len(set(anchors)) == len(anchors) > 10


def test_it_needs_nothing_from_elsewhere(live: Live) -> None:
    answer = live.http.get("/docs")
    assert not re.findall(r"https?://|<script|@import|url\(|src=|style=", answer.text)
    assert "color-scheme: light dark" in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'none'" in policy
    assert re.search(r"style-src 'sha256-[\w+/=]+'", policy)
    assert "none" not in re.sub(r"<style>.*?</style>", "", answer.text, flags=re.DOTALL).split("<main>")[0]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "integer from 1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number above 0 up to 1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        (
            {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]},
            "list of integer or string",
        ),
        ({"type": ["string", "null"]}, "string"),
        ({"const": "model"}, "model"),
        ({"enum": ["a", True]}, "a or true"),
        ({"$ref": "#/components/schemas/Error"}, "Error"),
        ({}, "anything"),
    ],
)
def test_types_in_words(schema: dict[str, object], words: str) -> None:
    assert kind(schema) == words


def test_the_document_allows_what_openais_clients_send() -> None:
    calls: list[Any] = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]},
    ]
    made = schemas()
    body = {"messages": messages, "stop": [""], "speculative": {}, "logit_bias": [], "max_tokens": -1}
    jsonschema.validate(body, {**made["ChatFields"], "components": {"schemas": made}})
