"""Finding plug-ins by name: one is imported when its name is first asked for."""

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType

from parlay.errors import ConfigError, nearest, shown


class Registry:
    """The plug-ins of one package, by name. There is no list to keep: the folder is the list.

    A plug-in is a file `name.py`, or a folder `name` with several parts of which each registry reads one.
    """

    def __init__(
        self, package: str, kind: str, part: str | None = None, *, needs: Sequence[str] = (), files: bool = True
    ) -> None:
        """Look for nothing yet.

        Args:
            package: a package that holds plug-ins and nothing else.
            kind: name of one in errors.
            part: the file of a plug-in's folder that is read, such as "proposer"; None where all are single files.
            needs: names that each has to define.
            files: whether single files count; if not, they lack this part.
        """
        self._package = package
        self._kind = kind
        self._part = part
        self._needs = needs
        self._files = files

    def names(self) -> tuple[str, ...]:
        """Return the names that `load` accepts, sorted."""
        return self._names

    @cached_property
    def _names(self) -> tuple[str, ...]:
        found = set()
        for folder in map(Path, import_module(self._package).__path__):
            if self._files:
                found |= {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")}
            if self._part is not None:
                found |= {file.parent.name for file in folder.glob(f"*/{self._part}.py")}
        return tuple(sorted(found))

    def load(self, name: str) -> ModuleType:
        """Import and return the plug-in called `name`, or this registry's part of it.

        Raises:
            ConfigError: no such plug-in; the message suggests the nearest name. Or it is none.
        """
        if name not in self.names():
            raise ConfigError(f"unknown {self._kind} {shown(name)}{nearest(name, self.names())}")
        module = import_module(f"{self._package}.{name}")
        if hasattr(module, "__path__"):
            module = import_module(f"{module.__name__}.{self._part}")
        for need in self._needs:
            if not hasattr(module, need):
                raise ConfigError(
                    f"{module.__file__} is no {self._kind}: it does not define {need}; write it, or begin the file's "
                    "name with an underscore"
                )
        return module
