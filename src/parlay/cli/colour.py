"""Text coloured by who guessed each token."""

from collections import deque
from collections.abc import Iterable, Sequence

from rich.text import Text
from tokenizers import Tokenizer

from parlay.engine.pieces import Pieces

PLAIN = "target"
_PALETTE = ("green", "cyan", "magenta", "yellow", "blue", "red")


class Palette:
    """A colour for each source, given out in order of appearance; the target's own tokens stay uncoloured."""

    def __init__(self, sources: Iterable[str] = ()) -> None:
        self._styles: dict[str, str] = {PLAIN: ""}
        for source in sources:
            self.style(source)

    def style(self, source: str) -> str:
        """Return the style of a source."""
        if source not in self._styles:
            self._styles[source] = "bold " + _PALETTE[(len(self._styles) - 1) % len(_PALETTE)]
        return self._styles[source]

    def legend(self) -> Text:
        """Return one line that names every source in its colour."""
        line = Text("guessed by  ")
        for source, style in self._styles.items():
            line.append(f"{source}  " if source != PLAIN else "nobody (the target's own)  ", style=style)
        return line


class Colourer:
    """Turns a growing completion into pieces of coloured text, never beyond the completion's own text."""

    def __init__(self, tokenizer: Tokenizer, palette: Palette, *, skip_special_tokens: bool = True) -> None:
        self._palette = palette
        self._pieces = Pieces(tokenizer, skip_special_tokens=skip_special_tokens)
        self._ends: deque[tuple[int, str]] = deque()  # where the text of each source's token ends
        self._decoded = 0
        self._tokens = 0
        self._shown = 0

    def update(self, tokens: Sequence[int], sources: Sequence[str], text: str) -> Text:
        """Return what `text` has that was not returned before.

        Args:
            tokens: all tokens so far.
            sources: who supplied each of them.
            text: the completion's text so far, which may lag behind the tokens and at last be cut or completed.
        """
        for token, source in zip(tokens[self._tokens :], sources[self._tokens :], strict=True):
            self._decoded += len(self._pieces.add(token))
            self._ends.append((self._decoded, self._palette.style(source)))
        self._tokens = len(tokens)
        new = Text()
        while self._ends and self._shown < len(text):
            end, style = self._ends[0]
            new.append(text[self._shown : end], style=style)
            self._shown = max(self._shown, min(end, len(text)))
            if end > len(text):
                break
            self._ends.popleft()
        if not self._ends:  # an incomplete last character
            new.append(text[self._shown :])
            self._shown = max(self._shown, len(text))
        return new
