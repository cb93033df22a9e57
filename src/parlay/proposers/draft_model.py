"""A smaller model of the same vocabulary guesses a chain, token by token.

Idea: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318). Here the draft
model draws with the target's own noise (Daliri, Musco, Suresh 2024, arXiv 2408.07978), so that it guesses the token
the target is about to draw instead of an independent sample.

Its layers keep their keys and values on the same block ids as the target's and count for themselves how far they
have come: after full acceptance, a prefix hit or a pause there is a gap to close before it drafts again.

Loses when a draft step is not much cheaper than a target step, or when the two models disagree.
"""

import filecmp
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.select import cache_spec, check_weights, describe_model, load_model
from parlay.models.tokenizer import read_tokenizer, tokenizer_file
from parlay.proposers.base import DeviceProposer, Runtime, TargetInfo, draft_length
from parlay.proposers.heads import Options
from parlay.runner.batch import Stretch, flatten, single_rows, table_array
from parlay.runner.footprint import weight_bytes
from parlay.runner.runner import ModelRunner
from parlay.sampling.sampler import draw, filter_tensors, seed_tensor, temperature_tensor
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, ProposerState, Span, SpanError, Verdict

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {"model": "tiny-code-draft"}


@dataclass(frozen=True, slots=True)
class _Chain:
    """A span whose draft model has caught up: where to draft from, and how far."""

    index: int
    span: Span
    position: int
    length: int


class Proposer(DeviceProposer):
    """Drafts a chain with a model of its own."""

    default_length = 4

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._target = target
        self._config = describe_model(options.model, replace(target.hub, revision=options.revision))
        _check_vocabulary(self._config, target.config)
        check_weights(self._config)
        self.cache = cache_spec(self._config, target.dtype)
        self.weight_bytes = weight_bytes(self._config, target.dtype)

    def load(self, runtime: Runtime) -> None:
        """Read the draft model's weights and allocate its cache layers."""
        model = load_model(self._config, self._target.dtype, self._target.max_model_len, runtime.kernels)
        self._runner = ModelRunner(model, runtime.kernels, runtime.num_blocks, runtime.block_size)
        self._max_rows = runtime.max_rows

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Sequence[Tensor] = ()
    ) -> list[Proposal]:
        """Close each request's gap as far as the row limit allows, then draft where it is closed."""
        proposals = [Proposal(state=span.catch_up.state) for span in spans]
        stretches: list[Stretch] = []
        chains: list[tuple[_Chain, int]] = []  # with the stretch that reaches its last known token
        rows_left = self._max_rows
        for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
            if not span.catch_up.budget:
                continue
            length = draft_length(span, verdict)
            valid = span.catch_up.state.computed + _confirmed(span.catch_up.state.ahead, verdict.path)
            if span.sample and length < 1:
                proposals[i] = Proposal(state=ProposerState(valid))
                continue
            gap = (span.catch_up.behind + verdict.tokens)[valid - span.catch_up.state.computed :]
            run = gap[:rows_left]
            rows_left -= len(run)
            proposals[i] = Proposal(state=ProposerState(valid + len(run)))
            if run:
                stretches.append(Stretch(run, valid, span.blocks))
                if span.sample and len(run) == len(gap):
                    chains.append((_Chain(i, span, valid + len(gap), length), len(stretches) - 1))
        if not stretches:
            return proposals
        batch = flatten(stretches, self._runner.block_size)
        states = self._runner.forward(batch)
        if not chains:
            return proposals
        # Longest first, so that the requests still drafting are always the leading ones.
        chains.sort(key=lambda c: -c[0].length)
        logits = self._runner.logits(states, [batch.offsets[stretch + 1] - 1 for _, stretch in chains])
        drafted = self._draft([chain for chain, _ in chains], [verdicts[c.index].tokens for c, _ in chains], logits)
        for (chain, _), tokens in zip(chains, drafted, strict=True):
            proposals[chain.index] = Proposal(
                Draft.chain(tokens, "draft_model"), ProposerState(chain.position, len(tokens) - 1)
            )
        return proposals

    def _draft(self, chains: list[_Chain], emitted: list[tuple[int, ...]], logits: Tensor) -> list[list[int]]:
        """Draw the first tokens from `logits` `[chains, vocab]`, then run the model on its own guesses.

        `emitted` are the tokens that each chain's request has just been given.
        """
        kernels = self._runner.kernels
        params = [c.span.params for c in chains]
        seeds, temperatures = seed_tensor([c.span.seed for c in chains]), temperature_tensor(params)
        filters = filter_tensors(params)
        positions = np.array([c.position for c in chains])
        tables = table_array([c.span.blocks for c in chains])
        steps: list[Tensor] = []
        active = len(chains)
        for step in range(chains[0].length):
            if step:
                batch = single_rows(
                    steps[-1][:active],
                    positions[:active] + step - 1,
                    tables[:active],
                    self._runner.block_size,
                )
                logits = self._runner.model.logits(self._runner.forward(batch))
            for i, chain in enumerate(chains[:active]):
                if chain.span.processor is not None:
                    path = [*emitted[i], *(int(tokens[i]) for tokens in steps)]
                    try:
                        chain.span.processor.guide(chain.span.output, path, logits[i])
                    except Exception as error:
                        raise SpanError(chain.span.request_id) from error
            steps.append(
                draw(
                    kernels,
                    logits,
                    temperatures[:active],
                    seeds[:active],
                    torch.from_numpy(positions[:active] + step),
                    filters and filters.first(active),
                )
            )
            active = sum(chain.length > step + 1 for chain in chains)
        columns = [tokens.tolist() for tokens in steps]
        return [[columns[s][i] for s in range(chain.length)] for i, chain in enumerate(chains)]


def _confirmed(ahead: int, path: tuple[int, ...]) -> int:
    """How many of the chain's first `ahead` nodes were accepted; their keys and values stand."""
    count = 0
    while count < min(ahead, len(path)) and path[count] == count:
        count += 1
    return count


def _check_vocabulary(draft: ModelConfig, target: ModelConfig) -> None:
    if draft.vocab_size != target.vocab_size:
        raise ModelError(
            f"the draft model {draft.path} has {draft.vocab_size} tokens but the target {target.path} has "
            f"{target.vocab_size}; a draft model must share the target's vocabulary"
        )
    own, other = (tokenizer_file(config.path) for config in (draft, target))
    if not own.is_file() or not other.is_file() or filecmp.cmp(own, other, shallow=False):
        return
    ours, theirs = (read_tokenizer(file).get_vocab() for file in (own, other))
    if ours != theirs:
        raise ModelError(
            f"the draft model {draft.path} gives other ids to tokens than the target {target.path}; "
            "a draft model must share the target's vocabulary"
        )
