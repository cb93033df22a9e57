"""`parlay list`, `show`, `rm`, `run`: what they print, what they refuse, what they leave alone."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from stand_in_hub import StandInHub

from parlay.checkpoints.find import ASSETS, find_model
from parlay.checkpoints.headers import read_tensors
from parlay.checkpoints.hub import Hub
from parlay.checkpoints.pull import pull
from parlay.cli.main import main
from parlay.errors import ModelError

pytestmark = pytest.mark.usefixtures("endpoint", "_own_folders")

Run = Callable[..., tuple[int, str, str]]
FILE = "m-Q8_0.gguf"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: str, answer: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("") if answer is None else Terminal(answer))
        status = main([*arguments, f"--download-dir={hub.cache_dir}"])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def models(run: Run) -> dict[str, dict[str, Any]]:
    status, out, _ = run("list", "--json")
    assert status == 0
    return {one["name"]: one for one in json.loads(out)["models"]}


def test_list(run: Run, own_names: Path, hub: Hub, files: Path) -> None:
    assert run("pull", "tiny")[0] == 0
    assert run("pull", "owner/model")[0] == 0
    status, out, err = run("list")
    assert status == 0
    assert err == ""
    rows = [line.split() for line in out.splitlines() if line]
    assert [row[0] for row in rows[:5]] == ["model", "tiny-code", "owner/model", "tiny", "draft"]
    assert rows[3][1:4] == ["Q8_0", *f"{(files / FILE).stat().st_size / 1000:.0f} kB".split()]
    found = models(run)
    assert {name: one["role"] for name, one in found.items()} == {
        "tiny-code": "model",
        "tiny-code-draft": "draft",
        **{f"tiny-code-{head}": "head" for head in ("eagle", "eagle3", "medusa", "mlp-speculator")},
        "tiny": "model",
        "owner/model": "model",
    }
    assert (found["owner/model"]["kind"], found["tiny-code"]["kind"]) == ("f32", "bf16")
    assert (found["tiny"]["place"], found["tiny"]["size"]) == ("hub", (files / FILE).stat().st_size)
    assert Path(found["tiny"]["path"]).read_bytes() == (files / FILE).read_bytes()


def test_the_short_names_are_listed(run: Run, own_names: Path) -> None:
    assert "tiny:f16" in run("list", "--names")[1]
    assert json.loads(run("list", "--names", "--json")[1])["tiny"] == "owner/files:Q8_0"


def test_heads_and_what_cannot_be_read(run: Run, standing: StandInHub, hub: Hub) -> None:
    for head in ("eagle", "medusa"):  # one whose config says so, and one whose tensors do
        standing.publish(f"owner/{head}", all=ASSETS / f"tiny-code-{head}")
        pull(f"owner/{head}", hub)
    standing.publish("owner/words", **{"tokenizer.json": b"{}", "config.json": b'{"architectures": ["BertModel"]}'})
    find_model("owner/words", hub, weights=False)
    found = models(run)
    assert (found["owner/eagle"]["role"], found["owner/medusa"]["role"]) == ("head", "head")
    status, _, err = run("list")
    assert status == 0
    assert err == "1 more cannot be read; --json says why\n"
    assert "owner/words" in json.loads(run("list", "--json")[1])["unreadable"]


def test_a_file_in_parts(run: Run, standing: StandInHub, files: Path, tmp_path: Path) -> None:
    write_gguf(files / "model", tmp_path / "p-Q8_0.gguf", "Q8_0", tensors_each=12)
    parts = sorted(tmp_path.glob("p-*.gguf"))
    assert len(parts) == 3
    standing.publish("owner/parts", **{part.name: part for part in parts})
    assert run("pull", "owner/parts:Q8_0")[0] == 0
    name = f"owner/parts/{parts[0].name}"
    assert models(run)[name]["size"] == sum(part.stat().st_size for part in parts)
    assert run("rm", "owner/parts:Q8_0", "--yes")[0] == 0
    assert name not in models(run)


def test_show(run: Run, own_names: Path, files: Path) -> None:
    status, out, _ = run("show", "tiny-code")
    assert status == 0
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    shown = {key.strip(): value.strip() for key, value in lines.items()}
    assert shown["parameters"] == "6,557,952"
    assert shown["context"] == "2,048 tokens"
    assert shown["architecture"] == "LlamaForCausalLM"
    assert shown["stored as"] == "bf16 100%"
    assert shown["chat template"] == "yes"
    status, _, err = run("show", "tiny")
    assert status == 2
    assert err == "parlay: 'tiny' is not on this machine; fetch it with `parlay pull tiny`\n"
    run("pull", "tiny")
    card = json.loads(run("show", "tiny", "--json")[1])
    assert (card["license"], card["tokenizer"], card["context_length"]) == ("mit", "gpt2", 512)
    assert card["local"]["kind"] == "Q8_0"
    assert set(card["kinds"]) == {"Q8_0", "f32"}
    assert "draft head" in run("show", "tiny-code-eagle3")[1]


def test_show_reads_what_stands_beside_a_model(run: Run, files: Path, tmp_path: Path) -> None:
    path = shutil.copytree(files / "model", tmp_path / "model")
    (path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "do_sample": true}')
    (path / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\nlicense: none\n")
    card = json.loads(run("show", str(path), "--json")[1])
    assert card["generation"] == {"temperature": 0.6, "top_k": 20}
    assert card["license"] == "apache-2.0"
    assert card["chat_template"] is True
    named = write_gguf(ASSETS / "tiny-code", tmp_path / "m.gguf", tokenizer__chat_template__tool_use="{{ messages }}")
    assert json.loads(run("show", str(named), "--json")[1])["chat_template"] is True
    (path / "tokenizer_config.json").write_text("{}")
    assert json.loads(run("show", str(path), "--json")[1])["chat_template"] is False
    assert card["local"]["place"] == "disk"


def test_rm_asks(run: Run, own_names: Path, hub: Hub) -> None:
    path = pull("tiny", hub).path
    status, _, err = run("rm", "tiny")
    assert (status, "give --yes" in err) == (2, True)
    for answer in ("n\n", "\n", ""):
        assert run("rm", "tiny", answer=answer)[0] == 1
        assert path.is_file()
    status, out, _ = run("rm", "tiny", answer="y\n")
    assert status == 0
    assert "removed tiny" in out
    assert not path.exists()
    assert not (Path(str(hub.cache_dir)) / "models--owner--files").exists(), "configs and refs went with it"
    status, _, err = run("rm", "tiny", "--yes")
    assert (status, "'tiny' is not on this machine" in err) == (2, True)


def test_rm_leaves_others_alone(run: Run, own_names: Path, hub: Hub) -> None:
    kept, gone = pull("tiny:f16", hub).path, pull("tiny:q8", hub).path
    blob = gone.resolve()
    assert run("rm", f"owner/files/{FILE}", "--yes")[0] == 0
    assert kept.is_file()
    assert not gone.exists()
    assert not blob.exists()
    assert set(models(run)) >= {"tiny:f16"}


def test_rm_keeps_what_another_revision_needs(run: Run, standing: StandInHub, hub: Hub) -> None:
    first = pull("owner/files:Q8_0", hub).path
    standing.publish("owner/files", **{"notes.txt": b"new"})
    second = pull("owner/files:Q8_0", hub).path
    assert first.resolve() == second.resolve()
    assert first != second
    status, out, _ = run("list")
    assert status == 0
    assert out.count(f"owner/files/{FILE} at ") == 2
    assert run("rm", str(first), "--yes")[0] == 0
    assert second.is_file()
    assert run("rm", "owner/files:Q8_0", "--yes")[0] == 0
    assert not second.exists()


def test_rm_leaves_mirrors_alone(run: Run, standing: StandInHub, hub: Hub, files: Path) -> None:
    """Their revisions have the same name."""
    left = {"owner/model", "owner/mirror", "other/model"}
    for one in sorted(left):
        standing.publish(one, all=files / "model")
        find_model(one, hub)
    for gone in ("owner/model", "other/model", "owner/mirror"):
        left.remove(gone)
        assert run("rm", gone, "--yes")[0] == 0
        assert not (Path(str(hub.cache_dir)) / f"models--{gone.replace('/', '--')}").exists()
        assert {name for name in models(run) if "/" in name} == left


def test_a_repository_of_several_files_names_them(run: Run, hub: Hub) -> None:
    for kind in ("Q8_0", "F16"):
        pull(f"owner/files:{kind}", hub)
    for command in (["rm", "owner/files", "--yes"], ["show", "owner/files"]):
        status, _, err = run(*command)
        assert status == 2
        assert "give one: 'owner/files/m-F16.gguf', 'owner/files/m-Q8_0.gguf'" in err
    assert {"owner/files/m-F16.gguf", "owner/files/m-Q8_0.gguf"} <= set(models(run))


def test_rm_refuses(run: Run, own_names: Path, files: Path, tmp_path: Path) -> None:
    copy = shutil.copy(files / FILE, tmp_path / "mine.gguf")
    own_names.write_text(f'[mine]\nx = "{copy}"\n')
    for name, words in (
        ("tiny-code", "is a part of parlay"),
        ("tiny-code-eagle3", "is a part of parlay"),
        (str(copy), "a file or directory of your own"),
        ("mine", "a file or directory of your own"),
        ("owner/other", "is not on this machine"),
        ("nonsense", "there is no model"),
    ):
        status, out, err = run("rm", name, "--yes")
        assert (status, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
    assert copy.is_file()


def test_rm_does_not_follow_links(run: Run, hub: Hub, files: Path, tmp_path: Path) -> None:
    """Into a revision, into a repository, and from a folder in it: whoever made a link has the files elsewhere."""
    pull("owner/model", hub)
    cache = Path(str(hub.cache_dir))
    repository = cache / "models--owner--model"
    (snapshot,) = (repository / "snapshots").iterdir()
    mine = shutil.copytree(files / "model", tmp_path / "mine")
    held = sorted(file.name for file in mine.iterdir())

    def refused(name: str) -> None:
        status, _, err = run("rm", "--yes", name)
        assert (status, "is a link to" in err) == (2, True), err
        assert sorted(file.name for file in mine.iterdir()) == held

    shutil.rmtree(snapshot)
    snapshot.symlink_to(mine)
    refused("owner/model")
    snapshot.unlink()
    shutil.copytree(repository, tmp_path / "elsewhere")
    shutil.copytree(mine, tmp_path / "elsewhere" / "snapshots" / snapshot.name)
    shutil.rmtree(repository)
    repository.symlink_to(tmp_path / "elsewhere")
    refused("owner/model")
    assert (tmp_path / "elsewhere" / "snapshots" / snapshot.name / "config.json").exists()


def test_rm_counts_files_that_are_no_links(run: Run, hub: Hub, files: Path) -> None:
    pull("owner/model", hub)
    (snapshot,) = (Path(str(hub.cache_dir)) / "models--owner--model" / "snapshots").iterdir()
    shutil.rmtree(snapshot)
    shutil.copytree(files / "model", snapshot)
    status, out, _ = run("rm", "--yes", "owner/model")
    assert status == 0
    assert " 0 B freed" not in out
    assert not snapshot.exists()


def test_an_odd_checkpoint_hides_no_others(run: Run, standing: StandInHub, hub: Hub, files: Path) -> None:
    pull("owner/model", hub)
    for i, config in enumerate(
        (
            b'{"quantization_config": "awq", "architectures": ["LlamaForCausalLM"]}',
            b'{"architectures": 3, "model_type": ["llama"]}',
            b"version https://git-lfs.github.com/spec/v1\n",
        )
    ):
        odd = {file.name: file for file in (files / "model").iterdir()} | {"config.json": config}
        standing.publish(f"owner/odd{i}", **odd)
        find_model(f"owner/odd{i}", hub)
        assert "owner/model" in models(run)
        assert run("rm", "--yes", f"owner/odd{i}")[0] == 0
        assert not (Path(str(hub.cache_dir)) / f"models--owner--odd{i}").exists()
    assert run("rm", "--yes", "owner/model")[0] == 0


def test_names_that_look_like_patterns(run: Run, standing: StandInHub, hub: Hub, files: Path) -> None:
    others = {f"owner/odd/{one}" for one in ("a.gguf", "ab.gguf")}
    standing.publish("owner/odd", **dict.fromkeys(("a.gguf", "ab.gguf"), files / FILE))
    paths = [find_model(one, hub) for one in others]
    for name in ("[ab].gguf", "a*.gguf", "a?.gguf", "a-[0-9]-00001-of-00002.gguf"):
        odd = Path(shutil.copy(files / FILE, paths[0].with_name(name)))
        if "-of-" in name:
            odd.with_name("a-5-00002-of-00002.gguf").write_bytes(b"another model's")
        assert models(run)[f"owner/odd/{name}"]["size"] == (files / FILE).stat().st_size
        assert run("rm", "--yes", str(odd))[0] == 0
        assert not odd.exists()
        assert others <= set(models(run))


def test_run_answers_once(run: Run, own_names: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--max-tokens", "5", "--temperature", "0", "--max-model-len", "64"]
    status, once, err = run("run", "tiny", "hello", *options, "--chat-template", "{{ messages[0].content }}")
    assert status == 0, err
    assert f"{(files / FILE).stat().st_size / 1000:.0f} kB in " in err
    status, again, err = run("run", "tiny", "hello", *options, "--chat-template", "{{ messages[0].content }}")
    assert (status, again) == (0, once)
    assert " in /" not in err
    assert main(["generate", "hello", "--raw", "--model", str(files / FILE), *options]) == 0
    assert capsys.readouterr().out == once


def test_run_talks(run: Run, hub: Hub, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("parlay.cli.chat.talk", lambda options, *_: seen.append(options) or 0)
    assert run("run", "owner/files:Q8_0", "--system", "be brief")[0] == 0
    assert (seen[0].model, seen[0].system, seen[0].prompt) == ("owner/files:Q8_0", "be brief", None)
    with pytest.raises(SystemExit):
        run("run", "tiny-code", "--model", "other")


def test_none_of_them_needs_torch(hub: Hub, files: Path) -> None:
    code = (
        "import sys; from parlay.cli.main import main;"
        f"[main([*a, '--download-dir', {hub.cache_dir!r}]) for a in (['list'], ['show', {str(files / FILE)!r}],"
        "['show', 'tiny-code'], ['rm', 'nonsense'], ['pull', 'tiny-code'])]; print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("size", ["1e999", "-1e999", "NaN", "null", "{}"])
def test_a_header_whose_sizes_are_none(size: str, tmp_path: Path) -> None:
    header = f'{{"x": {{"dtype": "F32", "shape": [{size}], "data_offsets": [0, 4]}}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ModelError, match="damaged"):
        read_tensors(tmp_path)
