#!/bin/sh
# The README's commands from top to bottom in an empty environment, as somebody new would type them; says what each took.
# Needs the package index; models come from the hub or from there.
set -eu
cd "$(dirname "$0")/.."
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$home"' EXIT

step() {
    began=$(date +%s)
    echo "== $*"
    "$@"
    echo "   $(($(date +%s) - began)) s"
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
for output in llm.generate(
    ["def fibonacci(n):\n", "class Stack:\n"], SamplingParams(temperature=0.8, seed=1, max_tokens=64)
):
    print(output.outputs[0].text, output.metrics.acceptance_length)
PYTHON
}

whole=$(date +%s)
step python3 -m venv "$home/environment"
PATH="$home/environment/bin:$PATH"
export PATH XDG_CACHE_HOME="$home/cache"
step pip install --quiet --disable-pip-version-check --constraint constraints.txt '.[serve]'
step example
step parlay pull smollm2
step parlay list
step parlay run smollm2 "Name five rivers." --max-tokens 64
step first_lines parlay generate "def fibonacci(n):" --temperature 0 --speculative-config ngram
parlay serve smollm2 --port 8765 &
server=$!
step answer
step parlay verify tiny-code --quick
echo "all of it: $(($(date +%s) - whole)) s"
