"""What is trained is what is served: guesses in training against the references of the public formats."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
from blocks import BlockTwin, SparkTwin
from eagles import Choose, Twin
from torch import Tensor
from training import options, write_prompts, write_target

from parlay.text.tokenizer import TextCodec
from parlay.train.blocks import BlockTrainee
from parlay.train.data import Text, read_texts
from parlay.train.save import save_head
from parlay.train.teacher import Teacher, TeacherBatch
from parlay.train.trainee import Trainee, methods


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("methods")
    write_target(path / "target")
    write_prompts(path / "prompts.jsonl", 12)
    return path


@pytest.fixture(scope="module")
def teacher(place: Path) -> Teacher:
    return Teacher(options(place / "target", place / "prompts.jsonl", place))


@pytest.fixture(scope="module")
def batch(place: Path, teacher: Teacher) -> TeacherBatch:
    return teacher.batch(read_texts(place / "prompts.jsonl", TextCodec(place / "target"), 64, 96))


def disturbed(method: str, teacher: Teacher, texts: list[Text] | None = None, **own: Any) -> Trainee:
    """Return a trainee none of whose parameters is as simple as at first."""
    module = methods.load(method)
    torch.manual_seed(0)
    trainee: Trainee = module.Trainee(module.Options(**own), teacher, texts or [])
    with torch.no_grad():
        for parameter in trainee.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return trainee


@torch.no_grad()
def guesses(trainee: Trainee, batch: TeacherBatch) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits of each guess, and the rows that they start from."""
    for i, guess in enumerate(trainee.draft(batch)):
        output = guess.output
        weight = output.weight if output.further is None else torch.cat([output.weight, output.further], 1)
        yield guess.states @ weight.T, guess.labels - i - 1


@pytest.mark.parametrize("own_outputs", [False, True])
def test_medusa(own_outputs: bool, teacher: Teacher, batch: TeacherBatch) -> None:
    trainee = disturbed("medusa", teacher, num_heads=3, num_layers=2, own_outputs=own_outputs)
    config, tensors = trainee.export()
    states = heads.medusa_states(tensors, batch.hidden, 3, 2)
    for i, (found, rows) in enumerate(guesses(trainee, batch)):
        assert len(rows)
        output = tensors[f"{i}.2.weight"] if own_outputs else teacher.output().weight
        torch.testing.assert_close(found, states[i][rows] @ output.T)
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (3, 2)


@pytest.mark.parametrize("tie_weights", [False, True])
@pytest.mark.parametrize("scale_input", [False, True])
def test_mlp_speculator(tie_weights: bool, scale_input: bool, teacher: Teacher, batch: TeacherBatch) -> None:
    trainee = disturbed(
        "mlp_speculator", teacher, n_predict=4, inner_dim=48, tie_weights=tie_weights, scale_input=scale_input
    )
    config, tensors = trainee.export()
    for i, (found, rows) in enumerate(guesses(trainee, batch)):
        tokens = [batch.tokens[rows + 1 + j] for j in range(i + 1)]
        expected = heads.mlp_logits(config, tensors, batch.hidden[rows], tokens)[i]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_draft_model(place: Path, teacher: Teacher, batch: TeacherBatch, tmp_path: Path) -> None:
    trainee = disturbed("draft_model", teacher, num_layers=2, hidden_size=64, num_heads=2)
    save_head(tmp_path, trainee, torch.float32, "", place / "target")
    texts = read_texts(place / "prompts.jsonl", TextCodec(tmp_path), 64, 96)
    served = Teacher(options(tmp_path, place / "prompts.jsonl", place)).batch(texts)
    ((found, _),) = guesses(trainee, batch)
    torch.testing.assert_close(found.softmax(-1), served.target_probs[batch.starts(1)], atol=1e-4, rtol=1e-3)


def rolled(
    path: Path, batch: TeacherBatch, states: Tensor, teacher: Teacher, guesses: int
) -> list[dict[int, Tensor]]:
    """Return logits of every guess by the row it starts from, one row and one token at a time."""
    twin = Twin(path, teacher.embedding(), teacher.output().weight)
    found: list[dict[int, Tensor]] = [{} for _ in range(guesses)]
    for text in range(int(batch.text.max()) + 1):
        rows = (batch.text == text).nonzero()[:, 0].tolist()
        for last in range(len(rows) - 1):
            known = twin.states(states[rows[: last + 1]])
            for i in range(min(guesses, len(rows) - 1 - last)):
                tokens = batch.tokens[rows[1 : last + 2 + i]]
                foreseen = twin.foresee(tokens, known)
                found[i][rows[last]] = twin.logits(foreseen[-1])
                known = torch.cat([known, foreseen[-1:]])
    return found


@pytest.mark.parametrize("own", [{}, {"draft_vocab_size": 24, "layers": (0, 1, 2)}], ids=["eagle", "eagle3"])
def test_eagle_rollouts(
    own: dict[str, Any], place: Path, teacher: Teacher, batch: TeacherBatch, tmp_path: Path
) -> None:
    chosen = options(place / "target", place / "prompts.jsonl", place)
    teacher = Teacher(chosen)
    texts = read_texts(place / "prompts.jsonl", TextCodec(place / "target"), 64, 96)[:3]
    # Texts of different lengths, so that some rows are only filling.
    texts = [Text(text.tokens[:n], text.loss_mask[:n]) for text, n in zip(texts, (24, 17, 20), strict=True)]
    texts[1].loss_mask[3:6] = True  # an earlier answer, as in a conversation
    trainee = disturbed("eagle3" if own else "eagle", teacher, texts, rollout=4, intermediate_size=56, **own)
    batch = teacher.batch(texts)
    save_head(tmp_path, trainee, torch.float32, "", place / "target")
    states = torch.cat(batch.tapped, -1) if own else batch.hidden
    expected = rolled(tmp_path, batch, states, teacher, 4)
    for i, (found, rows) in enumerate(guesses(trainee, batch)):
        assert len(rows) == sum(int(text.loss_mask[2 + i :].sum()) for text in texts)
        for logits, row in zip(found, rows.tolist(), strict=True):
            torch.testing.assert_close(logits.double(), expected[i][row], atol=1e-3, rtol=1e-3)


def going_on(text: list[int]) -> Choose:
    """Return what takes the tokens of a text, whatever is likely."""
    return lambda logits, place, ids: text[place] if place < len(text) else 0


@pytest.mark.parametrize("method", ["dflash", "dspark"])
@pytest.mark.parametrize(
    "own",
    [{}, {"draft_vocab_size": 24, "layers": (1, 3), "block_size": 8, "num_layers": 1}],
    ids=["whole", "reduced"],
)
def test_blocks(
    method: str, own: dict[str, Any], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From wherever a block may begin, in texts of different lengths, as the head that is served drafts."""
    teacher = Teacher(options(place / "target", place / "prompts.jsonl", place))
    texts = read_texts(place / "prompts.jsonl", TextCodec(place / "target"), 64, 96)[:3]
    texts = [Text(text.tokens[:n], text.loss_mask[:n]) for text, n in zip(texts, (24, 17, 20), strict=True)]
    texts[1].loss_mask[3:6] = True  # an earlier answer, as in a conversation
    trainee = disturbed(method, teacher, texts, **{"block_size": 5, "intermediate_size": 56, **own})
    batch = teacher.batch(texts)
    save_head(tmp_path, trainee, torch.float32, "", place / "target")
    kind = {"dflash": BlockTwin, "dspark": SparkTwin}[method]
    twin = kind(tmp_path, teacher.embedding(), teacher.output().weight)
    twin.own_mask = torch.load(tmp_path / "mask_embedding.pt")["embedding"]
    monkeypatch.setattr(twin, "token", lambda token: token)  # which is what follows in the text
    states, ends = torch.cat(batch.tapped, -1), batch.text.bincount().cumsum(0)
    for i, (found, rows) in enumerate(guesses(trainee, batch)):
        assert len(rows) == sum(int(text.loss_mask[2 + i :].sum()) for text in texts)
        for logits, row in zip(found, rows.tolist(), strict=True):
            text = texts[int(batch.text[row])].tokens.tolist()
            begin = int(ends[batch.text[row]]) - len(text)
            known = text[: row - begin + 2], states[begin : row + 1]
            _, scores = twin.chain(*known, i + 1, going_on(text))
            torch.testing.assert_close(logits.double(), scores[i], atol=1e-4, rtol=1e-4)


def test_where_blocks_begin(teacher: Teacher, place: Path, batch: TeacherBatch) -> None:
    """At some places of every text: the same whenever it is measured, and others in every step."""
    chosen = Teacher(options(place / "target", place / "prompts.jsonl", place))
    trainee, rows = disturbed("dflash", chosen, anchors=3), batch.starts(2)
    assert isinstance(trainee, BlockTrainee)
    drawn = [trainee._sample_rows(rows, batch.text) for _ in range(30)]
    with torch.no_grad():
        measured = [trainee._sample_rows(rows, batch.text) for _ in range(2)]
    for some in (*drawn, *measured):
        assert batch.text[some].bincount().tolist() == [3] * 12
        assert torch.isin(some, rows).all()
        assert (some.diff() > 0).all()
    assert torch.equal(*measured)
    assert min(measured[0][:3].diff().tolist()) >= 3
    assert torch.cat(drawn).unique().tolist() == rows.tolist()


def test_a_small_vocabulary_is_of_the_commonest(teacher: Teacher, place: Path) -> None:
    text = Text.of([60] * 20, [7] * 9 + [40] * 5 + [3] * 5 + [11] * 2)
    chosen = Teacher(options(place / "target", place / "prompts.jsonl", place))
    trainee = disturbed("eagle3", chosen, [text], draft_vocab_size=3, layers=(0, 1, 2))
    tensors = trainee.export()[1]
    assert (tensors["d2t"] + torch.arange(3)).tolist() == [3, 7, 40]
    assert tensors["t2d"].nonzero()[:, 0].tolist() == [3, 7, 40]
