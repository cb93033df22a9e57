"""Recorded passes: the same bits as passes that are not, and refused where a model computes outside the kernels."""

import json
import random
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay.kernels.select import select_kernels
from parlay.kv.cache_tensors import allocate
from parlay.models.context import Buffers, ForwardContext, LayerCache
from parlay.models.select import CausalModel, cache_spec, describe_model, load_model
from parlay.runner.batch import Batch, Segment, flatten
from parlay.runner.graphs import Graphs
from parlay.types.draft import NO_DRAFT, ROOT, Draft

SIZE = 4
BLOCKS = 96
KERNELS = select_kernels()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalModel:
    path = write_llama(tmp_path_factory.mktemp("graphs"), dtype=torch.bfloat16, num_hidden_layers=2)
    return load_model(describe_model(str(path)), torch.bfloat16, 128, KERNELS)


def new_cache(model: CausalModel) -> tuple[LayerCache, ...]:
    return allocate(cache_spec(model.config, model.dtype), BLOCKS, SIZE, model.dtype)


def eager(model: CausalModel, cache: tuple[LayerCache, ...], batch: Batch) -> Tensor:
    buffers = Buffers(len(batch.tokens), model.dtype)
    context = ForwardContext(KERNELS, batch.positions, batch.slots, batch.view, cache, buffers)
    return model.forward(batch.tokens, context)


def batches() -> list[Batch]:
    """One to three requests that grow, with drafts of all shapes, over tables that outgrow their first width."""
    rng = random.Random(3)
    blocks = rng.sample(range(BLOCKS), BLOCKS)
    tables = [blocks[i * 32 : (i + 1) * 32] for i in range(3)]
    made = []
    lengths = [0, 0, 0]
    for _ in range(60):
        segments = []
        for request in rng.sample(range(3), rng.randint(1, 3)):
            nodes = rng.choice([0, 0, 1, 3, 6])
            draft = NO_DRAFT
            if nodes:
                parents = tuple(rng.randint(ROOT, i - 1) for i in range(nodes))
                draft = Draft(tuple(rng.randrange(257) for _ in range(nodes)), parents, ("test",) * nodes)
            tokens = [rng.randrange(257) for _ in range(rng.choice([1, 1, 2, 5]))]
            if lengths[request] + len(tokens) + nodes > 32 * SIZE:
                continue
            held = -(-(lengths[request] + len(tokens) + nodes) // SIZE)
            segments.append(Segment(tokens, lengths[request], tables[request][:held], draft))
            lengths[request] += len(tokens)
        if segments:
            made.append(flatten(segments, SIZE))
    return made


def test_the_same_bits(model: CausalModel) -> None:
    recorded, plain = new_cache(model), new_cache(model)
    graphs = Graphs(model, KERNELS, recorded, BLOCKS)
    for batch in batches():
        hidden = graphs.forward(batch)
        assert torch.equal(hidden.view(torch.int16), eager(model, plain, batch).view(torch.int16))
    for one, other in zip(recorded, plain, strict=True):
        assert torch.equal(one.key, other.key)
        assert torch.equal(one.value, other.value)


def test_states_between_layers(tmp_path: Path) -> None:
    """First embeddings, at last what the final norm reads, between them what a shorter model ends with."""
    path = write_llama(tmp_path, num_hidden_layers=3)
    whole = load_model(describe_model(str(path)), torch.float32, 128, KERNELS)
    graphs = Graphs(whole, KERNELS, new_cache(whole), BLOCKS)
    graphs.taps = (0, 2, 3)
    lent = load_file(path / "model.safetensors")
    for batch in batches()[:8] * 2:
        hidden = graphs.forward(batch).clone()
        first, second, last = graphs.intermediates[2:]
        assert torch.equal(first, lent["model.embed_tokens.weight"][batch.tokens])
        normed = torch.empty_like(last)
        KERNELS.rms_norm(last.contiguous(), lent["model.norm.weight"], 1e-5, normed)
        assert torch.equal(normed, hidden)
        assert not torch.equal(second, last)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    save_file({n: t for n, t in lent.items() if "layers.2." not in n}, path / "model.safetensors")
    short = load_model(describe_model(str(path)), torch.float32, 128, KERNELS)
    fewer, graphs = Graphs(short, KERNELS, new_cache(short), BLOCKS), Graphs(whole, KERNELS, new_cache(whole), BLOCKS)
    fewer.taps = graphs.taps = (2,)
    for batch in batches()[:8]:
        fewer.forward(batch)
        graphs.forward(batch)
        assert torch.equal(fewer.intermediates[2], graphs.intermediates[2])


class Stale:
    """A model that computes outside the kernels, where no recording sees it."""

    def __init__(self, model: CausalModel) -> None:
        self.config, self.dtype, self._model = model.config, model.dtype, model

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        return self._model.forward((tokens + 1) % 257, context)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


def test_a_model_that_cannot_be_recorded(model: CausalModel, caplog: pytest.LogCaptureFixture) -> None:
    stale, cache = Stale(model), new_cache(model)
    graphs = Graphs(stale, KERNELS, new_cache(model), BLOCKS)
    for batch in batches():
        assert torch.equal(graphs.forward(batch), eager(stale, cache, batch))
    if KERNELS.name != "reference":
        assert caplog.text.count("cannot be recorded") == 1


def test_few_recordings_are_checked(model: CausalModel) -> None:
    """A check runs the model once more, when a recording is used for the second time."""
    spy = Spy(model, model.config.vocab_size)
    graphs, passes = Graphs(spy, KERNELS, new_cache(model), BLOCKS), []
    for turn, rows in enumerate((4, 3, 8, 5, 8, 7, 12, 16, 12, 11, 6, 5, 7, 11, 16, 16)):
        before = len(spy.tokens)
        graphs.forward(flatten([Segment([turn + row for row in range(rows)], turn, range(8))], SIZE))
        passes.append((rows, len(spy.tokens) - before))
    if KERNELS.record(lambda: None) is not None:
        firsts = [(rows, 1) for rows in (4, 3, 8, 5)]
        checked, near = [(8, 1), (7, 1), (12, 1), (16, 1), (12, 1)], [(11, 1), (6, 1), (5, 1), (7, 0), (11, 0)]
        assert passes == [*firsts, *checked, *near, (16, 1), (16, 0)]


def test_the_same_batch_again_does_not_vouch(model: CausalModel, caplog: pytest.LogCaptureFixture) -> None:
    stale, cache = Stale(model), new_cache(model)
    graphs = Graphs(stale, KERNELS, new_cache(model), BLOCKS)
    for turn in (0, 0, 0, 1, 2):
        batch = flatten([Segment([turn, turn + 1, turn + 2], turn, range(8))], SIZE)
        assert torch.equal(graphs.forward(batch), eager(stale, cache, batch))
    if KERNELS.name != "reference":
        assert caplog.text.count("cannot be recorded") == 1


def test_the_same_token_again_and_again_is_checked_once(model: CausalModel, caplog: pytest.LogCaptureFixture) -> None:
    """A model that repeats itself is as fast as another; and still found out once it says something else."""
    spy, stale = Spy(model, model.config.vocab_size), Stale(model)
    for one, passes in ((spy, (1, 1, 0, 0, 1, 0)), (stale, ())):
        graphs, cache = Graphs(one, KERNELS, new_cache(model), BLOCKS), new_cache(model)
        for turn, token in enumerate((9, 9, 9, 9, 5, 4)):
            batch = flatten([Segment([token], turn, range(8))], SIZE)
            before = len(spy.tokens)
            found = graphs.forward(batch).clone()
            if passes and KERNELS.record(lambda: None) is not None:
                assert len(spy.tokens) - before == passes[turn]
            assert torch.equal(found, eager(one, cache, batch))
    if KERNELS.name != "reference":
        assert caplog.text.count("cannot be recorded") == 1


class Doubled(Stale):
    """Computes outside the kernels from what the cache has, so that a recording of it knows one prefix alone."""

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        return self._model.forward(tokens, context) * 2


def test_the_same_rows_after_another_prefix_are_checked(model: CausalModel) -> None:
    doubled, cache = Doubled(model), new_cache(model)
    graphs = Graphs(doubled, KERNELS, new_cache(model), BLOCKS)
    for table in (range(20), range(20, 40)):
        prefix = flatten([Segment([table.start + row for row in range(65)], 0, table)], SIZE)
        last = flatten([Segment([7, 8, 9], 65, table)], SIZE)
        for batch in (prefix, last):
            assert torch.equal(graphs.forward(batch), eager(doubled, cache, batch))


class StaleBeyond(Stale):
    """As `Stale`, but only for more than 8 rows."""

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        return super().forward(tokens, context) if len(tokens) > 8 else self._model.forward(tokens, context)


@pytest.mark.parametrize("order", [(4, 8, 16, 9, 8), (8, 9, 4), (32, 4, 8, 20, 12, 11), (1, 2, 4, 8, 5, 12, 10)])
def test_a_model_that_cannot_be_recorded_from_some_size_on(order: tuple[int, ...], model: CausalModel) -> None:
    stale, cache = StaleBeyond(model), new_cache(model)
    graphs = Graphs(stale, KERNELS, new_cache(model), BLOCKS)
    for turn in range(3):
        for rows in order:
            batch = flatten([Segment([turn + row for row in range(rows)], 0, range(8))], SIZE)
            assert torch.equal(graphs.forward(batch), eager(stale, cache, batch))


def test_exceptions_at_any_line_end_a_recording() -> None:
    """What is called afterwards must not be written into a recording that nobody holds."""
    native, at = pytest.importorskip("parlay.kernels._native"), type(KERNELS).record.__code__
    if not isinstance(KERNELS, native.Operations):
        pytest.skip("these kernels are not the native ones")
    for stop in range(1, 9):
        lines = count(1)

        def raise_there(frame: FrameType, event: str, arg: object, stop: int = stop, lines: Any = lines) -> Any:
            if frame.f_code is at and event == "line" and next(lines) == stop:
                raise KeyboardInterrupt
            return raise_there

        sys.settrace(raise_there)
        try:
            KERNELS.record(lambda: None)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert not native.recording()
    assert next(lines) <= 9


def test_errors_end_a_recording(model: CausalModel) -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    if KERNELS.record(lambda: None) is None:
        pytest.skip("these kernels do not record")
    with pytest.raises(ValueError, match="on purpose"):
        KERNELS.record(fail)
    x = torch.ones(1, 8)
    again = KERNELS.record(lambda: None)
    KERNELS.rms_norm(x, torch.ones(8), 0.0, x)
    x.fill_(7)
    assert again is not None
    again()
    assert (x == 7).all()


def test_every_operation_is_recorded() -> None:
    """Not only those of a forward pass: whatever is called while recording runs again."""
    scores, cache = torch.zeros(1, 8), torch.zeros(2, 1, 4, 8)
    temperatures, seeds, positions = torch.zeros(1), torch.zeros(1, dtype=torch.int64), torch.zeros(1).long()
    token, noise, slots = torch.zeros(1).long(), torch.zeros(8, dtype=torch.float64), torch.arange(2)

    def work() -> None:
        KERNELS.gumbel(1, 2, noise)
        KERNELS.copy_slots(slots[:1], slots[1:], cache, cache)
        KERNELS.draw(scores, temperatures, seeds, positions, token)
        KERNELS.process(scores, temperatures, None)

    run = KERNELS.record(work)
    if run is None:
        pytest.skip("these kernels do not record")
    expected = noise.clone()
    noise.zero_()
    cache[0, 0, 0] = 3
    scores[0] = torch.arange(8)
    run()
    assert torch.equal(noise, expected)
    assert (cache[0, 0, 1] == 3).all()
    assert token.item() == 7
    assert scores.isfinite().sum() == 1


class Spy:
    """A model that notes what it is asked."""

    def __init__(self, model: CausalModel, vocab_size: int) -> None:
        self.config, self.dtype, self._model = replace(model.config, vocab_size=vocab_size), model.dtype, model
        self.tokens: list[Tensor] = []

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        self.tokens.append(tokens.clone())
        return self._model.forward(tokens, context)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


def test_recordings_share_their_memory(model: CausalModel) -> None:
    """There is one for every number of rows."""
    graphs = Graphs(model, KERNELS, new_cache(model), BLOCKS)
    first = graphs.forward(flatten([Segment([1] * 3, 0, [0])], SIZE))
    second = graphs.forward(flatten([Segment([1] * 7, 0, [0, 1])], SIZE))
    if KERNELS.record(lambda: None) is not None:
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_no_token_beyond_the_vocabulary(model: CausalModel) -> None:
    """Recording runs on other tokens than the batch's; there may be no other."""
    spy = Spy(model, 1)
    Graphs(spy, KERNELS, new_cache(model), BLOCKS).forward(flatten([Segment([0, 0], 0, [0])], SIZE))
    assert all((tokens == 0).all() for tokens in spy.tokens)
