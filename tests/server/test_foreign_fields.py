"""What becomes of the fields that clients of OpenAI and of other servers send."""

import re
import time
from dataclasses import fields
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from parlay import SamplingParams
from parlay.config import ServerConfig
from parlay.errors import ContextLengthError
from parlay.server.anthropic.fields import MessagesFields
from parlay.server.errors import ApiError, as_api_error
from parlay.server.openai.fields import (
    BodyFields,
    ChatFields,
    CommonFields,
    CompletionFields,
    DetokenizeFields,
    TokenizeFields,
    make_params,
    parse,
)
from parlay.server.openai.foreign_fields import ELSEWHERE, FOREIGN, RENAMED
from parlay.server.openai.prompts import check_prompt, check_text
from parlay.server.openai.responses_fields import ResponseFields
from parlay.text.tokenizer import check_prompt as in_tokens

MESSAGES = [{"role": "user", "content": "x"}]
ENDPOINTS: dict[str, tuple[type[BodyFields], dict[str, Any]]] = {
    "completions": (CompletionFields, {"prompt": "x"}),
    "chat": (ChatFields, {"messages": MESSAGES}),
    "responses": (ResponseFields, {"input": "x"}),
}
OPENAI = {
    "completions": completion_create_params.CompletionCreateParamsBase,
    "chat": chat_create_params.CompletionCreateParamsBase,
    "responses": response_create_params.ResponseCreateParamsBase,
}


def read(endpoint: str, **more: Any) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    cls, body = ENDPOINTS[endpoint]
    return parse(cls, {**body, **more})


def own(endpoint: str) -> set[str]:
    cls, _ = ENDPOINTS[endpoint]
    return {f.name for f in fields(cls)} | cls.sampling


def refused(endpoint: str, **more: Any) -> ApiError:
    with pytest.raises(ApiError) as found:
        read(endpoint, **more)
    assert found.value.status == 400
    return found.value


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_parameter_of_openais_client_is_known(endpoint: str) -> None:
    """A future one shows up here: each is served, has another name, or says why it is ignored or refused."""
    known = own(endpoint) | RENAMED[endpoint].keys() | ELSEWHERE[endpoint].keys() | FOREIGN.keys()
    names = set(OPENAI[endpoint].__annotations__)
    assert len(names) > 15
    assert names <= known
    for name in {name for there in OPENAI.values() for name in there.__annotations__} - own(endpoint):
        assert "unknown" not in said_of(endpoint, name, [])


def said_of(endpoint: str, name: str, value: Any) -> str:
    try:
        return " ".join(read(endpoint, **{name: value})[2])
    except ApiError as error:
        return str(error)


# Fields of vLLM 0.33's request classes at their defaults, of llama.cpp's server, SGLang's, Ollama's and LM Studio's,
# and what Codex, Dify, SillyTavern and OpenRouter's clients send.
HARMLESS: dict[str, Any] = {
    "use_beam_search": False, "length_penalty": 1.0, "spaces_between_special_tokens": True, "logits_processors": [],
    "return_tokens_as_token_ids": False, "return_token_offsets": False, "return_mm_kwargs": True, "priority": 3,
    "truncate_prompt_tokens": -1, "cache_salt": "s", "request_id": "r", "session_id": "s", "stream_interval": 4,
    "kv_transfer_params": {"a": 1}, "vllm_xargs": {}, "thinking_token_budget": -1, "watermarking": False,
    "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"}, "moderation": {"model": "m"},
    "client_metadata": {"x-codex-installation-id": "u"}, "cache_prompt": True, "id_slot": -1, "n_probs": 0,
    "timings_per_token": True, "return_progress": True, "reasoning_format": "auto", "parse_tool_calls": True,
    "min_keep": 0, "response_fields": ["content"], "typical_p": 1, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75, "mirostat": 0, "mirostat_tau": 5.0,
    "repeat_last_n": 64, "samplers": ["top_k"], "sse_ping_interval": 30, "backend_sampling": False, "lora": [],
    "options": {"num_ctx": 4096}, "num_ctx": 4096, "keep_alive": "5m", "template": "", "system": "", "ttl": 60,
    "separate_reasoning": True, "stream_reasoning": True, "return_hidden_states": False, "rid": "r",
    "models": ["a", "b"], "usage": {"include": True}, "provider": {"order": ["x"]}, "transforms": [],
    "top_n_tokens": 5,
    "tool_stream": True, "reasoning_split": True, "top_a": 0, "tfs": 1, "repetition_penalty_range": 1024,
    "encoder_repetition_penalty": 1, "negative_prompt": "", "min_length": 0, "mode": "instruct", "guidance_scale": 1,
    "instruction_template": "Alpaca", "no_repeat_ngram_size": 0, "num_beams": 1, "penalty_alpha": 0, "skew": 0,
    "smoothing_factor": 0, "dynamic_temperature": False, "banned_tokens": "", "watermark": False, "details": True,
    "suffix": "", "functions": [], "function_call": "auto", "web_search_options": {}, "audio": {}, "store": False,
    "background": False, "deferred": False, "safe_prompt": False, "perf_metrics_in_response": True,
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_changes_nothing_is_ignored_with_a_warning(endpoint: str) -> None:
    for name, value in HARMLESS.items():
        made, sampling, warnings = read(endpoint, **{name: value})
        assert not sampling
        if name not in own(endpoint):
            assert made == read(endpoint)[0], name
            (warning,) = warnings
            assert repr(name) in warning
            assert "unknown" not in warning


# What text-generation-webui's request class has by default, and so its clients send.
WEBUI: dict[str, Any] = {
    "min_p": 0, "dynamic_temperature": False, "dynatemp_low": 1, "dynatemp_high": 1, "dynatemp_exponent": 1,
    "smoothing_factor": 0, "smoothing_curve": 1, "top_k": 0, "repetition_penalty": 1,
    "repetition_penalty_range": 1024, "typical_p": 1, "tfs": 1, "top_a": 0, "epsilon_cutoff": 0,
    "eta_cutoff": 0, "guidance_scale": 1,
    "negative_prompt": "", "penalty_alpha": 0, "mirostat_mode": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
    "temperature_last": False, "do_sample": True, "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0,
    "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_sequence_breakers": '"\\n", ":"',
    "xtc_threshold": 0.1, "xtc_probability": 0, "truncation_length": 0, "max_tokens_second": 0,
    "prompt_lookup_num_tokens": 0, "custom_token_bans": "", "auto_max_new_tokens": False, "ban_eos_token": False,
    "add_bos_token": True, "skip_special_tokens": True, "grammar_string": "", "echo": False, "n": 1, "best_of": 1,
    "frequency_penalty": 0, "presence_penalty": 0, "stream": False, "temperature": 1, "top_p": 1, "mode": "instruct",
    "continue_": False, "impersonate": False, "stop": "", "stopping_strings": [], "sampler_seed": -1, "user": "",
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_whole_body_of_another_servers_client(endpoint: str) -> None:
    _, sampling, warnings = read(endpoint, **WEBUI)
    params = make_params(sampling, ServerConfig())
    assert params == SamplingParams(best_of=params.best_of)
    assert not any("was given too" in warning for warning in warnings)


HARMFUL: dict[str, tuple[Any, str]] = {
    "use_beam_search": (True, "best_of"), "length_penalty": (1.2, "leave it at 1"), "typical_p": (0.9, "top_p"),
    "mirostat": (2, "min_p"), "dry_multiplier": (0.8, "frequency_penalty"),
    "truncate_prompt_tokens": (100, "shorter"),
    "thinking_token_budget": (512, "reasoning_effort"), "xtc_probability": (0.5, "min_p"),
    "lora": ([{"id": 0}], "adapt"),
    "max_length": (20, "max_tokens"), "suffix": ("b", "fill-in-the-middle"), "functions": ([{"name": "f"}], "tools"),
    "negative_prompt": ("x", "guidance"), "logits_processors": (["f"], "logit_bias"),
    "guidance_scale": (2, "guidance"),
    "inputs": ("x", "prompt"), "parameters": ({"top_k": 1}, "fields of the body"), "images": (["x"], "text"),
    "watermark": (True, "watermarking"), "no_repeat_ngram_size": (3, "repetition_penalty"), "top_a": (0.2, "top_p"),
    "repetition_detection": ({"max_pattern_size": 3}, "stop"),
    "web_search_options": ({"user_location": {}}, "search"),
    "logprob_token_ids": ([5], "logprobs"), "prompt_embeds": ("aGk=", "prompt"),
    "banned_strings": (["x"], "bad_words"),
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_would_change_the_answer_is_refused_by_its_own_name(endpoint: str) -> None:
    for name, (value, words) in HARMFUL.items():
        error = refused(endpoint, **{name: value})
        assert (error.param, error.code) == (name, "unsupported_parameter")
        assert str(error).startswith(f"{name}=")
        assert words in str(error)


RENAMINGS: list[tuple[str, Any, str, Any]] = [
    ("repeat_penalty", 1.1, "repetition_penalty", 1.1),  # llama.cpp, Ollama, LM Studio
    ("rep_pen", 1.2, "repetition_penalty", 1.2),  # KoboldCpp
    ("ban_eos_token", True, "ignore_eos", True),  # text-generation-webui
    ("min_new_tokens", 3, "min_tokens", 3),  # SGLang
    ("stop_sequences", ["a"], "stop", ["a"]),  # Anthropic, Cohere
    ("stopping_strings", ["a"], "stop", ["a"]),  # SillyTavern
    ("random_seed", 5, "seed", 5),  # Mistral
    ("no_stop_trim", True, "include_stop_str_in_output", True),  # SGLang
    ("do_sample", False, "temperature", 0),  # transformers
    ("guided_regex", "a+", "structured_outputs", {"regex": "a+"}),  # vLLM before 0.12
    ("regex", "a+", "structured_outputs", {"regex": "a+"}),  # SGLang
    ("ebnf", 'root ::= "a"', "structured_outputs", {"grammar": 'root ::= "a"'}),  # SGLang
    ("grammar", 'root ::= "a"', "structured_outputs", {"grammar": 'root ::= "a"'}),  # llama.cpp
    (
        "grammar",
        {"type": "json", "value": {"type": "object"}},
        "structured_outputs",
        {"json": {"type": "object"}},
    ),  # TGI
    ("json_schema", {"type": "object"}, "structured_outputs", {"json": {"type": "object"}}),  # llama.cpp
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("name", "value", "ours", "expected"), RENAMINGS, ids=str)
def test_the_same_under_another_name(endpoint: str, name: str, value: Any, ours: str, expected: Any) -> None:
    _, sampling, warnings = read(endpoint, **{name: value})
    assert (sampling, warnings) == ({ours: expected}, ())
    make_params(sampling, ServerConfig())
    if ours == "structured_outputs":
        assert refused(endpoint, **{name: value, ours: {"choice": ["another"]}}).param == name
        assert read(endpoint, **{name: value, ours: expected})[1:] == ({ours: expected}, ())
        return
    _, sampling, warnings = read(endpoint, **{name: value, ours: 0.5})
    assert sampling == {ours: 0.5}
    assert warnings == (f"{name!r}: ignored, since {ours} was given too",)
    _, sampling, warnings = read(endpoint, **{name: value, ours: expected})
    assert (sampling, warnings) == ({ours: expected}, ())


@pytest.mark.parametrize(
    "name", ["n_predict", "num_predict", "max_new_tokens", "max_tokens", "max_completion_tokens"]
)
def test_names_of_the_limit(name: str) -> None:
    """llama.cpp's, Ollama's, transformers', and OpenAI's older and newer one, everywhere; -1 is no limit."""
    assert read("completions", **{name: 7})[1] == {"max_tokens": 7}
    assert read("completions", **{name: -1})[1] == {"max_tokens": None}
    assert read("responses", **{name: 7})[0].max_output_tokens == 7
    assert read("responses", **{name: -1})[0].max_output_tokens is None
    made, sampling, _ = read("chat", **{name: 7})
    assert (made.max_completion_tokens, sampling) in ((7, {}), (None, {"max_tokens": 7}))
    made, sampling, _ = read("chat", **{name: -1})
    assert (made.max_completion_tokens, sampling.get("max_tokens")) == (None, None)


def test_wishes_about_reasoning_in_other_forms() -> None:
    assert read("chat", reasoning={"effort": "low"})[0].reasoning_effort == "low"  # OpenRouter
    assert read("chat", reasoning={"enabled": False})[0].reasoning_effort == "none"
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):  # openai.types.shared.ReasoningEffort
        assert read("chat", reasoning_effort=effort)[0].reasoning_effort == effort
        assert read("responses", reasoning_effort=effort)[0].reasoning == {"effort": effort}
    assert read("chat", reasoning_effort="default")[0].reasoning_effort is None  # Groq
    assert refused("chat", reasoning_effort="hgih").param == "reasoning_effort"
    thoughtless = [
        {"enable_thinking": False},  # DashScope
        {"thinking": {"type": "disabled"}},  # Anthropic, DeepSeek, Z.ai
        {"think": False},  # Ollama
        {"chat_template_kwargs": {"enable_thinking": False}},  # vLLM, SGLang
    ]
    for body in thoughtless:
        for endpoint in ("chat", "responses"):
            assert read(endpoint, **body)[0].chat_template_kwargs == {"enable_thinking": False}
    both = read("chat", documents=[{"text": "x"}], chat_template_kwargs={"a": 1})[0].chat_template_kwargs
    assert both == {"a": 1, "documents": [{"text": "x"}]}


OTHERS: dict[str, dict[str, Any]] = {
    "completions": {
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "reasoning_effort": "low",
        "top_logprobs": 0, "chat_template_kwargs": {"a": 1}, "modalities": ["text"], "parallel_tool_calls": True,
        "include_reasoning": True, "continue_final_message": False, "truncation": "disabled", "max_tool_calls": 3,
    },
    "chat": {"echo": False, "include": [], "truncation": "auto", "max_tool_calls": 3, "previous_response_id": ""},
    "responses": {
        "modalities": ["text"], "n": 1, "logprobs": False, "response_format": {"type": "text"}, "best_of": 1,
        "continue_final_message": False, "add_generation_prompt": True, "include_reasoning": True, "echo": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("endpoint", OTHERS)
def test_fields_of_another_endpoint_at_values_that_change_nothing(endpoint: str) -> None:
    plain = read(endpoint)[0]
    for name, value in OTHERS[endpoint].items():
        made, sampling, _ = read(endpoint, **{name: value})
        assert not sampling
        assert made == plain or name == "response_format"


@pytest.mark.parametrize("cls", [ResponseFields, MessagesFields])
def test_what_both_completion_endpoints_answer_is_named_elsewhere(cls: type[BodyFields]) -> None:
    """With the remedy: of a field whose default is null there is no value to leave it at."""
    body = {"input": "x"} if cls is ResponseFields else {"messages": MESSAGES, "max_tokens": 1}
    known = {f.name for f in fields(cls)} | cls.sampling | {"prediction"}
    common = [f.name for f in fields(CommonFields) if f.name.startswith("return_") and f.name not in known]
    assert len(common) > 3
    for name in common:
        with pytest.raises(ApiError, match=rf"{name}=.* comes with completions and chat completions only; leave it"):
            parse(cls, {**body, name: "x"})


@pytest.mark.parametrize("cls", [ResponseFields, MessagesFields, ChatFields, CompletionFields])
def test_the_remedy_for_a_field_of_another_endpoint_can_be_sent(cls: type[BodyFields]) -> None:
    """A field without a default, or with null as one, has no value to leave it at."""
    body: dict[str, Any] = {"input": "x"} if cls is ResponseFields else {"messages": MESSAGES, "max_tokens": 1}
    body = {"prompt": "x"} if cls is CompletionFields else body
    others = [f.name for other in (*ENDPOINTS.values(), (DetokenizeFields, {})) for f in fields(other[0])]
    said = list[str]()
    for name in {*others} - {f.name for f in fields(cls)} - cls.sampling:
        try:
            parse(cls, {**body, name: ["x"]})
        except ApiError as error:
            said.append(str(error))
    assert len(said) > 4
    assert not [one for one in said if "leave it at None" in one or " at 0x" in one]


def test_fields_of_another_endpoint_that_would_change_something() -> None:
    assert refused("completions", tools=[{"type": "function"}]).param == "tools"
    assert "/v1/chat/completions" in str(refused("completions", messages=MESSAGES))
    assert refused("chat", echo=True).param == "echo"
    assert "messages" in str(refused("chat", prompt="x"))
    assert "input" in str(refused("responses", messages=MESSAGES))
    assert refused("responses", n=2).param == "n"
    assert refused("responses", continue_final_message=True).param == "continue_final_message"
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert read("responses", response_format=form)[0].text == {
        "format": {"type": "json_schema", "name": "n", "schema": schema}
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("top-p", "top_p"),
        ("frequency_penality", "frequency_penalty"),
        ("presense_penalty", "presence_penalty"),
        ("stream_option", "stream_options"),
    ],
)
def test_misspellings_stay_errors(name: str, meant: str) -> None:
    error = refused("chat", **{name: 1})
    assert (error.param, error.code) == (name, "unknown_parameter")
    assert str(error) == f"unknown field {name!r} (did you mean {meant!r}?)"


@pytest.mark.parametrize(
    "name",
    # Gateways', Fireworks', Perplexity's, xAI's and DashScope's: all scored above difflib's usual 0.6 or are unknown.
    [
        "litellm_session_id",
        "rewrite_output",
        "search_recency_filter",
        "return_citations",
        "vl_high_resolution_images",
    ],
)
def test_what_nobody_knows_is_ignored(name: str) -> None:
    _, _, (warning,) = read("chat", **{name: 1})
    assert warning == f"unknown field was ignored: {name!r}"


def test_an_error_about_names_is_short() -> None:
    with pytest.raises(ApiError) as found:
        parse(ChatFields, {"messages": MESSAGES, "wizardry": 1}, strict=True)
    assert str(found.value).count(",") == 10
    assert len(str(found.value)) < 300


def test_many_unknown_names_cost_nothing() -> None:
    """A client's 180,000 names, each of which resembles many known ones, keep nobody else waiting."""
    letters = "0123456789bfghjkqvwxyz"
    names = [
        f"aeiorstnlp_cmu{letters[i % 22]}{letters[i // 22 % 22]}{letters[i // 484 % 22]}{letters[i // 10648]}"
        for i in range(180_000)
    ]
    began = time.process_time()
    _, _, (warning,) = read("completions", **dict.fromkeys(names, 1))
    _, _, warnings = read("responses", reasoning=dict.fromkeys(names, 1))
    assert time.process_time() - began < 3  # it took 20 s
    assert max(map(len, (warning, *warnings))) < 400


WHOLE = {"max_tokens": 8.0, "top_k": 40.0, "n": 1.0, "seed": 1.0, "min_tokens": 2.0, "logprobs": 3.0, "best_of": 1.0}


def test_whole_floats_are_integers() -> None:
    params = make_params({**WHOLE, "stop_token_ids": [5.0, 6], "allowed_token_ids": [7.0]}, ServerConfig())
    for name, value in WHOLE.items():
        assert (getattr(params, name), type(getattr(params, name))) == (value, int)
    assert (params.stop_token_ids, params.allowed_token_ids) == ((5, 6), (7,))
    assert read("responses", max_output_tokens=16.0)[0].max_output_tokens == 16
    assert type(read("chat", logprobs=True, top_logprobs=2.0)[0].top_logprobs) is int
    assert parse(DetokenizeFields, {"tokens": [1.0, 2]})[0].tokens == [1, 2]
    speculative = {"num_speculative_tokens": 3.0, "method": None, "enabled": None}
    assert make_params({"speculative": speculative}, ServerConfig()).speculative.num_speculative_tokens == 3  # type: ignore[union-attr]
    assert refused("responses", max_output_tokens=16.5).param == "max_output_tokens"
    with pytest.raises(ValueError, match=r"must be an integer, not 8\.5"):
        make_params({"max_tokens": 8.5}, ServerConfig())


def test_values_that_openais_clients_send_for_nothing() -> None:
    made, sampling, warnings = read(
        "chat", tools=[], tool_choice="auto", top_logprobs=0, logit_bias=[], metadata=[], stream_options={},
        chat_template_kwargs=[], modalities=["text"], structured_outputs=False,
    )  # fmt: skip
    assert (made.tool_choice, made.chat_template_kwargs, sampling, warnings) == (None, {}, {}, ())
    assert read("chat", store=True)[2] == ("store: ignored, since only /v1/responses stores answers",)
    options = {"include_usage": True, "include_obfuscation": True, "chunk_size": 3, "continuous_usage_stats": None}
    made, _, warnings = read("chat", stream=True, stream_options=options)
    assert made.include_usage
    assert [("chunk_size" in w, "padded" in w) for w in warnings] == [(True, False), (False, True)]
    for options in ({}, {"include_usage": True}, {"include_obfuscation": True}):
        read("responses", stream=True, stream_options=options)
    _, _, warnings = parse(
        ResponseFields, {"input": "x", "truncation": "auto", "include": ["web_search_call.results"]}
    )
    assert [w.partition(" ")[0].partition("=")[0] for w in warnings] == ["truncation", "include:"]


# What forms send whose fields were left empty, and PHP, which cannot tell an empty object from an empty list.
@pytest.mark.parametrize(
    "empty",
    [{"stop": [""]}, {"stop": ["", "x"]}, {"tool_choice": ""}, {"chat_template": ""}, {"prediction": {}},
     {"structured_outputs": {}}, {"speculative": {}}, {"prediction": []}, {"response_format": {}}],
)  # fmt: skip
def test_what_is_empty_stands_for_nothing(empty: dict[str, Any]) -> None:
    made, sampling, warnings = read("chat", **empty)
    assert (made, warnings) == (read("chat")[0], ())
    assert make_params(sampling, ServerConfig()) == SamplingParams(stop=tuple(filter(None, empty.get("stop", ()))))


def test_top_p_of_zero_is_greedy() -> None:
    assert SamplingParams(top_p=0, temperature=0.8).temperature == 0
    assert SamplingParams(top_p=0.1, temperature=0.8).temperature == 0.8


def test_bodies_of_chats_are_counted() -> None:
    """A client may send `/tokenize` what it is about to send to chat completions."""
    body = {
        "messages": MESSAGES,
        "temperature": 0,
        "stream": True,
        "max_tokens": 5,
        "tools": [],
        "n": 1,
        "stop": ["x"],
    }
    made, sampling, warnings = parse(TokenizeFields, body)
    assert (made.messages, sampling) == (MESSAGES, {})
    assert warnings == (
        "'temperature', 'stream', 'max_tokens', 'n', 'stop': ignored, since it changes no token of a prompt",
    )


# How litellm, pi, opencode and OpenHands tell that a conversation has to be shortened: by the sentence alone.
OVERFLOW = {
    "litellm": r"this model's maximum context length is|exceeds the maximum number of tokens allowed",
    "pi": r"maximum context length is \d+ tokens|maximum prompt length is \d+",
    "OpenAI's own": r"maximum context length is \d+ tokens|exceeds the maximum",
}


@pytest.mark.parametrize("client", OVERFLOW)
def test_clients_know_a_prompt_that_is_too_long(client: str) -> None:
    def of_the_model() -> None:
        in_tokens([5] * 600, 1000, 512)

    def in_characters() -> None:
        check_text("x" * 9000, 16, 512)

    def of_the_server() -> None:
        check_prompt(300, ServerConfig(max_prompt_tokens=200))

    for refuse in (of_the_model, in_characters, of_the_server):
        with pytest.raises(ContextLengthError) as found:
            refuse()
        told = as_api_error(found.value)
        assert (told.status, told.code) == (400, "context_length_exceeded")
        assert re.search(OVERFLOW[client], str(told), re.IGNORECASE)
