"""N-grams in today's words of vLLM's documents: their code with another import and another model."""

from parlay import LLM, SamplingParams


def main() -> None:
    prompts = ["for name in names:\n    print(name)\nfor name in names:\n"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(
        model="tiny-code",
        tensor_parallel_size=1,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 5,
            "prompt_lookup_max": 4,
        },
    )
    for output in llm.generate(prompts, sampling_params):
        print(f"{output.prompt!r} goes on as {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
