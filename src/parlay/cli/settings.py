"""Flags' values from a YAML file and from variables; a flag overrides a variable, a variable the file."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parlay import env
from parlay.cli.flags import listed, near_flag
from parlay.errors import ConfigError, brief, shown

_NOT_THERE = ("config", "help")


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Let a command take its flags from a file and from variables too."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE.yaml",
        help="read flags from this file, by their names; a variable such as "
        f"{env.FLAG}MAX_MODEL_LEN overrides it, and a flag overrides both",
    )


def apply_settings(commands: Mapping[str, argparse.ArgumentParser], arguments: Sequence[str]) -> None:
    """Set the defaults of the command that is called from its file and from variables.

    Args:
        commands: all commands by name.
        arguments: words of the command line, flags written with dashes.

    Raises:
        ConfigError: the file cannot be read; a key or variable that is no flag; a value of the wrong type.
    """
    called = next((commands[word] for word in arguments if word in commands), None)
    if called is None or not _takes_settings(called):
        return
    takers = [parser for parser in commands.values() if _takes_settings(parser)]
    every = {name for parser in takers for name in _flags(parser)}
    variables = env.flags()
    for name in variables:
        if name not in every:
            raise ConfigError(f"the variable {env.FLAG}{name.upper()} matches no flag{_near(name, takers)}")
    values = _from_file(called, arguments) | {
        name: (text, f"the variable {env.FLAG}{name.upper()}")
        for name, text in variables.items()
        if name in _flags(called)
    }
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = {word.partition("=")[0] for word in arguments[:end]}
    for name, (value, where) in values.items():
        action = _flags(called)[name]
        if given.isdisjoint(action.option_strings):
            called.set_defaults(**{action.dest: _value(action, value, where)})


def _takes_settings(parser: argparse.ArgumentParser) -> bool:
    return any(action.dest == "config" for action in parser._actions)


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return a command's flags by their names, with underscores."""
    found = {}
    for action in parser._actions:
        for flag in action.option_strings:
            name = flag.removeprefix("--").replace("-", "_")
            if flag.startswith("--") and not flag.startswith("--no-") and name not in _NOT_THERE:
                found[name] = action
    return found


def _from_file(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Return the values of the file that the arguments name, if any, and where they are from."""
    path = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    path.add_argument("--config", type=Path)
    file = path.parse_known_args(list(arguments))[0].config
    if file is None:
        return {}
    values = _read_yaml(file)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must have flags and their values, such as `max-model-len: 2048`")
    known, found = _flags(parser), {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise ConfigError(f"{file}: {shown(key)} is not a flag of {parser.prog}{_near(name, [parser])}")
        if value is None and name != "speculative_config":  # of which null is a value: plain decoding
            continue
        if name in found:
            raise ConfigError(f"{file} gives {name.replace('_', '-')} twice; leave one out")
        found[name] = value, f"{file}: {key}"
    return found


def _value(action: argparse.Action, value: Any, where: str) -> Any:
    """Return the value that a flag would give.

    Raises:
        ConfigError: the flag takes no such value.
    """
    if isinstance(action, argparse.BooleanOptionalAction | argparse._StoreTrueAction):
        word = value.strip().lower() if isinstance(value, str) else value
        if word not in (True, False, "true", "false", "1", "0"):
            raise ConfigError(f"{where} must be true or false, not {shown(value)}")
        return word in (True, "true", "1")
    if isinstance(action, argparse._AppendAction) or action.nargs == "+":
        many = value if isinstance(value, list) else [value]
        if isinstance(value, str):
            many = listed(value) or value.split(",")
        return [_one(action, one, where) for one in many]
    return _one(action, value, where)


def _one(action: argparse.Action, value: Any, where: str) -> Any:
    if isinstance(value, float) and value.is_integer():  # 2048.0 is a number of tokens too
        value = int(value)
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        made = action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError, TypeError):
        kind = getattr(action.type, "__name__", "value").lstrip("_")
        raise ConfigError(f"{where} must be of type {kind}, not {shown(value)}") from None
    if action.choices is not None and made not in action.choices:
        raise ConfigError(f"{where} must be {' or '.join(map(str, action.choices))}, not {shown(value)}")
    return made


def _near(name: str, parsers: Iterable[argparse.ArgumentParser]) -> str:
    visible = {
        f"--{flag.replace('_', '-')}"
        for parser in parsers
        for flag, action in _flags(parser).items()
        if action.help is not argparse.SUPPRESS
    }
    text = near_flag(f"--{name.replace('_', '-')}", visible)
    return text.replace("'--", "'") or "; --help lists the flags"


def _read_yaml(file: Path) -> Any:
    """Return what a YAML file holds; keys that are given twice are an error, in nested mappings too."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # of a library without types
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in seen:
                        line = key.start_mark.line + 1
                        raise ConfigError(f"{file} gives {key.value} twice, again in line {line}; leave one out")
                    seen.add((key.tag, key.value))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(file.read_text("utf-8"), Loader)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid YAML: {brief(' '.join(str(error).split()))}") from None
