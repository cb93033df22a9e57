"""The engine: builds, checks and connects everything; adds, steps and aborts requests."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from parlay import env
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.config.speculative import plain
from parlay.drafting.cost_file import CostFile
from parlay.drafting.prediction import Follower, Prediction
from parlay.drafting.state import DraftState
from parlay.engine.answers import completion_of, prompt_logprobs_of
from parlay.engine.load import LoadedEngine, load
from parlay.engine.memory import Memory
from parlay.engine.request import Request, RequestCounts
from parlay.engine.request_processor import check_ids, processor_of
from parlay.engine.resolve import ResolvedEngine, end_tokens, request_defaults, resolve
from parlay.engine.scheduler import Scheduler
from parlay.engine.speculation import make_drafting, method_names, resolve_override
from parlay.engine.stats import EngineStats
from parlay.engine.step import Worker, run_step
from parlay.errors import EngineFaultError, about, brief
from parlay.interrupts import DeferredSignals
from parlay.kv.pool import BlockPool
from parlay.kv.recurrent_states import StatePool, begin_on
from parlay.kv.table import BlockTable
from parlay.log import logger
from parlay.models.select import cache_spec
from parlay.runner.footprint import weight_bytes
from parlay.sampling.grammar import Grammars
from parlay.sampling.seeds import arrival_seed, mix
from parlay.text.detokenizer import Detokenizer
from parlay.text.tokenizer import check_prompt, encode_prediction
from parlay.types.output import CompletionOutput, Logprob
from parlay.types.params import SamplingParams
from parlay.types.plan import SpanError
from parlay.types.progress import OnProgress, ignore
from parlay.types.queue_position import check_queue_position
from parlay.types.stats import StatsSnapshot
from parlay.types.structured import StructuredOutputsParams
from parlay.verification.verifier import make_verifier


class Engine:
    """Runs requests on one target with its proposers, in the caller's thread.

    Attributes:
        config: the engine's options.
        codec: the target's tokenizer.
        max_model_len: longest sequence, prompt and output together.
        stats: counters since start.
        numerics: everything that the bits of a token may depend on besides the request.
        numerics_id: `numerics` as text.
        vocab_size: number of token ids; each id is below it.
        methods: speculative methods that a request may name.
        sampling_defaults: the model's own sampling parameters, for requests that give none.
        memory, ranks: sizes of weights and cache; the processes that compute with it.
    """

    def __init__(
        self, config: EngineConfig, speculative: SpeculativeConfig | None = None, on_progress: OnProgress = ignore
    ) -> None:
        """Check everything, then load weights.

        Args:
            config: the engine's options.
            speculative: how to speculate, if at all.
            on_progress: function called with how far the weights are loaded; the last time when all are.

        Raises:
            ConfigError: options that are unknown, out of range or do not fit together.
            ModelError: a model cannot be found, read or served.
            CapacityError: memory does not suffice for one sequence.
        """
        resolved = resolve(config, speculative or plain())
        self._assemble(resolved, load(resolved, on_progress))

    def _assemble(self, resolved: ResolvedEngine, loaded: LoadedEngine) -> None:
        config, speculative, model = resolved.config, resolved.speculative, resolved.model
        num_blocks, here = resolved.num_blocks, resolved.machine
        self.config, self.codec, self.max_model_len = config, resolved.codec, resolved.max_model_len
        self.methods, self._automatic = method_names(resolved.methods), speculative.automatic
        self.sampling_defaults = request_defaults(config, resolved.path)
        states = here.state_bytes(resolved.room)
        sizes = num_blocks, config.block_size, here.bytes_per_token
        self.memory = Memory(here.weights, *sizes, states, resolved.room)
        self.vocab_size = model.vocab_size
        self._eos = end_tokens(model, self.codec)
        self._grammars = Grammars(self.codec.tokenizer, self.vocab_size, sorted(self._eos))
        self._worker = Worker(
            loaded.kernels,
            loaded.runner,
            resolved.drafter,
            make_verifier(speculative),
            loaded.processors,
            processed_logprobs=config.logprobs_mode == "processed_logprobs",
        )
        self._pool = BlockPool(num_blocks, config.block_size)
        self._states = StatePool(resolved.room) if loaded.runner.recurrent else None
        drafter = resolved.drafter
        self._draft_states = StatePool(resolved.room) if drafter is not None and drafter.recurrent else None
        self.stats = EngineStats()
        self.ranks, self._verification = resolved.ranks, speculative.verification
        self.numerics = loaded.numerics
        self.numerics_id = str(self.numerics)
        file = CostFile(self.numerics_id, env.threads(), split=config.split)
        read = cache_spec(model, resolved.dtype).bytes_per_token / weight_bytes(model, resolved.dtype)
        drafting = make_drafting(speculative, resolved.methods, config, loaded.runner, num_blocks, read, file)
        pools = self._states, self._draft_states
        self._scheduler = Scheduler(config, self._pool, drafting, self.stats, loaded.processors, *pools)
        self._arrivals = self._next_id = 0
        self._signals, self._interrupted = (
            DeferredSignals(),
            False,
        )  # whether an exception has ended a change half-way
        logger.info("numerics id: %s", self.numerics_id)

    def encode(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """Return a prompt's tokens.

        Raises:
            RequestError: it is empty, holds ids outside the vocabulary, or leaves no room for output.
        """
        ids = self.codec.encode(prompt) if isinstance(prompt, str) else prompt
        return check_prompt(ids, self.vocab_size, self.max_model_len)

    def add(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        tenant: str = "",
        timeout: float | None = None,
    ) -> list[Request]:
        """Queue a prompt; returns one request for each of the completions to sample.

        Args:
            prompt: text, or token ids.
            params: how tokens are chosen.
            priority: rank among waiting requests; lower runs first.
            tenant: owner of the request; requests of different tenants share no cache.
            timeout: seconds from now after which the request is aborted.

        Raises:
            RequestError: the prompt cannot be served; the engine is unaffected.
        """
        # A refused prompt counts too: the seeds of a script's requests must not depend on whether others are refused.
        ordinal = self._arrivals
        self._arrivals += 1
        check_queue_position(priority, tenant, timeout)
        with about("prompt"):
            tokens = self.encode(prompt)
        deadline = None if timeout is None else perf_counter() + timeout
        requests = self._make(tokens, params, ordinal, priority=priority, tenant=tenant, deadline=deadline)
        try:
            with self._signals:
                self._recover()
                self._interrupted = True
                for request in requests:
                    self._scheduler.add(request)
                self._interrupted = False
            return requests  # noqa: TRY300 - nothing may come between: the caller knows of them, or they are gone
        except BaseException:
            self.abort(*requests)
            raise

    def _make(
        self,
        tokens: tuple[int, ...],
        params: SamplingParams,
        ordinal: int,
        *,
        priority: int,
        tenant: str,
        deadline: float | None,
    ) -> list[Request]:
        """Return a request for each of a prompt's completions; `ordinal` counts the prompts that came before."""
        check_ids("stop_token_ids", params.stop_token_ids, self.vocab_size)
        check_ids("allowed_token_ids", params.allowed_token_ids or (), self.vocab_size)
        check_ids("logit_bias", params.logit_bias or (), self.vocab_size)
        prediction = None
        if params.prediction:
            expected = encode_prediction(self.codec, params.prediction, self.vocab_size, self.max_model_len)
            prediction = Prediction(expected)
            params = replace(params, prediction=None)  # plans carry parameters, and need no text
        override = resolve_override(params.speculative, self.methods, automatic=self._automatic)
        if override is not params.speculative:
            params = replace(params, speculative=override)
        form = params.structured_outputs
        assert form is None or isinstance(form, StructuredOutputsParams)
        with about("structured_outputs"):
            constraints = [self._grammars.start(form, tenant) if form else None for _ in range(params.candidates)]
        seed = arrival_seed(self.config.seed, ordinal) if params.seed is None else params.seed
        room, now = self.max_model_len - len(tokens), perf_counter()
        requests: list[Request] = []
        for j, constraint in enumerate(constraints):
            request = Request(
                request_id=self._next_id,
                prompt_tokens=tokens,
                params=params,
                seed=mix(seed, j),
                max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
                stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos),
                table=BlockTable(self._pool, tenant, begin_on(self._states), begin_on(self._draft_states)),
                processor=processor_of(self.codec, tokens, params, self._eos, self.vocab_size, constraint),
                drafting=DraftState(
                    constraint=constraint, prediction=None if prediction is None else Follower(prediction)
                ),
                priority=priority,
                tenant=tenant,
                deadline=deadline,
                leader=requests[0] if requests else None,
                detokenizer=Detokenizer(self.codec, params, tokens),
                counts=RequestCounts(arrival=now, verification=self._verification),
            )
            self._next_id += 1
            requests.append(request)
        return requests

    def prepare(self, params: SamplingParams, tenant: str = "") -> None:
        """Do the slow part of adding a tenant's request; any thread may, while the engine steps.

        Raises:
            RequestError: the form of structured outputs cannot be served.
        """
        form = params.structured_outputs
        if isinstance(form, StructuredOutputsParams):
            with about("structured_outputs"):
                self._grammars.compile(form, tenant)

    def refuse(self) -> None:
        """Count a prompt that was refused before it could be added; see `add`."""
        self._arrivals += 1

    def step(self) -> list[Request]:
        """Run one step; returns the requests that emitted tokens or finished.

        A request that makes the step fail is aborted, its `error` says so, and the step is lost for the others: a
        later one emits the same tokens for them. Signals wait until the step is done.

        Raises:
            RankError: another rank is lost, or waits in a pass that did not end.
        """
        with self._signals:
            self._recover()
            self._interrupted = True
            progressed = self._step()
            self._interrupted = False
        return progressed

    def _step(self) -> list[Request]:
        began, emitted, drafting = perf_counter(), self._scheduler.emitted, self._scheduler.drafting.seconds
        unfinished = list(self._scheduler.requests)
        try:
            progressed, times = run_step(self._scheduler, self._worker)
        except SpanError as error:
            self._fail(error)
            return [r for r in unfinished if r.finish_reason is not None]
        if times is not None:
            drafted = self._scheduler.drafting.seconds - drafting
            self.stats.add(times, perf_counter() - began, self._scheduler.emitted - emitted, drafted)
        return progressed

    def _fail(self, error: SpanError) -> None:
        """Abort the request that made a step fail, if the engine can continue."""
        request = next((r for r in self._scheduler.requests if r.request_id == error.request_id), None)
        if request is None:
            raise error
        cause = error.__cause__
        logger.error("the engine failed on request %d, which is aborted", error.request_id, exc_info=cause)
        request.error = EngineFaultError(
            f"the engine failed on this request ({type(cause).__name__}: {brief(str(cause))}); "
            "others are unaffected, please report it"
        )
        self._scheduler.finish(request, "abort", perf_counter())
        for other in self._scheduler.requests:
            if not self._scheduler.is_under_way(other):
                self._scheduler.drafting.lose_step(other)
        try:
            self.check()
        except AssertionError:
            self._interrupted = True
            self._recover()

    def _recover(self) -> None:
        """Restart from a consistent state if the last change was interrupted."""
        if self._interrupted:
            self._scheduler.recover(perf_counter(), processing=self._worker.reset())
            self._interrupted = False

    def snapshot(self) -> StatsSnapshot:
        """Return the counters since start, and how full the engine is."""
        running, waiting = self._scheduler.load
        self.stats.faults = self._scheduler.drafting.faults.counts
        states = self._states or self._draft_states
        return StatsSnapshot.of(
            self.stats,
            running=running,
            waiting=waiting,
            blocks=self._pool.num_blocks,
            blocks_used=self._pool.num_blocks - self._pool.available,
            slots=self.memory.room.slots,
            slots_used=0 if states is None else states.slots.num_blocks - states.slots.available,
        )

    def abort(self, *requests: Request) -> None:
        """End requests now; harmless for those that have ended."""
        with self._signals:
            self._recover()
            for request in requests:
                if request.finish_reason is None:
                    self._interrupted = True
                    self._scheduler.finish(request, "abort", perf_counter())
                    self._interrupted = False

    def close(self) -> None:
        """End the processes of other ranks, if there are any; so does dropping the engine."""
        self.ranks.close()

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished, or a step is under way."""
        return self._worker.oldest is not None or any(True for _ in self._scheduler.requests)

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks, as when they run out; its output must not change."""
        self._scheduler.preempt(request)

    def check(self) -> None:
        """Recount every cache block.

        Raises:
            AssertionError: a block is lost or held twice.
        """
        self._scheduler.check()

    def completion(self, request: Request, number: int) -> CompletionOutput:
        """Return a request's completion so far, as completion `number` of its prompt."""
        return completion_of(self.codec, request, number)

    def prompt_logprobs(self, request: Request) -> tuple[dict[int, Logprob] | None, ...] | None:
        """Return the log-probabilities of a prompt, None for its first token; None until all are computed."""
        return prompt_logprobs_of(self.codec, request)
