"""The first promise: speculation never changes a token, at any temperature, alone or in a batch."""

from parlay import LLM, SamplingParams

PROMPTS = [f"def function_{i}(values):\n" for i in range(8)]


def main() -> None:
    plain = LLM("tiny-code", speculative_config=None)
    speculating = LLM(
        "tiny-code",
        speculative_config={"method": "draft_model", "model": "tiny-code-draft", "num_speculative_tokens": 4},
    )
    for temperature in (0.0, 0.8, 1.3):
        params = SamplingParams(temperature=temperature, max_tokens=32, seed=7)
        alone = [plain.generate(prompt, params)[0].outputs[0].token_ids for prompt in PROMPTS]
        batched = [output.outputs[0].token_ids for output in speculating.generate(PROMPTS, params)]
        assert alone == batched
        print(f"temperature {temperature}: {sum(map(len, alone))} tokens, all the same")


if __name__ == "__main__":
    main()
