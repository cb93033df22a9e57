"""Times the GPU's matrix products under many tiles, for `kernels/triton/linear.py`: `python -m benchmarks.tiles`.

For each shape of a model's weights and each tile it prints microseconds at several numbers of rows, the share of the
memory's bandwidth that one row reaches, and whether its bits are those of the first tile with as many splits.
"""

import argparse
import itertools
from collections.abc import Iterator

import torch
import triton.testing

from parlay.kernels.triton import linear
from parlay.kernels.triton.linear import Tile, TritonLinear

SHAPES = {
    "1b": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048)),
    "8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
}
ROWS = (1, 8, 64, 512)
_COPY = 1 << 30  # bytes


def tiles() -> Iterator[Tile]:
    """Yield the tiles to try."""
    for rows, outputs, inputs, splits, warps, stages in itertools.product(
        (16, 64, 128), (32, 64, 128), (64, 128), (1, 2, 4, 8), (4,), (3, 5)
    ):
        if rows * outputs <= 128 * 128 and (rows + outputs) * inputs * 2 * stages <= 200_000:
            yield Tile(rows, outputs, inputs, splits, warps, stages)


def bandwidth() -> float:
    """Return bytes a second of a large copy, read and written."""
    source = torch.empty(_COPY, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    milliseconds: float = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * _COPY / (milliseconds / 1e3)


def time(kernels: TritonLinear, shape: tuple[int, int], rows: int, tile: Tile) -> tuple[float, torch.Tensor]:
    """Return the microseconds of a product and its result; several weights take turns, so that none is cached."""
    outputs, inputs = shape
    copies = max(1, min(8, (256 << 20) // (outputs * inputs * 2)))
    generator = torch.Generator("cuda").manual_seed(1)
    weights = [
        kernels.pack_linear(torch.randn(shape, device="cuda", generator=generator).bfloat16()) for _ in range(copies)
    ]
    x = torch.randn((rows, inputs), device="cuda", generator=generator).bfloat16()
    out = torch.empty((rows, outputs), device="cuda")
    linear.tile_of = lambda *_: tile
    kernels.linear(x, weights[0], out)
    result = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            kernels.linear(x, weight, out)
    milliseconds = triton.testing.do_bench(graph.replay, warmup=2, rep=8, return_mode="median")
    return milliseconds * 1e3 / copies, result


def main() -> None:
    """Print the best tiles of each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="8b")
    parser.add_argument("--best", type=int, default=6, help="tiles to print of each shape")
    arguments = parser.parse_args()
    kernels, speed = TritonLinear(torch.device("cuda")), bandwidth()
    print(f"{torch.cuda.get_device_name()}: {speed / 1e12:.2f} TB/s")
    for shape in SHAPES[arguments.model]:
        found: list[tuple[float, Tile]] = []
        first: dict[int, torch.Tensor] = {}
        differs: list[Tile] = []
        for tile in tiles():
            if tile.splits > 1 and -(-shape[0] // tile.outputs) * tile.splits > 600:
                continue
            try:
                took, result = time(kernels, shape, 1, tile)
            except Exception as error:
                print("failed:", tile, type(error).__name__, str(error)[:80])
                continue
            found.append((took, tile))
            if not torch.equal(first.setdefault(tile.splits, result), result):
                differs.append(tile)
        found.sort(key=lambda one: one[0])
        print(f"\n{shape}: {len(differs)} of {len(found)} tiles have other bits than the first of their splits")
        chosen = found[: arguments.best] + [one for one in found if one[1].rows > 16][: arguments.best]
        for took, tile in chosen:
            share = shape[0] * shape[1] * 2 / (took / 1e6) / speed
            more = [f"{time(kernels, shape, rows, tile)[0]:7.1f}" for rows in ROWS[1:]]
            same = "" if tile not in differs else "other bits"
            print(f"{took:7.1f} us {share:4.0%} | {' '.join(more)} | {tile} {same}")


if __name__ == "__main__":
    main()
