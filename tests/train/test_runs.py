"""A run that is stopped and goes on ends as one that was not; the loss against its slow twin; what is refused."""

import json
import shutil
import weakref
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from crossing import crossed
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from training import options, write_prompts, write_target

from parlay import LLM, SamplingParams, env
from parlay.cli.main import main
from parlay.errors import ConfigError, ModelError, ParlayError
from parlay.models.select import describe_model
from parlay.runner.batch import Batch
from parlay.runner.runner import ModelRunner
from parlay.text.tokenizer import TextCodec
from parlay.train.data import Text, read_texts
from parlay.train.options import TrainOptions
from parlay.train.responses import write_responses
from parlay.train.run import TrainProgress, schedule, train
from parlay.train.save import lock_directory
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch
from parlay.train.trainee import DraftStep, distil, methods

SHORT = {"generate": 40, "response_tokens": 20, "epochs": 2, "evaluate_every": 3}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("runs") / "target")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("data") / "prompts.jsonl", 48)


@pytest.fixture(scope="module")
def responses(target: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the target writes to be learnt from, the same for every method."""
    head = tmp_path_factory.mktemp("responses") / "head"
    train("medusa", options(target, data, head, **{**SHORT, "max_steps": 1}))
    return head / "training" / "responses.jsonl"


class KilledError(Exception):
    """Stands for the end of the process."""


def killed_at(doing: str, done: int) -> Any:
    def watch(progress: TrainProgress) -> None:
        if (progress.doing, progress.done) == (doing, done):
            raise KilledError

    return watch


@crossed(method=tuple(methods.names()), steps=[(1, 5), (8,), (5, 8)])
def test_a_run_goes_on_as_if_it_had_not_been_stopped(
    method: str, steps: tuple[int, ...], target: Path, data: Path, responses: Path, tmp_path: Path
) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name / "training").mkdir(parents=True)
        shutil.copy(responses, tmp_path / name / "training")
    whole = train(method, options(target, data, tmp_path / "whole", **SHORT))
    stopped = options(target, data, tmp_path / "stopped", **SHORT)
    for step in steps:
        with pytest.raises(KilledError):
            train(method, stopped, watch=killed_at("training", step))
    assert not (tmp_path / "stopped" / "config.json").exists()
    seen: list[TrainProgress] = []
    assert train(method, stopped, watch=seen.append) == whole
    assert seen[0].done > 0, "it began anew"
    for file in sorted((tmp_path / "whole").iterdir()):
        if file.suffix == ".safetensors":
            expected, found = load_file(file), load_file(tmp_path / "stopped" / file.name)
            assert expected.keys() == found.keys()
            assert all(torch.equal(expected[name], found[name]) for name in expected)
    files = {file.name for file in (tmp_path / "whole").rglob("*")}
    assert files == {file.name for file in (tmp_path / "stopped").rglob("*")}
    assert not any("checkpoint" in name or "partial" in name for name in files)


def test_responses_are_not_written_again(target: Path, data: Path, tmp_path: Path) -> None:
    chosen = options(target, data, tmp_path / "head", **{**SHORT, "generate": 80})
    with pytest.raises(KilledError):
        train("medusa", chosen, watch=killed_at("responses", 64))
    file = tmp_path / "head" / "training" / "responses.jsonl"
    lines = file.read_text().splitlines()
    assert len(lines) == 65
    file.write_text("\n".join(lines) + '\n{"prompt": [1, 2')  # as a kill within a line leaves it
    seen: list[TrainProgress] = []
    train("medusa", chosen, watch=seen.append)
    assert [p.done for p in seen if p.doing == "responses"] == [64, 80]
    assert file.read_text().splitlines()[:65] == lines
    whole = options(target, data, tmp_path / "whole", **{**SHORT, "generate": 80})
    train("medusa", whole)
    assert (tmp_path / "whole" / "training" / "responses.jsonl").read_text() == file.read_text()


def test_a_run_is_not_mistaken_for_another(target: Path, data: Path, tmp_path: Path) -> None:
    chosen = options(target, data, tmp_path / "head", **SHORT)
    other_data = write_prompts(tmp_path / "fewer.jsonl", 47)
    with pytest.raises(KilledError):
        train("medusa", chosen, watch=killed_at("training", 4))
    for other, message in (
        (replace(chosen, learning_rate=0.5), "learning_rate=0.01, not 0.5"),
        (replace(chosen, response_tokens=9), "response_tokens=20, not 9"),
        (replace(chosen, generate=41), "generate=40, not 41"),
        (replace(chosen, generate=40, data=str(other_data)), "other options or data"),
    ):
        with pytest.raises(ConfigError, match=message):
            train("medusa", other)
    with pytest.raises(ConfigError, match="is of a run with method='medusa', not 'eagle'"):
        train("eagle", chosen)
    with (
        lock_directory(tmp_path / "head" / "training"),
        pytest.raises(ConfigError, match="another run is writing to"),
    ):
        train("medusa", chosen)
    without = replace(chosen, generate=0, output=str(tmp_path / "without"))
    with pytest.raises(KilledError):
        train("medusa", without, watch=killed_at("training", 4))
    for other, message in (
        (replace(without, data=str(other_data)), "of a run with another set of data"),
        (replace(without, target=str(write_target(tmp_path / "other", seed=6))), "of a run with another target"),
    ):
        with pytest.raises(ConfigError, match=message):
            train("medusa", other)
    with pytest.raises(ConfigError, match="num_heads=4, not 3"):
        train("medusa", chosen, methods.load("medusa").Options(num_heads=3))
    checkpoint = tmp_path / "head" / "training" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="damaged"):
        train("medusa", chosen)
    for known in (3, "identity", torch.ones(2)):
        torch.save({"identity": known, "state": {}}, checkpoint)
        with pytest.raises(ConfigError, match="damaged"):
            train("medusa", chosen)
    checkpoint.unlink()
    train("medusa", chosen)
    with pytest.raises(ConfigError, match="already holds a model"):
        train("medusa", chosen)


def test_a_checkpoint_of_another_version(target: Path, data: Path, tmp_path: Path) -> None:
    chosen = options(target, data, tmp_path / "head", **SHORT)
    with pytest.raises(KilledError):
        train("medusa", chosen, watch=killed_at("training", 4))
    checkpoint = tmp_path / "head" / "training" / "checkpoint.pt"
    saved = torch.load(checkpoint, weights_only=True)
    some = dict(list(saved["state"]["trainee"].items())[1:])
    for other in (
        {"trainee": some},
        {"optimizer": {"state": {}, "param_groups": []}},
        {"random": 3},
        {"figures": {"loss": 0.0}},
        {"untrained": {"other": 3}},
    ):
        torch.save({**saved, "state": {**saved["state"], **other}}, checkpoint)
        with pytest.raises(ConfigError, match=r"checkpoint\.pt does not fit this version of parlay"):
            train("medusa", chosen)
    torch.save({**saved, "state": {}}, checkpoint)
    with pytest.raises(ConfigError, match="does not fit"):
        train("medusa", chosen)
    torch.save(saved, checkpoint)
    train("medusa", chosen)


def plain_loss(guess: DraftStep, wanted: Tensor) -> Tensor:
    layers = [guess.output.weight, *([] if guess.output.further is None else [guess.output.further])]
    logits = guess.states @ torch.cat(layers, 1).T
    if guess.output.cap:
        logits = guess.output.cap * torch.tanh(logits / guess.output.cap)
    ids = guess.output.ids
    return cross_entropy(logits, wanted[guess.labels][:, slice(None) if ids is None else ids], reduction="sum")


@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("further", [0, 3])
def test_the_loss_is_cross_entropy(
    cap: float, frozen: bool, narrow: bool, further: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlay.train.trainee._LOSS_LOGITS", 600)  # several pieces, the last one smaller
    torch.manual_seed(0)
    ids = torch.randperm(70)[:30].sort().values if narrow else None
    states = torch.randn(41, 8 + further, requires_grad=True)
    weight, more = torch.randn(30, 8, requires_grad=not frozen), torch.randn(30, further, requires_grad=True)
    wanted = torch.randn(50, 70 if narrow else 30).mul(3).softmax(-1)
    guess = DraftStep(states, TargetOutput(weight, cap, ids, more if further else None), torch.randint(50, (41,)))
    batch = taught(wanted, ids)
    found, _ = distil(guess, batch)
    expected = plain_loss(guess, wanted)
    torch.testing.assert_close(found, expected)
    wrt = [states, *([] if frozen else [weight]), *([more] if further else [])]
    torch.testing.assert_close(torch.autograd.grad(3 * found, wrt), torch.autograd.grad(3 * expected, wrt))
    with torch.no_grad():
        best = (states @ torch.cat([weight, more], 1).T).argmax(-1)
        right = ((best if ids is None else ids[best]) == wanted[guess.labels].argmax(-1)).sum()
        assert distil(guess, batch)[1] == right


def taught(wanted: Tensor, ids: Tensor | None) -> TeacherBatch:
    """Return a batch of these distributions, of which the head has some tokens."""
    rows = torch.zeros(len(wanted), dtype=torch.int64)
    shown = wanted if ids is None else wanted[:, ids]
    return TeacherBatch(rows, rows, rows.bool(), torch.zeros(len(wanted), 1), shown, wanted.argmax(-1))


def test_a_narrowed_teacher_gives_the_same_distributions(target: Path, data: Path, tmp_path: Path) -> None:
    chosen = options(target, data, tmp_path)
    whole, narrowed = Teacher(chosen), Teacher(chosen)
    ids = torch.tensor([3, 5, 40, 60])
    narrowed.restrict_vocabulary(ids)
    texts = read_texts(data, TextCodec(target), 64, 96)[:3]
    every, some = whole.batch(texts), narrowed.batch(texts)
    assert torch.equal(every.target_probs[:, ids], some.target_probs)
    assert torch.equal(every.target_probs.argmax(-1), every.best)
    assert torch.equal(every.best, some.best)


def test_the_teacher_is_the_target(target: Path, data: Path, tmp_path: Path) -> None:
    """Texts in one pass have the states and distributions that they have alone, and the output layer makes them."""
    teacher = Teacher(options(target, data, tmp_path, epochs=1))  # or it would run no text again
    texts = read_texts(data, TextCodec(target), 64, 96)[:5]
    batch = teacher.batch(texts)
    first = 0
    for text in texts:
        alone, rows = teacher.batch([text]), slice(first, first + len(text.tokens))
        assert torch.equal(alone.hidden, batch.hidden[rows])
        assert torch.equal(alone.target_probs, batch.target_probs[rows])
        first = rows.stop
    torch.testing.assert_close((batch.hidden @ teacher.output().weight.T).softmax(-1), batch.target_probs)
    for ahead in (1, 2, 4):
        expected, first = [], 0
        for text in texts:
            n = len(text.tokens)
            expected += [first + t for t in range(n - ahead) if text.loss_mask[t + ahead]]
            first += n
        assert batch.starts(ahead).tolist() == expected


@pytest.mark.parametrize("room", [1 << 30, 50_000, 0])
def test_each_text_is_run_once_while_there_is_memory(
    room: int, target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several epochs; and every batch is what a target makes of it that runs all of it."""
    monkeypatch.setattr(env, "available_memory", lambda: 1 << 40)
    once, kept = (Teacher(options(target, data, tmp_path, epochs=n)) for n in (1, 2))
    kept._room = room
    texts, rows, real = read_texts(data, TextCodec(target), 64, 96)[:6], [], ModelRunner.forward

    def forward(self: ModelRunner, batch: Batch) -> torch.Tensor:
        rows.append(len(batch.tokens))
        return real(self, batch)

    monkeypatch.setattr(ModelRunner, "forward", forward)
    for teacher in (once, kept):
        teacher.tap((0, 1))
    for _ in range(2):
        for group in (texts[:4], texts[2:], texts[::-2]):
            expected, found = once.batch(group), kept.batch(group)
            for one, other in zip(astuple(expected), astuple(found), strict=True):
                torch.testing.assert_close(other, one, rtol=0, atol=0)
    every = 2 * sum(len(text.tokens) for group in (texts[:4], texts[2:], texts[::-2]) for text in group)
    known = sum(len(text.tokens) for text in texts)
    again = sum(rows) - every  # what the second one has run
    assert again == known if room == 1 << 30 else (known < again < every if room else again == every)


@pytest.mark.parametrize("served", [None, 200])
def test_the_teacher_is_the_target_that_is_served(served: int | None, tmp_path: Path) -> None:
    """Whose frequencies depend on the longest sequence of the engine, not of the texts."""
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    target = write_llama(
        tmp_path / "target", calm=3.0, vocab_size=64, max_position_embeddings=64, rope_scaling=scaling
    )
    ids = torch.randint(64, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    teacher = Teacher(options(target, tmp_path, tmp_path, max_length=60, max_model_len=served))
    wanted = teacher.batch([Text.of([], ids)]).target_probs.log()
    llm = LLM(str(target), max_model_len=served)
    output = llm.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    for row, (token, known) in enumerate(zip(ids[1:], output.prompt_logprobs[1:], strict=True)):
        assert known is not None
        assert float(wanted[row, token]) == pytest.approx(known[token].logprob, abs=1e-4)


def test_the_end_of_a_response_is_learnt(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target", vocab_size=64, eos_token_id=[*range(40, 64)])
    texts = [Text.of([i] * 6, [5, 6]) for i in range(4)]
    chosen = options(target, tmp_path, tmp_path, generate=12, response_tokens=30)
    found = write_responses(tmp_path / "responses.jsonl", texts, chosen, "target", 64)
    ended = [text for text in found if text.tokens[-1] >= 40]
    assert len(ended) > 6
    assert all(text.loss_mask[-1] and (text.tokens[:-1] < 40).all() for text in ended)
    assert all(len(text.tokens) == 36 for text in found if text not in ended)


@pytest.mark.parametrize("token", [64, 10**8, -4])
def test_responses_of_another_vocabulary(token: int, target: Path, data: Path, tmp_path: Path) -> None:
    chosen = options(target, data, tmp_path / "head", **SHORT)
    with pytest.raises(KilledError):
        train("medusa", chosen, watch=killed_at("training", 0))
    file = tmp_path / "head" / "training" / "responses.jsonl"
    header, _, *rest = file.read_text().splitlines()
    file.write_text("\n".join([header, json.dumps({"prompt": [1, 2], "response": [token, 7]}), *rest]) + "\n")
    with pytest.raises(ConfigError, match="beyond the target's vocabulary of 64; delete it"):
        train("medusa", chosen)


def test_the_rate_rises_and_falls() -> None:
    rates = [schedule(step, 100, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1, abs=1e-3)
    assert rates[:9] == sorted(rates[:9])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.01


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no text"),
        ("{", "line 1: invalid JSON"),
        ('{"text": "ABC DEF"}\n[1]', "line 2: an entry must be an object"),
        ('{"prompt": "ABC"}', "a prompt alone has nothing to train on"),
        ('{"prompt": 3, "completion": "A"}', "each a text"),
        ('{"messages": [{"role": "user", "content": "A"}]}', "no message of the role 'assistant'"),
        ('{"messages": 3}', "a conversation is a list"),
        ('{"messages": [{"role": "assistant"}, 3]}', "messages must be mappings"),
        ('{"text": "ABCDEFGH"}', "a single text"),
    ],
)
def test_bad_data_are_refused(content: str, message: str, target: Path, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        train("medusa", options(target, file, tmp_path / "head", generate=0))
    assert "\n" not in str(caught.value)


def test_bad_data_are_refused_before_weights_are_read(data: Path, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    (target / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="does not exist"):
        train("medusa", options(target, tmp_path / "none", tmp_path / "head"))
    with pytest.raises(ModelError, match="cannot be read"):
        train("medusa", options(target, data, tmp_path / "head"))


@pytest.mark.parametrize(
    ("method", "own", "message"),
    [
        ("eagle3", {"layers": (1, 2, 4)}, "the target has 3 layers"),
        ("eagle3", {"draft_vocab_size": 65}, "beyond the target's 64 tokens"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_weights_are_read(
    method: str, own: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    target = write_target(tmp_path / "target")
    (target / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=message):
        train(method, options(target, data, tmp_path / "head"), methods.load(method).Options(**own))


@pytest.mark.parametrize("head", ["tiny-code-eagle", "tiny-code-medusa"])
def test_a_head_given_as_the_target_is_named(head: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"'{head}' is a draft head for the method"):
        train("eagle", replace(options(tmp_path, data, tmp_path / "head"), target=head))
    assert not (tmp_path / "head").exists()


def test_the_target_is_in_memory_once(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[weakref.ref[Any]] = []

    def load(*given: Any, **more: Any) -> LLM:
        llm = LLM(*given, **more)
        writers.extend(map(weakref.ref, (llm, llm.engine, llm.engine._worker)))
        return llm

    def teach(chosen: TrainOptions) -> Teacher:
        assert writers
        assert not any(writer() for writer in writers), "who wrote is still there"
        return Teacher(chosen)

    monkeypatch.setattr("parlay.train.written.LLM", load)
    monkeypatch.setattr("parlay.train.run.Teacher", teach)
    train("medusa", options(target, data, tmp_path / "head", **{**SHORT, "max_steps": 1}))


def test_a_run_does_not_learn_from_its_own_files(target: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"lies within .*; give another output"):
        train("medusa", options(target, data.parent, data.parent / "head"))


def test_a_last_step_that_is_too_large(target: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the loss is \S+ after step 1; lower the learning_rate"):
        train("medusa", options(target, data, tmp_path / "head", **{**SHORT, "learning_rate": 1e38, "max_steps": 1}))
    assert not [*(tmp_path / "head").glob("*.safetensors")]


def test_a_full_disk(target: Path, data: Path, tmp_path: Path) -> None:
    work = tmp_path / "head" / "training"
    work.mkdir(parents=True)
    (work / "checkpoint.pt.partial").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"checkpoint\.pt cannot be written: .*to resume from the last checkpoint$"):
        train("medusa", options(target, data, tmp_path / "head", **SHORT))


def test_responses_that_cannot_be_kept(target: Path, data: Path, tmp_path: Path) -> None:
    work = tmp_path / "head" / "training"
    work.mkdir(parents=True)
    file = work / "responses.jsonl"
    file.symlink_to("/nowhere/at/all")
    with pytest.raises(ConfigError, match=r"responses\.jsonl cannot be read or written: No such file"):
        train("medusa", options(target, data, tmp_path / "head", **SHORT))
    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigError, match=r"responses\.jsonl cannot be read or written: Is a directory"):
        train("medusa", options(target, data, tmp_path / "head", **SHORT))


def test_bad_files_are_refused(target: Path, data: Path, tmp_path: Path) -> None:
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe")
    whole = tmp_path / "data.json"
    whole.write_text('[{"text": "ABCDEFGH"}]')
    for file, message in (
        (tmp_path / "none", "does not exist"),
        (binary, "is not text in UTF-8"),
        (whole, "in a file that ends in .jsonl"),
    ):
        with pytest.raises(ConfigError, match=message):
            train("medusa", options(target, file, tmp_path / "head"))
    with pytest.raises(ConfigError, match="beyond the 512 positions"):
        train("medusa", options(target, data, tmp_path / "head", max_length=4096))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        train("medusa", options(target, data, tmp_path / "file" / "head"))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"block_size": 1}, "block_size must be between 2 and 64, not 1"),
        ({"anchors": 0}, "anchors must be between 1"),
        ({"layers": (2, 1)}, r"layers must be numbers, each above the one before, not \[2, 1\]"),
        ({"layers": (0, 2)}, r"layers=\[0, 2\], but the target has 3 layers"),
        ({"layers": (2, 9)}, r"layers=\[2, 9\], but the target has 3 layers"),
        ({"draft_vocab_size": 65}, "draft_vocab_size=65 is beyond the target's 64 tokens"),
    ],
)
def test_bad_options_of_block_drafters(bad: dict[str, Any], told: str, target: Path) -> None:
    module = methods.load("dflash")
    with pytest.raises(ConfigError, match=told):
        module.Trainee.check(module.Options(**bad), describe_model(str(target)))


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"learning_rate": float("nan")},
        {"held_out": 1.0},
        {"warmup": -0.1},
        {"target": ""},
        {"temperature": (0.5, -1.0)},
        {"temperature": ()},
        {"max_length": 2},
        {"clip": 0.0},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_bad_options_are_refused(bad: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        replace(options(tmp_path, tmp_path, tmp_path), **bad)


def test_the_command(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlay.train.run._multiplies_bfloat16", lambda: False)
    chosen = options(target, data, tmp_path / "head", **SHORT)
    flags = [
        f"--{key.replace('_', '-')}={one}"
        for key, value in asdict(chosen).items()
        if value is not None
        for one in (value if isinstance(value, tuple) else (value,))
    ]
    assert main(["train", "medusa", *flags, "--num-heads", "2"]) == 0
    assert "accuracy" in capsys.readouterr().err
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["medusa_num_heads"] == 2
    card = (tmp_path / "head" / "README.md").read_text()
    assert "--num-heads 2" in card
    assert "--no-autocast" in card  # a processor without instructions for bfloat16
    assert main(["train", "mlp_speculator", *flags]) == 2
    assert "already holds a model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "medusa", *flags, "--inner-dim", "3"])
    assert "unknown flag --inner-dim" in capsys.readouterr().err


def test_errors_are_parlays_own() -> None:
    with pytest.raises(ParlayError, match="unknown method to train"):
        methods.load("ngram")
