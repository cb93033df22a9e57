"""Anything at all goes into the parsers of options and parameters; what comes out is sound, or an error of ours."""

import copy
import math
import pickle
import warnings
from dataclasses import fields, replace
from typing import Any

import pytest
from conftest import MakeLLM
from hypothesis import given
from hypothesis import strategies as st
from parsing import ANY, DEEP, ODD, edits, examples, many, orderly

from parlay import LLM, ConfigError, RequestError, SamplingParams
from parlay.cli.flags import Parser, add_flags
from parlay.config import EngineConfig, SpeculativeConfig, build, modernise
from parlay.proposers.select import proposers
from parlay.text.chat import ChatOptions, render

GOOD = {
    **{f.name: getattr(EngineConfig(), f.name) for f in fields(EngineConfig)},
    "max_model_len": 100,
    "num_blocks": 50,
    "hf_token": "hf_x",
    "gpu_memory_utilization": 0.5,
    "kv_cache_memory_bytes": 1 << 20,
}
del GOOD["kv_cache_memory"]


@examples
def test_options_of_an_engine(examples: int) -> None:
    @many(examples)
    @given(edits(GOOD) | st.dictionaries(st.sampled_from(sorted(GOOD)) | st.text() | ODD, ANY, max_size=4))
    def run(options: dict[Any, Any]) -> None:
        with orderly():
            config = EngineConfig.parse(options)
            assert EngineConfig.parse({f.name: getattr(config, f.name) for f in fields(config)}) == config
            for field in fields(config):
                value = getattr(config, field.name)
                if field.name not in options and field.name != "kv_cache_memory":
                    assert value == field.default
                if field.default is not None and value is not None:
                    assert type(value) is type(field.default)
            assert "hf_token" not in repr(config)

    run()


SPECULATIVE = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
    "model": "x/y",
    "revision": "v1",
    "draft_tensor_parallel_size": 1,
}


@examples
def test_speculation(examples: int) -> None:
    methods = {"method": st.sampled_from([*proposers.names(), "base", "select", "ngrm"])}
    some = st.sets(st.sampled_from(sorted(SPECULATIVE)))

    @many(examples)
    @given(edits(SPECULATIVE) | ANY | st.text(), st.fixed_dictionaries({}, optional=methods), some)
    def run(value: Any, method: dict[str, str], gone: set[str]) -> None:
        if isinstance(value, dict):
            value = {k: v for k, v in value.items() if k not in gone} | method
        with orderly():
            config = SpeculativeConfig.parse(value)
            assert SpeculativeConfig.parse(config) is config
            build(proposers.load(config.method).Options, config.options, f"{config.method} option")

    run()


def test_a_path_as_speculative_config() -> None:
    for text in ("/models/head", "./head.gguf", "head-" + "9" * 5000 + "/x"):
        with (
            orderly(),
            pytest.raises(ConfigError, match=r'for a draft model or head write {"model": \.\.\.}') as error,
        ):
            SpeculativeConfig.parse(text)
        assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "text", [DEEP, "9" * 5000, '{"method": "ngram", "num_speculative_tokens": ' + "9" * 5000 + "}"]
)
def test_json_that_python_cannot_read(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with orderly(), pytest.raises(ConfigError, match="speculative_config is not valid JSON") as error:
        SpeculativeConfig.parse(text)
    with orderly():
        raise error.value
    parser = Parser(prog="x")
    add_flags(parser, SamplingParams)
    with pytest.raises(SystemExit):
        parser.parse_args(["--logit-bias", text])
    assert "is not valid JSON" in capsys.readouterr().err


OLDER = {
    "speculative_model": "[ngram]",
    "num_speculative_tokens": 5,
    "ngram_prompt_lookup_max": 4,
    "ngram_prompt_lookup_min": 1,
    "speculative_draft_tensor_parallel_size": 1,
    "use_v2_block_manager": True,
    "seed": 3,
}


@examples
def test_older_keywords(examples: int) -> None:
    @many(examples)
    @given(edits(OLDER), st.none() | ANY)
    def run(options: dict[str, Any], speculative: Any) -> None:
        with orderly(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            left, config = modernise(options, speculative)
            assert left == {name: value for name, value in options.items() if name == "seed"}
            EngineConfig.parse(left)
            SpeculativeConfig.parse(config)

    run()


PARAMS: dict[str, Any] = {
    **{f.name: getattr(SamplingParams(), f.name) for f in fields(SamplingParams)},
    "best_of": 2,
    "seed": 5,
    "stop": ["a"],
    "stop_token_ids": [3],
    "bad_words": ["bad"],
    "allowed_token_ids": [1, 2],
    "logit_bias": {"3": 1.5},
    "logits_processors": [max],
    "logprobs": 2,
    "prompt_logprobs": 2,
    "structured_outputs": {"regex": "a+"},
    "prediction": [1, 2, 3],
    "speculative": {"enabled": True, "num_speculative_tokens": 2, "method": "ngram"},
}
FORMS = {
    "json": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "json_object": True,
    "regex": "[ab]+",
    "choice": ["a", "b"],
    "grammar": 'root ::= "a"',
    "disable_any_whitespace": False,
}
NESTED = (
    st.fixed_dictionaries({"structured_outputs": edits(FORMS)})
    | st.sampled_from(sorted(FORMS)).flatmap(
        lambda k: st.fixed_dictionaries({"structured_outputs": st.fixed_dictionaries({k: ANY})})
    )
    | st.fixed_dictionaries({"speculative": edits(PARAMS["speculative"])})
    | st.fixed_dictionaries({"logit_bias": st.dictionaries(ODD | st.integers(0, 9), ODD | st.floats(-9, 9))})
    | st.fixed_dictionaries({k: st.lists(ODD | ANY, max_size=3) for k in ("stop", "bad_words")})
    | st.fixed_dictionaries({k: st.lists(ODD, max_size=3) for k in ("stop_token_ids", "allowed_token_ids")})
)


@examples
def test_sampling_parameters(make_llm: MakeLLM, examples: int) -> None:
    """What the parser accepts is accepted again, can be hashed, copied and sent; the engine serves or refuses it."""
    llm = make_llm("ngram", 2)

    @many(examples)
    @given(edits(PARAMS), st.just({}) | NESTED, st.sets(st.sampled_from(sorted(PARAMS)), min_size=8))
    def run(values: dict[str, Any], nested: dict[str, Any], gone: set[str]) -> None:
        with orderly():
            params = SamplingParams.parse({k: v for k, v in values.items() if k not in gone} | nested)
            assert SamplingParams.parse({f.name: getattr(params, f.name) for f in fields(params)}) == params
            assert replace(params) == params == copy.deepcopy(params) == pickle.loads(pickle.dumps(params))
            assert hash(params) == hash(replace(params))
            for name in ("temperature", "presence_penalty", "repetition_penalty", "top_p", "min_p"):
                assert math.isfinite(getattr(params, name))
            for request in llm.engine.add([1, 2, 3], params):
                llm.engine.abort(request)

    run()


@examples
def test_conversations(examples: int) -> None:
    message = {"role": "user", "content": "hello", "name": "x"}
    options = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "tools": [{}],
        "chat_template_kwargs": {},
    }
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ tools | tojson }}"

    @many(examples)
    @given(
        st.lists(edits(message) | ANY, max_size=2), edits(options), st.dictionaries(st.text(), st.text(), max_size=2)
    )
    def run(messages: Any, values: dict[str, Any], special: dict[str, str]) -> None:
        with orderly():
            render(template, messages, special, ChatOptions.parse(values))

    run()


@examples
def test_prompts(make_llm: MakeLLM, examples: int) -> None:
    llm = make_llm(max_model_len=16)
    prompt = ANY | st.lists(ODD | st.integers(0, 300), max_size=3)
    mapping = st.dictionaries(st.sampled_from(["prompt", "prompt_token_ids", "x"]), prompt)

    @many(examples)
    @given(prompt | mapping | st.lists(prompt | mapping, max_size=2))
    def run(prompts: Any) -> None:
        with orderly():
            llm.generate(prompts, SamplingParams(max_tokens=1))

    run()


@pytest.mark.parametrize("model", [3, None, b"x", ["a"], "a\0b", "\ud800", "x" * 5000, "a/" + "b" * 300, "a/b:", ""])
def test_names_of_models(model: Any) -> None:
    for options in ({"model": model}, {"tokenizer": model} if model is not None else {"model": 4}):
        with orderly():
            LLM(**options)
            raise AssertionError


def test_a_request_of_numbers_with_many_digits() -> None:
    for name in ("n", "top_k", "seed", "logprobs", "max_tokens", "temperature"):
        with orderly():
            SamplingParams.parse({name: -(10**5000)})
    with pytest.raises(RequestError, match="n must be between 1 and 1024, not a value of type int"):
        SamplingParams(n=10**5000)
