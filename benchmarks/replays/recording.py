"""Records a model's answers, and what its proposers guess after every token of the answers.

The model decodes plainly: drafts are made in every step and thrown away, so that each position has its chain. A
shorter draft is the beginning of a chain. Each proposer's run is checked to give the same tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.replays.traces import Recorded, Trace
from parlay.bench.contenders import contenders
from parlay.bench.prompts import name_of, read_prompts
from parlay.bench.workloads import WORKLOADS, Prefix, workload
from parlay.checkpoints.find import find_model
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.engine.engine import Engine
from parlay.engine.step import Worker
from parlay.errors import ConfigError, ParlayError, nearest
from parlay.models.select import describe_model
from parlay.text.tokenizer import TextCodec
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import Plan, StepOutput

_AT_ONCE = 16  # requests


class _Observer(Worker):
    """A worker that leaves drafts out of its passes and records those that are made for the next."""

    def __init__(self, inner: Worker) -> None:
        self._inner, self._plan = inner, Plan(0, ())
        self.chains: dict[int, list[Draft]] = {}  # by request, after each of its tokens

    @property
    def has_room(self) -> bool:
        return self._inner.has_room

    @property
    def oldest(self) -> Plan | None:
        return None if self._inner.oldest is None else self._plan

    def start(self, plan: Plan) -> None:
        self._plan = plan
        self._inner.start(Plan(plan.plan_id, tuple(replace(span, draft=NO_DRAFT) for span in plan.spans)))

    def finish(self) -> StepOutput:
        output = self._inner.finish()
        for span, proposal in zip(self._plan.spans, output.proposals, strict=True):
            if span.sample:
                self.chains.setdefault(span.request_id, []).append(proposal.draft)
        return output


class _ObservedEngine(Engine):
    """An engine that decodes plainly and records its proposer's drafts."""

    def __init__(self, config: EngineConfig, speculative: SpeculativeConfig) -> None:
        super().__init__(config, speculative)
        self._worker = self.observer = _Observer(self._worker)

    def answer(self, prompts: Sequence[Prefix], params: SamplingParams) -> Iterator[tuple[list[int], list[Draft]]]:
        """Yield each prompt's answer, and the drafts after each of its tokens but the last."""
        requests = [r for p in prompts for r in self.add(p.tokens, replace(params, seed=p.number))]
        while self.busy:
            self.step()
        for request in requests:
            drafts = self.observer.chains.pop(request.request_id)
            if not all(draft.is_chain for draft in drafts):
                raise ConfigError("only chains can be recorded; set the proposer's options so that it drafts these")
            yield request.output_tokens, drafts[:-1]


def record(
    model: str,
    workloads: Sequence[str],
    temperatures: Sequence[float],
    prompts: int,
    tokens: int,
    length: int,
    tick: Callable[[str], None],
    datasets: Sequence[Path] = (),
) -> Iterator[Trace]:
    """Yield one trace a workload and temperature.

    Args:
        model: the target; its proposers are those of `parlay bench methods`.
        workloads: names of `parlay.bench.workloads.WORKLOADS`.
        temperatures: of sampling.
        prompts: of each workload.
        tokens: of each answer; end-of-sequence is ignored.
        length: most tokens of a chain.
        tick: called with a label before every run.
        datasets: files of prompts to ask besides, see `parlay.bench.prompts`.

    Raises:
        ConfigError: an unknown workload, a file without prompts that fit, or a proposer that drafts trees.
        ModelError: the target cannot be found or read.
        ParlayError: a proposer's run gave other tokens than plain decoding.
    """
    for name in workloads:
        if name not in WORKLOADS:
            raise ConfigError(f"there is no workload {name!r}{nearest(name, WORKLOADS)}")
    asked: dict[str, Sequence[Prefix]] = {name: workload(name, prompts) for name in workloads}
    if datasets:
        codec, room = TextCodec(find_model(model)), describe_model(model).max_position - tokens
        asked |= {name_of(path): read_prompts(path, codec, room, prompts) for path in datasets}
    cases = [(name, temperature) for name in asked for temperature in temperatures]
    answers: dict[tuple[str, float], list[Recorded]] = {}
    numerics = ""
    for method, config in contenders(model, length).items():
        tick(f"{method}: loading")
        engine = _ObservedEngine(
            EngineConfig(model=model, max_num_seqs=_AT_ONCE, enable_prefix_caching=False),
            replace(config, lengths="fixed"),
        )
        numerics = numerics or engine.numerics_id
        for name, temperature in cases:
            tick(f"{method}: {name}, temperature {temperature:g}")
            params = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True)
            found = list(engine.answer(asked[name], params))
            if (name, temperature) not in answers:
                answers[name, temperature] = [
                    Recorded(p.tokens, tuple(output)) for p, (output, _) in zip(asked[name], found, strict=True)
                ]
            answers[name, temperature] = [
                _with_chains(request, method, output, drafts)
                for request, (output, drafts) in zip(answers[name, temperature], found, strict=True)
            ]
    for (name, temperature), requests in answers.items():
        yield Trace(model, name, temperature, numerics, tuple(requests))


def _with_chains(request: Recorded, method: str, output: Sequence[int], drafts: Sequence[Draft]) -> Recorded:
    if tuple(output) != request.output:
        raise ParlayError(f"the answers under {method} are not those of plain decoding; `parlay verify` says more")
    if not any(map(len, drafts)):  # host proposers draft again when the trace is replayed
        return request
    chains: Mapping[str, tuple[Draft, ...]] = {**request.chains, method: tuple(drafts)}
    return replace(request, chains=chains)
