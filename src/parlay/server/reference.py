"""The page at `/docs`: the OpenAPI document for people, made once, without a script and without other files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

_TEMPLATE = Path(__file__).with_name("reference.html")


def reference(document: dict[str, Any]) -> str:
    """Return the page that shows an OpenAPI document."""
    schemas = document["components"]["schemas"]

    def resolved(described: dict[str, Any]) -> dict[str, Any]:
        schema: dict[str, Any] = described.get("content", {}).get("application/json", {}).get("schema", {})
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        return dict(schemas[name]) if name else schema

    operations = [
        {
            "name": f"{method.upper()} {path}",
            "anchor": method + "".join(c if c.isalnum() else "-" for c in path),
            "summary": operation["summary"],
            "body": resolved(operation.get("requestBody", {})),
            "answer": resolved(operation["responses"]["200"]),
            "responses": operation["responses"],
        }
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"rows": _rows, "kind": kind, "text": _text, "literal": _literal}
    title = f"{document['info']['title']} {document['info']['version']}"
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(title=title, operations=operations).strip()


def _rows(schema: dict[str, Any], described: bool) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield the fields of an object, those first that must be given."""
    needed = schema.get("required", ()) if described else ()
    for name, value in sorted(schema["properties"].items(), key=lambda pair: (pair[0] not in needed, pair[0])):
        yield name, value, name in needed


def kind(schema: dict[str, Any]) -> str:
    """Return in words what a schema allows; null counts as left out everywhere and is not named."""
    if "anyOf" in schema:
        kinds = [kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in schema or "enum" in schema:
        return " or ".join(_literal(value) for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    named = schema.get("type", "anything")
    if isinstance(named, list):
        return " or ".join(one for one in named if one != "null")
    if named == "array":
        return f"list of {kind(schema.get('items', {}))}"
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    above = "above" if "exclusiveMinimum" in schema else "from"
    bounds = ([] if low is None else [f"{above} {low:g}"]) + ([] if high is None else [f"up to {high:g}"])
    return " ".join((named, *bounds))


def _text(text: str) -> Markup:
    """Return a description with what stands between backquotes as code."""
    pieces = escape(text[:1].upper() + text[1:]).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(pieces))


def _literal(value: Any) -> str:
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
