"""JSON schemas of bounded size that have a finite value, reduced to what is enforced."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from parlay.errors import RequestError
from parlay.sampling.json_pointer import resolve
from parlay.sampling.reduced_schema import Dropped
from parlay.sampling.schema_reduction import parts, reduce
from parlay.types.structured import LONGEST

_DEEPEST = 64  # levels of nesting
_MOST_TARGETS = 300  # of references, for a search that is quadratic in their number
_MOST_PROPERTIES = 500  # of one object: what may follow a property grows with their number


def check_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without its annotations, all of whose constraints may be compiled.

    Raises:
        RequestError: it names a constraint that is not enforced; or the schema is out of bounds, or every value of it
            would contain a further one without end.
    """
    reduced, dropped = served_schema(schema, None)
    if dropped:
        raise RequestError(f"in the JSON schema {dropped[0]}; leave it out")
    return reduced


def served_schema(
    schema: Mapping[str, Any], fault: Callable[[dict[str, Any]], str] | None
) -> tuple[dict[str, Any], list[Dropped]]:
    """Return what is enforced of a schema, and which constraints are not.

    Args:
        schema: the schema as the client sent it.
        fault: function that compiles a schema and returns what is wrong with it, empty if nothing; constraints that
            it refuses are dropped. None leaves them in.

    Raises:
        RequestError: the schema is out of bounds, or has no value, or every value of it would contain a further one
            without end.
    """
    if any(len(at) > _DEEPEST + 1 for at, _ in parts(schema)):
        raise RequestError(f"the JSON schema is nested more than {_DEEPEST} levels deep; write a flatter one")
    reduced = reduce(schema)
    dropped = reduced.dropped
    for at, part in parts(reduced.schema):
        properties, least = part.get("properties"), part.get("minProperties")
        if isinstance(properties, Mapping) and len(properties) > _MOST_PROPERTIES:
            raise RequestError(
                f"an object of the JSON schema has {len(properties)} properties, more than the {_MOST_PROPERTIES} "
                "that are allowed; split it into several objects"
            )
        # An answer may hold an unlisted name twice, and so have fewer properties than were written.
        if least is not None and least > max(1, len(part.get("required", ()))):
            reduced.forget(part, "minProperties", at)
    if not _has_an_end(reduced.schema):
        raise RequestError(
            "the JSON schema requires itself, so that no value of it ends; make one of the properties optional"
        )
    size = len(json.dumps(reduced.schema, ensure_ascii=False))
    if size > LONGEST:
        raise RequestError(
            f"the JSON schema has {size} characters, more than the {LONGEST} that are allowed; write a smaller one"
        )
    if fault is not None and (trouble := reduced.settle(fault)):
        raise RequestError(f"the JSON schema cannot be served: {trouble}")
    return reduced.schema, dropped


def _has_an_end(schema: Any) -> bool:
    """Whether the schema has a finite value, as far as required properties and items show.

    The least fixed point: a reference has an end once what it refers to has one without it.
    """
    targets = {part["$ref"] for _, part in parts(schema) if isinstance(part.get("$ref"), str)}
    if len(targets) > _MOST_TARGETS:
        return True
    open_ones = {ref: target for ref in targets if (target := resolve(schema, ref)) is not None}
    while ended := [ref for ref, target in open_ones.items() if _ends(target, open_ones)]:
        for ref in ended:
            del open_ones[ref]
    return _ends(schema, open_ones)


def _ends(part: Any, endless: Mapping[str, Any]) -> bool:
    if not isinstance(part, Mapping):
        return True
    ref = part.get("$ref")
    if isinstance(ref, str) and ref in endless:
        return False
    needed = list(part["allOf"]) if isinstance(part.get("allOf"), list) else []
    if part.get("type") == "object":
        properties, required = part.get("properties"), part.get("required")
        if isinstance(properties, Mapping) and isinstance(required, list):
            needed += [properties[name] for name in required if isinstance(name, str) and name in properties]
    if part.get("type") == "array" and part.get("minItems") not in (None, 0):
        first = part.get("prefixItems")
        needed.append(first[0] if isinstance(first, list) and first else part.get("items"))
    choices = [part[key] for key in ("anyOf", "oneOf") if isinstance(part.get(key), list) and part[key]]
    return all(_ends(one, endless) for one in needed) and all(
        any(_ends(one, endless) for one in several) for several in choices
    )
