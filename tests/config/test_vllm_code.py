"""Code and commands of vLLM's documents on speculation, of either age: only the import and the models are changed."""

import shlex
import warnings
from typing import Any

import pytest

import parlay
import parlay.inputs
from parlay import ConfigError, RequestError
from parlay.cli.main import main
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.config.vllm_options import FOREIGN
from parlay.metrics import Counter, Vector
from parlay.sampling_params import SamplingParams

PROMPTS = ["The future of AI is"]
OLDER = [
    {"speculative_model": "tiny-code-draft", "num_speculative_tokens": 5, "use_v2_block_manager": True},
    {"speculative_model": "tiny-code-draft", "num_speculative_tokens": 5},
    {"speculative_model": "[ngram]", "num_speculative_tokens": 5, "ngram_prompt_lookup_max": 4},
    {"speculative_model": "tiny-code-eagle3", "speculative_draft_tensor_parallel_size": 1},
]
NEWER = [
    {"model": "tiny-code-draft", "num_speculative_tokens": 5},
    {"method": "draft_model", "model": "tiny-code-draft", "num_speculative_tokens": 5},
    {"method": "draft_model", "model": "tiny-code-draft", "num_speculative_tokens": 5, "max_model_len": 24},
    {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 2},
    {"method": "suffix", "num_speculative_tokens": 32},
    {"method": "ngram", "disable_padded_drafter_batch": True, "rejection_sample_method": "strict"},
    {"method": "eagle3", "model": "tiny-code-eagle3", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1},
    {"method": "eagle", "model": "tiny-code-eagle", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1},
    {"model": "tiny-code-eagle", "draft_tensor_parallel_size": 1},
    {"model": "tiny-code-mlp-speculator", "draft_tensor_parallel_size": 1},
    {"method": "mlp_speculator", "model": "tiny-code-mlp-speculator", "draft_tensor_parallel_size": 1},
    {"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    {
        "method": "suffix",
        "num_speculative_tokens": 8,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    },
    {"method": "suffix", "num_speculative_tokens": 8, "enable_adaptive_verification": True},
    {
        "method": "draft_model",
        "model": "tiny-code-draft",
        "num_speculative_tokens": 8,
        "adaptive_verification": False,
    },
    {
        "method": "eagle3",
        "model": "tiny-code-eagle3",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 16, 5], [17, 32, 4], [33, 64, 3], [65, 128, 1], [129, 512, 0]],
    },
]
EXAMPLE = {"enforce_eager": True, "enable_chunked_prefill": True, "disable_log_stats": False, "swap_space": 4}


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    llm = parlay.LLM(model="tiny-code", speculative_config=None)
    return [
        o.outputs[0].token_ids for o in llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95, seed=1))
    ]


def test_every_way_is_read() -> None:
    for one in NEWER:
        assert SpeculativeConfig.parse(one)
    for older in OLDER:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            left, one = parlay.config.modernise(older, None)
        assert not left
        assert SpeculativeConfig.parse(one)


# Of each method and of each kind of option one; examples and the ranks below run others.
ONCE = (OLDER[3], *(NEWER[i] for i in (2, 6, 8, 10, 12, 13, 15, 16)))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            one if one in OLDER else {"speculative_config": one}, marks=() if one in ONCE else pytest.mark.soak
        )
        for one in (*OLDER, *NEWER)
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_offline_code(options: dict[str, Any], expected: list[tuple[int, ...]]) -> None:
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
    llm = parlay.LLM(model="tiny-code", tensor_parallel_size=1, **options)
    outputs = llm.generate(PROMPTS, sampling_params)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert [output.prompt for output in outputs] == PROMPTS


@pytest.mark.parametrize(
    "options", [{"speculative_config": NEWER[7]}, pytest.param(OLDER[1], marks=pytest.mark.soak)]
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("forked_ranks")
def test_offline_code_with_four_ranks(options: dict[str, Any], expected: list[tuple[int, ...]]) -> None:
    llm = parlay.LLM(model="tiny-code", tensor_parallel_size=4, **options)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95, seed=1))
    assert [output.outputs[0].token_ids for output in outputs] == expected
    llm.engine.close()


def test_the_example_with_metrics() -> None:
    with pytest.warns(UserWarning, match="without effect here: enforce_eager .*, swap_space") as told:
        llm = parlay.LLM("tiny-code", speculative_config={"method": "ngram", "lengths": "fixed"}, **EXAMPLE)
    assert len(told) == 1
    assert told[0].filename == __file__
    tokenizer = llm.get_tokenizer()
    ids = [tokenizer.encode("a, b, a, b, a, b, a,", add_special_tokens=False)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": one} for one in ids], sampling_params=params, lora_request=None)
    found = {metric.name: metric for metric in llm.get_metrics()}
    drafts, accepted = found["vllm:spec_decode_num_drafts"], found["vllm:spec_decode_num_accepted_tokens"]
    assert isinstance(drafts, Counter)
    assert isinstance(accepted, Counter)
    by_place = found["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(by_place, Vector)
    assert (drafts.value, accepted.value) == (output.outputs[0].metrics.drafts, output.outputs[0].metrics.accepted)
    assert drafts.value > 0
    assert sum(by_place.values) == accepted.value
    assert llm.get_default_sampling_params() == SamplingParams()
    with pytest.raises(ConfigError, match="lora_request is not supported"):
        llm.generate("x", lora_request=object())  # type: ignore[arg-type]


def test_the_tokenizer() -> None:
    llm = parlay.LLM("tiny-code", speculative_config=None)
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("def f():")) == "def f():"
    assert tokenizer("ab")["input_ids"] == tokenizer(["ab"])["input_ids"][0] == tokenizer.encode("ab")
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt: Any = llm.chat_prompt(messages)
    assert text == prompt["prompt"]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True) == prompt["prompt_token_ids"]
    assert tokenizer.eos_token_id == 0
    assert len(tokenizer) == tokenizer.vocab_size == len(tokenizer.get_vocab())
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens([5, 6])) == [5, 6]  # type: ignore[arg-type]


def test_a_draft_models_own_limit() -> None:
    llm = parlay.LLM("tiny-code", speculative_config={"method": "ngram", "lengths": "fixed", "max_model_len": 40})
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": [70, 71, 72] * 8}], params)
    plain = parlay.LLM("tiny-code", speculative_config=None).generate(
        [{"prompt_token_ids": [70, 71, 72] * 8}], params
    )
    assert output.outputs[0].token_ids == plain[0].outputs[0].token_ids
    drafted = [i for i, who in enumerate(output.outputs[0].sources) if who == "ngram"]
    assert not drafted or max(drafted) < 40 - 24 + 1
    with pytest.raises(ConfigError, match="max_model_len in speculative_config"):
        SpeculativeConfig.parse({"method": "ngram", "max_model_len": 0})


COMMON = "--host 0.0.0.0 --port 8000 --seed 42 -tp 1 --gpu_memory_utilization 0.8"


@pytest.mark.parametrize(
    ("command", "speculative"),
    [
        (
            f"--model facebook/opt-6.7b {COMMON} --use-v2-block-manager --speculative_model facebook/opt-125m "
            "--num_speculative_tokens 5",
            {"model": "facebook/opt-125m", "num_speculative_tokens": 5},
        ),
        (
            f"--model facebook/opt-6.7b {COMMON} --speculative_model [ngram] --num_speculative_tokens 5 "
            "--ngram_prompt_lookup_max 4",
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1},
        ),
        (
            f"facebook/opt-6.7b {COMMON} --speculative_config "
            """'{"model": "facebook/opt-125m", "num_speculative_tokens": 5}'""",
            {"model": "facebook/opt-125m", "num_speculative_tokens": 5},
        ),
        (
            f"facebook/opt-6.7b {COMMON} --enforce-eager --swap-space 4 --disable-log-requests --speculative-config "
            """'{"method": "suffix", "num_speculative_tokens": 32}'""",
            {"method": "suffix", "num_speculative_tokens": 32},
        ),
        (
            f"facebook/opt-6.7b {COMMON.replace('_', '-')} --max-model-len 2048 --speculative-config "
            """'{"model": "facebook/opt-125m", "num_speculative_tokens": 5, "method": "draft_model"}'""",
            {"model": "facebook/opt-125m", "num_speculative_tokens": 5, "method": "draft_model"},
        ),
        (
            f"facebook/opt-6.7b {COMMON} --per-request-spec-decode-metrics detailed --speculative-config "
            """'{"method": "ngram", "num_speculative_tokens": 3}'""",
            {"method": "ngram", "num_speculative_tokens": 3},
        ),
        (
            f"facebook/opt-6.7b {COMMON} --per-request-spec-decode-metrics summary --speculative-config "
            """'{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'""",
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
        ),
        (
            f"facebook/opt-6.7b {COMMON} --speculative-config "
            """'{"method": "suffix", "enforce_eager": true, "enable_adaptive_verification": false}'""",
            {"method": "suffix", "lengths": "fixed"},
        ),
    ],
)
@pytest.mark.filterwarnings("default")
def test_commands(
    served: list[Any], command: str, speculative: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *shlex.split(command)]) == 0
    ((values, found, config),) = served
    assert found == SpeculativeConfig.parse(speculative)
    assert (values["model"], values["seed"], values["gpu_memory_utilization"]) == ("facebook/opt-6.7b", 42, 0.8)
    EngineConfig.parse(values)
    assert (config.host, config.port) == ("0.0.0.0", 8000)
    said = capsys.readouterr().err
    assert ("parlay: --speculative-model" in said) == ("speculative_model" in command)
    assert ("parlay: vLLM options without effect here" in said) == ("block" in command or "eager" in command)


def test_the_module_that_documents_start() -> None:
    from parlay.entrypoints.openai import api_server

    assert api_server.main is main


@pytest.mark.parametrize("name", FOREIGN)
def test_every_foreign_option(name: str) -> None:
    known = FOREIGN[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = known.only[-1] if known.only else True
        EngineConfig.parse(parlay.config.modernise({name: value}, None)[0])
        if known.only:
            with pytest.raises(ConfigError, match=f"{name}=7 is not supported, since"):
                parlay.config.modernise({name: 7}, None)


def test_keys_of_a_speculative_config_that_mean_nothing() -> None:
    asked = {"method": "ngram", "disable_logprobs": False, "enforce_eager": True}
    with pytest.warns(UserWarning, match=r"without effect here: swap_space .*, disable_logprobs .*, enforce_eager"):
        left, speculative = parlay.config.modernise({"swap_space": 4, "seed": 1}, asked)
    assert (left, speculative) == ({"seed": 1}, {"method": "ngram"})
    with pytest.warns(UserWarning, match=r"here: enforce_eager \(.*\)$"):
        _, several = parlay.config.modernise({}, '[{"method": "ngram", "enforce_eager": true}, {"method": "suffix"}]')
    assert several == [{"method": "ngram"}, {"method": "suffix"}]
    with pytest.raises(ConfigError, match="enable_adaptive_verification=False and lengths='goodput' contradict"):
        SpeculativeConfig.parse({"method": "suffix", "enable_adaptive_verification": False, "lengths": "goodput"})
    with pytest.raises(ConfigError, match="adaptive_verification must be true or false, not 1"):
        SpeculativeConfig.parse({"method": "suffix", "adaptive_verification": 1})
    with pytest.raises(ConfigError, match="rejection_sample_method='fly' is not supported"):
        parlay.LLM("tiny-code", speculative_config={"method": "ngram", "rejection_sample_method": "fly"})


def test_a_size_that_has_another_name() -> None:
    left, _ = parlay.config.modernise({"num_gpu_blocks_override": 64}, None)
    assert left == {"num_blocks": 64}


def test_parameters_are_assigned() -> None:
    """As in vLLM's examples; what was queued before has the values of then."""
    llm = parlay.LLM("tiny-code", speculative_config=None)
    params = llm.get_default_sampling_params()
    params.temperature, params.max_tokens = 0.0, 3
    first = llm.stream("def f(", params)
    params.max_tokens = 5
    assert len([*first][-1].outputs[0].token_ids) == 3
    (five,) = llm.generate("def f(", params)
    assert len(five.outputs[0].token_ids) == 5
    assert params.clone() == params
    params.max_tokens = 0
    with pytest.raises(RequestError, match="max_tokens"):
        llm.generate("def f(", params)
    with pytest.raises(AttributeError, match="max_token"):
        params.max_token = 3  # type: ignore[attr-defined]


def test_prompts_and_arguments_of_vllms() -> None:
    llm = parlay.LLM("tiny-code", speculative_config=None)
    params = SamplingParams(temperature=0, max_tokens=4)
    prompt = parlay.inputs.TokensPrompt(prompt_token_ids=list(range(40, 80)))
    (expected,) = llm.generate([prompt], params)
    assert expected.request_id == "0"
    given: Any = {**prompt, "multi_modal_data": None, "mm_processor_kwargs": {}}
    salted: Any = [{**prompt, "cache_salt": salt} for salt in ("a", "b", "a")]
    found = [llm.generate([one], params, priority=[1])[0] for one in (given, *salted)]
    assert {one.outputs[0].token_ids for one in found} == {expected.outputs[0].token_ids}
    assert [one.num_cached_tokens > 0 for one in found] == [True, False, False, True]
    with pytest.raises(RequestError, match="multi_modal_data is not supported"):
        llm.generate({**prompt, "multi_modal_data": {"image": 1}}, params)
    with pytest.raises(RequestError, match="cache_salt is text, not int"):
        llm.generate({**prompt, "cache_salt": 3}, params)
    with pytest.raises(ConfigError, match="priority is a list of one number per prompt, of which there are 1"):
        llm.generate([prompt], params, priority=[1, 2])
    messages = [{"role": "user", "content": "hi"}]
    (chat,) = llm.chat(messages, params)
    (same,) = llm.chat(messages, params, chat_template_content_format="auto", mm_processor_kwargs=None)
    assert same.outputs[0].token_ids == chat.outputs[0].token_ids
    with pytest.raises(ConfigError, match="chat_template_content_format"):
        llm.chat(messages, params, chat_template_content_format="string")
