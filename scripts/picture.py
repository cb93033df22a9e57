"""The README's picture: an answer in the colours of who drafted each token, as SVG.

`python scripts/picture.py` writes answer.svg with SmolLM2 and its EAGLE-3 head; all three have other names by flags.
The README's own is written with `--output docs/figures/answer.svg`. The text is the model's own whatever is drafted,
the colours depend on what pays on the machine.
"""

import argparse
import re
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from parlay import LLM, SamplingParams
from parlay.cli.colour import Colourer, Palette

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "Write a Python function that returns the n-th Fibonacci number, and explain it in two sentences."
# Fonts that would be fetched from elsewhere, where the viewer's own do; and comments.
LEFT_OUT = re.compile(r"@font-face \{.*?\}|<!--.*?-->", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--head", default=str(ROOT / "heads" / "smollm2-eagle3"))
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--output", type=Path, default=Path("answer.svg"))
    options = parser.parse_args()
    llm = LLM(options.model, max_model_len=1024, speculative_config={"method": "auto", "model": options.head})
    params = SamplingParams(temperature=0, max_tokens=160)
    llm.chat([{"role": "user", "content": "Name five rivers."}], params)  # costs are learnt from this
    answer = llm.chat([{"role": "user", "content": options.question}], params)[0].outputs[0]
    palette = Palette(sorted({source for source in answer.sources if source != "target"}))
    text = Colourer(llm.engine.codec.tokenizer, palette).update(answer.token_ids, answer.sources, answer.text)
    console = Console(record=True, width=100, highlight=False)
    console.print(palette.legend())
    console.print(Panel(Text.assemble((options.question, "dim"), "\n\n", text)))
    console.print(
        f"{len(answer.token_ids)} tokens in {answer.metrics.steps} steps of {Path(llm.model_name).name}", style="dim"
    )
    options.output.write_text(LEFT_OUT.sub("", console.export_svg(title="parlay")))


if __name__ == "__main__":
    main()
