"""Verdicts where kernels read them: a draft follows from one before the host knows it.

On a GPU a step's tokens are drawn in its pass. To draft after the host has read them would take a copy there and
back, while the GPU waits. So what a draft reads is sent with the step, as if the draft before it were accepted up to
its last node; what depends on the verdict is then set by operations on the GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.types.draft import ROOT
from parlay.types.draft_tree import depths
from parlay.types.plan import Span, Verdict

_NO_VERDICT = Verdict()


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """What a step has decided, one row per span; see `SamplingKernels.accept`.

    Attributes:
        path: int64 `[spans, d + 1]`, rows of the pass: of the last known token, then of the accepted nodes.
        emitted: int64 `[spans, d + 1]`, the tokens drawn there.
        accepted: int64 `[spans]`, number of accepted nodes.
    """

    path: Tensor
    emitted: Tensor
    accepted: Tensor

    @classmethod
    def of(cls, kernels: Kernels, drawn: Tensor, tree: Sequence[Tensor], most: int, filler: int) -> "DeviceVerdict":
        """Verify the drafts of a pass.

        Args:
            kernels: the operations to run with.
            drawn: int64 `[rows]`, the token drawn in each row.
            tree: what `draft_rows` has returned, where kernels read it.
            most: most nodes on a path.
            filler: token in place of those not emitted.
        """
        tokens, parents, roots = tree
        path, emitted = torch.empty((2, len(roots), most + 1), dtype=torch.int64)
        accepted = torch.empty(len(roots), dtype=torch.int64)
        kernels.accept(drawn, tokens, parents, roots, path, emitted, accepted, filler)
        return cls(path, emitted, accepted)


@dataclass(frozen=True, slots=True)
class Shift:
    """How far the drafts of a group start behind where they were placed: by how many nodes were accepted.

    Attributes:
        ahead: int64 `[requests]`, the number of nodes.
        newest: int64 `[requests]`, the newest known token.
        limits: int64 `[requests]`, places that each request may come to: those of its blocks, and no more than its
            longest text has. A node beyond is not stored in its place, and stands at the last one.
        levels: levels of the longest draft.
        width: number of rows that each request has from level 1 on.
    """

    ahead: Tensor
    newest: Tensor
    limits: Tensor
    levels: int
    width: int


def draft_rows(spans: Sequence[Span]) -> list[Tensor]:
    """Return the tokens of all rows of a pass, and `parents` and `roots` as `SamplingKernels.accept` reads them."""
    tokens, parents, roots = list[int](), list[int](), list[int]()
    for span in spans:
        tokens += span.tokens
        root = len(tokens) - 1
        roots.append(root)
        tokens += span.draft.tokens
        parents += [-1] * len(span.tokens)
        parents += (root if parent == ROOT else root + 1 + parent for parent in span.draft.parents)
    kinds = (tokens, torch.int64), (parents, torch.int32), (roots, torch.int64)
    return [torch.tensor(values, dtype=dtype, device="cpu") for values, dtype in kinds]


def depth_of(span: Span) -> int:
    """Return the most nodes on a path of a span's draft."""
    return max(depths(span.draft), default=0)


def undecided(spans: Sequence[Span], filler: int) -> tuple[list[Span], list[Verdict]]:
    """Return spans and verdicts by which a draft is planned that has room for any verdict.

    Every span that samples has emitted as many tokens as it can, and still drafts as far as if it had emitted one.
    Nodes of the draft before that layers hold are run again.
    """
    planned, verdicts = list[Span](), list[Verdict]()
    for span in spans:
        ask, depth = span.catch_up, depth_of(span)
        ask = replace(ask, state=replace(ask.state, speculated=0))
        planned.append(replace(span, catch_up=ask, remaining=span.remaining + depth, stop_ids=frozenset()))
        verdicts.append(Verdict((filler,) * (depth + 1), tuple(range(depth))) if span.sample else _NO_VERDICT)
    return planned, verdicts
