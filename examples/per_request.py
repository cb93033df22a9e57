"""Requests of one batch speculate as they like; one that cannot be served costs the others nothing."""

from parlay import LLM, SamplingParams


def main() -> None:
    llm = LLM("tiny-code", speculative_config={"method": "ngram"}, max_model_len=512)
    text = "for name in names:\n    print(name)\n"
    wishes = [None, {"enabled": False}, {"num_speculative_tokens": 2}, None]
    params = [SamplingParams(temperature=0.0, max_tokens=32, speculative=wish) for wish in wishes]
    outputs = llm.generate([text, text, text, ""], params)
    for wish, output in zip(wishes, outputs, strict=True):
        if output.error:
            print(f"refused: {output.error}")
        else:
            print(
                f"{wish}: {output.metrics.drafted} draft tokens, "
                f"{output.metrics.acceptance_length:.2f} tokens per step"
            )


if __name__ == "__main__":
    main()
