"""Times decoding on a GPU: `python -m benchmarks.gpu --model build/random-8b --batch-sizes 1 8 32`.

A step is timed as the difference of two runs, of many tokens and of one, so that prompts do not count. The floor is
what the bytes of the weights that a step reads take at the bandwidth that a large copy reaches.
"""

import argparse
import cProfile
import io
import json
import pstats
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.tiles import bandwidth
from parlay import LLM, SamplingParams
from parlay.checkpoints.find import find_model

_PROMPT = 64  # tokens


def generate(llm: LLM, batch: int, tokens: int, temperature: float) -> tuple[float, list[tuple[int, ...]]]:
    """Return the seconds that so many requests take, and their tokens."""
    prompts = [[2 + (i * 131 + j * 17) % 4000 for j in range(_PROMPT)] for i in range(batch)]
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=tokens, ignore_eos=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began, [tuple(one.outputs[0].token_ids) for one in answers]


def read_bytes(model: Path) -> int:
    """Return the bytes of weights that a step reads: all of a file, but for an embedding that is no output layer."""
    if model.is_file():
        return model.stat().st_size
    total, embedding = 0, 0
    tied = json.loads((model / "config.json").read_text()).get("tie_word_embeddings")
    for file in model.glob("*.safetensors"):
        total += file.stat().st_size
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - the file is no mapping
                if name.endswith("embed_tokens.weight") and not tied:
                    part = tensors.get_tensor(name)
                    embedding += part.nbytes
    return total - embedding


def profile(llm: LLM, batch: int, tokens: int) -> str:
    """Return a table of what the GPU and Python did in a run of so many tokens."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        generate(llm, batch, tokens, 0.0)
    events = found.key_averages()
    python = cProfile.Profile()
    python.runcall(generate, llm, batch, tokens, 0.0)
    text = io.StringIO()
    pstats.Stats(python, stream=text).sort_stats("tottime").print_stats(28)
    device = events.table(sort_by="self_cuda_time_total", row_limit=24, max_name_column_width=40)
    return f"{device}\n{text.getvalue()}"


def main() -> None:
    """Print a line for each method, batch size and temperature."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--methods", nargs="+", default=["none"], help="names, or JSON of a speculative_config")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print what each method's time goes to as well")
    arguments = parser.parse_args()
    speed = bandwidth()
    print(f"{torch.cuda.get_device_name()}, {speed / 1e12:.2f} TB/s", flush=True)
    known: dict[tuple[int, float], tuple[list[tuple[int, ...]], float]] = {}
    for method in arguments.methods:
        config: Any = json.loads(method) if method.startswith("{") else {"method": method}
        before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        llm = LLM(arguments.model, device="cuda", max_model_len=2048, speculative_config=config)
        loaded = time.perf_counter() - began
        if not known:
            floor = read_bytes(find_model(arguments.model)) / speed * 1e3
            print(f"loaded in {loaded:.1f} s, floor {floor:.2f} ms", flush=True)
        for batch in arguments.batch_sizes:
            for temperature in arguments.temperatures:
                for tokens in (arguments.tokens, 1):  # recordings, also of prompts that the cache has
                    generate(llm, batch, tokens, temperature)
                steps = []
                for _ in range(arguments.repeats):
                    short, _ = generate(llm, batch, 1, temperature)
                    long, found = generate(llm, batch, arguments.tokens, temperature)
                    steps.append((long - short) / (arguments.tokens - 1) * 1e3)
                took = statistics.median(steps)
                expected, plain = known.setdefault((batch, temperature), (found, took))
                same = "same tokens" if found == expected else "OTHER TOKENS"
                print(
                    f"{method[:40]:40} batch {batch:3} T {temperature}: {took:7.3f} ms a token of each request, "
                    f"{batch / took * 1e3:7.0f} tokens/s, {plain / took:.2f}x, {same}; "
                    f"first token {short * 1e3:.1f} ms",
                    flush=True,
                )
        if arguments.profile:
            print(profile(llm, arguments.batch_sizes[0], arguments.tokens), flush=True)
            print(profile(llm, arguments.batch_sizes[-1], 1), flush=True)
        llm.engine.close()
        del llm
        torch.cuda.empty_cache()
        print(f"memory left behind: {(torch.cuda.memory_allocated() - before) >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
