"""`parlay serve --data-parallel-size 2`: what clients, probes and those who measure see of two engines."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile import Watch
from server_process import ServerProcess, alive, children
from serving import wait_for

from parlay import LLM, ConfigError
from parlay.cli.main import main

pytestmark = pytest.mark.processes

LONG = {"max_tokens": 300, "ignore_eos": True, "temperature": 0.8, "seed": 1, "n": 4}
PLAIN = ("--speculative-config", "none")


def converse(server: ServerProcess, agents: int, turns: int) -> float:
    """Return the prefix hit rate of agents at work side by side: each turn has all before it, and some more."""
    before = [server.figure(f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries")]

    def agent(number: int) -> None:
        text = "# You are a careful programmer who writes short functions.\n" * 6 + f"# Task {number}\n"
        for turn in range(turns):
            answer = server.post({"prompt": text, "max_tokens": 4, "temperature": 0, "ignore_eos": True})
            seen = " ".join(f"line {line}: {number * line + turn}" for line in range(20))
            text += answer.json()["choices"][0]["text"] + f"\n# Tool: {seen}\n"

    with ThreadPoolExecutor(agents) as threads:
        list(threads.map(agent, range(agents)))
    wait_for(lambda: server.figure("vllm:num_requests_running") == 0)
    now = [server.figure(f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries")]
    return (now[0] - before[0]) / (now[1] - before[1])


def long_ones(server: ServerProcess, number: int) -> list[Watch]:
    """Return streams that are under way, and share no block."""
    watches = [Watch(server.url, {**LONG, "prompt": f"# {i}\ndef"}) for i in range(number)]
    wait_for(lambda: all(watch.running for watch in watches))
    return watches


def test_two_are_as_one() -> None:
    """From the first request to SIGTERM: answers, prefixes, and what is left at the end."""
    with ServerProcess("tiny-code", *PLAIN) as one, ServerProcess("tiny-code", "-dp", "2", *PLAIN) as two:
        # Without seeds: those come from the order of arrival. A list of prompts is divided among the replicas.
        prompts = [f"def function_{i}(a, b):\n    return" for i in range(12)]
        for prompt in (*prompts[:4], prompts):
            body = {"prompt": prompt, "temperature": 1.0, "max_tokens": 16}
            answers = [[choice["text"] for choice in each.post(body).json()["choices"]] for each in (one, two)]
            assert answers[0] == answers[1]
        assert len(set(answers[1])) > 6
        wait_for(lambda: min(two.figures("vllm:generation_tokens_total").values()) > 0)
        assert set(two.figures("vllm:generation_tokens_total")) == {"0", "1"}

        hit_rates = [converse(server, agents=3, turns=6) for server in (one, two)]
        assert hit_rates[0] > 0.7
        assert hit_rates[1] >= 0.95 * hit_rates[0], hit_rates

        engines, every = two.engines, children(two.pid)
        watches = long_ones(two, 2)
        assert two.stop() == 0
        assert all(watch.join().complete for watch in watches), "what was open has finished"
        assert len(engines) == 2
        assert not any(alive(pid) for pid in engines)
        wait_for(lambda: not any(alive(pid) for pid in every))  # what multiprocessing started for itself
        assert not two.said("Traceback")
        assert one.stop() == 0


@pytest.mark.parametrize("size", ["0", "-1", "65", "1000000"])
def test_sizes_that_make_no_sense(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "tiny-code", f"--data-parallel-size={size}"]) == 2
    assert f"data_parallel_size must be between 1 and 64, not {size}" in capsys.readouterr().err


def test_a_size_that_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "tiny-code", "-dp", "two"])
    assert "-dp: invalid int value: 'two'" in capsys.readouterr().err


def test_one_process_has_one_engine() -> None:
    with pytest.raises(ConfigError, match="data_parallel_size=2 is not supported, since replicas are a server's"):
        LLM("tiny-code", data_parallel_size=2)
