"""Freeze the evaluation prefixes: 512 starts of 128 tokens from the held-out files."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizer import ASSETS
from tokenizers import Tokenizer

COUNT = 512
LENGTH = 128
REGION = 2_500  # characters; at most one prefix starts in each
WINDOW = 2_000  # characters: more than LENGTH tokens of any Python text
DEFINITION = re.compile(r"^ *(async def|def|class|@)\b", re.M)


def starts(text: str) -> Iterator[int]:
    """Yield one line start per region: its first definition, else its first line."""
    for region in range(0, len(text) - WINDOW, REGION):
        first = 0 if region == 0 else text.find("\n", region) + 1
        match = DEFINITION.search(text, first, first + REGION // 2)
        yield match.start() if match else first


def prefixes(tokenizer: Tokenizer, path: str, text: str) -> Iterator[dict[str, object]]:
    """Yield the file's prefixes that hold no address and encode back to exactly the same tokens."""
    for start in starts(text):
        ids = tokenizer.encode(text[start : start + WINDOW]).ids[:LENGTH]
        prefix = tokenizer.decode(ids)
        if len(ids) == LENGTH and "://" not in prefix and tokenizer.encode(prefix).ids == ids:
            line = text.count("\n", 0, start) + 1
            yield {"id": f"{path}:{line}", "text": prefix, "token_ids": ids}


def main() -> None:
    """Choose the prefixes by the hash of their place and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus")
    work: Path = parser.parse_args().work
    tokenizer = Tokenizer.from_file(str(ASSETS / "tiny-code/tokenizer.json"))
    found: list[dict[str, object]] = []
    for line in (work / "heldout.jsonl").read_text().splitlines():
        document = json.loads(line)
        found += prefixes(tokenizer, document["path"], document["text"])
    found.sort(key=lambda prefix: hashlib.sha256(str(prefix["id"]).encode()).digest())
    if len(found) < COUNT:
        raise SystemExit(f"only {len(found)} prefixes, {COUNT} needed")
    folder = ASSETS / "evaluation"
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "prefixes.jsonl.gz", "wt", encoding="utf-8") as out:
        for prefix in found[:COUNT]:
            out.write(json.dumps(prefix, separators=(",", ":")) + "\n")
    print(f"{COUNT} of {len(found)} prefixes")


if __name__ == "__main__":
    main()
