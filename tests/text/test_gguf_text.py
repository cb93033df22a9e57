"""Text through a whole engine on a GGUF file: what begins a prompt, what ends an answer."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import read_config, write_llama
from gguf_files import write_gguf
from test_gguf_tokenizer import PIECES, spm_keys

from parlay import LLM, SamplingParams

ONE = SamplingParams(max_tokens=1)
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"


def write(path: Path, **changes: Any) -> Path:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "vocab_size": 400}
    keys = spm_keys(**{"bos_token_id": 1, "eos_token_id": 2, "add_bos_token": True, **changes})
    keys["tokenizer.chat_template"] = TEMPLATE
    model = write_llama(path / "model", **sizes)
    return write_gguf(model, path / "model.gguf", **{k.replace(".", "__"): v for k, v in keys.items()})


def test_bos_comes_once(tmp_path: Path) -> None:
    llm = LLM(write(tmp_path), max_model_len=64)
    (completed,) = llm.generate("return self", ONE, use_tqdm=False)
    assert completed.prompt_token_ids[0] == 1
    assert 1 not in completed.prompt_token_ids[1:]
    (answered,) = llm.chat([{"role": "user", "content": "return self"}], ONE, use_tqdm=False)
    assert answered.prompt_token_ids[0] == 1
    assert 1 not in answered.prompt_token_ids[1:]


def test_no_bos_where_the_file_says_so(tmp_path: Path) -> None:
    llm = LLM(write(tmp_path, add_bos_token=False), max_model_len=64)
    (completed,) = llm.generate("return self", ONE, use_tqdm=False)
    assert 1 not in completed.prompt_token_ids


@pytest.mark.parametrize(
    ("names", "keys", "ends"),
    [
        (["<end_of_turn>"], {}, (2, 10)),
        (["<end_of_turn>"], {"eot_token_id": 11}, (2, 11, 10)),
        (["<eos>", "<turn|>"], {"eos_token_id": 11}, (11, 2, 10)),
        (["[EOS]", "[EOT]", "[e~["], {}, (2, 10, 11, 12)),
        (["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"], {}, (2, 10, 11, 12)),
        (["<|fim_pad|>"], {"fim_pad_token_id": 20}, (2, 20)),  # the file knows better
        # gpt-oss goes on behind <|end|>, and so does Solar Open.
        (["<|end|>"], {}, (2, 10)),
        (["<|end|>", "<|return|>", "<|call|>"], {}, (2, 11, 12)),
        (["<|end|>", "<|flush|>", "<|calls|>"], {}, (2, 11, 12)),
        # In Gemma 4, </s> is HTML's.
        (["<|tool_response>"], {"eos_token_id": 20}, (20, 10)),
    ],
    ids=str,
)
def test_what_ends_a_turn_is_known_by_its_name(
    tmp_path: Path, names: list[str], keys: dict[str, int], ends: tuple[int, ...]
) -> None:
    """Names and exceptions are those of llama.cpp's `llama-vocab.cpp`."""
    tokens = [p for p, _, _ in PIECES]
    tokens[10 : 10 + len(names)] = names
    assert read_config(write(tmp_path, tokens=tokens, **keys)).eos_token_ids == ends
