"""The options of an HTTP server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from parlay.config.strict import build
from parlay.config.web_origins import parse_origin
from parlay.errors import ConfigError, shown

# Names that vLLM gives to the ways in which families of models write calls and reasoning.
ToolParser = Literal[
    "auto",
    "apertus",
    "apriel",
    "cohere_command3",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "functionary_v31",
    "gemma4",
    "gigachat3",
    "glm45",
    "glm47",
    "granite",
    "granite4",
    "hermes",
    "hy_v3",
    "kimi_k2",
    "kimi_k3",
    "lfm2",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "mimo",
    "minicpm5",
    "minimax",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "muse_glimmer",
    "nemotron_json",
    "olmo3",
    "openai",
    "poolside_v1",
    "pythonic",
    "qwen3_coder",
    "qwen3_xml",
    "seed_oss",
    "solar_open",
]
ReasoningParser = Literal[
    "auto",
    "none",
    "apertus",
    "apriel",
    "cohere_command3",
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v4",
    "deepseek_v41",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "granite33",
    "hy_v3",
    "kimi_k2",
    "kimi_k3",
    "mimo",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "muse_glimmer",
    "nemotron_v3",
    "olmo3",
    "openai_gptoss",
    "poolside_v1",
    "qwen3",
    "seed_oss",
    "solar_open",
]
MOST_REPLICAS = 64  # that one front can be expected to feed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Options of the server: where it listens, whom it serves, and how much it takes on.

    Attributes:
        host: address to listen on; 0.0.0.0 is every one of the machine's.
        port: port to listen on; 0 takes a free one, which is printed.
        api_key: a key that clients must send as `Authorization: Bearer KEY`. Others can see the command line: a file
            or the variable PARLAY_API_KEY (keys separated by commas) is better.
        api_key_file: a file with a key a line, each after a name of its own for the logs or alone; lines that begin
            with # are left out.
        allowed_origins: a web page's origin that browsers may call this server from, such as `https://example.org`,
            or `*`; by default none but the server's own. `http://localhost:*` is any port, `https://*.example.org`
            any subdomain, `vscode-webview://*` any page of that scheme. The hosts are names of the server, too.
        shared_cache: let clients with different keys share the prefix cache and compiled grammars; the time an answer
            takes then shows whether someone else sent the same.
        data_parallel_size: replicas of the engine, each with a process, the weights and a cache of its own, which
            divide threads and memory. A request goes where the beginning of its prompt is cached, unless that replica
            is too much busier than another.
        request_timeout: seconds after which a completion is aborted.
        shutdown_timeout: seconds that open requests have to finish after SIGTERM.
        engine_timeout: seconds without a message from the engine, while requests are open or it loads (then at least
            60), after which it is killed and restarted; more than its longest step takes.
        body_timeout: seconds within which a request's head, and then its body, must arrive; and within which a client
            must take something of its answer.
        keep_alive: seconds that an idle connection is kept.
        max_connections: connections at once; further ones are closed.
        max_body_bytes: bytes of a request's body.
        max_json_depth: how deeply a body may be nested.
        max_open: completions that may be computed or waiting at once; beyond it clients are told to retry.
        max_open_per_key: the same for one key; None sets no such limit.
        max_prompt_tokens: longest prompt; None leaves it to the engine's `max_model_len`.
        max_prompts: prompts in one request.
        max_n: completions of one prompt, `best_of` included.
        max_logprobs: log-probabilities a position.
        max_stop: stop strings, bad words or stop token ids of a request.
        max_stop_chars: characters of a stop string or bad word.
        max_logit_bias: tokens that one request may give a bias.
        response_store: bytes of memory for responses that `previous_response_id` may name; for newer ones the oldest
            of the key that has most are evicted, and with 0 none is stored.
        chat_template: a chat template in place of the model's own: a file, or the template itself.
        trust_request_chat_template: let clients send a chat template of their own; it runs in a sandbox.
        log_prompts: write prompts and answers to the log.
        log_format: `json` has a line of JSON for each request, `text` one for people; `auto` is `text` on a terminal.
        log_interval: seconds between lines with the engine's speed and acceptance while it works; 0 for none.
        tool_call_parser: the form in which the model writes calls of tools, by vLLM's name, such as `hermes` or
            `qwen3_xml`; docs/serving.md has all of them. `auto` goes by the chat template.
        reasoning_parser: the marks between which the model reasons before it answers, by name, such as `qwen3`;
            docs/serving.md has all of them. `auto` goes by the chat template, `none` leaves reasoning in the answer.
        strict_fields: refuse requests with fields that nobody knows, instead of ignoring these with a warning.
        per_request_spec_decode_metrics: `summary` gives `metrics.speculative_decoding` with every answer, which tools
            such as aiperf read, `detailed` that of each step too; with `none` requests ask for it themselves, by
            `return_metrics`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: str | None = None
    allowed_origins: tuple[str, ...] = ()
    shared_cache: bool = False
    data_parallel_size: int = field(default=1, metadata={"short": "-dp"})
    request_timeout: float = 600.0
    shutdown_timeout: float = 30.0
    engine_timeout: float = 120.0
    body_timeout: float = 30.0
    keep_alive: float = 30.0
    max_connections: int = 4096
    max_body_bytes: int = 4 << 20
    max_json_depth: int = 64
    max_open: int = 512
    max_open_per_key: int | None = None
    max_prompt_tokens: int | None = None
    max_prompts: int = 128
    max_n: int = 16
    max_logprobs: int = 20
    max_stop: int = 32
    max_stop_chars: int = 1024
    max_logit_bias: int = 1024
    response_store: int = 64 << 20
    chat_template: str | None = None
    trust_request_chat_template: bool = False
    log_prompts: bool = False
    log_format: Literal["auto", "json", "text"] = "auto"
    log_interval: float = 10.0
    tool_call_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    strict_fields: bool = False
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = "none"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"port must be between 0 and 65535, not {shown(self.port)}")
        if not 1 <= self.data_parallel_size <= MOST_REPLICAS:
            raise ConfigError(
                f"data_parallel_size must be between 1 and {MOST_REPLICAS}, not {shown(self.data_parallel_size)}"
            )
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {shown(value)}")
        for name in ("request_timeout", "shutdown_timeout", "engine_timeout", "body_timeout", "keep_alive"):
            value = getattr(self, name)
            if not 0 < value < 1e8:
                raise ConfigError(f"{name} must be a number of seconds above 0, not {shown(value)}")
        if not 0 <= self.log_interval < 1e8:
            raise ConfigError(f"log_interval must be a number of seconds from 0 on, not {shown(self.log_interval)}")
        if self.response_store < 0:
            raise ConfigError(f"response_store must be 0 bytes or more, not {shown(self.response_store)}")
        object.__setattr__(self, "allowed_origins", tuple(map(parse_origin, self.allowed_origins)))
        for key in self.api_key:
            check_key(key)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "ServerConfig":
        """Return a config from names and plain values.

        Raises:
            ConfigError: an unknown option, or one of the wrong type or out of range.
        """
        return build(cls, values, "option")


_COUNTS = [f.name for f in fields(ServerConfig) if f.name.startswith("max_")]


def check_key(key: str) -> str:
    """Return an API key.

    Raises:
        ConfigError: it cannot be sent in a header, or it is too easy to guess.
    """
    if not re.fullmatch("[!-~]{8,}", key):  # the message must not quote it
        raise ConfigError(
            "an API key is at least 8 printable ASCII characters without spaces; make one with `openssl rand -hex 24`"
        )
    return key
