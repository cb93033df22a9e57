"""Several completions at once under asyncio; leaving one early aborts it and costs the others nothing."""

import asyncio

from parlay import AsyncLLM, SamplingParams


async def complete(llm: AsyncLLM, prompt: str, lines: int) -> str:
    """Return a completion, cut after some lines: nothing beyond them is computed."""
    params = SamplingParams(temperature=0.0, max_tokens=64)
    text = ""
    async for output in llm.generate(prompt, params):
        text = output.outputs[0].text
        if text.count("\n") >= lines:
            break
    return "".join(text.splitlines(keepends=True)[:lines])


async def run() -> None:
    async with AsyncLLM("tiny-code", speculative_config={"method": "ngram"}) as llm:
        prompts = ["def add(a, b):\n", "class Stack:\n", "import os\n"]
        texts = await asyncio.gather(*(complete(llm, prompt, lines=3) for prompt in prompts))
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"{prompt}{text}---")


def main() -> None:
    asyncio.run(run())


if __name__ == "__main__":
    main()
