"""What all proposers with weights share: the loop over a draft's levels, its recordings, and what processors see."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import watching
from asking import Ask, accepted, assert_same, run
from checkpoints import VOCAB
from conftest import MakeLLM, Pair, Plain, proposer_options
from crossing import crossed
from eagles import eagle_config, random_eagle3, write
from families import write_family
from heads import random_medusa, write_head
from torch import Tensor
from watching import Watch, asks, head_of, start

from parlay import LLM, SamplingParams
from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.select import select_kernels
from parlay.kernels.uploads import Uploads
from parlay.proposers.draft_head import Start
from parlay.proposers.draft_slots import DraftSlots
from parlay.proposers.expander import Expander
from parlay.proposers.pass_recorder import PassRecorder
from parlay.runner.batch import Segment, flatten
from parlay.sampling.bound_processor import BoundProcessor
from parlay.types.draft import Draft
from parlay.types.plan import SpanError
from parlay.types.processor import RowProcessor

METHODS = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")
KERNELS = select_kernels()
LETTERS = tuple(range(64, 70))  # ids of "a" to "f"


def expand(
    llm: LLM, starts: Sequence[Start], seed: int = 0, processors: Mapping[int, RowProcessor] | None = None
) -> list[Draft]:
    """Return the drafts from random states, in the order of the requests, of which some have processors."""
    states = torch.randn((9, 64), generator=torch.Generator().manual_seed(seed))
    live = llm.engine._scheduler.processors
    live.update({row: BoundProcessor(own, ()) for row, own in (processors or {}).items()})
    try:
        made = sorted(watching.expand(head_of(llm), starts, states), key=lambda pair: int(pair[0].index))
    finally:
        live.clear()
    return [draft for _, draft in made]


# ------------------------------------------------------------------------------------------------------- recordings


def replayed(run: Callable[[], None]) -> None:
    run()


@pytest.fixture
def replays_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have recordings run by a Python function: a profiler does not see native ones."""
    if KERNELS.record(lambda: None) is None:
        pytest.skip("these kernels do not record")
    kind = type(KERNELS)
    record = kind.record

    def seen(kernels: Kernels, work: Callable[[], object]) -> Callable[[], None]:
        run = record(kernels, work)
        assert run is not None
        return partial(replayed, run)

    monkeypatch.setattr(kind, "record", seen)


class Between:
    """Notes what Python runs in drafts between the first pass of a level that is replayed and the last."""

    def __init__(self) -> None:
        self.replays: list[int] = []
        self.functions: set[str] = set()
        self._calls: list[CodeType] | None = None

    def __enter__(self) -> "Between":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code in (Expander._run_chain.__code__, Expander._run_tree.__code__):
            if event == "call":
                self._calls = []
            elif event == "return" and self._calls is not None:
                self._end(self._calls)
                self._calls = None
        elif event == "call" and self._calls is not None:
            self._calls.append(frame.f_code)

    def _end(self, calls: list[CodeType]) -> None:
        places = [i for i, code in enumerate(calls) if code is replayed.__code__]
        self.replays.append(len(places))
        if places:
            self.functions |= {code.co_qualname for code in calls[places[0] : places[-1]]}


@pytest.mark.usefixtures("replays_are_seen")
@crossed(method=METHODS, tree=("off", {"width": 3, "depth": 3}))
def test_no_python_runs_between_two_levels(
    make_llm: MakeLLM, models: dict[str, Pair], method: str, tree: str | dict[str, int]
) -> None:
    shape = {"tree": tree, "num_speculative_tokens": 4 if tree == "off" else 9}
    llm = make_llm(speculative_config={"method": method, **proposer_options(method, models["float32"]), **shape})
    run(llm, asks(max_tokens=21))  # recorded
    with Between() as between:
        run(llm, asks(max_tokens=21))
    assert between.replays.count(4 if tree == "off" else 3) > 5
    assert between.functions == {"replayed"}
    if tree == "off":
        with Between() as between:
            run(llm, asks(frequency_penalty=0.5))
        assert {"ProcessorChain.process_draft", "replayed"} < between.functions, "or these would not be noticed"


def test_passes_run_in_order_and_are_recorded_once() -> None:
    if KERNELS.record(lambda: None) is None:
        pytest.skip("these kernels do not record")
    x, ran = torch.ones(2, 8), []

    def scaled(factor: float) -> Callable[[], None]:
        def work() -> None:
            ran.append(factor)
            KERNELS.scale(x, factor)

        return work

    recorder = PassRecorder(KERNELS)
    for keys in ((1, 2), (1, 2, 3), (3, 1)):
        recorder.run([(key, scaled(key)) for key in keys])
    assert ran == [1, 2, 3]
    assert (x == 2 * 6 * 3).all()


@pytest.mark.parametrize("recorder", [PassRecorder(KERNELS, usable=False), PassRecorder(ReferenceKernels())])
def test_without_recordings_work_runs_every_time(recorder: PassRecorder) -> None:
    ran: list[int] = []
    for _ in range(2):
        recorder.run([(key, lambda key=key: ran.append(key)) for key in (3, 4)])
    assert ran == [3, 4, 3, 4]


@pytest.mark.parametrize("pairs", [False, True])
def test_rows_of_levels_are_stretches_of_one(pairs: bool) -> None:
    tokens = torch.arange(12).view(4, 3)
    places = DraftSlots(tokens, 8, 4, Uploads(select_kernels()), pairs=pairs)
    blocks = ((3, 1, 7), (5, 6), (0, 2))
    turn = [start(i, 3 - (i == 2), position=(6, 2, 4)[i], blocks=own) for i, own in enumerate(blocks)]
    turn = [replace(one, first=(1, 1, 3)[i]) for i, one in enumerate(turn)]
    places.prepare(turn)
    for level, rows in ((1, 3), (2, 2)):
        ours = places.batch(level, rows)
        segments = [
            Segment([3 * level + i], one.position + level - 1, one.span.blocks, first=one.first)
            for i, one in enumerate(turn[:rows])
        ]
        theirs = flatten(segments, 4)
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.equal(ours.slots, theirs.slots)
        assert torch.equal(ours.positions, theirs.positions - int(pairs))
        for name in ("first", "row_request", "last", "extra_offsets", "extra_slots"):
            assert torch.equal(getattr(ours.view, name), getattr(theirs.view, name))
        for table, one in zip(ours.view.tables.tolist(), turn, strict=False):
            assert tuple(table[: len(one.span.blocks)]) == one.span.blocks


# ---------------------------------------------------------------------------------------------------- draft models


def drafts_for_itself(make_llm: MakeLLM, model: str, **options: Any) -> None:
    llm = make_llm(model=model, speculative_config={"model": model, "num_speculative_tokens": 4}, **options)
    answers = run(llm, asks())
    assert_same(answers, run(make_llm(model=model), asks()))
    assert all(a.metrics.accepted == a.metrics.drafted > 0 for a in answers)


@pytest.mark.parametrize("family", ["llama-biases", "granite", "opt", "gpt2"])
def test_draft_models_of_which_not_all_can_be_recorded(make_llm: MakeLLM, tmp_path: Path, family: str) -> None:
    """All passes; all but the logits; the same, of an own kind; none at all."""
    drafts_for_itself(make_llm, str(write_family(tmp_path / "target", family)), dtype="float32")


@pytest.mark.parametrize(("divisor", "recorded"), [(4.0, True), (0.25, True), (3.0, False)])
def test_logits_divided_by_a_power_of_two_are_recorded(
    make_llm: MakeLLM, tmp_path: Path, divisor: float, recorded: bool
) -> None:
    """Multiplying by its reciprocal, which a kernel does, gives the same bits."""
    model = str(write_family(tmp_path / "target", "granite", logits_scaling=divisor))
    llm = make_llm(model=model, speculative_config={"model": model, "num_speculative_tokens": 4}, dtype="float32")
    assert head_of(llm).recordable is recorded
    drafts_for_itself(make_llm, model, dtype="float32")


def test_more_requests_than_a_turn_takes(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("runner.graphs", "proposers.expander", "proposers.model_head"):
        monkeypatch.setattr(f"parlay.{module}.MOST_ROWS", 2)
    drafts_for_itself(make_llm, str(models["float32"].target))


# ------------------------------------------------------------------------------------------------------- processors


class Note:
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], Tensor]] = []

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        raise AssertionError("nothing is emitted here")

    def process_draft(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        self.seen.append((list(path), row.clone()))


class Ban(Note):
    """Leaves all tokens but some, from some level of a draft on."""

    def __init__(self, banned: Sequence[int], level: int = 0) -> None:
        super().__init__()
        self._banned, self._level = list(banned), level

    def process_draft(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        super().process_draft(known, path, row)
        if len(path) > self._level:
            row[self._banned] = -torch.inf


class Fail(Note):
    def process_draft(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        raise ValueError("on purpose")


@pytest.fixture(params=[*METHODS, "medusa of the target's output", "medusa of half the tokens", "eagle3 of half"])
def llm(request: pytest.FixtureRequest, make_llm: MakeLLM, tmp_path: Path) -> LLM:
    """Engines with heads of every kind, of which the last two know the odd tokens alone."""
    odd = range(1, VOCAB, 2)
    kind: str = request.param
    if kind in METHODS:
        return make_llm(kind, 3)
    if kind == "eagle3 of half":
        config = eagle_config(draft_vocab_size=len(odd))
        path = write(tmp_path / "head", config, random_eagle3(eagle_config(), ids=odd))
    elif kind == "medusa of half the tokens":
        cut = {n: t[list(odd)] if n.endswith(".1.weight") else t for n, t in random_medusa().items()}
        names = {f"{i}.0.linear.{x}": f"blocks.{i}.layers.0.{x}" for i in range(3) for x in ("weight", "bias")}
        names |= {f"{i}.1.weight": f"lm_heads.{i}.weight" for i in range(3)}
        tensors = {names[name]: tensor for name, tensor in cut.items()} | {"token_map": torch.tensor(odd)}
        path = write_head(tmp_path / "head", {"model_type": "medusa", "truncated_vocab_size": len(odd)}, tensors)
    else:
        path = write_head(tmp_path / "head", {}, random_medusa(outputs=False), "medusa_lm_head.pt")
    return make_llm(speculative_config={"model": str(path), "num_speculative_tokens": 3})


def begin(row: int, length: int = 3, temperature: float = 0.8) -> Start:
    params = SamplingParams(temperature=temperature)
    return start(row, length, token=7, position=4, blocks=(2 * row, 2 * row + 1), params=params)


def test_a_processor_sees_the_targets_vocabulary_and_every_guess(llm: LLM) -> None:
    note = Note()
    (unseen,), (draft,) = (expand(llm, [begin(0)], processors=own) for own in ({}, {0: note}))
    assert draft == unseen
    assert [path for path, _ in note.seen] == [[7, *draft.tokens[:level]] for level in range(3)]
    ids = head_of(llm).ids
    for _, row in note.seen:
        assert row.shape == (VOCAB,)
        known = torch.arange(VOCAB) if ids is None else ids
        assert row.isfinite().nonzero().flatten().tolist() == known.sort().values.tolist()
    assert all(float(row[token]) > -20 for (_, row), token in zip(note.seen, draft.tokens, strict=True))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_is_banned_is_not_guessed(llm: LLM, level: int) -> None:
    """The next best is, and it joins what later guesses follow from; other requests' drafts stay as they are."""
    plain = expand(llm, [begin(0), begin(1, 2), begin(2)])
    ban = Ban([plain[2].tokens[level]], level)
    first, second, third = expand(llm, [begin(0), begin(1, 2), begin(2)], processors={2: ban})
    assert [first, second] == plain[:2]
    assert third.tokens[:level] == plain[2].tokens[:level]
    assert ban.seen[level][0] == [7, *third.tokens[:level]]
    assert plain[2].tokens[level] not in third.tokens[level:]
    assert len(third) == 3
    assert third.probs != plain[2].probs
    (greedy,) = expand(llm, [begin(2, temperature=0)], processors={2: ban})
    for guess, (_, row) in list(zip(greedy.tokens, ban.seen[3:], strict=True))[level:]:
        row[ban._banned] = -torch.inf
        assert guess == int(row.argmax())


@pytest.mark.parametrize("level", [0, 2])
def test_a_draft_ends_where_nothing_is_left(llm: LLM, level: int) -> None:
    ids = head_of(llm).ids  # what else the target may emit such a head cannot guess
    ban = Ban(range(VOCAB) if ids is None else ids.tolist(), level)
    plain = expand(llm, [begin(0), begin(1)])
    if level == 0:
        (first, second) = expand(llm, [begin(0), begin(1)], processors={1: ban})
        assert first == plain[0]
    else:
        (second,) = expand(llm, [begin(1)], processors={1: ban})
    assert second.tokens == plain[1].tokens[:level]
    assert len(ban.seen) == level + 1


def test_whose_processor_fails_is_named(llm: LLM) -> None:
    with pytest.raises(SpanError, match="request 1") as failed:
        expand(llm, [begin(0), begin(1)], processors={1: Fail()})
    assert failed.value.request_id == 1
    assert isinstance(failed.value.__cause__, ValueError)
    assert len(expand(llm, [begin(0)])[0]) == 3


ASKED: dict[str, dict[str, Any]] = {
    "allowed": {"allowed_token_ids": LETTERS},
    "bad words": {"allowed_token_ids": LETTERS, "bad_words": ("a", "bc", "bcd", "ef")},
    "grammar": {"structured_outputs": {"regex": "[a-f]{200}"}, "ignore_eos": False},
}


def permitted(name: str, tokens: Sequence[int]) -> bool:
    """Whether an output may begin so."""
    text = "".join(chr(token - LETTERS[0] + ord("a")) if token in LETTERS else "?" for token in tokens)
    return not any(word in text for word in ("?", *ASKED[name].get("bad_words", ())))


@crossed(method=METHODS, name=tuple(ASKED))
def test_guesses_keep_to_what_a_request_asks_for(make_llm: MakeLLM, plain: Plain, method: str, name: str) -> None:
    prompts = [tuple((11 * i + 3 * j) % 60 for j in range(9 + i)) for i in range(4)]
    common = {"temperature": 0.9, "seed": 3, "max_tokens": 24, "logprobs": 0, "ignore_eos": True}
    params = SamplingParams(**{**common, **ASKED[name]})
    own = [Ask(prompt, params) for prompt in prompts]
    llm, found = make_llm(method, 4), []
    for guided in (True, False):
        watch = Watch()
        with pytest.MonkeyPatch.context() as patch:
            if not guided:
                patch.setattr("parlay.sampling.processors.ProcessorChain.process_draft", lambda *args: None)
            answers = run(llm, own, watch)
        assert_same(answers, plain("float32", own))
        lengths = {known: next(len(p) for p in prompts if known[: len(p)] == p) for known in watch.drafts}
        outputs = [(*known[lengths[known] :], *noted.draft.tokens) for known, noted in watch.drafts.items()]
        assert len(outputs) > 10
        assert all(permitted(name, output) for output in outputs) == guided
        found.append(accepted(answers))
    assert found[0] > found[1]
