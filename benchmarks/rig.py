"""One kind of step, repeated through the engine's own scheduler and worker, with every microsecond accounted for."""

from dataclasses import dataclass
from itertools import count
from time import perf_counter

from benchmarks.timed_kernels import PARTS, TimedKernels
from parlay.bench.workloads import load_prefixes
from parlay.config import EngineConfig
from parlay.drafting.drafting import Drafting
from parlay.drafting.host_drafts import LoadedProposer
from parlay.engine.request import Request
from parlay.engine.scheduler import Scheduler
from parlay.engine.step import Worker
from parlay.explain.work import Work, linear_names, widths, work_of
from parlay.kv.pool import BlockPool
from parlay.kv.recurrent_states import StatePool, begin_on
from parlay.kv.table import BlockTable
from parlay.models.select import CausalModel
from parlay.proposers.base import DeviceProposer, Proposer, Runtime
from parlay.proposers.draft_slots import scratch_blocks
from parlay.proposers.methods import none
from parlay.runner.runner import ModelRunner
from parlay.text.detokenizer import Detokenizer
from parlay.text.tokenizer import TextCodec
from parlay.types.cache import NO_CAPACITY, StateCapacity
from parlay.types.draft import Draft
from parlay.types.params import SamplingParams

_IN_SAMPLING = ("draw", "copy")


@dataclass(frozen=True, slots=True)
class Sample:
    """One step, or several that belong together, measured.

    Attributes:
        seconds: by component; their sum is the whole time.
        work: by component, for those that have a floor.
        rows: that went through the target.
    """

    seconds: dict[str, float]
    work: dict[str, Work]
    rows: int

    @property
    def total(self) -> float:
        """Seconds altogether."""
        return sum(self.seconds.values())

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(
            {name: seconds + other.seconds[name] for name, seconds in self.seconds.items()},
            {name: work + other.work[name] for name, work in self.work.items()},
            self.rows + other.rows,
        )


class RandomDrafts(none.Proposer):
    """Proposes a chain of arbitrary tokens, of any length."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def propose(self, request_id: int, budget: int) -> Draft:
        """Return a chain of `budget` tokens."""
        return Draft.chain([(7919 * i + 17) % self._vocab_size for i in range(budget)], "random")


class Rig:
    """A scheduler and a worker with requests of one kind; rigs may share a model, each has its own cache."""

    def __init__(
        self,
        model: CausalModel,
        kernels: TimedKernels,
        proposer: Proposer,
        length: int,
        batch: int,
        context: int,
        room: int,
        temperature: float,
    ) -> None:
        """Allocate the cache.

        Args:
            model: the target, loaded with `kernels`.
            kernels: note the times of the target's operations; a proposer's own run unnoted.
            proposer: its weights are loaded here if it has any.
            length: draft tokens per request and step.
            batch: requests at once.
            context: tokens a prompt.
            room: tokens that a request may emit.
            temperature: of sampling.
        """
        self._widths = widths(model.config, model.dtype)
        config = EngineConfig(enable_prefix_caching=False)
        blocks = batch * -(-(context + room + length + 2) // config.block_size)
        max_rows = config.max_num_batched_tokens + batch
        spare = scratch_blocks(config.block_size) if proposer.uses_target_cache else 0
        places = 2 * batch * max(length, 1)
        room_for = StateCapacity(2 * batch, places) if model.config.style.recurrent is not None else NO_CAPACITY
        states = StatePool(room_for) if room_for.slots else None
        runner = ModelRunner(model, kernels.kernels, blocks + spare, config.block_size, room=room_for)
        proposer.load(Runtime(kernels.inner, blocks, config.block_size, max_rows, model, runner.cache, room_for))
        self._model, self._kernels = model, kernels
        methods = [LoadedProposer("method", proposer, length)] if length else []
        drafting = Drafting(methods, share_prefixes=False)
        self._scheduler = Scheduler(config, BlockPool(blocks, config.block_size), drafting, states=states)
        self._worker = Worker(kernels.kernels, runner, proposer if isinstance(proposer, DeviceProposer) else None)
        self._length, self._batch, self._context, self._room = length, batch, context, room
        self._params = SamplingParams(temperature=temperature)
        self._codec = TextCodec(model.config.path)
        self._tokens = [t % model.config.vocab_size for p in load_prefixes() for t in p.tokens]
        self._requests: list[Request] = []
        self._ids = count()

    def decode(self) -> Sample:
        """Measure one step in which every request emits, after another like it that warms the caches.

        New requests replace those that near their end.
        """
        if not self._requests or any(
            r.finish_reason or r.remaining <= 2 * (self._length + 1) for r in self._requests
        ):
            self._restart()
            while any(not r.counts.steps for r in self._requests):
                self._step()
        self._step()
        return self._step()

    def prefill(self) -> Sample:
        """Measure all steps from prompts to first tokens."""
        self._restart()
        sample = self._step()
        while any(not r.counts.steps for r in self._requests):
            sample += self._step()
        return sample

    def _restart(self) -> None:
        for request in list(self._scheduler.requests):
            self._scheduler.finish(request, "abort", perf_counter())
        self._requests = [self._request() for _ in range(self._batch)]
        for request in self._requests:
            self._scheduler.add(request)

    def _request(self) -> Request:
        number = next(self._ids)
        first = number * self._context
        tokens = tuple(self._tokens[(first + i) % len(self._tokens)] for i in range(self._context))
        return Request(
            request_id=number,
            prompt_tokens=tokens,
            params=self._params,
            seed=number,
            max_tokens=self._room,
            stop_ids=frozenset(),
            table=BlockTable(self._scheduler.pool, "", begin_on(self._scheduler.states)),
            detokenizer=Detokenizer(self._codec, self._params),
        )

    def _step(self) -> Sample:
        """Run a step as the engine does, and account for every microsecond of it."""
        self._kernels.take()
        began, asked = perf_counter(), self._scheduler.drafting.seconds
        plan = self._scheduler.plan()
        planned = perf_counter()
        output = self._worker.execute(plan)
        executed = perf_counter()
        self._scheduler.commit(plan, output, perf_counter())
        ended = perf_counter()
        times, kernels = output.times, self._kernels.take()
        drafting = self._scheduler.drafting.seconds - asked
        config = self._model.config
        further = (PARTS, "states") if self._scheduler.states is not None else ()
        apart = (*linear_names(config).values(), "head", "attention", *further)
        seconds = {name: kernels.pop(name, 0.0) for name in apart}
        seconds["norms etc."] = sum(kernels[name] for name in kernels if name not in _IN_SAMPLING)
        seconds["sampling"] = times.verify
        seconds["drafting"] = times.propose + drafting
        seconds["scheduling"] = planned - began + ended - executed - drafting
        seconds["rest"] = ended - began - sum(seconds.values())
        rows = sum(len(s.tokens) + len(s.draft) for s in plan.spans)
        return Sample(seconds, work_of(config, self._model.dtype, plan.spans, self._widths), rows)
