"""JSON schemas as clients send them, reduced to what the grammar compiler enforces.

Annotations (unknown keywords and formats) constrain nothing and go silently, as the standard says. A constraint that
cannot be enforced is dropped and named by its path; what is left permits every value that the schema permits, except
that an object's name whose pattern cannot be enforced is not written at all. Some constraints that the compiler does
not know are rewritten into those that it does.

Sources: JSON Schema draft 2020-12 and the drafts before; for `nullable` OpenAPI 3.0.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from parlay.errors import RequestError, shown
from parlay.sampling.json_pointer import resolve
from parlay.sampling.patterns import without_assertions
from parlay.sampling.reduced_schema import Doubt, Dropped, Path, Reduced
from parlay.types.json_schema import MANY, NAMED

ONE = {"additionalItems", "additionalProperties", "items"}  # keywords whose values are subschemas
_COUNTS = {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
_BOUNDS = {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_FORMATS = {  # that the compiler enforces
    *("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"),
}
_DRAFTS = ("draft-04/schema", "draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema")
_UNENFORCED = {
    *("$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "if"),
    *("not", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    "x-guidance",  # the compiler's own options, which are not a client's to set
}
# Whatever they say, nothing is constrained.
_NEUTRAL: tuple[Any, ...] = (None, True, {})
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "contains": (None,),
    "if": (None,),
    "not": (None, False),
    "uniqueItems": (None, False),
    "dependencies": (None, {}),
    "dependentRequired": (None, {}),
    "dependentSchemas": (None, {}),
}
# Read together with another keyword, which is named instead.
_BESIDE = {"else", "maxContains", "minContains", "then"}
_CONSTRAINTS = (
    ONE | MANY | NAMED | _COUNTS | _BOUNDS | _UNENFORCED | _BESIDE
    | {"$ref", "const", "enum", "format", "pattern", "required", "type"}
)  # fmt: skip
_ABOUT = {  # keywords that no answer can break; those of references are the compiler's
    *("$anchor", "$comment", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "contentEncoding"),
    *("contentMediaType", "contentSchema", "default", "deprecated", "description", "discriminator", "example"),
    *("examples", "externalDocs", "id", "nullable", "readOnly", "title", "writeOnly", "xml"),
}
_SURE = 1e15  # numbers below are never too large for the compiler
_COMPARED, _ALIKE = 32, 0.86  # unknown keywords that are compared with known ones, and how alike misspelt ones are


def reduce(schema: Mapping[str, Any]) -> Reduced:
    """Return a schema without what is known not to be enforced, and with doubts that remain; see `Reduced.settle`.

    Raises:
        RequestError: a reference leads nowhere.
    """
    return _Reduction(schema).result()


class _Reduction:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._found = Reduced({})
        self._seen: set[Path] = set()
        self._refs: list[str] = []
        self._compared = 0  # unknown keywords
        self._inner_roots = False  # whether some references begin at an inner schema

    def result(self) -> Reduced:
        found = self._found
        found.schema = self._part(self._root, ("#",))
        # Of what references lead to, some stands below unknown keywords, such as OpenAPI's `components`.
        for ref in self._refs:  # grows
            path = tuple(ref.split("/"))
            if path[0] == "#" and path not in self._seen:
                target = resolve(self._root, ref)
                if isinstance(target, dict | bool):
                    self._place(path, self._part(target, path))
                elif target is None and len(path) > 1 and not self._inner_roots:
                    raise RequestError(f"the JSON schema has nothing at {shown(ref)}")
        return found

    def _place(self, path: Path, part: Any) -> None:
        place: Any = self._found.schema
        for name in map(_plain, path[1:-1]):
            if isinstance(place, dict):
                place = place.setdefault(name, {})
            elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
                place = place[int(name)]
            else:
                return
        if isinstance(place, dict):
            place.setdefault(_plain(path[-1]), part)

    def _drop(self, at: Path, why: str = "is not enforced") -> None:
        self._found.dropped.append(Dropped("/".join(at), why))

    def _doubt(self, where: dict[str, Any], at: Path, *options: dict[str, Any]) -> None:
        where.update(options[0])
        self._found.doubts.append(Doubt(where, "/".join(at), list(options)))

    def _part(self, schema: Any, at: Path) -> Any:
        """Return a subschema without what is not enforced."""
        self._seen.add(at)
        self._inner_roots |= len(at) > 1 and isinstance(schema, Mapping) and not {"$id", "id"}.isdisjoint(schema)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._drop(at, "is no schema")
            return True
        made: dict[str, Any] = {}
        # What is rewritten builds on the other keywords.
        for key, value in sorted(schema.items(), key=lambda item: item[0] in _UNENFORCED):
            self._keyword(schema, made, key, value, (*at, _escaped(key)))
        self._doubtful(made, at)
        return _nullable(made) if schema.get("nullable") is True else made

    def _keyword(self, schema: Mapping[str, Any], made: dict[str, Any], key: str, value: Any, at: Path) -> None:
        if key in _UNENFORCED:
            if value not in _WITHOUT_EFFECT.get(key, _NEUTRAL):
                self._rewrite(schema, made, key, value, at)
        elif key not in _CONSTRAINTS:
            self._annotation(schema, made, key, value, at)
        elif key in _BESIDE or (value is None and key != "const"):  # null is left out, as some languages write it
            return
        elif key in NAMED and value == []:  # an empty object, as PHP writes it
            made[key] = {}
        elif (fit := _fitting(key, value)) is None:
            self._drop(at, "has a value that the keyword does not take")
        elif key in NAMED:
            made[key] = {name: self._part(one, (*at, _escaped(name))) for name, one in fit[0].items()}
        elif key in MANY and isinstance(value, list):
            made[key] = [self._part(one, (*at, str(i))) for i, one in enumerate(value)]
        elif key in ONE:
            made[key] = self._part(value, at)
        elif key != "format" or value in _FORMATS:
            made[key] = fit[0]
            if key == "$ref":
                self._refs.append(value)

    def _annotation(self, schema: Mapping[str, Any], made: dict[str, Any], key: str, value: Any, at: Path) -> None:
        if key == "$schema" and (not isinstance(value, str) or not value.rstrip("#").endswith(_DRAFTS)):
            return
        named = key in ("$schema", "$id", "$anchor", "id") and isinstance(value, str)
        if named or (key == "discriminator" and "oneOf" in schema):  # these the compiler reads
            made[key] = value
        elif key not in _ABOUT and not key.startswith("x-") and self._compared < _COMPARED:
            self._compared += 1
            if meant := get_close_matches(key, _CONSTRAINTS, 1, _ALIKE):
                self._drop(at, f"is no keyword (did you mean {meant[0]!r}?)")

    def _rewrite(self, schema: Mapping[str, Any], made: dict[str, Any], key: str, value: Any, at: Path) -> None:
        """Put a keyword that the compiler does not know into words that it does; drop it otherwise."""
        alone = not {"$ref", "allOf", "anyOf", "oneOf", "if"} & schema.keys()
        if key == "not" and value in (True, {}):  # nothing is valid; see `_doubtful`
            made["not"] = True
        elif key == "unevaluatedProperties" and value is False and alone:
            if "additionalProperties" not in schema:
                made["additionalProperties"] = False
        elif key == "unevaluatedItems" and value is False and alone:
            if "items" not in schema:
                made["items"] = False
        elif key == "propertyNames" and isinstance(value, dict):
            self._names(schema, made, value, at)
        else:
            self._drop(at)

    def _names(self, schema: Mapping[str, Any], made: dict[str, Any], names: dict[str, Any], at: Path) -> None:
        """Write `propertyNames` as properties of certain names, or of names with a pattern."""
        while isinstance(names.get("$ref"), str):
            target = resolve(self._root, names["$ref"])
            if not isinstance(target, dict) or target is names or len(names) > 1:
                self._drop(at)
                return
            names = target
        listed = [names["const"]] if "const" in names else names.get("enum")
        kept = self._part(names, at).keys() - {"type", "enum", "const", "pattern", "$schema", "$id", "$anchor"}
        if names.get("type", "string") != "string" or kept - {"format", "minLength", "maxLength"}:
            self._drop(at)
            return
        free = not schema.get("properties") and not schema.get("patternProperties")
        rest = schema.get("additionalProperties", True)
        below = (*at[:-1], "additionalProperties")
        if isinstance(listed, list) and listed and free and "pattern" not in names:
            made["properties"] = {name: self._part(rest, below) for name in listed if isinstance(name, str)}
            made["additionalProperties"] = False
        elif isinstance(names.get("pattern"), str) and free:
            made["patternProperties"] = {names["pattern"]: self._part(rest, below)}
            made["additionalProperties"] = False
        elif listed is not None or "pattern" in names or kept:
            self._drop(at)
            return
        if kept - {"format"} or ("format" in kept and "pattern" not in names):
            self._drop(at, "is enforced in part")

    def _tagged(self, options: list[Any]) -> bool:
        """Whether a property tells the options apart, so that a value cannot have two of them."""
        known = [resolve(self._root, one["$ref"]) if _is_ref(one) else one for one in options]
        if not all(isinstance(one, Mapping) and isinstance(one.get("required"), list) for one in known):
            return False
        for name in known[0]["required"]:
            tags: list[Any] = []
            for one in known:
                properties = one.get("properties") if name in one["required"] else None
                tag = properties.get(name) if isinstance(properties, Mapping) else None
                tag = tag if isinstance(tag, Mapping) else {}
                values = [tag["const"]] if "const" in tag else tag.get("enum")
                tags += (
                    values if isinstance(values, list) and all(isinstance(v, str) for v in values) else [None, None]
                )
            if len(set(tags)) == len(tags):
                return True
        return False

    def _doubtful(self, made: dict[str, Any], at: Path) -> None:
        if made.pop("not", False):
            before: dict[str, Any] = {"allOf": made["allOf"]} if "allOf" in made else {}
            self._doubt(made, (*at, "not"), {"allOf": [*made.get("allOf", []), False]}, before)
        if "oneOf" not in made:
            made.pop("discriminator", None)
        for key in sorted(_BOUNDS & made.keys()):
            if isinstance(made[key], float) or abs(made[key]) > _SURE:
                self._doubt(made, (*at, key), {key: made[key]}, {})
        for key in ("minProperties", "maxProperties"):
            if key in made:
                self._doubt(made, (*at, key), {key: made[key]}, {})
        if "oneOf" in made:
            before = {key: made[key] for key in ("oneOf", "allOf", "discriminator") if key in made}
            either: dict[str, Any] = {"anyOf": made["oneOf"]}
            if "allOf" in made or "anyOf" in made:
                either = {"allOf": [*made.get("allOf", []), either]}
            if self._tagged(made["oneOf"]):
                for key in before:
                    del made[key]
                made |= either
            else:
                self._doubt(made, (*at, "oneOf"), before, either)
        if "pattern" in made:
            bare = without_assertions(made["pattern"])
            parts = [] if bare == made["pattern"] else [{"pattern": bare}]
            self._doubt(made, (*at, "pattern"), {"pattern": made["pattern"]}, *parts, {})
        for pattern, part in made.get("patternProperties", {}).items():
            path = (*at, "patternProperties", _escaped(pattern))
            self._doubt(made["patternProperties"], path, {pattern: part}, {})


def _is_ref(schema: Any) -> bool:
    return isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str)


def _nullable(made: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that permits null besides."""
    if "enum" in made and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    kinds = made.get("type")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        made["type"] = kinds if "null" in kinds else [*kinds, "null"]
    if not {"$ref", "allOf", "anyOf", "oneOf", "const"} & made.keys():
        return made
    outside: dict[str, Any] = {
        key: made.pop(key) for key in ("$schema", "$id", "id", "$defs", "definitions") if key in made
    }
    return {**outside, "anyOf": [made, {"type": "null"}]}


def _fitting(key: str, value: Any) -> tuple[Any] | None:
    """Return the value of a keyword as the compiler takes it; None if it is none that the keyword has."""
    good = True
    if key in _COUNTS:
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    elif key in _BOUNDS:  # booleans are those of draft 4
        good = isinstance(value, int | float) and (not isinstance(value, bool) or key.startswith("exclusive"))
    elif key in NAMED:
        good = isinstance(value, dict)
    elif key in MANY and key != "items":
        good = isinstance(value, list) and bool(value or key == "prefixItems")
    elif key == "enum":
        good = isinstance(value, list) and bool(value)
    elif key == "required":
        good = isinstance(value, list) and all(isinstance(name, str) for name in value)
    elif key == "type":
        kinds = [str(kind).lower() for kind in (value if isinstance(value, list) else [value])]  # Gemini: "STRING"
        good = bool(kinds) and _TYPES.issuperset(kinds)
        value = kinds if isinstance(value, list) else kinds[0]
    elif key in ("$ref", "format", "pattern"):
        good = isinstance(value, str)
    return (value,) if good else None


def parts(schema: Any) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every schema within a schema, itself first, and its path of one step for each level."""
    waiting: list[tuple[Path, Any]] = [(("#",), schema)]
    while waiting:
        at, part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        yield at, part
        for key, value in part.items():
            if key in NAMED and isinstance(value, Mapping):
                waiting += (((*at, f"{key}/{_escaped(name)}"), one) for name, one in value.items())
            elif key in MANY and isinstance(value, list):
                waiting += (((*at, f"{key}/{i}"), one) for i, one in enumerate(value))
            elif key in ONE:
                waiting.append(((*at, key), value))


def _escaped(name: str) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def _plain(name: str) -> str:
    return name.replace("~1", "/").replace("~0", "~")
