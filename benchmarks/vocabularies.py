"""What is accepted of a draft model with another vocabulary than its target's, by each way in which it may draft.

Chains of a fixed length behind the embedded code or the prompts of a file, so that figures depend on no clock.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import start
from parlay import LLM, SamplingParams
from parlay.bench.prompts import read_texts
from parlay.bench.workloads import load_prefixes
from parlay.checkpoints.find import ASSETS
from parlay.cli.flags import add_model
from parlay.cli.report import Columns, count, progress, report
from parlay.text.tokenizer import TextCodec

WAYS = ("intersection", "text")
TEMPERATURES = (0.0, 0.8)
_COLUMNS: Columns = {
    "vocabulary": ("vocabulary", "{}"),
    "temperature": ("temperature", "{:g}"),
    "acceptance_rate": ("accepted of verified", "{:.1%}"),
    "acceptance_length": ("tokens per step", "{:.2f}"),
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "tiny-code")
    parser.add_argument("--draft", required=True, help="the draft model")
    parser.add_argument("--ways", nargs="+", default=WAYS, help="values of `vocabulary` (default: %(default)s)")
    parser.add_argument("--prompts", type=Path, help="JSON lines as of `parlay bench methods` (default: code)")
    parser.add_argument("--count", type=count, default=16, help="how many prompts (default: 16)")
    parser.add_argument("--max-tokens", type=count, default=64, help="tokens after each (default: 64)")
    parser.add_argument("--num-speculative-tokens", type=count, default=4, help="tokens per draft (default: 4)")


def _run(options: argparse.Namespace) -> int:
    texts = _texts(options.prompts, options.count)
    rows = []
    with progress() as tick:
        for way in options.ways:
            tick(way)
            rows += measure(options, way, texts)
    report(options, rows, _COLUMNS)
    return 0


def _texts(prompts: Path | None, count: int) -> list[str]:
    if prompts is not None:
        return read_texts(prompts)[:count]
    codec = TextCodec(ASSETS / "tiny-code")
    return [codec.decode(prefix.tokens) for prefix in load_prefixes(count)]


def measure(options: argparse.Namespace, way: str, texts: list[str]) -> list[dict[str, Any]]:
    """Return what was accepted at each temperature.

    Raises:
        ParlayError: the models do not fit.
    """
    speculative = {
        "method": "draft_model",
        "model": options.draft,
        "vocabulary": way,
        "num_speculative_tokens": options.num_speculative_tokens,
        "lengths": "fixed",
        "tree": "off",
    }
    llm = LLM(options.model, max_model_len=1024, max_num_seqs=8, speculative_config=speculative)
    rows = []
    for temperature in TEMPERATURES:
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=options.max_tokens, ignore_eos=True)
        if options.prompts is not None and llm.get_tokenizer().chat_template is not None:
            asked = llm.chat([[{"role": "user", "content": text}] for text in texts], params, use_tqdm=False)
        else:
            asked = llm.generate(texts, params, use_tqdm=False)
        found = [answer.outputs[0].metrics for answer in asked]
        tokens = sum(len(answer.outputs[0].token_ids) for answer in asked)
        accepted, drafted = sum(one.accepted for one in found), sum(one.drafted for one in found)
        rows.append(
            {
                "model": options.model,
                "draft": options.draft,
                "vocabulary": way,
                "temperature": temperature,
                "acceptance_rate": accepted / max(drafted, 1),
                "acceptance_length": tokens / sum(one.steps for one in found),
                "tokens": tokens,
            }
        )
    llm.engine.close()
    return rows


main = partial(start, "vocabularies", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
