"""Word wrap for text that comes piece by piece: a word that does not fit is taken back and begins the next line."""

from collections.abc import Iterator

from rich.cells import cell_len

Piece = tuple[str, str]  # a text and its style


class Wrapper:
    """Where the cursor of a terminal is, and the word that is being written."""

    def __init__(self) -> None:
        """Start at the left end of a line."""
        self._column = 0
        self._word: list[Piece] = []

    def add(self, text: str, style: str, width: int) -> Iterator[Piece]:
        """Yield what to print for the next piece of a text.

        Args:
            text: the piece.
            style: style of the whole piece.
            width: columns that a line may have, fewer than the terminal's: its last one is left free, since terminals
                differ in where the cursor is behind it.
        """
        line: list[str] = []
        for letter in text:
            taken = cell_len(letter)
            if letter == "\n":
                self._column, self._word = 0, []
            elif letter.isspace():
                self._advance(taken, width)
                self._word = []
            elif self._column + taken > width and self._begun_late():
                yield "".join(line), style
                line = []
                yield from self._take_down()
                self._column += taken
                self._word.append((letter, style))
            else:
                self._advance(taken, width)
                self._word.append((letter, style))
            line.append(letter)
        yield "".join(line), style

    def _advance(self, taken: int, width: int) -> None:
        """Count a letter's columns; one that has no room even in the last column is in the next line."""
        self._column += taken
        if self._column > width + 1:
            self._column, self._word = taken, []

    def _begun_late(self) -> bool:
        """Whether the word has something before it in its line: else a line of its own would not help."""
        return self._column > self._width() or not self._word

    def _take_down(self) -> Iterator[Piece]:
        back = self._width()
        yield (f"\x1b[{back}D\x1b[K\n" if back else "\n"), ""
        yield from self._word
        self._column = back

    def _width(self) -> int:
        return sum(cell_len(letter) for letter, _ in self._word)
