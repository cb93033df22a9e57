"""Digests of the files that a model's tokens depend on, and of parlay's code."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path

from blake3 import blake3

from parlay.cache_file import CacheFile
from parlay.checkpoints.files import VOCABULARIES
from parlay.checkpoints.gguf.parts import all_parts, first_part
from parlay.checkpoints.headers import weight_files
from parlay.errors import ModelError, brief

_SMALL = ("config.json", "generation_config.json")
_TEXTS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
_FILES = 1000  # files whose digests are remembered


def start_digest(model: Path, tokenizer: Path | None = None) -> Future[str]:
    """Start `digest_model` in a thread: files are hashed while they are read for other purposes."""
    pool = ThreadPoolExecutor(1, "digest")
    try:
        return pool.submit(digest_model, model, tokenizer)
    finally:
        pool.shutdown(wait=False)


def digest_model(model: Path, tokenizer: Path | None = None) -> str:
    """Return a digest of a model's weights, configs, tokenizer and template, 64 hexadecimal digits.

    It covers the contents of files; not where they lie, nor others in the same directory, nor a GGUF file's name.

    Args:
        model: a directory or a GGUF file.
        tokenizer: path of its tokenizer, if elsewhere.

    Raises:
        ModelError: a file cannot be read.
    """
    weights = all_parts(model) if model.is_file() else weight_files(model)
    files = {f"weights {i}": file for i, file in enumerate(weights)}
    if model.is_dir():
        files |= {name: model / name for name in _SMALL}
    texts = tokenizer or model
    if texts.is_file():
        files["tokenizer"] = first_part(texts)
    else:
        further = [] if (texts / _TEXTS[0]).is_file() else VOCABULARIES
        files |= {name: texts / name for name in _TEXTS}
        files |= {file.name: file for name in further for file in texts.glob(name)}
        files |= {f"template {one.stem}": one for one in (texts / "additional_chat_templates").glob("*.jinja")}
    return digest_files(files)


def digest_files(files: Mapping[str, Path]) -> str:
    """Return a digest of the contents of those files that exist, and what each of them is.

    A file's digest is remembered as long as its path, size and times stay.

    Raises:
        ModelError: a file cannot be read.
    """
    cache = CacheFile("digests", 1, most=_FILES)
    known = cache.read()
    whole, fresh = blake3(), {}
    for label, file in files.items():
        try:
            if not file.is_file():
                continue
            real = file.resolve()
            about = real.stat()
            facts = [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]
            *before, digest = known.get(str(real), [""])
            if before != facts:
                digest = _digest(real)
                fresh[str(real)] = [*facts, digest]
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {brief(str(error))}") from None
        whole.update(f"{label}\n{digest}\n".encode())
    if fresh:
        with cache.changing() as entries:
            entries.update(fresh)
    return whole.hexdigest()


@cache
def digest_code(*folders: str) -> str:
    """Return a digest of the code in some folders of this package, compiled code included."""
    digest, package = sha256(), Path(__file__).parent.parent
    for file in sorted(file for folder in folders for file in (package / folder).rglob("*")):
        if file.suffix in (".py", ".so"):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _digest(file: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(file).hexdigest()
