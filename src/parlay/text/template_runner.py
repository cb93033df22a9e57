"""Running chat templates."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from parlay.errors import RequestError, TemplateRefusalError, brief

_KEPT = 32  # findings

T = TypeVar("T")


class Runner:
    """Runs templates in this process, for those that are trusted to end."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def run(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text that a template makes.

        Args:
            template: in Jinja's language.
            variables: its variables by name.

        Raises:
            TemplateRefusalError: it is no template, or refuses.
            RequestError: it does not end, or its result is too large.
        """
        (found,) = self.run_each(template, [variables])
        if isinstance(found, TemplateRefusalError):
            raise found
        return found

    def run_each(self, template: str, many: Sequence[Mapping[str, Any]]) -> list[str | TemplateRefusalError]:
        """Return the texts that a template makes of each of several sets of variables, or why it refuses one.

        Raises:
            RequestError: it does not end, or its result is too large.
        """
        return [_run(template, variables) for variables in many]

    def remembered(self, about: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` returns about a template, calling it only for what is not cached."""
        if about in self._known:
            found: T = self._known[about]
            return found
        found = self._known[about] = find()
        for oldest in list(self._known)[:-_KEPT]:
            self._known.pop(oldest, None)
        return found


def _run(template: str, variables: Mapping[str, Any]) -> str | TemplateRefusalError:
    from parlay.text.template import render  # slow to import

    try:
        return render(template, variables)
    except TemplateRefusalError as refusal:
        return refusal
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # a template's expressions may raise anything
        reason = brief(str(error).strip().split("\n")[0]) or type(error).__name__
        return TemplateRefusalError(f"the chat template refuses these messages: {reason}")
