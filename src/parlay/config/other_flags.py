"""Flags of llama.cpp, Ollama and vLLM that parlay's commands lack, each with what to write instead.

Their names are those of llama.cpp's `common/arg.cpp`, of `ollama run --help` and of `vllm serve --help`.
"""

_DRAFT = """write --speculative-config '{"model": "DRAFT"}' with a draft model or head"""
_LENGTH = """write --speculative-config '{"method": "auto", "num_speculative_tokens": 8}'"""
_GPU = "leave it out: parlay runs on CPUs"
_LORA = "adapters are not supported; merge it into the model's weights"
_TLS = "TLS is a reverse proxy's business; put one before the server"
_LOG = "set PARLAY_LOG=INFO or PARLAY_LOG=DEBUG"
_TEXT = "leave it out: models read text only"
_ROPE = "leave it out: positions are scaled as the model's own config says"
_MEMORY = "leave it out: weights are read as fits their format"
_GRAMMAR = """write --structured-outputs '{"json": {...}}', or "regex", "choice" or "grammar" in place of "json\""""
_BACKEND = "leave it out: structured outputs have one backend"
_PROMPT = "write the prompt alone, in quotes"
_CHAT = "`parlay chat MODEL` is a conversation, `parlay run MODEL PROMPT` one answer"
_EMBEDDING = "embeddings and rankings are not supported; models generate text"
_SERVER = "leave it out: the server always has it"
_PROXY = "leave it out: paths and sockets are a reverse proxy's business; put one before the server"
_ONE_WAY = "leave it out: the scheduler and the cache have one way to work"
_COUNTERS = "leave it out: counters are at /metrics, and `return_metrics` gives a request's own"
_SAMPLERS = "leave it out: there are temperature, top_k, top_p, min_p and penalties, which requests give"
_PLUGINS = "leave it out: no code but parlay's own is loaded"
_COMPILED = "leave it out: nothing is compiled at run time"
_CORES = "`taskset` or `numactl` before the command chooses cores, and --threads their number"

# What to write, and the flags that it stands for.
_ANSWERS: dict[str, str] = {
    "write --max-model-len": "-c --ctx-size --num-ctx --n-ctx --context-length --max-seq-len --ctx",
    "write --threads": "--num-threads --n-threads --num-thread --nthreads -tb --threads-batch "
    "--cpu-threads --omp-num-threads",
    "leave it out: one process serves HTTP": "--threads-http -asc",
    "write --max-tokens": "-n --predict --n-predict --num-predict --max-new-tokens --max-length",
    "write --max-num-batched-tokens": "-b -ub --ubatch-size --batch-size --num-batch --max-prefill-tokens",
    "write --max-num-seqs": "-np --parallel --max-batch-size --max-concurrent-requests --max-running-requests",
    "write --temperature": "--temp -temp",
    "write --top-k": "--top-k",  # of commands that lack it
    "write --top-p": "--top-p",
    "write --min-p": "--min-p",
    "write --ignore-eos": "--ignore-eos",
    "write --presence-penalty": "--presence-penalty",
    "write --frequency-penalty": "--frequency-penalty",
    "write --repetition-penalty": "--repeat-penalty",
    "write --seed": "-s",
    "write --model, or the model alone": "-m --model-path --model-name --model-id --hf-model",
    "write the model alone, as owner/name or owner/name:Q4_K_M": "-hf -hfr --hf-repo -hff --hf-file -mu --model-url",
    "write --hf-token, or set HF_TOKEN": "-hft",
    "set HF_HUB_OFFLINE=1": "--offline",
    "write --system": "-sys --system-prompt -sysf --system-prompt-file",
    "write --chat-template FILE": "--chat-template-file --custom-chat-template --jinja-template",
    "leave it out: chat templates are always run": "--jinja --no-jinja --skip-chat-parsing",
    _PROMPT: "-p --prompt",
    "give the file as standard input: < FILE": "-f --file --prompt-file -if --in-file",
    _CHAT: "-cnv --conversation -no-cnv --no-conversation -i --interactive --interactive-first -st --single-turn -q "
    "--quick -mli --multiline-input",
    _DRAFT: "-md --model-draft --spec-draft-model --draft-model -hfd --hf-repo-draft --spec-draft-hf "
    "--speculative-draft-model-path --spec-model",
    _LENGTH: "--draft --draft-n --draft-max --draft-min --draft-n-min --spec-draft-n-max --spec-draft-n-min "
    "--draft-p-min --speculative-num-steps --speculative-num-draft-tokens --spec-tokens --spec-ngram-size-n",
    "write --speculative-config METHOD, such as ngram": "--spec-type --spec-default --eagle3 --mtp --spec-method "
    "--speculative-algorithm -lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
    _GPU: "-ngl --gpu-layers --n-gpu-layers --num-gpu -ngld --gpu-layers-draft -sm --split-mode -ts --tensor-split "
    "-mg --main-gpu -dev -fa --flash-attn --flash-attention -ot --override-tensor -ncmoe --n-cpu-moe -cmoe --cpu-moe "
    "-kvo -nkvo --no-kv-offload --op-offload --no-op-offload --list-devices --num-gpus --gpu --cuda-graph-sizes",
    _LORA: "--lora --lora-scaled --lora-modules --lora-path --lora-paths --adapter --max-loras --max-lora-rank "
    "--max-cpu-loras --lora-dtype --fully-sharded-loras --prompt-adapters --control-vector",
    _TLS: "--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --enable-ssl-refresh --ssl-key-file "
    "--ssl-cert-file --tls --cert --certfile --keyfile",
    _LOG: "--log-level -lv --log-verbosity --verbosity --verbose -v --log-verbose --debug --quiet --verbose-prompt",
    "write --log-format json or text, and give the log away with 2> FILE": "--log-file --log-disable "
    "--log-config-file --log-config --disable-uvicorn-access-log --disable-access-log",
    "write --log-prompts": "--enable-log-requests --enable-log-outputs --log-requests",
    _CORES: "--numa -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll --cpu-affinity",
    _MEMORY: "--mlock --no-mmap --mmap --use-mmap --use-mlock --no-repack -nr --no-warmup --warmup --check-tensors "
    "-lm --load-mode --safetensors-load-strategy",
    "write --kv-cache-dtype int8 for q8_0, or leave it out": "-ctk --cache-type-k -ctv --cache-type-v "
    "--calculate-kv-scales",
    "write --kv-cache-memory": "-cram --cache-ram --max-total-tokens --mem-fraction-static",
    "leave it out: requests are always batched as they come": "-cb --cont-batching -nocb --no-cont-batching",
    "leave it out: prefixes are always kept; --no-enable-prefix-caching turns that off": "--cache-prompt "
    "--no-cache-prompt --cache-reuse --prompt-cache --prompt-cache-all --prefix-caching",
    "leave it out: a longer conversation is refused, not shifted": "--context-shift --no-context-shift --keep",
    _GRAMMAR: "--grammar --grammar-file -j --json-schema -jf --json-schema-file --format --guided-json "
    "--guided-regex --guided-choice --guided-grammar",
    _BACKEND: "--structured-outputs-config --structured-outputs-backend --grammar-backend "
    "--guided-decoding-disable-fallback",
    _ROPE: "--rope-scaling --rope-scale --rope-theta --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
    "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -gan -gaw",
    "leave it out: configs are read as they are": "--override-kv --hf-config-path --config-format",
    "write --generation-config DIR": "--override-generation-config",
    "leave it out, and send chat_template_kwargs with each request": "--default-chat-template-kwargs",
    _TEXT: "--mmproj -mm --mmproj-url --no-mmproj --image --audio --video --allowed-local-media-path "
    "--enable-prompt-embeds --language-model-only "
    "--mm-processor-cache-gb --mm-encoder-tp-mode --interleave-mm-strings --skip-mm-profiling",
    _EMBEDDING: "--embedding --embeddings --rerank --reranking --pooling --pooler-config --convert --is-embedding",
    "write --served-model-name": "-a --alias",
    "write --reasoning-parser none, or send chat_template_kwargs": "--reasoning-format --reasoning-budget --think "
    "--hidethinking -rea --reasoning --reasoning-effort",
    "leave it out: reasoning is parsed unless --reasoning-parser is none": "--enable-reasoning",
    "leave it out: the model stays as long as the command": "--keepalive --keep-alive --sleep-idle-seconds "
    "--enable-sleep-mode",
    "write --allowed-origins": "--cors-origins --cors --allowed-methods --allowed-headers --allow-credentials",
    "write --request-timeout": "-to --timeout",
    _SERVER: "--metrics --webui --no-webui --ui --no-ui --enable-prompt-tokens-details --enable-force-include-usage",
    "leave it out: there is no such endpoint; /metrics and /v1/models tell of the server": "--slots --no-slots "
    "--props --enable-tokenizer-info-endpoint",
    "leave it out: the hub is always reached over TLS": "--insecure",
    "leave it out: long lines are wrapped at a terminal's width": "--nowordwrap -co --color --simple-io",
    "write --data-parallel-size": "--num-replicas --workers",
    "write --tensor-parallel-size": "--tp --tp-size --num-shard",
    "write --quantization int8 or int4": "--quantize --load-in-8bit --load-in-4bit",
    "write --num-blocks": "--num-gpu-blocks-override",
    "write the whole config as JSON: --speculative-config '{...}'": "--speculative-config.method "
    "--speculative-config.model --speculative-config.num-speculative-tokens "
    "--speculative-config.num_speculative_tokens",
    _PROXY: "--uds --root-path --api-prefix --path --middleware --h11-max-header-count "
    "--h11-max-incomplete-event-size",
    _ONE_WAY: "--prefix-caching-hash-algo --max-num-partial-prefills --max-long-partial-prefills "
    "--long-prefill-token-threshold --disable-hybrid-kv-cache-manager --stream-interval --swa-full --kv-unified -kvu "
    "--ctx-checkpoints --slot-save-path --fit --performance-mode --disable-cascade-attn --all2all-backend "
    "--scheduler-cls --kv-transfer-config --kv-events-config --headless --data-parallel-rank --data-parallel-backend",
    _COUNTERS: "--kv-cache-metrics --kv-cache-metrics-sample --otlp-traces-endpoint --collect-detailed-traces "
    "--enable-server-load-tracking --show-hidden-metrics-for-version",
    "leave it out: penalties count the whole text": "--repeat-last-n",
    _SAMPLERS: "--mirostat --mirostat-lr --mirostat-ent --samplers --sampler-seq --sampling-seq --typical "
    "--dynatemp-range --dynatemp-exp --xtc-probability --xtc-threshold --dry-multiplier --top-nsigma",
    _PLUGINS: "--tool-parser-plugin --reasoning-parser-plugin --logits-processors --worker-cls --tool-server "
    "--worker-extension-cls --reasoning-config",
    _COMPILED: "-O0 -O1 -O2 -O3 -cc",
    "leave it out: ranks share each expert": "-ep",
    "leave it out: windows are as the model's own config says": "--disable-sliding-window",
    "leave it out: it shows nothing of requests": "--disable-fastapi-docs",
    "write --log-prompts, which logs them whole": "--max-log-len",
    "one server serves one model; start another one": "--models-dir --models-preset --models-max --model-config",
    "leave it out: prompts of `/v1/completions` are sent as they are": "--spm-infill",
}
_BY_FLAG = {flag: answer for answer, flags in _ANSWERS.items() for flag in flags.split()}


def answer(flag: str) -> str | None:
    """Return what to write in place of a flag of another program's; None if it is none of theirs."""
    return _BY_FLAG.get(flag)
