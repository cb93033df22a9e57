"""Reading a tokenizer file."""

from pathlib import Path

from tokenizers import Tokenizer

from parlay.errors import ModelError


def read_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer in a `tokenizer.json`.

    Raises:
        ModelError: it does not exist or cannot be read.
    """
    if not file.is_file():
        raise ModelError(f"{file} does not exist; text needs a tokenizer in the `tokenizers` format")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{file} cannot be read: {error}") from None
