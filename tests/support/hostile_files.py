"""Checkpoints whose small files are wrong, one a case, tried in a process of their own: `python hostile_files.py`.

Its arguments are the folder of good checkpoints, a folder to work in, the seed, the first case and the one after the
last. It says on a line which case begins, then `ok`, `refused` or `WRONG` and why, and in the end its memory in KiB.
"""

import importlib
import json
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 20  # seconds a case
Rng = random.Random
ODD: list[Any] = [None, True, False, 0, -1, 1, 2, 7, 1 << 31, 1 << 63, 10**400, 0.5, -0.0, 1e308, float("nan")]
ODD += [float("inf"), "", "x", "\ud800", "a\0b", "two\nlines", "x" * 5000, "../..", "/dev/zero", [], {}, [[]], [-1]]


def odd(rng: Rng) -> Any:
    if rng.random() < 0.1:
        value: Any = 1
        for _ in range(rng.choice([3, 60, 900])):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    return rng.choice(ODD)


def twist(rng: Rng, value: Any) -> Any:
    """Change a place somewhere in a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        how = rng.random()
        if how < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if how < 0.25:
            return {**value, rng.choice([key + "x", "", "architectures"]): value[key]}
        other = value[rng.choice(sorted(value))] if how < 0.35 else twist(rng, value[key])
        return {**value, key: other}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        how = rng.random()
        return value[:at] + ([] if how < 0.3 else [twist(rng, value[at])]) + value[at + (how > 0.1) :]
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice([value + 1, value - 1, -value, value * 2, value % (1 << 64) << 40, value % 1000 + 0.5, "8"])
    return odd(rng)


def as_text(rng: Rng, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.1:  # a key twice
        text = text[:-1] + ', "hidden_size": -5, "model": 3}'
    return text.encode("utf-8", "surrogatepass")


def blurred(rng: Rng, data: bytes, most: int = 4000) -> bytes:
    """Flip bits, overwrite words, cut, repeat; mostly near the beginning, where headers are."""
    new = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(new), most) if rng.random() < 0.8 else len(new)) if new else 0
        how = rng.randrange(5)
        if how == 0 and new:
            new[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            new[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 9, 1 << 20, 1 << 32, 1 << 63, (1 << 64) - 1]))
        elif how == 2:
            new[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 8, 9, 12, 77, 0xFFFFFFFF]))
        elif how == 3:
            del new[at if rng.random() < 0.5 else rng.randrange(len(new) or 1) :]
        else:
            new[at:at] = new[at : at + rng.randint(1, 40)]
    return bytes(new)


def change_json(name: str) -> Callable[[Rng, Path], None]:
    def change(rng: Rng, path: Path) -> None:
        file = path / name
        if rng.random() < 0.2:
            file.write_bytes(blurred(rng, file.read_bytes()))
            return
        value = json.loads(file.read_text())
        for _ in range(rng.randint(1, 3)):
            value = twist(rng, value)
        file.write_bytes(as_text(rng, value))

    return change


def change_safetensors(rng: Rng, path: Path) -> None:
    file = path / "model.safetensors"
    whole = file.read_bytes()
    if rng.random() < 0.4:
        file.write_bytes(blurred(rng, whole, 1500))
        return
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    for _ in range(rng.randint(1, 3)):
        header = twist(rng, header)
    text = as_text(rng, header)
    claim = len(text) if rng.random() < 0.9 else rng.choice([0, 1, 1 << 40, (1 << 64) - 1])
    file.write_bytes(claim.to_bytes(8, "little") + text + whole[8 + length :])


def change_gguf(rng: Rng, path: Path) -> None:
    path.write_bytes(blurred(rng, path.read_bytes(), 6000 if rng.random() < 0.9 else 1 << 30))


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def change_pickle(rng: Rng, path: Path) -> None:
    """Other bytes, another pickle inside, or one that would run code: it would leave a file named `ran`."""
    file = path / "pytorch_model.bin"
    how = rng.random()
    bomb = pickle.dumps({"model.norm.weight": _Bomb(path.parent / "ran")}, protocol=rng.randint(0, 5))
    if how < 0.1:
        file.write_bytes(bomb)
        return
    if how < 0.4:
        file.write_bytes(blurred(rng, file.read_bytes(), 1 << 30))
        return
    with zipfile.ZipFile(file) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    inner = next(name for name in parts if name.endswith("data.pkl"))
    parts[inner] = bomb if how < 0.5 else blurred(rng, parts[inner])
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in parts.items():
            if rng.random() > 0.02:
                archive.writestr(name, data)


def change_template(rng: Rng, path: Path) -> None:
    pieces = [
        "{{ messages[0].content }}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{{ x",
        "{% if",
        "{{ 1/0 }}",
        "%}",
    ]
    pieces += ["{{ ''.__class__ }}", "{{ 'a' * 10**9 }}", "{% for i in range(10**9) %}x{% endfor %}", "\ud800", "\0"]
    text = "".join(rng.choices(pieces, k=rng.randint(1, 4)))
    (path / "chat_template.jinja").write_bytes(text.encode("utf-8", "surrogatepass"))


KINDS: list[tuple[str, Callable[[Rng, Path], None], int]] = [
    ("llama", change_json("config.json"), 30),
    ("llama", change_json("generation_config.json"), 8),
    ("llama", change_json("tokenizer.json"), 20),
    ("llama", change_json("tokenizer_config.json"), 8),
    ("llama", change_safetensors, 20),
    ("pickled", change_pickle, 12),
    ("model.gguf", change_gguf, 20),
    ("llama", change_template, 1),
]


def use(path: Path, chats: bool) -> list[Exception]:
    """Do all that an engine does with a checkpoint's files; return what was refused."""
    import torch

    from parlay.checkpoints.headers import read_tensors
    from parlay.checkpoints.sampling_defaults import sampling_defaults
    from parlay.errors import ParlayError
    from parlay.kernels.select import select_kernels
    from parlay.models.select import check_weights, describe_model, load_model
    from parlay.runner.footprint import weight_bytes
    from parlay.text.tokenizer import TextCodec

    def load() -> None:
        config = describe_model(str(path))
        weight_bytes(config, torch.bfloat16)
        check_weights(config)
        load_model(config, torch.float32, 16, select_kernels())

    def talk() -> None:
        codec = TextCodec(path)
        try:
            codec.decode(codec.encode("hello, world")[:50])
            if chats:
                codec.chat([{"role": "user", "content": "hi"}])
        finally:
            codec.close()

    refused: list[Exception] = []
    for act in (load, talk, lambda: sampling_defaults(path), lambda: read_tensors(path)):
        try:
            act()
        except ParlayError as error:
            text = str(error)
            assert text, "says nothing"
            assert "\n" not in text, f"more than a line: {text!r}"
            assert len(text) < 2000, "says too much"
            refused.append(error)
    return refused


def late(*_: object) -> None:
    raise TimeoutError("takes too long")


def main(good: Path, work: Path, seed: int, first: int, end: int) -> None:
    for name in ("llama", "pickled", "model.gguf"):  # imports everything, which no alarm may break off
        assert not use(good / name, True), f"{name} is refused"
    transformers = importlib.import_module("transformers")
    for part in ("AutoConfig", "AutoModelForCausalLM"):  # which it imports when asked for
        getattr(transformers, part)
    signal.signal(signal.SIGALRM, late)
    for case in range(first, end):
        rng = Rng(f"{seed} {case}")
        name, change, _ = rng.choices(KINDS, [kind[2] for kind in KINDS])[0]
        path = work / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        (shutil.copytree if (good / name).is_dir() else shutil.copy)(good / name, path)
        change(rng, path)
        print("case", case, flush=True)
        signal.alarm(LIMIT)
        try:
            print("refused" if use(path, change is change_template) else "ok", flush=True)
        except BaseException as error:
            kind = getattr(change, "__qualname__", "")
            print("WRONG", f"{kind} {type(error).__name__}: {error}"[:500].replace("\n", " "), flush=True)
        signal.alarm(0)
        if (work / "ran").exists():
            print("WRONG a pickle ran code", flush=True)
            (work / "ran").unlink()
        if case == min(first + 50, end - 1):
            print("begin", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
    print("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
