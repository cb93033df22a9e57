"""Reading a tokenizer file."""

from pathlib import Path

from tokenizers import Tokenizer

from parlay.errors import ModelError, brief
from parlay.models.gguf_tokenizer import read_gguf_tokenizer


def tokenizer_file(model: Path) -> Path:
    """Return where the tokenizer of a model directory or GGUF file is."""
    return model / "tokenizer.json" if model.is_dir() else model


def read_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer in a `tokenizer.json` or a GGUF file.

    Raises:
        ModelError: it does not exist, cannot be read or is not served.
    """
    if file.is_file() and file.suffix != ".json":
        return read_gguf_tokenizer(file)[0]
    if not file.is_file():
        raise ModelError(f"{file} does not exist; text needs a tokenizer in the `tokenizers` format")
    try:
        return Tokenizer.from_file(str(file))
    except BaseException as error:  # the library raises bare Exception, and where it panics something beyond that
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ModelError(f"{file} cannot be read: {brief(str(error))}") from None
