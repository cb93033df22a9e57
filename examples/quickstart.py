"""Complete a few prompts with the embedded model, drafting from n-grams, and see what speculation did."""

from parlay import LLM, SamplingParams


def main() -> None:
    llm = LLM("tiny-code", speculative_config={"method": "ngram", "num_speculative_tokens": 5})
    prompts = [
        "def fibonacci(n):\n",
        "import json\n\ndef load(path):\n",
        "class Point:\n    def __init__(self, x, y):\n",
    ]
    params = SamplingParams(temperature=0.0, max_tokens=48)
    for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
        completion = output.outputs[0]
        metrics = completion.metrics
        print(prompt + completion.text)
        print(
            f"--- {metrics.emitted} tokens in {metrics.steps} steps ({metrics.acceptance_length:.2f} a step; "
            f"{metrics.accepted} of {metrics.drafted} draft tokens accepted)\n"
        )


if __name__ == "__main__":
    main()
