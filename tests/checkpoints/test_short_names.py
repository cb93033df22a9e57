"""Short names: the package's table, the user's own, and what goes wrong with it."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.checkpoints.find import embedded, embedded_models, find_model, recommended
from parlay.checkpoints.hub import Hub, HubName, is_hub_id, parse_hub_name
from parlay.checkpoints.short_names import resolve, short_names

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
    assert resolve("smollm2:latest") == resolve("smollm2")
    with pytest.raises(ModelError, match=r"'smollm2' has no tag '2b'; it has 135m, 360m, 1\.7b"):
        resolve("smollm2:2b")


def test_every_family_says_how_it_is_sampled_from(tmp_path: Path) -> None:
    """Figures of the authors' cards and generation_config.json files."""
    for named in short_names().values():
        SamplingParams.parse(named.sampling)
        assert {"temperature", "top_p"} <= set(named.sampling), named.name
    assert recommended("smollm2") == recommended("SmolLM2:135m") == {"temperature": 0.2, "top_p": 0.9}
    assert recommended("llama3.2:3b") == {"temperature": 0.6, "top_p": 0.9}
    assert recommended("qwen3") == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert recommended("tiny-code") == recommended("owner/model") == recommended(str(tmp_path)) == {}


def test_a_short_name_gives_its_sampling_to_every_request(own_names: Path, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model")
    own_names.write_text(f'[here]\nsampling = {{temperature = 0.25, top_k = 7}}\nx = "{path}"\n')
    options: Any = {"speculative_config": None, "num_blocks": 64}
    assert LLM("here", **options).sampling_defaults == {"temperature": 0.25, "top_k": 7}
    assert LLM("here", **options).get_default_sampling_params().top_k == 7
    assert LLM("here", generation_config="vllm", **options).sampling_defaults == {}
    assert LLM(path, **options).sampling_defaults == {}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("hf.co/owner/model", ("owner/model", None, None)),
        (
            "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
            ("bartowski/Llama-3.2-1B-Instruct-GGUF", None, "Q4_K_M"),
        ),
        ("https://huggingface.co/owner/model", ("owner/model", None, None)),
        ("https://huggingface.co/owner/model/tree/main", ("owner/model", None, None)),
        ("https://huggingface.co/owner/model/blob/main/a/b.gguf", ("owner/model", "a/b.gguf", None)),
        ("https://huggingface.co/owner/model/resolve/main/b.gguf?download=true", ("owner/model", "b.gguf", None)),
        ("hf://owner/model/", ("owner/model", None, None)),
    ],
)
def test_addresses_of_the_hub(name: str, parts: tuple[str, str | None, str | None]) -> None:
    """As browsers show them, and as `ollama run` and llama.cpp's documents write them."""
    assert is_hub_id(name)
    assert parse_hub_name(name) == HubName(*parts)
    assert not is_hub_id("https://example.org/owner/model")


def test_a_folder_of_several_files_names_them(tmp_path: Path) -> None:
    for name in ("b-Q8_0.gguf", "a-Q4_K_M-00001-of-00002.gguf", "a-Q4_K_M-00002-of-00002.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"holds 2 GGUF models; .*: a-Q4_K_M-00001-of-00002\.gguf, b-Q8_0\.gguf$"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("name", ["smollm2", "llama3.2:1b", "qwen3"])
def test_offline_a_short_name_is_called_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=rf"^{name}.* not in the hub's cache, and HF_HUB_OFFLINE forbids fetching"):
        find_model(name)


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
        ('[x]\nsampling = 0.7\na = "o/m"', "x.sampling must be a table, such as { temperature = 0.7"),
        ('[x]\nsampling = {temprature = 0.7}\na = "o/m"', "unknown key 'temprature' (did you mean 'temperature'?)"),
        ('[x]\nsampling = {top_p = "0.9"}\na = "o/m"', "x.sampling.top_p must be a number, not '0.9'"),
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
