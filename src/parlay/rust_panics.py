"""Panics of libraries written in Rust: Python sees a BaseException, which no `except Exception` holds back."""

from types import TracebackType

from parlay.errors import ParlayError, RequestError, brief


class Contained:
    """A region in which a library may panic; what it says becomes a typed error. Made once, entered as often."""

    __slots__ = ("_error", "_what")

    def __init__(self, what: str, error: type[ParlayError] = RequestError) -> None:
        """Set the error.

        Args:
            what: the beginning of the error's sentence.
            error: type of the error.
        """
        self._what = what
        self._error = error

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The type has no name that could be imported: each library has its own.
        if kind is not None and kind.__name__ == "PanicException":
            raise self._error(f"{self._what}: {brief(str(error))}") from None
