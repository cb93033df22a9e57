"""An engine on a device whose memory is not the host's: every method's tokens, and where tensors lie."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from asking import accepted, assert_same, random_seed, run, with_params
from checkpoints import write_llama
from conftest import MakeLLM, Pair, guesses_on_random_texts, proposer_options
from families import write_family
from mtp_layers import write_mtp
from random_requests import compare_random_requests
from recurrent import asks
from tagged_device import CROSSINGS, LONGEST
from towers import TOWERS, write_tower
from vocabularies import permuted

from parlay import LLM, SamplingParams
from parlay.cli.main import main
from parlay.config import EngineConfig
from parlay.device import find_device
from parlay.errors import CapacityError, ConfigError
from parlay.proposers.select import proposers

LOOKS = 3  # whether logits are numbers: the first ones, and those of the token 0; and which inputs are in doubt
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7], [20, 21, 22, 20, 21, 22, 20, 21]]
LONGER = [[5, *prompt] for prompt in PROMPTS]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24),
    SamplingParams(temperature=0.8, seed=3, max_tokens=24, top_p=0.9),
    SamplingParams(temperature=1.0, seed=4, max_tokens=24),
]


@pytest.fixture(scope="module")
def plainly(models: dict[str, Pair]) -> list[Any]:
    """The tokens of plain decoding on the host."""
    llm = LLM(str(models["float32"].target), max_model_len=128, speculative_config=None)
    return [one.outputs[0].token_ids for one in llm.generate(PROMPTS, PARAMS)]


TREE = {"tree": {"width": 3, "depth": 3}, "num_speculative_tokens": 9}
CHAIN = {"num_speculative_tokens": 4}
EVERY = [(method, CHAIN) for method in sorted(set(proposers.names()) - {"none"})]
BRANCHING = [(method, TREE) for method in ("draft_model", "eagle3", "medusa", "dflash")]


@pytest.mark.parametrize(
    ("method", "shape"), [*EVERY, *BRANCHING], ids=lambda one: one if isinstance(one, str) else ""
)
def test_every_method(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plainly: list[Any],
    on_device: dict[str, Any],
    method: str,
    shape: dict[str, Any],
) -> None:
    """Tokens and drafts are the host's; in a step there is one copy there and one back, with a draft or without."""
    config = {"method": method, **proposer_options(method, models["float32"]), **shape}
    llm = make_llm(speculative_config=config, **on_device)
    found = llm.generate(PROMPTS, PARAMS)
    assert [one.outputs[0].token_ids for one in found] == plainly
    if guesses_on_random_texts(method):
        assert accepted([one.outputs[0] for one in found]) > 0
    here = make_llm(speculative_config=config).generate(PROMPTS, PARAMS)
    for a, b in zip(here, found, strict=True):
        assert a.outputs[0].metrics.per_step == b.outputs[0].metrics.per_step
    for prompts in (LONGER, PROMPTS, LONGER):  # which checks the recordings
        llm.generate(prompts, PARAMS)
    up, down, steps, runner = CROSSINGS.up, CROSSINGS.down, llm.engine.stats.steps, llm.engine._worker._runner
    recordings = runner.recordings
    assert llm.engine._worker._failed_launches == 0
    llm.generate(PROMPTS, PARAMS)
    steps = llm.engine.stats.steps - steps + runner.recordings - recordings  # a check sends a batch again
    assert CROSSINGS.up - up <= steps + 1  # and once the rows of the prompts that decide
    assert CROSSINGS.down - down <= steps + LOOKS


@pytest.mark.parametrize(
    ("method", "shape", "count"),
    [
        ("draft_model", TREE, 40),
        ("eagle3", CHAIN, 40),
        ("pard", CHAIN, 40),
        *(pytest.param(*row, 10_000, marks=pytest.mark.soak) for row in [*EVERY, *BRANCHING]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_random_requests(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    on_device: dict[str, Any],
    method: str,
    shape: dict[str, Any],
    count: int,
) -> None:
    config = {"method": method, **proposer_options(method, models["float32"]), **shape}
    options: dict[str, Any] = {"max_model_len": 128, "block_size": 8, "num_blocks": 60}
    llm = make_llm(speculative_config=config, **options, **on_device)
    compare_random_requests(make_llm(None, **options), llm, Random(f"{random_seed()} {method}"), count)
    assert llm.engine._worker._failed_launches == 0


@pytest.mark.parametrize("way", ["intersection", "text"])
def test_a_draft_model_of_another_vocabulary(
    make_llm: MakeLLM, models: dict[str, Pair], on_device: dict[str, Any], tmp_path: Path, way: str
) -> None:
    """Its tables of tokens are made on the host, before any weights are read."""
    draft = permuted(models["float32"].target, tmp_path / "draft")
    config = {"method": "draft_model", "model": str(draft), "vocabulary": way, **CHAIN}
    expected = make_llm(None).generate(PROMPTS, PARAMS)
    llm = make_llm(speculative_config=config, **on_device)
    found = llm.generate(PROMPTS, PARAMS)
    assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in expected]
    assert accepted([one.outputs[0] for one in found]) > 0
    assert LONGEST[-1] == 2 * 128  # the draft model may have twice as many tokens
    for prompts in (LONGER, PROMPTS, LONGER):  # which checks the recordings
        llm.generate(prompts, PARAMS)
    up, down, steps = CROSSINGS.up, CROSSINGS.down, llm.engine.stats.steps
    llm.generate(PROMPTS, PARAMS)
    steps = llm.engine.stats.steps - steps
    assert CROSSINGS.up - up <= 2 * (steps + 1), "its text is read on the host, so a draft waits for the tokens"
    assert CROSSINGS.down - down <= 2 * steps + LOOKS


def test_a_cache_in_eight_bits(on_device: dict[str, Any], tmp_path: Path) -> None:
    path = str(write_llama(tmp_path / "model", seed=2, scale=7.0, calm=0.2, head_dim=32))
    options: dict[str, Any] = {"max_model_len": 128, "kv_cache_dtype": "int8"}
    spec = {"method": "ngram", "lengths": "fixed", "num_speculative_tokens": 3}
    expected = LLM(path, speculative_config=None, **options).generate(PROMPTS, PARAMS)
    found = LLM(path, speculative_config=spec, **options, **on_device).generate(PROMPTS, PARAMS)
    assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in expected]


@pytest.mark.parametrize(("name", "layers"), [("step3p5", 2), ("qwen3_5", 1)])
def test_further_layers(on_device: dict[str, Any], tmp_path: Path, name: str, layers: int) -> None:
    """With output layers of their own, and behind recurrent layers."""
    path = str(write_mtp(tmp_path / "model", name, layers=layers, calm=0.3))
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128}
    spec = {"method": "mtp", "lengths": "fixed", "num_speculative_tokens": 3}
    expected = LLM(path, speculative_config=None, **options).generate(PROMPTS, PARAMS)
    found = LLM(path, speculative_config=spec, **options, **on_device).generate(PROMPTS, PARAMS)
    assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in expected]


@pytest.mark.parametrize("name", ["qwen3_5", "granite4-h", "lfm2", "lfm3", "laguna-heads", "muse_glimmer"])
def test_padded_rows_leave_no_trace(on_device: dict[str, Any], tmp_path: Path, name: str) -> None:
    """Passes of a few rows are padded, of any number of sequences after any other."""
    path = str(tmp_path / name)
    if name in TOWERS:
        write_tower(tmp_path / name, name)
    else:
        write_family(tmp_path / name, name, seed=2, calm=0.3)
    asked = [with_params(ask, logprobs=None, max_tokens=5 + 3 * i) for i, ask in enumerate(asks())]
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 256}
    expected = run(LLM(path, speculative_config=None, **options), asked)
    for method in (None, {"method": "ngram", "lengths": "fixed", "num_speculative_tokens": 3}):
        llm = LLM(path, speculative_config=method, **options, **on_device)
        for some in (slice(None), slice(3), slice(5)):
            assert_same(run(llm, asked[some]), expected[some])


def test_plain_decoding(make_llm: MakeLLM, on_device: dict[str, Any]) -> None:
    """A step sends its rows with what they are drawn with in one copy, and takes back the tokens."""
    expected, llm = make_llm(None).generate(PROMPTS, PARAMS), make_llm(None, **on_device)
    assert [a.outputs[0].token_ids for a in llm.generate(PROMPTS, PARAMS)] == [
        a.outputs[0].token_ids for a in expected
    ]
    answer = SamplingParams(temperature=0.8, seed=3, top_p=0.9, max_tokens=20, ignore_eos=True)
    for prompt in (PROMPTS[0], LONGER[0]):
        llm.generate(prompt, answer)
    up, down, steps = CROSSINGS.up, CROSSINGS.down, 20
    llm.generate(PROMPTS[0], answer)
    assert CROSSINGS.up - up <= steps + 1  # and once the prompt's last row
    assert CROSSINGS.down - down <= steps + LOOKS


def test_processors_and_log_probabilities(make_llm: MakeLLM, on_device: dict[str, Any]) -> None:
    """What reads logits reads them on the host."""
    params = [
        SamplingParams(temperature=0.7, seed=3, max_tokens=12, repetition_penalty=1.3, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=12, logit_bias={5: 2.0}, prompt_logprobs=1),
        SamplingParams(temperature=1.0, seed=4, max_tokens=12, min_p=0.02),
    ]
    for config in (None, {"method": "draft_model", "verification": "rejection"}):
        found = [make_llm(config and "draft_model", 3, **more).generate(PROMPTS, params) for more in ({}, on_device)]
        ours, theirs = (
            [(a.outputs[0].token_ids, a.outputs[0].logprobs, a.prompt_logprobs) for a in x] for x in found
        )
        assert ours == theirs


@pytest.mark.parametrize("options", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_one_gpu(make_llm: MakeLLM, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="on one GPU so far; leave tensor_parallel_size and"):
        make_llm(None, device="cuda", **options)


class Machine:
    """What torch says of a machine."""

    def __init__(
        self, *, cuda: str | None = "13.0", found: bool = True, capability: tuple[int, int] = (9, 0)
    ) -> None:
        self.cuda, self.found, self.capability = cuda, found, capability

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", self.cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.found)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: self.capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine(cuda=None), "computes on CPUs alone; install its CUDA build"),
        (Machine(found=False), "torch finds no GPU here; leave it at 'cpu'"),
        (Machine(capability=(7, 5)), r"Some GPU has compute capability 7\.5, and 8\.0 is the least"),
    ],
)
def test_no_gpu(weightless: str, monkeypatch: pytest.MonkeyPatch, machine: Machine, message: str) -> None:
    """Said before weights are read."""
    machine.plant(monkeypatch)
    with pytest.raises(ConfigError, match=message):
        LLM(weightless, device="cuda")
    assert find_device("cpu").type == "cpu"


def test_too_little_memory(weightless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine().plant(monkeypatch)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 10, 1 << 10))
    with pytest.raises(CapacityError, match="only 1024 bytes are free"):
        LLM(weightless, device="cuda")


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch computes on GPUs here")
def test_every_command_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("a text")
    for command in (
        "verify tiny-code",
        "generate --model tiny-code x",
        "bench methods tiny-code --methods ngram",
        "bench latency tiny-code",
        f"bench perplexity tiny-code --text {text}",
        f"train eagle3 --target tiny-code --data {text} --output {tmp_path / 'head'}",
    ):
        assert main([*command.split(), "--device", "cuda"]) != 0
        assert "install its CUDA build" in capsys.readouterr().err


def test_auto_is_the_processor() -> None:
    assert EngineConfig(device="auto").device == EngineConfig.parse({"device": "auto"}).device == "cpu"
