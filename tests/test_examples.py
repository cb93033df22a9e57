"""Every example runs and prints something; those in older words are told today's."""

import ast
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama
from test_snippets import served

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
OLDER = ("speculative_model", "num_speculative_tokens", "ngram_", "speculative_draft_", "use_v2_block_manager")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [str(path)])
    if path.stem == "chat":  # with a model that need not be fetched
        monkeypatch.setattr(
            "sys.argv", [str(path), str(write_llama(tmp_path / "model", max_position_embeddings=4096))]
        )
    if path.stem == "openai_client":
        with served(tmp_path) as live:
            monkeypatch.setattr("sys.argv", [str(path), f"{live.url}/v1"])
            runpy.run_path(str(path), run_name="__main__")
        assert capsys.readouterr().out.strip()
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
    told = [str(w.message).removeprefix("vLLM options without effect here: ") for w in caught]
    said = [one.split()[0] for one, w in zip(told, caught, strict=True) if w.filename == str(path)]
    older = [k for k in keywords(path) if k.startswith(OLDER)]
    assert sorted(said) == sorted(older)
    assert bool(older) == ("v06" in path.stem)


@pytest.mark.parametrize("name", ["draft_model", "ngram"])
def test_older_words_mean_the_same(name: str) -> None:
    """What the two ages of vLLM's documents write starts engines that speculate alike."""
    from parlay.config import modernise

    now = keywords(EXAMPLES[0].parent / f"vllm_{name}.py")["speculative_config"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left, then = modernise(keywords(EXAMPLES[0].parent / f"vllm_v06_{name}.py"), None)
    assert left == {"model": "tiny-code", "tensor_parallel_size": 1}
    assert then.items() >= {k: v for k, v in now.items() if (k, v) != ("method", "draft_model")}.items()


def keywords(path: Path) -> dict[str, Any]:
    """Return what an example calls `LLM` with by keyword."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "LLM":
            return {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
    return {}
