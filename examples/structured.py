"""Answers of a given form: a JSON schema, a regular expression, one of some choices, a grammar."""

import json

from parlay import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "function": {"enum": ["get_weather", "send_message"]},
        "argument": {"type": "string", "pattern": "^[a-z_]{1,12}$"},
        "confidence": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "required": ["function", "argument", "confidence"],
    "additionalProperties": False,
}
FORMS = {
    "JSON schema": StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    "regex": StructuredOutputsParams(regex=r"[a-z_]{3,12}\(\) -> (int|str)"),
    "choice": StructuredOutputsParams(choice=["positive", "negative", "neither"]),
    "EBNF": StructuredOutputsParams(grammar='root ::= term (" + " term)?\nterm ::= [a-z] | [0-9]{1,2}\n'),
}


def main() -> None:
    llm = LLM("tiny-code", speculative_config={"method": "ngram"})
    params = [SamplingParams(temperature=0.7, seed=1, max_tokens=48, structured_outputs=f) for f in FORMS.values()]
    for name, output in zip(FORMS, llm.generate(["# The answer:\n"] * len(FORMS), params), strict=True):
        answer = output.outputs[0]
        print(f"{name}: {answer.text!r}, {answer.sources.count('grammar')} of {len(answer.token_ids)} tokens forced")
        if name == "JSON schema":
            print(f"  parsed: {json.loads(answer.text)}")


if __name__ == "__main__":
    main()
