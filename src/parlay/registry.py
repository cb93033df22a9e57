"""Finding one-file plug-ins by name: a module of a package is imported when its name is first asked for."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from parlay.errors import ConfigError, nearest, shown


class Registry:
    """The modules of one package, by name. There is no list to keep: the folder is the list."""

    def __init__(self, package: str, kind: str, hidden: frozenset[str] = frozenset()) -> None:
        self._package = package
        self._kind = kind
        self._hidden = hidden

    def names(self) -> Iterator[str]:
        """Yield the names that `load` accepts, sorted."""
        path = import_module(self._package).__path__
        yield from sorted(m.name for m in pkgutil.iter_modules(path) if m.name not in self._hidden)

    def load(self, name: str) -> ModuleType:
        """Import and return the module called `name`.

        Raises:
            ConfigError: no such module; the message suggests the nearest name.
        """
        names = list(self.names())
        if name not in names:
            raise ConfigError(f"unknown {self._kind} {shown(name)}{nearest(name, names)}")
        return import_module(f"{self._package}.{name}")
