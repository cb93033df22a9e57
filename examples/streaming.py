"""Print a completion as it grows: what one step accepts arrives at once."""

from parlay import LLM, SamplingParams


def main() -> None:
    llm = LLM("tiny-code", speculative_config={"method": "draft_model", "model": "tiny-code-draft"})
    prompt = "class Queue:\n    def __init__(self):\n"
    shown = ""
    print(prompt, end="")
    for output in llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=64, stop="\n\n\n")):
        text = output.outputs[0].text
        print(text[len(shown) :], end="", flush=True)
        shown = text
    print()


if __name__ == "__main__":
    main()
