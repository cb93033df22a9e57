"""Running chat templates."""

from collections.abc import Callable, Mapping
from typing import Any

from parlay.errors import RequestError, brief

_KEPT = 8  # findings


class Runner:
    """Runs templates in this process, for those that are trusted to end."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bool] = {}

    def run(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text that a template makes.

        Args:
            template: in Jinja's language.
            variables: its variables by name.

        Raises:
            RequestError: it is no template, refuses, does not end or its result is too large.
        """
        from parlay.text.template import render  # slow to import

        try:
            return render(template, variables)
        except (RequestError, MemoryError):
            raise
        except Exception as error:  # a template's expressions may raise anything
            reason = brief(str(error).strip().split("\n")[0]) or type(error).__name__
            raise RequestError(f"the chat template refuses these messages: {reason}") from None

    def remembered(self, about: tuple[str, str], find: Callable[[], bool]) -> bool:
        """Return what `find` returns about a template, calling it only for what is not cached."""
        found = self._known.get(about)
        if found is None:
            found = self._known[about] = find()
            for oldest in list(self._known)[:-_KEPT]:
                self._known.pop(oldest, None)
        return found
