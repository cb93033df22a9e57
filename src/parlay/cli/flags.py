"""Command-line flags made from frozen dataclasses: names, types, defaults and help texts stand in one place."""

import argparse
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def add_flags(parser: argparse.ArgumentParser, cls: type, skip: Collection[str] = ()) -> None:
    """Add a flag for every field of a dataclass; help texts are the `Attributes` of its docstring.

    Flags left out of the command line stay out of the namespace, so that the dataclass's defaults hold.
    """
    hints, helps = get_type_hints(cls), attribute_docs(cls)
    group = parser.add_argument_group(f"{cls.__name__} options")
    for field in fields(cls):
        if field.name in skip:
            continue
        options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
        text = helps.get(field.name, "").replace("%", "%%")
        default = None if field.default is MISSING else field.default
        options["help"] = f"{text} (default: {default})" if default not in (None, ()) else text
        _add(group, field.name, hints[field.name], options)


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the text of each attribute in the `Attributes` section of a class's docstring."""
    section = re.split(r"\n\s*Attributes:\n", cls.__doc__ or "")[-1].split("\n\n")[0]
    docs: dict[str, str] = {}
    for name, text in re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE):
        docs[name] = re.sub(r"\s+", " ", text).replace("`", "")
    return docs


def normalise(arguments: list[str]) -> list[str]:
    """Return arguments in which flags written with underscores are written with dashes; what follows `--` is text."""
    end = arguments.index("--") if "--" in arguments else len(arguments)

    def dashed(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return name.replace("_", "-") + equals + value if re.fullmatch(r"--\w+", name) else argument

    return [dashed(a) for a in arguments[:end]] + arguments[end:]


def _add(group: Any, name: str, hint: Any, options: dict[str, Any]) -> None:
    flag = "--" + name.replace("_", "-")
    choices = [h for h in get_args(hint) if h is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    kinds = [get_origin(c) or c for c in choices]
    if bool in kinds:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
    elif get_origin(hint) is Literal:
        group.add_argument(flag, choices=get_args(hint), **options)
    elif Mapping in kinds:
        group.add_argument(flag, type=json.loads, metavar="JSON", **options)
    elif list in kinds or tuple in kinds:
        element = next(c for c in choices if get_origin(c) in (list, tuple))
        options["help"] += "; may be given several times"
        group.add_argument(flag, action="append", type=get_args(element)[0], metavar="VALUE", **options)
    else:
        kind = next(k for k in (int, float, str) if k in kinds)
        group.add_argument(flag, type=kind, metavar=kind.__name__.upper(), **options)
