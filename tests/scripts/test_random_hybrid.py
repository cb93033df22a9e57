"""Random files of hybrid models are read, and answers from them do not depend on drafts."""

from dataclasses import replace
from pathlib import Path

from crossing import crossed
from random_hybrid import _KINDS, SHAPES, Hybrid, Qwen35Moe

from parlay import LLM, SamplingParams


@crossed(
    kind=tuple(_KINDS),
    name_and_mtp=[("qwen3.5-0.8b", False), ("qwen3.5-0.8b", True), ("qwen3.5-35b-a3b", False), ("lfm2-1.2b", False)],
)
def test_files_are_read(name_and_mtp: tuple[str, bool], kind: str, tmp_path: Path) -> None:
    name, mtp = name_and_mtp
    shape = replace(SHAPES[name], hidden=256, width=512, heads=4, kv_heads=2)
    if isinstance(shape, Qwen35Moe):
        shape = replace(shape, experts=8, chosen=2)
    path = tmp_path / "hybrid.gguf"
    file = Hybrid(path, shape.arch, _KINDS[kind])
    shape.write(file, 4, mtp=mtp)
    file.end()
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    plain, drafted = (
        LLM(path, max_model_len=256, speculative_config={"method": method})
        .generate(["a b a b a b"], params)[0]
        .outputs
        for method in ("none", "mtp" if mtp else "ngram")
    )
    assert plain[0].token_ids == drafted[0].token_ids
    assert len(plain[0].token_ids) == 12
