"""Short names: the package's table, the user's own, and what goes wrong with it."""

from pathlib import Path

import pytest
from checkpoints import write_llama

from parlay import ConfigError, ModelError
from parlay.checkpoints.find import embedded, embedded_models, find_model
from parlay.checkpoints.hub import Hub, is_hub_id
from parlay.checkpoints.names import resolve, short_names

pytestmark = pytest.mark.usefixtures("_own_folders")


def test_the_packages_table() -> None:
    names = short_names()
    assert {"smollm2", "smollm2:135m", "llama3.2:1b", "llama3.2:3b", "qwen3:0.6b", "qwen2.5:0.5b"} <= set(names)
    for name, named in names.items():
        assert is_hub_id(named.model)
        assert named.model.count(":") == 1, "GGUF files of one kind"
        assert resolve(name) == named
    assert not set(names) & set(embedded())


def test_a_tag_may_be_left_out() -> None:
    assert resolve("smollm2") == resolve("smollm2:135m") == resolve("SmolLM2")
    assert resolve("mistral") == resolve("mistral:7b")
    assert resolve("smolm2") is None
    with pytest.raises(ModelError, match=r"'smollm2' has no tag '2b'; it has 135m, 360m, 1\.7b"):
        resolve("smollm2:2b")


def test_a_table_of_ones_own(own_names: Path, tmp_path: Path) -> None:
    own_names.write_text(
        own_names.read_text()
        + '[smollm2]\ndefault = "mine"\nmine = "me/smollm2:Q8_0"\n["a.b"]\nx = "/nowhere/m.gguf"\n'
    )
    tiny, smol = resolve("tiny"), resolve("smollm2")
    assert tiny is not None
    assert smol is not None
    assert (tiny.name, tiny.model, smol.model) == ("tiny:q8", "owner/files:Q8_0", "me/smollm2:Q8_0")
    other = resolve("smollm2:135m")
    assert other is not None
    assert other.wheel is not None
    with pytest.raises(
        ModelError, match=rf"a\.b:x stands for /nowhere/m\.gguf, where there is no model; .*{own_names}"
    ):
        find_model("a.b")
    path = write_llama(tmp_path / "model")
    own_names.write_text(f'[here]\nx = "{path}"\n')
    assert find_model("here") == path
    with pytest.raises(ConfigError, match="leave revision out"):
        find_model("here", Hub(revision="v1"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[x", "cannot be read: "),
        ("[x]", "x is empty; give it a tag"),
        ('x = "owner/model"', "'x' must be a table"),
        ('["X y"]\na = "o/m"', "must be a table whose name is of small letters"),
        ('[x]\n"A" = "o/m"', "x.A: a tag must be of small letters"),
        ("[x]\na = 3", "x.a must be a model's name or a table with one, not 3"),
        ("[x]\na = {modle = 'o/m'}", "unknown key 'modle' (did you mean 'model'?)"),
        ('[llama3.2]\n1b = "o/m"', 'a name with dots needs quotes: ["llama3.2"]'),
        ("[x]\na = {model = 3}", "x.a.model must be a text, not 3"),
        ("[x]\na = {wheel = 'w', file = 'f'}", "x.a lacks the key 'model'"),
        ("[x]\na = {model = 'o/m', wheel = 'w'}", "needs both of 'wheel' and 'file'"),
        ('[x]\na = "m.gguf"', "x.a: 'm.gguf' must be owner/model"),
        ('[x]\na = "o/m"\nb = "o/n"', "lacks the key 'default'; it must be one of a, b"),
        ('[x]\na = "o/m"\ndefault = "c"', "default='c' is no tag; it must be one of a"),
        ("[smollm2]\ndefault = 3", "default=3 is no tag"),
        ("\ud800", "cannot be read"),
    ],
)
def test_a_malformed_table(own_names: Path, text: str, words: str) -> None:
    own_names.write_bytes(text.encode("utf-8", "surrogatepass"))
    for ask in (lambda: find_model("smollm2:1b"), short_names):
        with pytest.raises(ConfigError) as error:
            ask()
        assert words in str(error.value)
        assert str(own_names) in str(error.value)
        assert "\n" not in str(error.value)
    assert find_model("tiny-code").name == "tiny-code", "who needs no short name is not held up"


def test_what_a_name_means_first(own_names: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_names.write_text('[tiny-code]\nx = "/nowhere"\n[tiny]\nx = "/nowhere"\n')
    assert find_model("tiny-code").parent.name == "assets"
    monkeypatch.chdir(tmp_path)
    path = write_llama(tmp_path / "tiny")
    assert find_model("tiny").resolve() == path
    with pytest.raises(ModelError, match="stands for /nowhere"):
        find_model("tiny:x")


def test_heads_are_no_models() -> None:
    assert embedded_models() == ["tiny-code"]
    assert {"tiny-code", "tiny-code-draft", "tiny-code-eagle3"} <= set(embedded())
    assert find_model("tiny-code-eagle3").name == "tiny-code-eagle3"
    with pytest.raises(ModelError, match=r"an embedded model \(tiny-code\), a short name") as error:
        find_model("nonsense")
    assert "eagle" not in str(error.value)
    with pytest.raises(ModelError, match="did you mean 'tiny-code-eagle'"):
        find_model("tiny-code-eagl")
