"""instructor and LlamaIndex against the server at PARLAY_URL, in an environment of their own."""

import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import instructor
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openai import OpenAI
from pydantic import UUID4, Base64Bytes, BaseModel, Field, IPvAnyAddress, Json, SecretStr

URL = os.environ["PARLAY_URL"] + "/v1"
ASKED = {"model": "tiny-code", "max_tokens": 400, "temperature": 0, "seed": 1}
MESSAGES = [{"role": "user", "content": "Fill it in."}]
Word = Annotated[str, Field(max_length=3)]


class Plain(BaseModel):
    kind: Literal["a", "b"]
    count: Annotated[int, Field(ge=0, le=9)]


class Names(BaseModel):
    names: Annotated[set[Literal["a", "b"]], Field(max_length=2)]


class Identified(BaseModel):
    id: UUID
    other: UUID4 | None = None


class Odd(BaseModel):
    secret: Annotated[SecretStr, Field(max_length=3)]
    key: Literal["x"] = Field(json_schema_extra={"example": "x", "ui:widget": "text", "nullable": False})


class Numbers(BaseModel):
    price: Annotated[float, Field(ge=0, le=5)]
    by_name: dict[Literal["a", "b"], Literal[1, 2]]


class Nested(BaseModel):
    inner: Plain
    several: Annotated[list[Plain], Field(max_length=2)]


class Refused(BaseModel):
    """Types whose values a random model hardly ever fills in right: it is enough that they are served."""

    address: IPvAnyAddress
    price: Decimal
    path: Path
    data: Annotated[Base64Bytes, Field(max_length=4)]
    text: Json


MODELS = (Plain, Names, Identified, Odd, Numbers, Nested)
MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)  # of others the schema stands in the prompt alone


def check_instructor(client: OpenAI) -> Iterator[str]:
    for mode in MODES:
        patched = instructor.from_openai(client, mode=mode)
        for model in MODELS:
            made = patched.chat.completions.create(response_model=model, messages=MESSAGES, max_retries=0, **ASKED)
            assert isinstance(made, model)
            yield f"instructor {mode} {model.__name__}"
    parameters = {"type": "function", "function": {"name": "f", "parameters": Refused.model_json_schema()}}
    named = {"type": "function", "function": {"name": "f"}}
    answer = client.chat.completions.create(messages=MESSAGES, tools=[parameters], tool_choice=named, **ASKED)
    assert answer.choices[0].message.tool_calls
    yield "instructor's form of other types"


def check_llama_index() -> Iterator[str]:
    llm = OpenAILike(
        model="tiny-code",
        api_base=URL,
        api_key="any",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=400,
        max_retries=0,
    )
    for model in (Plain, Names, Identified, Nested):
        made = llm.as_structured_llm(model).chat([ChatMessage(role="user", content="Fill it in.")])
        assert isinstance(made.raw, model)
        yield f"LlamaIndex {model.__name__}"

    def weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    tool = FunctionTool.from_defaults(weather)
    history = [ChatMessage(role="user", content="How is the weather in Paris?")]
    for _ in range(2):
        called = llm.chat_with_tools([tool], chat_history=history, tool_required=True)
        calls = llm.get_tool_calls_from_response(called)
        assert calls
        assert all(call.tool_name == "weather" for call in calls)
        history.append(called.message)
        history += [
            ChatMessage(
                role="tool", content=weather(**call.tool_kwargs), additional_kwargs={"tool_call_id": call.tool_id}
            )
            for call in calls
        ]
    assert llm.chat(history).message.content
    pieces = list(llm.stream_chat(history))
    assert pieces[-1].message.content
    yield "LlamaIndex tools"


if __name__ == "__main__":
    with OpenAI(base_url=URL, api_key="any", max_retries=0, timeout=60) as own:
        for done in (*check_instructor(own), *check_llama_index()):
            print(done)
