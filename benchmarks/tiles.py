"""Times the GPU's matrix products under many tiles, for `kernels/triton/linear.py`: `python -m benchmarks.tiles`.

For each shape of a model's weights and each tile it prints microseconds at several numbers of rows, the share of the
memory's bandwidth that one row reaches, and cuBLAS's times. Tiles whose bits differ from the others' are named: a
product has the same bits for any number of rows only if there is none.
"""

import argparse
import itertools
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch
import triton.testing
from torch import Tensor

from parlay.kernels.linear import LinearWeight
from parlay.kernels.triton import linear
from parlay.kernels.triton.linear import Tile, TritonLinear
from parlay.numerics.selfcheck import random_blocks
from parlay.weights.kinds import BY_NAME

SHAPES = {
    "1b": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048)),
    "8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
}
_COPY = 1 << 30  # bytes
_CACHED = 256 << 20  # bytes of weights that take turns, so that none lies in a cache
_FEW, _MANY = (1, 16, 64), (512, 2048)  # rows
_SPLITS = (1, 2, 4, 8, 16)
_MOST = 1200  # programs that are worth a try

Choice = tuple[int, Tile, int]  # rows, a tile, splits


def tiles_of_few() -> list[Tile]:
    """Return tiles to try with few rows, of which each number is to have its own width."""
    shapes = (64, 128, 4, 3), (64, 128, 4, 5), (64, 64, 4, 5), (64, 64, 4, 8), (128, 128, 4, 3), (128, 64, 4, 5)
    return [Tile(16, *shape) for shape in shapes]


def tiles_of_many() -> list[Tile]:
    """Return tiles to try with many rows."""
    shapes = (128, 128, 64, 8, 4), (256, 128, 64, 8, 4), (128, 256, 64, 8, 4), (64, 128, 64, 4, 6)
    return [Tile(*shape) for shape in shapes]


def bandwidth() -> float:
    """Return bytes per second of a large copy, read and written."""
    source = torch.empty(_COPY, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    milliseconds: float = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * _COPY / (milliseconds / 1e3)


def weights_of(kernels: TritonLinear, shape: tuple[int, int], kind: str) -> list[LinearWeight]:
    """Return as many random weights as no cache holds."""
    outputs, inputs = shape
    if kind != "bf16":
        blocks = random_blocks(BY_NAME[kind], min(outputs, 8192), inputs, seed=1)
        return [kernels.pack_linear(blocks) for _ in range(max(1, _CACHED * 2 // (outputs * inputs)))]
    generator = torch.Generator("cuda").manual_seed(1)
    copies = max(1, min(16, _CACHED // (outputs * inputs * 2)))
    made = [torch.randn(shape, device="cuda", generator=generator).bfloat16() for _ in range(copies)]
    return [kernels.pack_linear(one) for one in made]


def rows_of(rows: int, inputs: int) -> Tensor:
    """Return rows of numbers, the first of which are the same for any number."""
    generator = torch.Generator("cuda").manual_seed(2)
    return torch.randn((max(_MANY), inputs), device="cuda", generator=generator)[:rows].bfloat16().contiguous()


def time(call: Callable[[int], object], turns: int) -> float:
    """Return the microseconds of a call, of which so many take turns in a recording."""
    call(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(turns):
            call(turn)
    milliseconds: float = triton.testing.do_bench(graph.replay, warmup=2, rep=8, return_mode="median")
    return milliseconds * 1e3 / turns


def product(kernels: TritonLinear, weights: Sequence[LinearWeight], choice: Choice) -> tuple[float, Tensor]:
    """Return the microseconds of a product, and its first row."""
    rows, tile, splits = choice
    use(tile, splits)
    x = rows_of(rows, weights[0].inputs)
    out = torch.empty((rows, weights[0].outputs), device="cuda", dtype=torch.bfloat16)
    took = time(lambda turn: kernels.linear(x, weights[turn], out), len(weights))
    kernels.linear(x, weights[0], out)
    return took, out[0].clone()


def use(tile: Tile, splits: int) -> None:
    """Have all products use a tile."""
    linear.tile_of, linear.tile_of_many, linear.splits_of = lambda *_: tile, lambda *_: tile, lambda *_: splits


def compile_one(kind: str, choice: Choice) -> None:
    """Compile a product into Triton's cache."""
    kernels = TritonLinear(torch.device("cuda"))
    rows, tile, splits = choice
    use(tile, splits)
    blocks = torch.zeros((256, 1024), dtype=torch.bfloat16)
    weight = kernels.pack_linear(blocks if kind == "bf16" else random_blocks(BY_NAME[kind], 256, 1024, seed=1))
    kernels.linear(rows_of(rows, 1024), weight, torch.empty((rows, 256), device="cuda"))


def main() -> None:
    """Print the best tiles of each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="8b")
    parser.add_argument("--kind", default="bf16", help="bf16, or a kind of blocks such as Q4_K")
    parser.add_argument("--best", type=int, default=4, help="tiles to print of each shape")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    arguments = parser.parse_args()
    few = [(rows, replaced(tile, rows)) for tile in tiles_of_few() for rows in _FEW]
    many = [(max(_MANY), tile) for tile in tiles_of_many()]
    choices = [(rows, tile, splits) for rows, tile in few for splits in (1, 2)] + [(r, tile, 2) for r, tile in many]
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(compile_one, arguments.kind, choice) for choice in choices]:
            if (error := done.exception()) is not None:
                print("failed:", type(error).__name__, str(error)[:100])
    kernels, speed = TritonLinear(torch.device("cuda")), bandwidth()
    print(f"{torch.cuda.get_device_name()}: {speed / 1e12:.2f} TB/s", flush=True)
    for shape in SHAPES[arguments.model]:
        print(f"\n{shape}", flush=True)
        measure(kernels, weights_of(kernels, shape, arguments.kind), speed, arguments.best)


def measure(kernels: TritonLinear, weights: Sequence[LinearWeight], speed: float, best: int) -> None:
    """Print the times of one shape's tiles."""
    own, first = [weight.parts[0].tensor for weight in weights], dict[int, Tensor]()
    if own[0].dtype is torch.bfloat16:
        print("  cuBLAS    ", " ".join(f"{cublas(own, rows):8.1f}" for rows in (*_FEW, *_MANY)), flush=True)

    def attempt(choice: Choice) -> float:
        try:
            took, row = product(kernels, weights, choice)
        except Exception as error:
            print("failed:", choice, type(error).__name__, str(error)[:80])
            return float("inf")
        if not torch.equal(first.setdefault(choice[2], row), row):
            print("  other bits:", choice)
        return took

    tried: list[tuple[float, Choice]] = []
    for tile, splits in itertools.product(tiles_of_few(), _SPLITS):
        if -(-weights[0].outputs // tile.outputs) * splits <= _MOST:
            tried.append((attempt((1, tile, splits)), (1, tile, splits)))
    tried.sort(key=lambda one: one[0])
    for took, (_, tile, splits) in tried[:best]:
        more = [attempt((rows, replaced(tile, rows), splits)) for rows in _FEW[1:]]
        share = sum(part.tensor.nbytes for part in weights[0].parts) / (took / 1e6) / speed
        print(f"  {took:7.1f} us {share:4.0%} |", " ".join(f"{each:8.1f}" for each in more), "|", tile, splits)
    splits = tried[0][1][2]
    for tile in tiles_of_many():
        more = [attempt((rows, tile, splits)) for rows in _MANY]
        print("  many rows:", " ".join(f"{each:8.1f}" for each in more), "|", tile, splits, flush=True)


def cublas(weights: Sequence[Tensor], rows: int) -> float:
    """Return the microseconds of torch's product."""
    x = rows_of(rows, weights[0].shape[1])
    return time(lambda turn: x @ weights[turn].T, len(weights))


def replaced(tile: Tile, rows: int) -> Tile:
    """Return a tile of as many rows."""
    return Tile(max(16, rows), tile.outputs, tile.inputs, tile.warps, tile.stages)


if __name__ == "__main__":
    main()
