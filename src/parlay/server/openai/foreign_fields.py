"""Fields that clients of other servers send: what each is called here, or why it changes nothing, or is refused.

From the request types of OpenAI (clients 3.52 and 3.0.141 of npm), vLLM 0.33, llama.cpp, SGLang, Text Generation
Inference and transformers, Ollama, LM Studio, OpenRouter, KoboldCpp, TabbyAPI, text-generation-webui and SillyTavern.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field that is not supported.

    Attributes:
        why: the reason, or what to write instead.
        only: values at which it changes nothing, and is ignored; others are refused. None ignores every value. What
            is empty, or false, changes nothing in any case.
    """

    why: str
    only: tuple[Any, ...] | None = None

    def ignores(self, value: Any) -> bool:
        """Whether a value changes nothing."""
        if self.only is None or value is False or value in ("", [], {}):
            return True
        return any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in self.only)


@dataclass(frozen=True, slots=True)
class Renamed:
    """A field that has another name here.

    Attributes:
        to: the name here; `outer.inner` is a key of an object.
        read: returns the value that it has here; None where nothing is asked for.
    """

    to: str
    read: Callable[[Any], Any] = lambda value: value


def _all(names: str, why: str, only: Iterable[Any] | None = None) -> dict[str, ForeignField]:
    entry = ForeignField(why, None if only is None else tuple(only))
    return dict.fromkeys(names.split(), entry)


def _filled(value: Any) -> Any:
    """Return a value that is not empty."""
    return value or None


def _limit(value: Any) -> Any:
    """Return a number of tokens; the negative ones of llama.cpp and Ollama, for no limit, are one."""
    return -1 if value in (-1, -2) else value


def _thinks(value: Any) -> Any:
    """Return whether a model is to think, from Anthropic's, DeepSeek's and Z.ai's `{"type": "enabled"}`."""
    kind = value.get("type") if isinstance(value, dict) else value
    return {"enabled": True, "adaptive": True, "disabled": False}.get(kind, kind) if isinstance(kind, str) else kind


def _effort(value: Any) -> Any:
    """Return the effort of OpenRouter's and Responses' `reasoning`."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else None
    return "none" if value.get("enabled") is False else value.get("effort")


def _format(value: Any) -> Any:
    """Return a `response_format` as `text.format` has it."""
    inner = value.get("json_schema") if isinstance(value, dict) else None
    return {"type": "json_schema", **inner} if isinstance(inner, dict) else value


def _grammar(value: Any) -> Any:
    """Return a grammar as structured outputs, from GBNF or from TGI's `{"type": "json", "value": ...}`."""
    if not isinstance(value, dict):
        return {"grammar": value} if value else None
    kind = {"json_object": "json", "json_schema": "json"}.get(str(value.get("type")), value.get("type"))
    return {str(kind): value.get("value")} if value else None


def _part(name: str) -> Callable[[Any], Any]:
    return lambda value: {name: value} if value not in ("", []) else None


_GUIDED = ("json", "regex", "choice", "grammar")
# Of sampling, wherever that is.
SAMPLED: dict[str, Renamed] = {
    # Parts of structured outputs by the names they had in vLLM before 0.12, and have at other servers.
    **{f"guided_{part}": Renamed("structured_outputs", _part(part)) for part in _GUIDED},
    "json_schema": Renamed("structured_outputs", _part("json")),  # llama.cpp, SGLang
    "regex": Renamed("structured_outputs", _part("regex")),  # SGLang
    "regex_pattern": Renamed("structured_outputs", _part("regex")),  # TabbyAPI
    "ebnf": Renamed("structured_outputs", _part("grammar")),  # SGLang
    "grammar": Renamed("structured_outputs", _grammar),  # llama.cpp, TGI
    "grammar_string": Renamed("structured_outputs", _part("grammar")),  # text-generation-webui
    "repeat_penalty": Renamed("repetition_penalty"),  # llama.cpp, Ollama, LM Studio
    "rep_pen": Renamed("repetition_penalty"),  # KoboldCpp
    "min_new_tokens": Renamed("min_tokens"),  # transformers, SGLang
    "ban_eos_token": Renamed("ignore_eos"),  # text-generation-webui
    "stopping_strings": Renamed("stop", _filled),  # text-generation-webui
    "custom_stopping_strings": Renamed("stop", _filled),
    "stop_sequences": Renamed("stop", _filled),  # Anthropic, Cohere
    "stop_sequence": Renamed("stop", _filled),  # KoboldCpp
    "random_seed": Renamed("seed"),  # Mistral
    "sampling_seed": Renamed("seed"),  # SGLang
    "sampler_seed": Renamed("seed", lambda value: None if value == -1 else value),  # KoboldCpp, of which -1 is any
    "bypass_eos": Renamed("ignore_eos"),  # KoboldCpp
    "no_stop_trim": Renamed("include_stop_str_in_output"),  # SGLang
    "do_sample": Renamed("temperature", lambda value: 0 if value is False else None),  # transformers
}
_LENGTHS = "n_predict num_predict max_new_tokens max_generated_tokens tokens_to_generate max_tokens_to_sample"
_SEVERAL = {"n_cmpl": Renamed("n"), "num_return_sequences": Renamed("n")}  # llama.cpp, transformers
# llama.cpp, SGLang.
_IDS = {"return_tokens": Renamed("return_token_ids"), "return_prompt_token_ids": Renamed("return_token_ids")}


def _lengths(to: str, *more: str) -> dict[str, Renamed]:
    return {name: Renamed(to, _limit) for name in (*_LENGTHS.split(), *more)}


_THINKING = {
    "enable_thinking": Renamed("chat_template_kwargs.enable_thinking"),  # DashScope
    "disable_reasoning": Renamed("chat_template_kwargs.enable_thinking", lambda value: value is not True),  # Cerebras
    "think": Renamed(
        "chat_template_kwargs.enable_thinking", lambda value: value != "false" and bool(value)
    ),  # Ollama
    "thinking": Renamed("chat_template_kwargs.enable_thinking", _thinks),
    "documents": Renamed("chat_template_kwargs.documents", _filled),  # vLLM
}

# By endpoint: what has another name there.
RENAMED: dict[str, Mapping[str, Renamed]] = {
    "completions": {
        **SAMPLED,
        **_SEVERAL,
        **_IDS,
        **_lengths("max_tokens", "max_completion_tokens", "max_output_tokens"),
        "n_probs": Renamed("logprobs", _filled),
        "add_bos_token": Renamed("add_special_tokens"),
        "return_full_text": Renamed("echo"),
    },
    "chat": {**SAMPLED, **_SEVERAL, **_IDS, **_lengths("max_tokens", "max_output_tokens"), **_THINKING,
        "reasoning": Renamed("reasoning_effort", _effort),
        "continue_": Renamed("continue_final_message"),  # text-generation-webui
    },
    "responses": {**SAMPLED, **_lengths("max_output_tokens", "max_tokens", "max_completion_tokens"), **_THINKING,
        "reasoning_effort": Renamed("reasoning.effort"),
        "verbosity": Renamed("text.verbosity"),
        "response_format": Renamed("text.format", _format),
    },
    "messages": {**SAMPLED, **_lengths("max_tokens", "max_completion_tokens", "max_output_tokens"), **_THINKING,
        "stop": Renamed("stop_sequences", lambda value: [value] if isinstance(value, str) else value),
        "reasoning_effort": Renamed("output_config.effort"),
        "response_format": Renamed("output_config.format", _format),
        "output_format": Renamed("output_config.format"),  # Anthropic's earlier name
    },
    "tokenize": {"add_special": Renamed("add_special_tokens"), "with_pieces": Renamed("return_token_strs"),
        "content": Renamed("prompt"), "text": Renamed("prompt"), **_THINKING,
    },
    "detokenize": {"ids": Renamed("tokens"), "token_ids": Renamed("tokens")},
}  # fmt: skip

_LABEL = "it is only a label"
_CACHE = "prefix caching is automatic"
_ROUTE = "one model is served, with one set of options"
_MORE = "responses have no such field"
_EVENTS = "each step is sent as one event"
_SAMPLERS = "it only tunes a sampler that is not supported"
_MODEL = "options of the model are set when the server starts"
_ITS_OWN = "the model's own chat template makes the prompt"
_BEAMS = "beam search is not supported; best_of samples several answers and returns the most likely"
_SAMPLER = "this sampler is not supported; use top_p, top_k or min_p"
_PENALTY = "this penalty is not supported; use repetition_penalty, frequency_penalty or presence_penalty"
_BUDGET = "reasoning has no limit of its own; use reasoning_effort, or max_tokens for all of it"
_CUT = "prompts are never truncated; send a shorter one"
_TEXT_ONLY = "the model reads and writes text"
_SEARCH = "the server has no search tools"
_BANS = "it has another form here; use bad_words, or logit_bias with token ids"
_PLACED = "a prompt is sent as it is to be read; put it into the prompt or the messages"

# At every endpoint, unless it has a field of that name.
FOREIGN: dict[str, ForeignField] = {
    # Nothing depends on these.
    **_all("prompt_cache_retention prompt_cache_options prompt_cache_isolation_key prompt_cache_max_len", _CACHE),
    **_all("cache_prompt cache_salt extra_key n_keep n_discard n_cache_reuse num_keep caching cache", _CACHE),
    **_all("kv_transfer_params ec_transfer_params session_params id_slot slot_id cache_control", _CACHE),
    **_all("client_metadata request_id session_id rid trace trace_id user_id end_user tags genkey title", _LABEL),
    **_all("custom_labels routing_key user_name chat_id parent_id", _LABEL),
    **_all("user safety_identifier prompt_cache_key metadata service_tier", _LABEL),
    **_all("moderation guardrails safety_model mask_sensitive_info", "there is no moderation"),
    **_all("access_programs", "access programs are not supported"),
    **_all("models provider route transforms plugins preset fallbacks ttl draft_model context_length", _ROUTE),
    **_all("bootstrap_host bootstrap_port bootstrap_room data_parallel_rank queue_threshold", _ROUTE),
    **_all("speed inference_geo", _ROUTE),
    **_all("routed_dp_rank disagg_prefill_dp_rank ngram_corpus_id", _ROUTE),
    **_all("options num_ctx num_batch num_gpu num_thread main_gpu low_vram use_mmap use_mlock numa", _MODEL),
    **_all("keep_alive f16_kv vocab_only max_context_length truncation_length n_threads", _MODEL),
    **_all("guided_decoding_backend speculative_ngram prompt_lookup_num_tokens backend_sampling", _MODEL),
    **_all("priority", "requests are served in the order they come in"),
    **_all("context_management truncation truncation_side prompt_truncate_len", "prompts are never truncated"),
    **_all("context_length_exceeded_behavior", "a prompt that is too long is refused"),
    **_all("usage stream_interval sse_ping_interval tool_stream incremental_output result_format", _EVENTS),
    **_all("stream_reasoning legacy_api can_abort quiet use_cache wait_for_model api_type api_server", _EVENTS),
    **_all("timings_per_token return_progress verbose response_fields post_sampling_probs details debug", _MORE),
    **_all("return_token_offsets return_weight_versions return_mm_kwargs return_prompt_text", _MORE),
    **_all("return_hidden_states return_routed_experts routed_experts_prompt_start top_n_tokens", _MORE),
    **_all("return_cached_tokens_details return_text_in_logprobs perf_metrics_in_response raw_output", _MORE),
    **_all("enable_response_messages decoder_input_details n_probs include_search_results return_logprob", _MORE),
    **_all("routed_experts_start_len", _MORE),
    **_all("return_images return_related_questions top_logprobs_num logprob_start_len return_meta_info", _MORE),
    **_all("spaces_between_special_tokens detokenize trim_stop", "texts are what the tokenizer makes of tokens"),
    **_all("mm_processor_kwargs media_io_kwargs image_config max_dynamic_patch image", _TEXT_ONLY),
    **_all("images_config", _TEXT_ONLY),
    **_all("vllm_xargs custom_params", "the server has no extensions"),
    **_all("extra_body", "OpenAI's client for Python sends its entries as fields of the body; put them there"),
    **_all("reasoning_format separate_reasoning reasoning_split reasoning_history parse_tool_calls",
        "the server's options --reasoning-parser and --tool-call-parser decide this"),
    **_all("reasoning_control reasoning_budget_message reasoning_budget_start_tag reasoning_budget_end_tag", _BUDGET),
    **_all("reasoning_budget_end_tags", _BUDGET),
    **_all("chat_format chat_parser generation_prompt grammar_lazy grammar_triggers grammar_type preserved_tokens",
        "the model's chat template decides how tool calls are written"),
    **_all("mode prompt_mode instruction_template instruction_template_str chat_template_str character", _ITS_OWN),
    **_all("bot_name user_bio name1 name2 greeting chat_instruct_command message_delimiters add_bos_token", _ITS_OWN),
    **_all("samplers sampler_order sampler_priority temperature_last temp_last",
        "parameters are applied in one order"),
    **_all("repeat_last_n repetition_penalty_range rep_pen_range rep_pen_slope penalty_last_n penalize_nl",
        "repetition_penalty counts prompt and answer as a whole"),
    **_all("xtc_threshold dynatemp_exponent dynatemp_low dynatemp_high dry_base dry_allowed_length", _SAMPLERS),
    **_all("dry_penalty_last_n dry_sequence_breakers dry_range mirostat_tau mirostat_eta adaptive_decay", _SAMPLERS),
    **_all("mirostat_target mirostat_lr smoothing_curve early_stopping num_beam_groups min_temp max_temp", _SAMPLERS),
    **_all("temp_exponent search_options search_settings use_default_badwordsids", _SAMPLERS),
    # These would change the answer.
    **_all("use_beam_search", _BEAMS, [False]),
    **_all("num_beams beam_width", _BEAMS, [0, 1]),
    **_all("length_penalty", _BEAMS, [1]),
    **_all("diversity_penalty", _BEAMS, [0]),
    **_all("logits_processors custom_logit_processor",
        "functions cannot be sent; use logit_bias, allowed_token_ids or bad_words", []),
    **_all("logprob_token_ids", "the most likely tokens are reported; use logprobs", []),
    **_all("watermark watermarking", "watermarking is not supported", []),
    **_all("repetition_detection stop_regex", "only stop, stop_token_ids and max_tokens end an answer", []),
    **_all("t_max_predict_ms max_time", "only stop, stop_token_ids and max_tokens end an answer", [0, -1]),
    **_all("typical_p typical typ_p tfs tfs_z", _SAMPLER, [1]),
    **_all("top_a top_n_sigma nsigma xtc_probability dynatemp_range mirostat mirostat_mode smoothing_factor skew",
        _SAMPLER, [0, -1]),
    **_all("epsilon_cutoff eta_cutoff adaptive_target dynamic_temperature penalty_alpha", _SAMPLER, [0, -1]),
    **_all("min_keep", _SAMPLER, [0, 1]),
    **_all("dry_multiplier no_repeat_ngram_size encoder_no_repeat_ngram_size", _PENALTY, [0]),
    **_all("exponential_decay_length_penalty", _PENALTY, []),
    **_all("encoder_repetition_penalty", _PENALTY, [0, 1]),
    **_all("guidance_scale cfg_scale", "there is no classifier-free guidance", [0, 1]),
    **_all("negative_prompt negprompt", "there is no classifier-free guidance", []),
    **_all("thinking_token_budget thinking_budget thinking_budget_tokens reasoning_budget reasoning_budget_tokens",
        _BUDGET, [-1]),
    **_all("truncate_prompt_tokens truncate", _CUT, [-1]),
    **_all("max_length", "it counts the prompt at some servers and not at others; use max_tokens", []),
    **_all("min_length", "it counts the prompt at some servers and not at others; use min_tokens", [0]),
    **_all("max_tokens_second", "generation speed cannot be limited", [0]),
    **_all("auto_max_new_tokens", "without max_tokens a chat goes on to the context limit", []),
    **_all("n_indent", "indentation cannot be constrained", [0]),
    **_all("force_words_ids constraints ban_tokens banned_words token_ids_logprob", _BANS, []),
    **_all("bad_words_ids suppress_tokens begin_suppress_tokens custom_token_bans banned_tokens", _BANS, []),
    **_all("banned_strings sequence_bias logit_bias_exp forced_bos_token_id forced_eos_token_id", _BANS, []),
    **_all("guided_whitespace_pattern", "disable_any_whitespace of structured_outputs leaves white space out", []),
    **_all("lora lora_path adapter_id adapter", "adapters are not supported", []),
    **_all("structural_tag guided_decoding", "its parts are those of structured_outputs", []),
    **_all("images image_data multimodal_data audio", _TEXT_ONLY, []),
    **_all("prompt_embeds input_embeds input_ids", "a prompt is text or token ids; use prompt", []),
    **_all("inputs", "it is called prompt in completions, messages in chat and input in responses", []),
    **_all("parameters", "its entries are fields of the body here", []),
    **_all("format", "it is called response_format in chat", []),
    **_all("system context memory input_prefix input_suffix input_extra", _PLACED, []),
    **_all("template", "a template of a client's is called chat_template", []),
    **_all("token_healing safe_prompt disable_search", "it is not supported", []),
    **_all("web_search_options enable_search search_parameters data_sources", _SEARCH, []),
    **_all("functions", "it is the older form; describe them as tools", []),
    **_all("function_call", "it is the older form; use tool_choice", ["none", "auto"]),
    **_all("suffix", "fill-in-the-middle is not supported", []),
    **_all("conversation", "conversations are not stored", []),
    **_all("previous_response previous_input_messages", "responses go on from previous_response_id", []),
    **_all("deferred background", "background responses are not supported", []),
}  # fmt: skip

_CHAT = "it is about conversations; use /v1/chat/completions"
_RESPONSES = "it is a field of /v1/responses"
_TEMPLATED = "no chat template is used here"

# By endpoint: fields of other ones, where more is to say than that.
ELSEWHERE: dict[str, Mapping[str, ForeignField]] = {
    "completions": {
        **_all(
            "reasoning_effort verbosity reasoning include_reasoning chat_template chat_template_kwargs", _TEMPLATED
        ),
        **_all("add_generation_prompt parallel_tool_calls disable_additional_properties", _TEMPLATED),
        **_all("max_tool_calls include text", _RESPONSES),
        **_all("thinking think enable_thinking", _TEMPLATED),
        **_all("messages input instructions documents", _CHAT, []),
        **_all("tools", _CHAT, []),
        **_all("tool_choice", _CHAT, ["none", "auto"]),
        **_all("modalities", _TEXT_ONLY, [["text"]]),
        **_all("top_logprobs", "logprobs is its name here", [0]),
        **_all("previous_response_id", _RESPONSES, []),
    },
    "chat": {
        **_all("prompt", "it is called messages here; or use /v1/completions", []),
        **_all("input", "it is called messages here; or use /v1/responses", []),
        **_all("instructions", "it is a message of the role system here", []),
        **_all("echo", "an answer does not repeat the conversation", []),
        **_all("return_full_text", "an answer does not repeat the conversation", []),
        **_all("add_special_tokens", "the chat template writes the special tokens", []),
        **_all("text", "response_format and verbosity are fields of the body here", [{"format": {"type": "text"}}]),
        **_all("include max_tool_calls", _RESPONSES),
        **_all("previous_response_id", _RESPONSES, []),
    },
    "messages": {
        **_all("n best_of", "a message is one answer", [1]),
        **_all("logprobs top_logprobs prompt_logprobs", "log-probabilities come with chat completions only", [0]),
        **_all("return_rejected", "it comes with completions and chat completions only", []),
        **_all("input prompt", "it is called messages here", []),
        **_all("instructions", "it is called system here", []),
        **_all("compaction", "conversations are not summarised; ask for a summary in a message", []),
        **_all("echo", "an answer does not repeat the conversation", []),
    },
    "responses": {
        **_all("n best_of", "a response is one answer", [1]),
        **_all("logprobs", "top_logprobs returns them", [0]),
        **_all("prompt_logprobs", "they come with chat completions only", [0]),
        **_all("return_rejected", "it comes with completions and chat completions only", []),
        **_all("messages", "it is called input here", []),
        **_all("prompt", "prompt templates are not stored; give instructions and input", []),
        **_all("conversation", "conversations are not stored; give previous_response_id, or all items as input", []),
        **_all("modalities", _TEXT_ONLY, [["text"]]),
        **_all("prediction", "predictions come with chat completions; the answer is the same without"),
        **_all("include_reasoning", "a response has its reasoning", [True]),
        **_all("echo", "an answer does not repeat the conversation", []),
    },
}
# Where nothing is sampled nothing else matters, but for what templates read.
COUNTED = ForeignField("it changes no token of a prompt")
