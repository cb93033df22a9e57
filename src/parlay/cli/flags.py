"""Command-line flags made from frozen dataclasses, which define names, types, defaults and help texts."""

import argparse
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from fractions import Fraction
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from parlay.config.docs import attribute_docs
from parlay.config.other_flags import answer
from parlay.config.vllm_0_6 import OLDER
from parlay.config.vllm_options import FOREIGN
from parlay.errors import ParlayError, shown
from parlay.types.params import SamplingParams

_MODEL = "model_word"
_CLOSE, _ALMOST = 0.75, 0.9  # how alike a flag and a suggestion are, 1 being equal
_MOST_NAMES = 10  # that a message lists
_SAMPLING = {f"--{field.name.replace('_', '-')}" for field in fields(SamplingParams)}
_BY_REQUESTS = "requests set it; --generation-config DIR has the defaults"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKmMgGtT])(i?[bB])?", re.ASCII)


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and flags before, between and after other words.

    Attributes:
        spare: what to say of more words than the command takes.
        joins: whether such words are the rest of the prompt.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self.spare = ""
        self.joins = False

    @property
    def commands(self) -> dict[str, "Parser"]:
        """The commands below this one, by name."""
        found = (action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return {name: parser for choices in found for name, parser in choices.items()}

    def complete(self) -> None:
        """Add flags that are not known before the command is used."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown flags here, where this command's known ones are available."""
        self.complete()
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is not None:
            return super().parse_known_args(words, namespace)
        ours = words[: words.index("--")] if "--" in words else words
        # Before `-ctk` is read as `-c tk`, and before a required word is missed.
        self._refuse(word for word in ours if answer(_name(word)) and _name(word) not in self._option_string_actions)
        found, left = super().parse_known_args(words, namespace)
        end = left.index("--") if "--" in left else len(left)
        self._refuse(left[:end])
        left = left[:end] + left[end + 1 :]
        flagged = any(_name(word) == "--model" for word in ours)
        left = self._further(found, ours, self._place(found, left))
        if left:
            spare = self.spare or "leave it out"
            self.error(f"unexpected argument {' '.join(left)!r}: {spare}")
        if hasattr(found, _MODEL):
            word = getattr(found, _MODEL)
            if flagged and word != found.model and "prompt" not in found and not self._further(found, ours, [word]):
                setattr(found, _MODEL, found.model)
            self._name_model(found, flagged=flagged)
        return found, left

    def _refuse(self, words: Iterable[str]) -> None:
        unknown = next((_name(word) for word in words if _is_flag(word)), None)
        if unknown is not None:
            listed = (action for action in self._actions if action.help is not argparse.SUPPRESS)
            known = [flag for action in listed for flag in action.option_strings if flag.startswith("--")]
            self.error(f"unknown flag {unknown}{near_flag(unknown, known)}")

    def _place(self, found: argparse.Namespace, left: list[str]) -> list[str]:
        """Give words after a flag to what is still missing, which argparse has settled before the flag."""
        rest = list(left)
        for action in self._get_positional_actions():
            if rest and action.nargs == "?" and getattr(found, action.dest, action.default) is action.default:
                setattr(found, action.dest, self._get_value(action, rest.pop(0)))
        if rest and self.joins and found.prompt is not None:
            found.prompt, rest = " ".join((found.prompt, *rest)), []
        return rest

    def _further(self, found: argparse.Namespace, words: Sequence[str], left: list[str]) -> list[str]:
        """Give words after the value of a flag that may be repeated to it: `--served-model-name a b` is vLLM's."""
        for at, word in enumerate(words):
            action = self._option_string_actions.get(word)
            values = list(takewhile(lambda one: not _is_flag(one), words[at + 1 :]))
            if isinstance(action, _Append) and left and values[1:] == left:
                for value in left:
                    action(self, found, self._get_value(action, value))
                return []
        return left

    def _name_model(self, found: argparse.Namespace, *, flagged: bool) -> None:
        """Let MODEL stand for --model; beside --model a first word is the prompt, where there is one."""
        word = getattr(found, _MODEL)
        delattr(found, _MODEL)
        if not flagged or found.model == word:
            found.model = word
        elif "prompt" in found and found.prompt is None and not _is_model(word):
            found.prompt = word
        else:
            self.error(f"the model is given twice, {word!r} and --model {found.model!r}; leave one out")

    def format_help(self) -> str:
        """Return the help; a usage of many flags is no use."""
        if self.usage is None and len(self._actions) > _MOST_NAMES:
            words = [
                (action.metavar or action.dest, action.nargs == "?") for action in self._get_positional_actions()
            ]
            self.usage = " ".join(
                ["%(prog)s", *(f"[{word}]" if spare else str(word) for word, spare in words), "[flags]"]
            )
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Report the error in one line, and where the flags are listed."""
        print(f"{self.prog}: {message}; {self.prog} --help lists the flags", file=sys.stderr)
        sys.exit(2)


def near_flag(flag: str, known: Collection[str]) -> str:
    """Return, for the end of a message, what to write in place of an unknown flag.

    Args:
        flag: the flag as it was written, such as `--ctx-size`.
        known: flags of the command.
    """
    other = answer(flag)
    meant = other and re.match(r"write (--[\w-]+)", other)
    if meant and meant[1] not in known:  # a flag of other commands
        other = _BY_REQUESTS if "--generation-config" in known and meant[1] in _SAMPLING else None
    close = get_close_matches(flag, known, n=1, cutoff=_CLOSE if other is None else _ALMOST)
    if close:
        return f" (did you mean {close[0]!r}?)"
    if other is not None:
        return f": {other}"
    return f" (known: {', '.join(sorted(known))})" if 0 < len(known) <= _MOST_NAMES else ""


def _is_model(word: str) -> bool:
    """Whether a word names a model, as far as can be said without loading it."""
    from parlay.checkpoints import ollama
    from parlay.checkpoints.find import here
    from parlay.checkpoints.hub import is_hub_id
    from parlay.checkpoints.short_names import resolve

    try:
        return (
            is_hub_id(word) or word.startswith(ollama.PREFIX) or here(word) is not None or resolve(word) is not None
        )
    except ParlayError:  # a directory of several files, or a family without that tag
        return True


def _is_flag(word: str) -> bool:
    return re.match(r"--?[a-zA-Z]", word) is not None and " " not in word.partition("=")[0]


def _name(word: str) -> str:
    return word.partition("=")[0]


def add_model(parser: argparse.ArgumentParser, default: str | None = None, of: str = "the model") -> None:
    """Add MODEL, the same as --model, and what every command with a model has.

    Args:
        parser: parser of the command.
        default: the model if none is named; None leaves --model to `add_flags`.
        of: what the model is.
    """
    text = f"{of}: a short name, a directory, a GGUF file, a name on the hub or an embedded model"
    usual = f" (default: {default})" if default else ""
    parser.add_argument(_MODEL, nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help=text + usual)
    if default is not None:
        parser.add_argument("--model", default=default, help="the model, as MODEL")
    add_threads_flag(parser)


def add_threads_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--threads`, which `main` reads."""
    parser.add_argument(
        "-t",
        "--threads",
        type=_int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="number of compute threads, also PARLAY_THREADS (default: one for each available core)",
    )


def add_flags(
    parser: argparse.ArgumentParser,
    cls: type,
    skip: Collection[str] = (),
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Add a flag for every field of a dataclass; help texts are the `Attributes` of its docstring.

    Nested values are given as JSON. Flags left out of the command line stay out of the namespace, so that the
    dataclass's defaults hold, or the command's own. A field's metadata may have further names (`aliases`, `short`)
    and options of argparse (`flag`).
    """
    hints, helps = get_type_hints(cls), attribute_docs(cls)
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
    group = parser.add_argument_group(title, _summary(cls))
    for field in fields(cls):
        if field.name in skip:
            continue
        options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
        text = _in_plain_words(helps.get(field.name, "")).replace("%", "%%").removesuffix(".")
        default = defaults.get(field.name, None if field.default is MISSING else field.default)
        if field.default is MISSING and field.default_factory is MISSING and field.name not in defaults:
            options["required"] = True
        usual = ", ".join(map(str, default)) if isinstance(default, list | tuple) else default
        options["help"] = f"{text} (default: {usual})" if usual not in (None, "") else text
        names = (field.name, *field.metadata.get("aliases", ()))
        flags = ["--" + name.replace("_", "-") for name in names]
        if "short" in field.metadata:
            flags.append(field.metadata["short"])
        _add(group, flags, hints[field.name], options | field.metadata.get("flag", {}))


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
        "--dequantize",
        action="store_true",
        help="unpack quantised weights when they are read (default: compute with them as stored)",
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
    elif element in (int, float, str, Path):
        if "nargs" not in options:
            options |= {"action": _Append, "help": options["help"] + "; may be given several times"}
        group.add_argument(*flags, type=_int if element is int else element, **_shown("VALUE", options))
    elif scalar is not None:
        kind = _int if scalar is int else scalar
        group.add_argument(*flags, type=kind, **_shown(scalar.__name__.upper(), options))
    elif lists or any(isinstance(k, type) and issubclass(k, Mapping) for k in kinds):
        group.add_argument(*flags, type=_json, metavar="JSON", **options)


class _Append(argparse._AppendAction):
    """A flag that may be repeated; a list in JSON, as vLLM takes it, stands for several values."""

    def __call__(
        self, parser: argparse.ArgumentParser, found: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        several = listed(values) if isinstance(values, str) else None
        setattr(found, self.dest, [*(getattr(found, self.dest, None) or ()), *(several or [values])])


def listed(text: str) -> list[str] | None:
    """Return the texts of a list in JSON; None if it is none."""
    many = _loose(text) if text.startswith("[") else None
    return many if isinstance(many, list) and many and all(isinstance(one, str) for one in many) else None


def _shown(metavar: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a flag whose help shows what it takes: its choices, else `metavar`."""
    return options if "choices" in options else {**options, "metavar": metavar}


def _int(text: str) -> int:
    """Return a number as vLLM's command line takes it: 4k is 4,000, 4K is 4,096, 1.5GB and 1GiB are bytes."""
    try:
        return int(text)
    except ValueError:
        found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    number, letter, unit = found.groups()
    binary = letter.isupper() if unit is None else unit.lower() == "ib"
    size = Fraction(number) * (1024 if binary else 1000) ** ("kmgt".index(letter.lower()) + 1)
    if size.denominator != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(size)


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


def _in_plain_words(text: str) -> str:
    """Return a docstring's sentence for a command line, where None is written as "by default"."""
    plain = re.sub(r"\bNone (?=[a-z])", "by default it ", text)
    return re.sub(r"(?<=\. )by default", "By default", plain)


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").partition("\n")[0].replace("`", "")
