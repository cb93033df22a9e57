"""A draft model in today's words of vLLM's documents: their code with another import and other models."""

from parlay import LLM, SamplingParams


def main() -> None:
    prompts = ["def read_lines(path):\n    "]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(
        model="tiny-code",
        tensor_parallel_size=1,
        speculative_config={
            "model": "tiny-code-draft",
            "num_speculative_tokens": 5,
            "method": "draft_model",
        },
    )
    for output in llm.generate(prompts, sampling_params):
        print(f"{output.prompt!r} goes on as {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
