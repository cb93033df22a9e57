"""The facts about a server, printed once when it is ready."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay import env
from parlay.checkpoints.download import size_text
from parlay.config import ServerConfig
from parlay.config.verification import COUPLED, LOSSY, verification_of
from parlay.server.openai.reasoning import marks_of
from parlay.server.openai.tool_formats import FORMATS, format_of
from parlay.types.params import SamplingParams

if TYPE_CHECKING:
    from parlay.link.engine import AsyncEngine


def facts(engine: "AsyncEngine", config: ServerConfig, url: str) -> dict[str, str]:
    """Return the facts about a server that is ready, by name.

    Args:
        engine: the engine that is ready.
        config: the server's options.
        url: address of the page.
    """
    ready, codec = engine.facts, engine.codec
    memory, template = ready.memory, codec.template
    names = {id(form): name for name, form in FORMATS.items()}
    tools = names[id(format_of(config.tool_call_parser, template))]
    if template is not None and not codec.shows_tools():
        tools = "hermes; the system message describes them, since the chat template ignores tools"
    marks = marks_of(config.reasoning_parser, template)
    replicas = config.data_parallel_size
    return {
        **({} if replicas == 1 else {"replicas": f"{replicas}, each as follows"}),
        "model": f"{engine.model_name}, {size_text(memory.weights)} of weights",
        "context": f"{engine.max_model_len:,} tokens",
        "cache": f"up to {size_text(memory.cache)} for {memory.tokens:,} tokens, taken as it fills; "
        "--kv-cache-memory changes it",
        **(
            {}
            if not memory.states
            else {
                "states": f"up to {size_text(memory.states)} for {memory.room.slots // 2} sequences and checkpoints"
            }
        ),
        "speculation": (" + ".join(ready.methods[1:]) or "none") + _verified(engine.numerics_id),
        "threads": str(env.threads_of(replicas)),
        "sampling": f"{sampling(engine.sampling_defaults)} unless a request says otherwise (--generation-config)",
        "chat": "no chat template; --chat-template FILE gives one"
        if template is None
        else "the chat template of --chat-template"
        if config.chat_template
        else "the model's chat template",
        "tools": "none without a chat template" if template is None else tools,
        "reasoning": "none" if marks is None else f"between {marks.begins[0]} and {marks.ends[0]}",
        "numerics": engine.numerics_id,
        "page": url,
    }


def figures(engine: "AsyncEngine", config: ServerConfig, url: str) -> dict[str, Any]:
    """Return what `facts` says in words as values, for a log that programs read."""
    ready, memory = engine.facts, engine.facts.memory
    return {
        "model": engine.model_name,
        "replicas": config.data_parallel_size,
        "weight_bytes": memory.weights,
        "max_model_len": engine.max_model_len,
        "cache_bytes": memory.cache,
        "cache_tokens": memory.tokens,
        "state_bytes": memory.states,
        "methods": list(ready.methods[1:]),
        "verification": verification_of(engine.numerics_id),
        "threads": env.threads_of(config.data_parallel_size),
        "sampling": engine.sampling_defaults,
        "chat_template": engine.codec.template is not None,
        "numerics": engine.numerics_id,
        "page": url,
    }


def sampling(defaults: Mapping[str, Any]) -> str:
    """Return what requests without sampling parameters get, in numbers."""
    usual = {name: getattr(SamplingParams(), name) for name in ("temperature", "top_p")}
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in {**usual, **defaults}.items())


def _verified(numerics_id: str) -> str:
    """Return how drafts are verified, where it is not the default."""
    kind = verification_of(numerics_id)
    if kind == COUPLED:
        return ""
    promise = "lossy" if kind in LOSSY else "keeps the target's distribution, not the tokens of a seed"
    return f", verified by {kind!r}: {promise}"


def loading(model: str) -> str:
    """Return which model is being loaded, with the size of its files where they are on this machine."""
    path = Path(model)
    try:
        files = [path] if path.is_file() else [one for one in path.glob("*") if one.is_file()]
        total = sum(one.stat().st_size for one in files)
    except OSError:
        total = 0
    return f"loading {model}" + (f", {size_text(total)}" if total else "")
