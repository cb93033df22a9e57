"""A draft model in the keywords of vLLM 0.6; a warning for each says what to write now."""

from parlay import LLM, SamplingParams


def main() -> None:
    prompts = ["def read_lines(path):\n    "]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(
        model="tiny-code",
        tensor_parallel_size=1,
        speculative_model="tiny-code-draft",
        speculative_draft_tensor_parallel_size=1,
        num_speculative_tokens=5,
        use_v2_block_manager=True,
    )
    for output in llm.generate(prompts, sampling_params):
        print(f"{output.prompt!r} goes on as {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
