"""A file after an edit is mostly the file before it: given as a prediction, it is written in a few steps."""

from parlay import LLM, SamplingParams


def main() -> None:
    llm = LLM("tiny-code", max_model_len=512)
    prompt = "def area(width, height):\n"
    before = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=96))[0].outputs[0].text
    edited = before[:120] + "something else" + before[140:]
    for prediction in (None, before, edited):
        params = SamplingParams(temperature=0.0, max_tokens=96, prediction=prediction, return_rejected=True)
        (one,) = llm.generate(prompt, params)[0].outputs
        assert one.text == before, "what is predicted changes nothing"
        assert one.rejected is not None
        print(
            f"{one.metrics.steps} steps, {one.metrics.accepted} draft tokens accepted, {len(one.rejected)} rejected"
        )


if __name__ == "__main__":
    main()
