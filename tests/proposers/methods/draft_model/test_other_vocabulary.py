"""Draft models with another vocabulary: the same tokens, and drafts as good as they can be."""

import json
import logging
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asking import CODE, accepted, assert_same, preempt_every_third_step, run, with_params
from checkpoints import write_llama
from conftest import DTYPES, MakeLLM, Pair, Plain
from gguf_files import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import permuted, shortened, spelling, trained, with_merges
from watching import asks as shorter_asks
from watching import head_of
from word_tokenizers import llama

from parlay import LLM, CompletionOutput, ConfigError, ModelError, SamplingParams
from parlay.checkpoints.find import ASSETS
from parlay.kv.pool import BlockPool
from parlay.models.select import describe_model
from parlay.proposers.base import TargetInfo
from parlay.proposers.draft_head import Start
from parlay.proposers.methods.draft_model import translation
from parlay.proposers.methods.draft_model.choice import choose
from parlay.proposers.methods.draft_model.other_vocabulary import OtherVocabulary
from parlay.proposers.methods.draft_model.progress import Gap
from parlay.proposers.methods.draft_model.shared_tokens import SharedTokens
from parlay.proposers.methods.draft_model.translation import TRANSLATORS
from parlay.runner.batch import Batch
from parlay.runner.runner import ModelRunner
from parlay.types.draft import Draft
from parlay.types.plan import CatchUp, ProposerState, Span, Verdict

OFF = {"enabled": False}
asks = partial(shorter_asks, max_tokens=21)  # whole drafts of four guesses, behind a first token


@pytest.fixture(scope="module")
def itself(models: dict[str, Pair], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The targets with other ids for their tokens."""
    return {dtype: permuted(models[dtype].target, tmp_path_factory.mktemp(dtype) / "itself") for dtype in DTYPES}


@pytest.fixture(scope="module")
def other(models: dict[str, Pair], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that agrees with its target in part, lacks some of its tokens and has others."""
    return with_merges(models["float32"].draft, tmp_path_factory.mktemp("other") / "other")


def config(path: Path, way: str, k: int = 4, tree: Any = "off", **more: Any) -> dict[str, Any]:
    return {"model": str(path), "vocabulary": way, "num_speculative_tokens": k, "tree": tree, **more}


def all_accepted(answers: list[CompletionOutput]) -> bool:
    return all(a.metrics.accepted == a.metrics.drafted > 0 for a in answers)


# ------------------------------------------------------------- the target itself, with other ids for its tokens


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.8}], ids=str)
@pytest.mark.parametrize(("dtype", "temperature"), [("float32", 0.0), ("float32", 0.8), ("bfloat16", 0.8)])
def test_every_shared_token_is_drafted_with_its_noise(
    make_llm: MakeLLM, plain: Plain, itself: dict[str, Path], dtype: str, temperature: float, filters: dict[str, Any]
) -> None:
    llm = make_llm(dtype=dtype, speculative_config=config(itself[dtype], "intersection"))
    answers = run(llm, asks(temperature, **filters))
    assert_same(answers, plain(dtype, asks(temperature, **filters)))
    assert all_accepted(answers)
    assert [a.metrics.steps for a in answers] == [5] * len(answers)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 23, "block_size": 3, "max_num_seqs": 3},
        {"block_size": 1, "enable_prefix_caching": False},
    ],
    ids=str,
)
def test_in_chunks_and_blocks_of_any_size(
    make_llm: MakeLLM, itself: dict[str, Path], options: dict[str, Any]
) -> None:
    answers = run(make_llm(speculative_config=config(itself["float32"], "intersection"), **options), asks())
    assert all(a.metrics.accepted == a.metrics.drafted for a in answers)
    assert accepted(answers) > 5


@pytest.mark.parametrize("options", [{}, {"max_model_len": 64, "num_blocks": 18}], ids=str)
def test_after_preemption(make_llm: MakeLLM, itself: dict[str, Path], options: dict[str, Any]) -> None:
    llm = make_llm(speculative_config=config(itself["float32"], "intersection"), block_size=4, **options)
    answers = run(llm, asks(max_tokens=20), preempt_every_third_step())
    assert sum(a.metrics.preemptions for a in answers) > 1
    assert all(a.metrics.accepted == a.metrics.drafted for a in answers)
    assert accepted(answers) > 20


def test_with_a_prefix_that_only_the_target_has(make_llm: MakeLLM, itself: dict[str, Path]) -> None:
    llm = make_llm(speculative_config=config(itself["float32"], "intersection"), block_size=4)
    run(llm, asks(speculative=OFF))
    wishes = [None, {"num_speculative_tokens": 1}, OFF, None, {"num_speculative_tokens": 2}, None]
    again = run(llm, [with_params(ask, speculative=wish) for ask, wish in zip(asks(), wishes, strict=True)])
    assert sum(a.metrics.cached_tokens for a in again) > 80
    assert all_accepted([a for a, wish in zip(again, wishes, strict=True) if wish != OFF])


def test_trees_and_processors(make_llm: MakeLLM, plain: Plain, itself: dict[str, Path]) -> None:
    own = asks(0.8, ignore_eos=True)
    own += [with_params(own[2], repetition_penalty=1.4), with_params(own[3], logit_bias={7: 4.0, 9: -4.0})]
    tree = {"width": 3, "depth": 4}
    answers = run(make_llm(speculative_config=config(itself["float32"], "intersection", 12, tree)), own)
    assert_same(answers, plain("float32", own))
    assert all(a.metrics.acceptance_length > 4 for a in answers)


@pytest.mark.parametrize("gguf", ["target", "draft"])
def test_files_of_another_format(
    make_llm: MakeLLM, models: dict[str, Pair], itself: dict[str, Path], tmp_path: Path, gguf: str
) -> None:
    paths = {"target": models["float32"].target, "draft": itself["float32"]}
    paths[gguf] = write_gguf(paths[gguf], tmp_path / "model.gguf")
    llm = make_llm(model=str(paths["target"]), dtype="float32", speculative_config=config(paths["draft"], "auto"))
    answers = run(llm, asks(0.8))
    assert all_accepted(answers)


def test_a_context_shorter_than_the_target_s(make_llm: MakeLLM, plain: Plain, other: Path, tmp_path: Path) -> None:
    """Nothing is drafted behind a text that the draft model cannot read."""
    short = tmp_path / "short"
    shutil.copytree(other, short)
    raw = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**raw, "max_position_embeddings": 44}))
    for way in TRANSLATORS:
        answers = run(make_llm(speculative_config=config(short, way)), asks())
        assert_same(answers, plain("float32", asks()))
        whole = run(make_llm(speculative_config=config(other, way)), asks())
        assert [a.metrics.drafted == b.metrics.drafted for a, b in zip(answers[:4], whole[:4], strict=True)] == [
            True
        ] * 4
        assert answers[-1].metrics.drafted < whole[-1].metrics.drafted


@pytest.mark.usefixtures("forked_ranks")
def test_on_several_ranks(make_llm: MakeLLM, plain: Plain, itself: dict[str, Path]) -> None:
    own = config(itself["float32"], "intersection", draft_tensor_parallel_size=2)
    answers = run(make_llm(speculative_config=own, tensor_parallel_size=2), asks(0.8))
    assert_same(answers, plain("float32", asks(0.8)))
    assert all_accepted(answers)


# --------------------------------------------------------------------------------- a model that agrees in part


@pytest.mark.parametrize("tree", ["off", {"width": 2, "depth": 3}], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", TRANSLATORS)
def test_the_same_tokens(
    make_llm: MakeLLM, plain: Plain, other: Path, way: str, temperature: float, tree: Any
) -> None:
    own = asks(temperature)
    own.append(with_params(own[1], presence_penalty=0.5))
    llm = make_llm(speculative_config=config(other, way, 6, tree), block_size=4)
    for meddle in (None, preempt_every_third_step()):
        answers = run(llm, own, meddle)
        assert_same(answers, plain("float32", own))
        assert sum(a.metrics.drafted for a in answers) > accepted(answers) > 10


@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_classical_verification(make_llm: MakeLLM, itself: dict[str, Path], other: Path, verification: str) -> None:
    for path, share in ((itself["float32"], 1.0), (other, 0.1)):
        answers = run(make_llm(speculative_config=config(path, "intersection", verification=verification)), asks(0.8))
        assert accepted(answers) >= share * sum(a.metrics.drafted for a in answers) > 0


def test_text_is_verified_by_coupling_alone(make_llm: MakeLLM, other: Path) -> None:
    with pytest.raises(ConfigError, match="known distribution, which 'draft_model' does not give"):
        make_llm(speculative_config=config(other, "text", verification="rejection"))


@pytest.mark.parametrize("rows", [3000, 700])
def test_words_that_the_draft_model_spells_otherwise(
    tmp_path: Path, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It lacks the target's longer tokens, so that both ways read and write several for one."""
    draft = shortened(ASSETS / "tiny-code-draft", tmp_path / "draft", rows)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    found = {}
    for way in ("none", *TRANSLATORS, "auto"):
        own = {"method": "none"} if way == "none" else config(draft, way, lengths="fixed")
        with caplog.at_level(logging.WARNING, "parlay"):
            llm = LLM("tiny-code", max_model_len=128, speculative_config=own)
        found[way] = [out.outputs[0] for out in llm.generate(CODE, params, use_tqdm=False)]
        llm.engine.close()
    for way in (*TRANSLATORS, "auto"):
        assert [a.token_ids for a in found[way]] == [a.token_ids for a in found["none"]]
        assert accepted(found[way]) > 12
    told = caplog.records[-1].getMessage()
    assert told.endswith("the target has 100.0 % of its tokens, and it drafts with vocabulary='intersection'")


# ------------------------------------------------------------------------------------------- what is kept of requests


def drafting_rows(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what is filled with the number of rows of the draft model's passes over known tokens."""
    rows: list[int] = []
    forward, own = ModelRunner.forward, head_of(llm)._runner

    def spy(self: ModelRunner, batch: Batch) -> Any:
        if self is own:
            rows.append(len(batch.tokens))
        return forward(self, batch)

    monkeypatch.setattr(ModelRunner, "forward", spy)
    return rows


@pytest.mark.parametrize("caching", [True, False])
def test_prompts_that_begin_alike_are_read_once(
    make_llm: MakeLLM, itself: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caching: bool
) -> None:
    own = config(itself["float32"], "intersection")
    llm = make_llm(speculative_config=own, block_size=4, enable_prefix_caching=caching)
    rows = drafting_rows(llm, monkeypatch)
    ask, engine = asks()[-1], llm.engine
    read = []
    for tenant in ("a", "a", "b"):
        rows.clear()
        (request,) = engine.add(ask.prompt, ask.params, tenant=tenant)
        while engine.busy:
            engine.step()
        answer = engine.completion(request, 0)
        assert answer.metrics.accepted == answer.metrics.drafted == 16
        read.append(rows[0])
    assert read == ([41, 1, 41] if caching else [41] * 3)


def test_nothing_is_kept_of_requests_that_have_ended(make_llm: MakeLLM, other: Path) -> None:
    llm = make_llm(speculative_config=config(other, "text"), block_size=4)
    run(llm, asks())
    kept = head_of(llm)._other
    run(llm, asks()[:1])  # the first step says which have ended
    assert len(kept._known) <= 1
    kept._pool.check(known.table.blocks for known in kept._known.values())
    kept.forget(None)
    kept._pool.check([])


def test_an_engine_that_begins_anew_gives_all_blocks_back(make_llm: MakeLLM, plain: Plain, other: Path) -> None:
    llm = make_llm(speculative_config=config(other, "intersection"), block_size=4)
    engine = llm.engine
    for ask in asks():
        engine.add(ask.prompt, ask.params)
    for _ in range(3):
        engine.step()
    kept = head_of(llm)._other
    assert kept._known
    engine._worker.reset()
    assert not kept._known
    kept._pool.check([])
    while engine.busy:
        engine.step()
    assert_same(run(llm, asks()), plain("float32", asks()))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> SharedTokens:
    texts = ["the id for Paris, the id for the other", "return x for the id"]
    made = llama(), trained(300, texts)
    return SharedTokens(*(spelling(own, tmp_path_factory.mktemp("both") / "own") for own in made))


class Requests:
    """Requests that begin, go on, fail, are preempted and end, with few blocks, and what lies in their slots."""

    def __init__(self, both: SharedTokens, way: str) -> None:
        self.sizes = [max(*own.bytes, *own.special.values()) + 1 for own in (both.target, both.draft)]
        self.translate = TRANSLATORS[way](both, *self.sizes)
        self.pool = BlockPool(16, 3)
        self.kept = OtherVocabulary(self.translate, self.pool, 60)
        self.memory: dict[int, tuple[int, ...]] = {}  # by slot: the tokens up to the one whose keys lie there
        self.texts: dict[int, list[int]] = {}
        self.states: dict[int, int] = {}

    def end(self, request: int) -> None:
        self.kept.forget([request])
        self.texts.pop(request, None)
        self.states.pop(request, None)

    def ask(self, request: int, prompt: list[int], emitted: tuple[int, ...]) -> tuple[Gap, list[int]]:
        """Return a request's gap, and its text in the draft model's tokens; what it is said to hold is there."""
        text = self.texts.setdefault(request, prompt)
        computed = self.states.get(request, 0)
        ask = CatchUp(ProposerState(computed), tuple(text[computed:]), budget=4, tenant="")
        span = Span(request, (1,), len(text) - 1, (), 0, SamplingParams().draw, catch_up=ask, sample=True)
        text += emitted
        gap = self.kept.gap(span, Verdict(emitted), 4)
        own = self.kept._known[request].text.own
        for place in range(gap.begin):
            assert self.memory[self.slot(gap, place)] == tuple(own[: place + 1])
        assert list(gap.tokens) in ([], own[gap.begin :])
        return gap, list(own)

    def slot(self, gap: Gap, place: int) -> int:
        return gap.blocks[place // 3] * 3 + place % 3

    def run(self, gap: Gap, tokens: list[int], begin: int, end: int) -> None:
        for place in range(begin, end):
            self.memory[self.slot(gap, place)] = tuple(tokens[: place + 1])

    def go_on(self, request: int, gap: Gap, own: list[int], how: str, nodes: list[int]) -> None:
        count = len(gap.tokens) // 2 if how == "half" else len(gap.tokens)
        self.run(gap, own, gap.begin, gap.begin + count)
        self.states[request] = gap.state(count).computed
        assert 0 <= self.states[request] <= len(self.texts[request])
        gap.close(count)
        if how == "go on" and gap.tokens:
            self.run(gap, own + self.translate.own_of(nodes), len(own), len(own) + len(nodes) - 1)
            span = Span(request, (), 0, (), 0, SamplingParams().draw)
            start = Start(0, span, 0, (0,), 0, len(nodes), 1, len(nodes))
            gap.proposal(start, Draft.chain(nodes, "draft_model", [0.5] * len(nodes)))


@pytest.mark.parametrize("way", TRANSLATORS)
@settings(max_examples=40)
@given(data=st.data())
def test_layers_hold_what_was_run(both: SharedTokens, way: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "_LONG", 5)  # so that short texts are settled too
        patch.setattr(translation, "_SHORT", 2)
        every = Requests(both, way)
        token, node = st.integers(0, every.sizes[0] - 1), st.sampled_from(every.translate.ids.tolist())
        for _ in range(data.draw(st.integers(1, 12))):
            every.kept.begin_step()
            asked = []
            for request in data.draw(st.lists(st.integers(0, 3), unique=True, max_size=3)):
                how = data.draw(st.sampled_from(["go on", "go on", "go on", "end", "preempt", "fail", "half"]))
                if how == "end":
                    every.end(request)
                    continue
                if how == "preempt":
                    every.states[request] = 0
                prompt = [*range(5, 5 + data.draw(st.integers(1, 20)))]
                emitted = tuple(data.draw(st.lists(token, min_size=1, max_size=4)))
                asked.append((request, *every.ask(request, prompt, emitted), how))
            for request, gap, own, how in reversed(asked):
                if how != "fail":
                    every.go_on(request, gap, own, how, data.draw(st.lists(node, min_size=4, max_size=4)))
            every.pool.check(known.table.blocks for known in every.kept._known.values())
        every.kept.forget(None)
        every.pool.check([])


def test_what_may_be_spelled_otherwise_is_not_shared(both: SharedTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that goes on otherwise would write to blocks that another one reads."""
    monkeypatch.setattr(translation, "_LONG", 12)
    monkeypatch.setattr(translation, "_SHORT", 3)
    every = Requests(both, "text")
    tokens = both.target.spell(b"the id for Paris, the id for the other. return x for the id")
    gap, own = every.ask(0, tokens[:-1], tuple(tokens[-1:]))
    every.go_on(0, gap, own, "all of it", [])
    settled = every.kept._known[0].text.settled
    assert 6 < settled < len(own)
    assert len(every.pool._by_hash) == settled // 3
    assert every.ask(1, tokens[:-1], (tokens[-1],))[0].begin == (settled - 1) // 3 * 3
    assert every.ask(2, tokens[:5], (tokens[5],))[0].begin == 0


# ------------------------------------------------------------------------------------------------ what is refused


def test_what_a_draft_model_may_lack(make_llm: MakeLLM, tmp_path: Path) -> None:
    """Noticed before weights are looked for."""
    draft = write_llama(tmp_path / "draft", vocab_size=400)
    (draft / "model.safetensors").unlink()
    (draft / "tokenizer.json").unlink()
    match = "400 tokens but .* has 257, and their tokens cannot be compared without both tokenizers .*tokenizer.json"
    for way in ("auto", *TRANSLATORS):
        with pytest.raises(ModelError, match=match):
            make_llm(speculative_config=config(draft, way))


@pytest.mark.parametrize("way", ["auto", *TRANSLATORS])
def test_no_token_in_common(make_llm: MakeLLM, tmp_path: Path, way: str) -> None:
    draft = write_llama(tmp_path / "draft", vocab_size=400)
    raw = json.loads((draft / "tokenizer.json").read_text())
    raw["model"]["vocab"] = {f"word{token}": token for token in range(400)}
    raw["added_tokens"] = []
    (draft / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError, match="shares none of its tokens; take a draft model whose tokenizer"):
        make_llm(speculative_config=config(draft, way))


def test_recurrent_layers(models: dict[str, Pair], tmp_path: Path) -> None:
    """They keep one state, of the newest token."""
    target, draft = (
        describe_model(str(path)) for path in (models["float32"].target, write_llama(tmp_path / "draft"))
    )
    recurrent: Any = SimpleNamespace(layers=(True, False))
    draft = replace(draft, vocab_size=400, style=replace(draft.style, recurrent=recurrent))
    info = TargetInfo(target, torch.float32, 128, tokenizer=target.path)
    with pytest.raises(ModelError, match=r"400 tokens but .* its recurrent layers cannot go back"):
        choose(draft, info, "auto")


def test_the_tokenizer_that_the_engine_is_given(make_llm: MakeLLM, models: dict[str, Pair], tmp_path: Path) -> None:
    """Not the one beside the target's weights, of which there may be none."""
    target, draft = (models["float32"].target, permuted(models["float32"].target, tmp_path / "draft"))
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(target / name)
    llm = make_llm(model=str(bare), tokenizer=str(target), speculative_config=config(draft, "auto"))
    assert all_accepted(run(llm, asks()))
