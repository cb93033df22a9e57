"""`SamplingKernels.accept` for kernels of the CPU, where tests alone need it: the host has each verdict in time."""

from torch import Tensor


class HostAcceptance:
    """That one operation, as it reads."""

    def accept(  # noqa: D102
        self,
        drawn: Tensor,
        tokens: Tensor,
        parents: Tensor,
        roots: Tensor,
        path: Tensor,
        emitted: Tensor,
        accepted: Tensor,
        filler: int = 0,
    ) -> None:
        chosen, most = drawn.tolist(), path.shape[1]
        children = {pair: row for row, pair in enumerate(zip(parents.tolist(), tokens.tolist(), strict=True))}
        for sequence, root in enumerate(roots.tolist()):
            walk = [root]
            while len(walk) < most and (child := children.get((walk[-1], chosen[walk[-1]]))) is not None:
                walk.append(child)
            rest = most - len(walk)
            path[sequence] = path.new_tensor(walk + walk[-1:] * rest)
            emitted[sequence] = path.new_tensor([chosen[row] for row in walk] + [filler] * rest)
            accepted[sequence] = len(walk) - 1
