"""Build the Python corpus: the standard library, torch and the pinned wheels.

Writes ``train.jsonl`` and ``heldout.jsonl`` (one ``{"path", "text"}`` per file)
under ``--work``, and the list of sources beside the model's weights.  The same
pins give the same corpus, byte for byte.  ``--installed`` downloads nothing and
reads those of the packages that this environment has, for other models: it
leaves the list of sources alone.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ASSETS = HERE.parents[1] / "src/parlay/assets/tiny-code"
REQUIREMENTS = HERE / "requirements.txt"

MIN_BYTES, MAX_BYTES = 400, 100_000
MAX_LINE, MAX_MEAN_LINE = 1_000, 60
MAX_DIGIT_SHARE = 0.15
HELDOUT_PER_MILLE = 20
PACKAGE_BYTES = 4_500_000  # no package may dominate; the standard library is exempt
SHINGLE = 5
DUPLICATE, LEAK = 0.5, 0.2

SKIP_DIRECTORY = re.compile(
    r"(^|/)(tests?|testing|_testing|test_\w+|\w+_tests?|idlelib/idle_test|site-packages"
    r"|_?vendor(ed)?|third_party|_?externals?|extern|locale|migrations|pydoc_data|lib2to3"
    r"|turtledemo|encodings|array_api_compat|array_api_extra)/"
)
SKIP_FILE = re.compile(r"(^|/)(tests?|test_\w+|\w+_tests?|conftest|_?version|\w+_pb2|_mapping)\.py$")
GENERATED = re.compile(r"(auto-?)?generated (by|from|file|code)|do not (edit|modify)|@generated", re.I)
RECIPROCAL = re.compile(r"GNU (Lesser |Affero )?General Public|\bL?GPL|Mozilla Public", re.I)
NOTICE = re.compile(r"licen[sc]e|copyright", re.I)


@dataclass(frozen=True)
class Source:
    """Where some files come from, under which licence."""

    package: str
    version: str
    licence: str


@dataclass(frozen=True)
class Document:
    """One file of the corpus; ``path`` starts with the package's name."""

    path: str
    text: str
    source: Source


def fetch_wheels(directory: Path) -> None:
    """Download the pinned wheels that are not there yet."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(directory), "--requirement", str(REQUIREMENTS)]
    subprocess.run(command, check=True)


def pinned_sources() -> list[Source]:
    """Read package, version and licence from the requirements file."""
    pattern = re.compile(r"^([\w.-]+)==(\S+)\s+# (\S+)$", re.M)
    return [Source(*match.groups()) for match in pattern.finditer(REQUIREMENTS.read_text())]


def wheel_files(directory: Path, source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of one wheel."""
    stem = source.package.replace("-", "_")
    (wheel,) = directory.glob(f"{stem}-{source.version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py"):
                yield name, archive.read(name)


def tree_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files below a folder."""
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        if "site-packages" not in name:
            yield name, path.read_bytes()


def installed_files(source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of a package if it is installed, in any version."""
    try:
        files = metadata.distribution(source.package).files or []
    except metadata.PackageNotFoundError:
        return
    for file in sorted(files, key=str):
        if file.suffix == ".py" and ".." not in file.parts:
            yield str(file), Path(str(file.locate())).read_bytes()


def all_files(wheels: Path | None) -> Iterator[tuple[Source, str, bytes]]:
    """Yield every Python file of every source, with a path made unique by package; None for what is installed."""
    stdlib = Source("cpython", platform.python_version(), "PSF-2.0")
    for name, data in tree_files(Path(sysconfig.get_path("stdlib"))):
        yield stdlib, f"cpython/{name}", data
    torch = Source("torch", metadata.version("torch"), "BSD-3-Clause")
    for name, data in tree_files(Path(str(metadata.distribution("torch").locate_file("torch")))):
        yield torch, f"torch/{name}", data
    for source in pinned_sources():
        for name, data in installed_files(source) if wheels is None else wheel_files(wheels, source):
            yield source, f"{source.package}/{name}", data


def strip_notice(text: str) -> str:
    """Drop a leading comment block that only carries a licence notice."""
    lines = text.split("\n")
    end = next((i for i, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
    if NOTICE.search("\n".join(lines[:end])):
        lines = lines[end:]
    return "\n".join(lines).strip("\n") + "\n"


def clean(name: str, data: bytes) -> str | None:
    """Return the file's text if it belongs in the corpus."""
    if SKIP_DIRECTORY.search(name) or SKIP_FILE.search(name):
        return None
    if not MIN_BYTES <= len(data) <= MAX_BYTES:
        return None
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").expandtabs(4)
    except UnicodeDecodeError:
        return None
    if GENERATED.search(text[:2_000]) or RECIPROCAL.search(text[:4_000]):
        return None
    text = strip_notice(text)
    lines = text.split("\n")
    if len(text) < MIN_BYTES or max(map(len, lines)) > MAX_LINE:
        return None
    if len(text) / len(lines) > MAX_MEAN_LINE:
        return None
    if sum(c.isdigit() for c in text) > MAX_DIGIT_SHARE * len(text):
        return None
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    return text


def shingles(text: str) -> set[int]:
    """Hash every run of five non-blank stripped lines."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    runs = ("\n".join(lines[i : i + SHINGLE]) for i in range(max(1, len(lines) - SHINGLE + 1)))
    return {int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest()) for run in runs}


def is_heldout(path: str) -> bool:
    """Decide by the path alone, so that a file never changes sides."""
    return int(hashlib.sha256(path.encode()).hexdigest(), 16) % 1000 < HELDOUT_PER_MILLE


def keep_new(documents: list[Document], seen: set[int], limit: float) -> tuple[list[Document], set[int]]:
    """Keep the documents that share less than ``limit`` of their shingles with ``seen``."""
    kept, known = [], set(seen)
    for document in documents:
        marks = shingles(document.text)
        if len(marks & known) < limit * len(marks):
            kept.append(document)
            known |= marks
    return kept, known


def cap_packages(documents: list[Document]) -> list[Document]:
    """Keep the first files of each package, up to its share of bytes."""
    used: dict[Source, int] = {}
    kept = []
    for document in documents:
        used[document.source] = used.get(document.source, 0) + len(document.text)
        if document.source.package == "cpython" or used[document.source] <= PACKAGE_BYTES:
            kept.append(document)
    return kept


def write_documents(path: Path, documents: list[Document]) -> str:
    """Write the documents as JSON lines; return the digest of the sorted file list."""
    with path.open("w") as out:
        for document in documents:
            out.write(json.dumps({"path": document.path, "text": document.text}) + "\n")
    listing = sorted(
        f"{hashlib.sha256(document.text.encode()).hexdigest()}  {document.path}\n" for document in documents
    )
    return hashlib.sha256("".join(listing).encode()).hexdigest()


def write_summary(splits: dict[str, list[Document]], digests: dict[str, str]) -> None:
    """Write the list of sources as JSON and as a table."""
    counts: dict[Source, list[int]] = {}
    for document in splits["train"] + splits["heldout"]:
        entry = counts.setdefault(document.source, [0, 0])
        entry[0] += 1
        entry[1] += len(document.text.encode())
    sources = sorted(counts, key=lambda source: -counts[source][1])
    rows = [(s.package, s.version, s.licence, *counts[s]) for s in sources]
    totals = {
        name: {
            "files": len(documents),
            "bytes": sum(len(d.text.encode()) for d in documents),
            "sha256": digests[name],
        }
        for name, documents in splits.items()
    }
    keys = ("package", "version", "licence", "files", "bytes")
    summary = {"splits": totals, "packages": [dict(zip(keys, row, strict=True)) for row in rows]}
    ASSETS.mkdir(parents=True, exist_ok=True)
    (ASSETS / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n")
    lines = ["# Corpus", "", "Python source files, read as text. `sha256` is that of the sorted list"]
    lines += ["of `sha256(text)  path` lines.", "", "| split | files | bytes | sha256 |"]
    lines += ["|---|---:|---:|---|"]
    lines += [f"| {k} | {v['files']} | {v['bytes']} | `{v['sha256']}` |" for k, v in totals.items()]
    lines += ["", "| package | version | licence | files | bytes |", "|---|---|---|---:|---:|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    (ASSETS / "CORPUS.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Fetch, clean, deduplicate, split and write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for wheels and corpus")
    parser.add_argument("--installed", action="store_true", help="read installed packages instead of pinned ones")
    arguments = parser.parse_args()
    work: Path = arguments.work
    wheels = None if arguments.installed else work / "wheels"
    (wheels or work).mkdir(parents=True, exist_ok=True)
    if wheels is not None:
        fetch_wheels(wheels)

    documents = []
    for source, path, data in all_files(wheels):
        text = clean(path.split("/", 1)[1], data)
        if text is not None:
            documents.append(Document(path, text, source))
    documents.sort(key=lambda d: hashlib.sha256(d.path.encode()).digest())
    documents = cap_packages(documents)
    train, known = keep_new([d for d in documents if not is_heldout(d.path)], set(), DUPLICATE)
    heldout, _ = keep_new([d for d in documents if is_heldout(d.path)], known, LEAK)

    splits = {"train": train, "heldout": heldout}
    digests = {name: write_documents(work / f"{name}.jsonl", docs) for name, docs in splits.items()}
    if not arguments.installed:
        write_summary(splits, digests)
    for name, docs in splits.items():
        print(f"{name}: {len(docs)} files, {sum(len(d.text) for d in docs):,} characters")


if __name__ == "__main__":
    main()
