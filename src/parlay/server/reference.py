"""The page at `/docs`: the OpenAPI document for people, made once, without a script and without other files."""

from html import escape
from typing import Any

_STYLE = """
:root {
  color-scheme: light dark;
  --page: light-dark(#f7f7f4, #14161a); --card: light-dark(#ffffff, #1c1f25); --ink: light-dark(#1b1e24, #e9eaee);
  --quiet: light-dark(#565c68, #a4abb8); --line: light-dark(#dcdcd5, #343943); --accent: light-dark(#1f5f99, #7cb9ee);
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
header, main { max-width: 64rem; margin: 0 auto; padding: 1rem; }
h1 { margin: 0 0 .5rem; font-size: 1.35rem; }
h2 { margin: 0; font-size: 1.05rem; overflow-wrap: anywhere; }
h3 { margin: 1rem 0 .25rem; font-size: .95rem; }
p { margin: .25rem 0; color: var(--quiet); }
a { color: var(--accent); }
code { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
nav ul { margin: .5rem 0 0; padding: 0; list-style: none; columns: 18rem; }
section { margin-bottom: 1rem; padding: 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .6rem; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .6rem .3rem 0; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 600; }
td:first-child code { white-space: nowrap; }
@media (max-width: 40rem) {
  thead { display: none; }
  tr { display: block; padding: .4rem 0; border-top: 1px solid var(--line); }
  td { display: block; padding: 0; border: 0; }
  td:first-child { font-weight: 600; }
}
"""


def reference(document: dict[str, Any]) -> str:
    """Return the page that shows an OpenAPI document."""
    schemas = document.get("components", {}).get("schemas", {})
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    links = "".join(
        f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a></li>'
        for method, path, _ in operations
    )
    sections = "".join(_operation(method, path, operation, schemas) for method, path, operation in operations)
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: endpoints</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f"<body><header><h1>{title}: endpoints and their fields</h1>"
        "<p>The same for programs: <code>GET /openapi.json</code>.</p>"
        f'<nav aria-label="Endpoints"><ul>{links}</ul></nav></header><main>{sections}</main></body></html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [f"<h2><code>{method} {escape(path)}</code></h2><p>{escape(operation.get('summary', ''))}</p>"]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        parts.append("<h3>Fields</h3>" + _fields(_resolved(content["schema"], schemas)))
    answer = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema")
    if answer:
        resolved = _resolved(answer, schemas)
        if resolved.get("properties"):
            parts.append("<h3>Answer</h3>" + _fields(resolved, described=False))
    rows = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{_text(response.get('description', ''))}</td></tr>"
        for status, response in sorted(operation["responses"].items())
    )
    parts.append(f'<h3>Status</h3><div class="wide" tabindex="0"><table><tbody>{rows}</tbody></table></div>')
    return f'<section id="{_anchor(method, path)}">{"".join(parts)}</section>'


def _fields(schema: dict[str, Any], *, described: bool = True) -> str:
    needed = schema.get("required", ()) if described else ()
    rows = []
    for name, value in sorted(schema["properties"].items(), key=lambda pair: (pair[0] not in needed, pair[0])):
        text = value.get("description", "")
        told = [_text(text[:1].upper() + text[1:])] if described else []
        if name in needed:
            told.insert(0, "<strong>Needed.</strong>")
        if value.get("default") not in (None, [], {}):
            told.append(f"Default: <code>{escape(_literal(value['default']))}</code>.")
        cells = f"<td><code>{escape(name)}</code></td><td>{escape(kind(value))}</td>"
        rows.append(f"<tr>{cells}<td>{' '.join(told)}</td></tr>" if described else f"<tr>{cells}</tr>")
    head = "<th>Field</th><th>Type</th>" + ("<th>Meaning</th>" if described else "")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


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


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    return dict(schemas[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema


def _text(text: str) -> str:
    """Return a description with what stands between backquotes as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def _literal(value: Any) -> str:
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _anchor(method: str, path: str) -> str:
    return f"{method.lower()}{''.join(c if c.isalnum() else '-' for c in path)}"
