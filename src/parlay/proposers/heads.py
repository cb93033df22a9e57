"""What proposers with a checkpoint have in common, and those of them that draft from the last hidden state alone.

A head of the latter kind keeps no state of a request. It starts from a state that the target has computed in the very
step at whose end the head drafts, so it is right after anything: chunked prompts, a cached prefix, preemption, other
completions of the prompt, steps without a draft.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.config.speculative import MOST_DEPTH
from parlay.errors import ConfigError
from parlay.models.heads import HeadConfig, read_head
from parlay.models.select import stored_kinds
from parlay.proposers.base import Runtime, Share, TargetInfo, draft_length
from parlay.proposers.device_verdict import DeviceVerdict
from parlay.proposers.draft_head import DraftWork, Start
from parlay.proposers.expander import MOST_LEVELS, Expander
from parlay.proposers.expanding_head import ExpandingHead
from parlay.runner.graphs import MOST_ROWS
from parlay.types.plan import NO_PROPOSAL, CatchUp, Proposal, Span, Verdict
from parlay.types.progress import OnRead, ignore
from parlay.types.storage import Storage


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Options of proposers with weights, with vLLM's names.

    Attributes:
        model: directory of a head or draft model, or its name on the hub; fetched as the engine's model is, with its
            `hf_token` into its `download_dir`.
        revision: branch, tag or commit of one on the hub.
        quantization: "int8" or "int4" quantises its matrices to so many bits when they are read; None leaves them as
            they are; "auto" is "int8" beside a quantised target. It changes acceptance, and no token.
        draft_tensor_parallel_size: ranks that share its layers, a divisor of the target's.
        parallel_drafting: refuse a checkpoint that does not draft all tokens in one pass, from masks; those that were
            trained for it do so in any case.
    """

    model: str
    revision: str | None = None
    quantization: Literal["auto", "int8", "int4"] | None = "auto"
    draft_tensor_parallel_size: int = 1
    parallel_drafting: bool = False

    def __post_init__(self) -> None:
        if self.draft_tensor_parallel_size < 1:
            raise ConfigError(f"draft_tensor_parallel_size must be at least 1, not {self.draft_tensor_parallel_size}")


def share_of(method: str, options: CheckpointOptions, path: Path, target: TargetInfo) -> Share | None:
    """Return what further ranks load of a proposer's checkpoint at `path`, if several share its layers.

    Raises:
        ConfigError: the target's ranks cannot be divided so.
    """
    size = options.draft_tensor_parallel_size
    if target.ranks % size:
        raise ConfigError(
            f"draft_tensor_parallel_size={size} is no divisor of tensor_parallel_size={target.ranks}; give one, such "
            "as 1"
        )
    return Share(method, asdict(options), size, str(path)) if size > 1 else None


def storage_of(options: CheckpointOptions, target: TargetInfo) -> Storage:
    """Return how the matrices of a target's proposer are stored."""
    if options.quantization == "auto":
        quantised = any(kind.block > 1 for kind in stored_kinds(target.config).values())
        return "int8" if quantised else "stored"
    return options.quantization or "stored"


def starts(spans: Sequence[Span], verdicts: Sequence[Verdict], most: int) -> Iterator[Start]:
    """Yield the start of each request that is to draft, of at most `most` tokens each."""
    row = 0
    for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
        first_node = row + len(span.tokens)
        row = first_node + len(span.draft)
        ask = span.catch_up
        length = min(draft_length(span, verdict), most) if ask.budget else 0
        if length > 0:
            # The row from which the target chose its newest token.
            last = first_node + verdict.path[-1] if verdict.path else first_node - 1
            position = span.end + len(verdict.tokens)
            yield Start(i, span, last, verdict.tokens, position, *shape_of(ask, length), path=verdict.path)


def work_from_states(spans: Sequence[Span], verdicts: Sequence[Verdict], most: int) -> DraftWork:
    """Return the work of a proposer whose drafts follow from the target's states, with `starts`."""
    found = [*starts(spans, verdicts, most)]
    proposals = [NO_PROPOSAL] * len(spans)
    for start in found:
        proposals[start.index] = Proposal(state=start.span.catch_up.state)
    return DraftWork(proposals, found)


def shape_of(ask: CatchUp, length: int) -> tuple[int, int, int]:
    """Return `length`, `width` and `nodes` of a draft that may be so long."""
    return (min(length, MOST_DEPTH), ask.width, ask.nodes) if ask.width > 1 else (length, 1, length)


class CheckpointHead(ExpandingHead):
    """A head whose weights are a checkpoint of their own.

    Attributes:
        head: the checkpoint.
    """

    head: HeadConfig

    def __init__(self, options: CheckpointOptions, target: TargetInfo) -> None:
        self._target = target
        self._storage = storage_of(options, target)
        self.head = self.find(options)
        self.share = share_of(self.source, options, self.head.path, target)
        with self.open() as weights:
            self.describe(weights)

    def load(self, runtime: Runtime) -> None:
        """Read the head's weights."""
        self._kernels, self.broadcast = runtime.kernels, runtime.broadcast
        with self.open(runtime.on_read) as weights:
            self.read(weights, runtime)

    def find(self, options: CheckpointOptions) -> HeadConfig:
        """Return where the head lies, and its config."""
        return read_head(options.model, replace(self._target.hub, revision=options.revision))

    def open(self, on_read: OnRead = ignore) -> Checkpoint:
        """Open its files."""
        return Checkpoint(self.head.path, head=True, storage=self._storage, on_read=on_read)

    @abstractmethod
    def describe(self, weights: Checkpoint) -> None:
        """Compare the files' headers with config and target; set `weight_bytes` and what else follows from them.

        Raises:
            ModelError: they do not fit.
        """

    @abstractmethod
    def read(self, weights: Checkpoint, runtime: Runtime) -> None:
        """Read the weights in the layout that the kernels need, of layers that `runtime.group` shares this rank's."""


class HeadProposer(CheckpointHead):
    """A proposer whose every draft follows from one hidden state and one token.

    A subclass computes one level at a time of `_hidden`, from the initial states and the tokens before. If there is a
    limit to how many tokens it can draft in a row, its `describe` also sets `default_length` and `max_depth` to that.
    """

    follows_verdict = True

    def load(self, runtime: Runtime) -> None:
        """Read the head's weights and allocate what its passes write to."""
        config = self._target.config
        self._hidden = torch.zeros((MOST_ROWS, config.hidden_size), dtype=self._target.dtype)
        super().load(runtime)
        self._most = MOST_LEVELS if self.max_depth is None else self.max_depth
        if not runtime.group.rank:  # the others do not draft
            self._uploads = runtime.uploads
            self._expander = Expander(self, runtime, self._most, config.vocab_size)

    def begin(self, states: Tensor, rows: Tensor) -> None:  # noqa: D102
        self._kernels.embed(states, rows, self._hidden[: len(rows)])

    def plan(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> DraftWork:  # noqa: D102
        return work_from_states(spans, verdicts, self._most)

    def rows_behind(self, rows: Tensor, owners: Tensor, verdict: DeviceVerdict) -> Tensor:  # noqa: D102
        return verdict.path[owners, verdict.accepted[owners]]
