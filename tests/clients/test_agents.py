"""Frameworks for agents, unchanged: loops of three turns with a tool, streaming and not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from served import Served

# What the frameworks warn of is none of ours.
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
pytest_plugins = ["servers"]

City = Literal["Paris", "Rome"]
ASKED = {"temperature": 0, "max_tokens": 40}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No framework asks anybody else."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


@pytest.fixture
def url(server: Served) -> str:
    return server.url + "/v1"


@asynccontextmanager
async def openai_model(url: str, protocol: str) -> AsyncIterator[Any]:
    from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        kind = OpenAIResponsesModel if protocol == "responses" else OpenAIChatCompletionsModel
        yield kind("tiny-code", client)


def weather_noting(asked: list[str]) -> Callable[[City], str]:
    def weather(city: City) -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny"

    return weather


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("protocol", ["responses", "chat"])
def test_openai_agents(url: str, protocol: str, streamed: bool) -> None:
    from agents import Agent, ModelSettings, Runner, function_tool

    asked: list[str] = []

    async def main() -> Any:
        async with openai_model(url, protocol) as model:
            agent = Agent(
                name="guide",
                instructions="Answer in words.",
                model=model,
                tools=[function_tool(weather_noting(asked))],
                # After a call the choice is the model's own again. An answer that is cut off would be an error.
                model_settings=ModelSettings(
                    tool_choice="required",
                    parallel_tool_calls=False,
                    temperature=1.0,
                    max_tokens=400,
                    extra_body={"seed": 3, "stop": [" ", "\n"]},
                ),
            )
            turns: Any = "How is the weather in Paris?"
            for _ in range(2):
                if streamed:
                    result = Runner.run_streamed(agent, turns)
                    events = [event.type async for event in result.stream_events()]
                    assert "raw_response_event" in events
                else:
                    result = await Runner.run(agent, turns)
                turns = [*result.to_input_list(), {"role": "user", "content": "And in Rome?"}]
            return result

    result = asyncio.run(main())
    assert len(asked) == 2
    assert set(asked) <= {"Paris", "Rome"}
    assert isinstance(result.final_output, str)


@pytest.mark.parametrize("streamed", [False, True])
def test_langchain(url: str, streamed: bool) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def weather(city: City) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    model = ChatOpenAI(model="tiny-code", base_url=url, api_key="any", max_retries=0, **ASKED)  # type: ignore[arg-type]
    bound = model.bind_tools([weather], tool_choice="required", parallel_tool_calls=False)

    def ask(runnable: Any, messages: list[Any]) -> AIMessage:
        if not streamed:
            return runnable.invoke(messages)
        chunks = list(runnable.stream(messages))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole = whole + chunk
        return whole

    messages: list[Any] = [HumanMessage("How is the weather in Paris?")]
    for question in ("And in Rome?", "Thanks."):
        called = ask(bound, messages)
        (call,) = called.tool_calls
        assert call["name"] == "weather"
        messages += [called, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
        answered = ask(model, messages)
        assert answered.text
        messages += [answered, HumanMessage(question)]


@pytest.mark.parametrize("streamed", [False, True])
def test_litellm(url: str, streamed: bool) -> None:
    import litellm

    tools = [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather in a city.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"enum": ["Paris", "Rome"]}},
                    "required": ["city"],
                },
            },
        }
    ]

    def ask(messages: list[Any], **more: Any) -> Any:
        options = {"model": "openai/tiny-code", "api_base": url, "api_key": "any", **ASKED, **more}
        if not streamed:
            return litellm.completion(messages=messages, **options).choices[0].message
        chunks = list(litellm.completion(messages=messages, stream=True, **options))
        return litellm.stream_chunk_builder(chunks).choices[0].message

    messages: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    for question in ("And in Rome?", "Thanks."):
        called = ask(messages, tools=tools, tool_choice="required", parallel_tool_calls=False)
        (call,) = called.tool_calls
        assert call.function.name == "weather"
        messages += [called.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        answered = ask(messages, tools=tools)
        assert answered.content
        messages += [answered.model_dump(), {"role": "user", "content": question}]


class Report(BaseModel):
    """What an agent ends with."""

    city: City
    days: Annotated[int, Field(ge=1, le=3)]


# A random model seldom calls by itself: the beginning of a call, or of a form, is made likely.
def begins(text: str) -> dict[str, Any]:
    from parlay import LLM

    return {"logit_bias": {str(LLM("tiny-code").engine.codec.encode(text)[0]): 40}}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("protocol", ["responses", "chat"])
def test_openai_agents_with_a_form_of_the_last_answer(url: str, protocol: str, streamed: bool) -> None:
    """The tool is called although the answer has a form; without a call the answer has it."""
    from agents import Agent, ModelSettings, Runner, function_tool

    asked: list[str] = []

    async def main() -> Any:
        async with openai_model(url, protocol) as model:
            agent = Agent(
                name="guide",
                model=model,
                tools=[function_tool(weather_noting(asked))],
                output_type=Report,
                model_settings=ModelSettings(  # the choice after the first call is the model's own
                    tool_choice="required",
                    parallel_tool_calls=False,
                    temperature=1.0,
                    max_tokens=400,
                    store=True,
                    extra_body=begins("{"),
                ),
            )
            if streamed:
                result = Runner.run_streamed(agent, "How is the weather in Paris?")
                async for _ in result.stream_events():
                    pass
                return result
            return await Runner.run(agent, "How is the weather in Paris?")

    result = asyncio.run(main())
    assert asked, "the tool was called"
    assert isinstance(result.final_output, Report)


@asynccontextmanager
async def pydantic_model(url: str, protocol: str) -> AsyncIterator[Any]:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind: Any = OpenAIResponsesModel if protocol == "responses" else OpenAIChatModel
    async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield kind("tiny-code", provider=OpenAIProvider(openai_client=client))


@pytest.mark.parametrize("protocol", ["responses", "chat"])
@pytest.mark.parametrize("output", ["tool", "native", "set"])
def test_pydantic_ai(url: str, protocol: str, output: str) -> None:
    from pydantic_ai import Agent, NativeOutput, ToolOutput

    kinds: dict[str, Any] = {"tool": ToolOutput(Report), "native": NativeOutput(Report), "set": ToolOutput(set[City])}

    async def main() -> Any:
        async with pydantic_model(url, protocol) as model:
            settings: Any = {"temperature": 1.0, "max_tokens": 400, "seed": 3}
            agent: Any = Agent(model, output_type=kinds[output], model_settings=settings, retries=3)
            return await agent.run("How is the weather in Paris?")

    assert isinstance(asyncio.run(main()).output, set if output == "set" else Report)


@pytest.mark.parametrize("protocol", ["responses", "chat"])
def test_pydantic_ai_calls_a_tool_beside_a_form(url: str, protocol: str) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.exceptions import UsageLimitExceeded
    from pydantic_ai.usage import UsageLimits

    asked: list[str] = []

    async def main(first: str, **limits: Any) -> Any:
        async with pydantic_model(url, protocol) as model:
            agent: Any = Agent(model, output_type=NativeOutput(Report))

            @agent.tool_plain
            def weather(city: City) -> str:
                """The weather in a city."""
                asked.append(city)
                return "sunny"

            settings = {"temperature": 0.0, "max_tokens": 400, "extra_body": begins(first)}
            return await agent.run("Paris?", model_settings=settings, **limits)

    with pytest.raises(UsageLimitExceeded):  # it calls for ever
        asyncio.run(main("<", usage_limits=UsageLimits(request_limit=2)))
    assert asked
    called = len(asked)
    assert isinstance(asyncio.run(main("{")).output, Report)
    assert len(asked) == called
