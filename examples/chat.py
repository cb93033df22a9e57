"""A conversation of two turns with a chat model: `python examples/chat.py [MODEL]`, smollm2 unless said."""

import sys
from dataclasses import replace
from typing import Any

from parlay import LLM


def main() -> None:
    llm = LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    # What its authors recommend, with room for a longer answer.
    params = replace(llm.get_default_sampling_params(), max_tokens=200)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You answer in one or two sentences."}]
    for question in ("Name five rivers.", "Which of them is the longest?"):
        messages.append({"role": "user", "content": question})
        (output,) = llm.chat(messages, params)
        answer = output.outputs[0].text
        print(f"> {question}\n{answer}\n")
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
