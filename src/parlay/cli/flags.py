"""Command-line flags made from frozen dataclasses, which define names, types, defaults and help texts."""

import argparse
import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from parlay.config.docs import attribute_docs
from parlay.config.foreign import FOREIGN
from parlay.config.older import OLDER
from parlay.errors import nearest, shown


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and suggests the nearest flag for one that does not exist."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown flags here, where this command's known ones are available."""
        found, left = super().parse_known_args(args, namespace)
        unknown = next((a.partition("=")[0] for a in left if a.startswith("--") and a != "--"), None)
        if unknown is not None:
            known = {flag for action in self._actions for flag in action.option_strings if flag.startswith("--")}
            self.error(f"unknown flag {unknown}{nearest(unknown, known)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """Report the error in one line, and where the flags are listed."""
        print(f"{self.prog}: {message}; {self.prog} --help lists the flags", file=sys.stderr)
        sys.exit(2)


def add_flags(
    parser: argparse.ArgumentParser,
    cls: type,
    skip: Collection[str] = (),
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Add a flag for every field of a dataclass; help texts are the `Attributes` of its docstring.

    Nested values are given as JSON. Flags left out of the command line
    stay out of the namespace, so that the dataclass's defaults hold, or the command's own.
    """
    hints, helps = get_type_hints(cls), attribute_docs(cls)
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
    group = parser.add_argument_group(title, _summary(cls))
    for field in fields(cls):
        if field.name in skip:
            continue
        options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
        text = helps.get(field.name, "").replace("%", "%%").removesuffix(".")
        default = defaults.get(field.name, None if field.default is MISSING else field.default)
        if field.default is MISSING and field.default_factory is MISSING and field.name not in defaults:
            options["required"] = True
        options["help"] = f"{text} (default: {default})" if default not in (None, ()) else text
        names = (field.name, *field.metadata.get("aliases", ()))
        flags = ["--" + name.replace("_", "-") for name in names]
        if "short" in field.metadata:
            flags.append(field.metadata["short"])
        _add(group, flags, hints[field.name], options)


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags of vLLM's that mean nothing here, and those of its older versions; help does not list them.

    Those that the command itself has are left out.
    """
    own = {flag for action in parser._actions for flag in action.option_strings}
    for name, known in FOREIGN.items():
        flag = "--" + name.replace("_", "-")
        if flag in own:
            continue
        more: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        if known.flag:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **more)
        else:
            parser.add_argument(flag, type=_loose, **more)
    for name in OLDER:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=_loose, dest=name, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def foreign_options(values: Mapping[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
    """Return those values of a command line that are vLLM's, and none of the command's `own`."""
    return {name: values[name] for name in (*FOREIGN, *OLDER) if name in values and name not in own}


def add_dequantize_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--dequantize` to a command that has no other of `EngineConfig`'s flags."""
    parser.add_argument(
        "--dequantize", action="store_true", help="unpack quantised weights when they are read (default: keep them)"
    )


def given(cls: type, values: Mapping[str, Any], skip: Collection[str] = ()) -> dict[str, Any]:
    """Return those values of a command line that are fields of a dataclass."""
    return {f.name: values[f.name] for f in fields(cls) if f.name in values and f.name not in skip}


def normalise(arguments: list[str]) -> list[str]:
    """Return arguments in which flags written with underscores are written with dashes; what follows `--` is text."""
    end = arguments.index("--") if "--" in arguments else len(arguments)

    def dashed(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return name.replace("_", "-") + equals + value if re.fullmatch(r"--[\w-]+", name) else argument

    return [dashed(a) for a in arguments[:end]] + arguments[end:]


def _add(group: Any, flags: list[str], hint: Any, options: dict[str, Any]) -> None:
    choices = [h for h in get_args(hint) if h is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    kinds = [get_origin(c) or c for c in choices]
    scalar = next((k for k in (int, float, str) if k in kinds), None)
    lists = [c for c in choices if get_origin(c) in (list, tuple)]
    element = get_args(lists[0])[0] if lists else None
    if bool in kinds:
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **options)
    elif Literal in kinds:
        literal = next(c for c in choices if get_origin(c) is Literal)
        group.add_argument(*flags, choices=get_args(literal), **options)
    elif element in (int, float, str):
        options["help"] += "; may be given several times"
        group.add_argument(*flags, action="append", type=element, metavar="VALUE", **options)
    elif scalar is not None:
        group.add_argument(*flags, type=scalar, metavar=scalar.__name__.upper(), **options)
    elif lists or any(isinstance(k, type) and issubclass(k, Mapping) for k in kinds):
        group.add_argument(*flags, type=_json, metavar="JSON", **options)


def _loose(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not valid JSON: {error}") from None


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").partition("\n")[0].replace("`", "")
