"""Pulling from a stand-in hub: whole, resumed, refused, and never half of a model."""

import errno
import os
import signal
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stand_in_hub import StandInHub

from parlay import CapacityError, ConfigError, ModelError
from parlay.checkpoints.find import find_model
from parlay.checkpoints.hub import Hub
from parlay.checkpoints.inventory import take_inventory
from parlay.checkpoints.pull import pull
from parlay.checkpoints.remove import removable, remove

pytestmark = pytest.mark.usefixtures("endpoint", "_own_folders")

FILE = "m-Q8_0.gguf"
Usage = namedtuple("Usage", "total used free")


def listed(hub: Hub) -> list[str]:
    return [one.name for one in take_inventory(hub).checkpoints if one.place != "embedded"]


def partials(hub: Hub) -> list[Path]:
    return list(Path(str(hub.cache_dir)).rglob("*.partial"))


def bodies(standing: StandInHub, path: str = FILE) -> list[int]:
    return [begin for asked, begin in standing.asked if asked == path]


@pytest.mark.parametrize("name", ["owner/files:Q8_0", f"owner/files/{FILE}"])
def test_a_file(standing: StandInHub, hub: Hub, files: Path, name: str) -> None:
    pulled = pull(name, hub)
    content = (files / FILE).read_bytes()
    assert pulled.path.read_bytes() == content
    assert (pulled.size, pulled.came) == (len(content), len(content))
    assert standing.asked == [(FILE, 0)]
    assert listed(hub) == [f"owner/files/{FILE}"]
    assert find_model(name, hub) == pulled.path
    assert pull(name, hub).came == 0
    assert bodies(standing) == [0]


def test_a_directory(standing: StandInHub, hub: Hub, files: Path) -> None:
    pulled = pull("owner/model", hub)
    for file in (files / "model").iterdir():
        assert (pulled.path / file.name).read_bytes() == file.read_bytes()
    assert listed(hub) == ["owner/model"]
    assert pulled.came == pulled.size > 0


def test_what_is_on_this_machine_is_not_fetched(standing: StandInHub, hub: Hub, files: Path) -> None:
    for name in ("tiny-code", str(files / "model"), str(files / FILE)):
        assert pull(name, hub).came == 0
        with pytest.raises(ConfigError, match="leave revision out"):
            pull(name, Hub(revision="main"))
    assert standing.asked == []


def test_a_cut_connection_is_taken_up(standing: StandInHub, hub: Hub, files: Path) -> None:
    standing.cuts[FILE] = [5000, 7000]
    assert pull("owner/files:Q8_0", hub).path.read_bytes() == (files / FILE).read_bytes()
    assert bodies(standing) == [0, 5000, 12000]


@pytest.fixture
def cut_off(standing: StandInHub, endpoint: str, hub: Hub) -> None:
    """A pull has ended after 5,000 bytes, and nothing cuts the next one off."""
    standing.cuts[FILE] = [5000, *[0] * 20]
    words = rf"owner/files/{FILE} was cut off after 5 kB of .*it goes on from there"
    with pytest.raises(ModelError, match=words) as error:
        pull("owner/files:Q8_0", hub)
    assert "\n" not in str(error.value)
    assert listed(hub) == []
    assert [partial.stat().st_size for partial in partials(hub)] == [5000]
    standing.cuts.clear()
    standing.asked.clear()


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_goes_on_where_another_try_ended(
    standing: StandInHub, hub: Hub, files: Path, ranges: bool
) -> None:
    """If the server knows ranges."""
    standing.ranges = ranges
    pulled = pull("owner/files:Q8_0", hub)
    assert pulled.path.read_bytes() == (files / FILE).read_bytes()
    assert bodies(standing) == [5000] or not ranges
    assert partials(hub) == []


@pytest.mark.usefixtures("cut_off")
def test_what_came_can_be_given_up(hub: Hub) -> None:
    assert remove(removable("owner/files:Q8_0", hub), hub) == 5000
    assert partials(hub) == []
    with pytest.raises(ModelError, match="is not on this machine"):
        removable("owner/files:Q8_0", hub)


def test_other_bytes_than_announced(standing: StandInHub, hub: Hub, files: Path) -> None:
    content = (files / FILE).read_bytes()
    standing.instead[FILE] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(ModelError, match="came with other bytes than the hub announced, and was dropped"):
        pull("owner/files:Q8_0", hub)
    assert listed(hub) == []
    assert partials(hub) == []
    standing.instead.clear()
    assert pull("owner/files:Q8_0", hub).path.read_bytes() == content


def test_more_and_fewer_bytes_than_announced(standing: StandInHub, hub: Hub, files: Path) -> None:
    content = (files / FILE).read_bytes()
    standing.instead[FILE] = content + b"more"
    with pytest.raises(ModelError, match=f"more bytes than the {len(content)} that the hub announced"):
        pull("owner/files:Q8_0", hub)
    assert partials(hub) == []
    standing.instead[FILE] = content[:-100]
    with pytest.raises(ModelError, match="was cut off after"):
        pull("owner/files:Q8_0", hub)
    assert listed(hub) == []
    standing.instead.clear()
    assert pull("owner/files:Q8_0", hub).path.read_bytes() == content


def test_a_file_that_is_damaged_on_the_hub(standing: StandInHub, hub: Hub, files: Path) -> None:
    content = (files / FILE).read_bytes()
    standing.repositories["owner/files"][FILE] = content[:-500]
    with pytest.raises(
        ModelError, match=r"owner/files:Q8_0 is no sound model on the hub, and was dropped: .*damaged"
    ):
        pull("owner/files:Q8_0", hub)
    assert listed(hub) == []
    assert take_inventory(hub).unreadable == {}
    standing.repositories["owner/files"][FILE] = content
    assert pull("owner/files:Q8_0", hub).path.read_bytes() == content


def test_what_was_there_before_is_left_alone(standing: StandInHub, hub: Hub, files: Path) -> None:
    path = pull("owner/files:Q8_0", hub).path
    content = (files / FILE).read_bytes()
    path.resolve().write_bytes(content[:-500])
    with pytest.raises(ModelError, match="damaged") as error:
        pull("owner/files:Q8_0", hub)
    assert "dropped" not in str(error.value)
    assert path.is_file()
    assert listed(hub) == []


def test_a_shard_is_missing(standing: StandInHub, hub: Hub) -> None:
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    files = standing.repositories["owner/model"]
    files["model-1.safetensors"] = files.pop("model.safetensors")
    standing.publish("owner/model", **{"model.safetensors.index.json": index})
    with pytest.raises(ModelError, match=r"model-2.safetensors does not exist"):
        pull("owner/model", hub)
    assert listed(hub) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("owner/files:Q4_0", "ends in Q4_0, but there is none"),
        ("owner/files/x.gguf", r"has no file 'x\.gguf'"),
        ("owner/other", "'owner/other'.*could not be fetched"),
        ("owner/other:Q8_0", "could not be fetched"),
        ("tiny-cod", r"there is no model 'tiny-cod'.*did you mean 'tiny-code'"),
        ("llama3.2:7b", r"'llama3\.2' has no tag '7b'; it has 1b, 3b"),
    ],
)
def test_nothing_of_that_name(standing: StandInHub, hub: Hub, name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as error:
        pull(name, hub)
    assert "\n" not in str(error.value)
    assert standing.asked == []
    assert listed(hub) == []


def test_a_file_that_is_listed_and_not_there(standing: StandInHub, hub: Hub) -> None:
    standing.gone.add(FILE)
    with pytest.raises(ModelError, match=rf"owner/files/{FILE} was cut off after 0 B.*404"):
        pull("owner/files:Q8_0", hub)
    assert listed(hub) == []


def test_a_disk_that_is_too_small(standing: StandInHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(10**12, 10**12 - 10**5, 10**5))
    with pytest.raises(
        CapacityError, match=r"owner/files needs \d+ kB more in .*the disk has 100 kB left.*parlay rm"
    ):
        pull("owner/files:Q8_0", hub)
    assert standing.asked == []


def test_a_disk_that_fills_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(_url: str, output: Any, **_: Any) -> None:
        output.write(b"x" * 1000)
        output.flush()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", fill)
        with pytest.raises(CapacityError, match="is full, and owner/files is not complete; make room"):
            pull("owner/files:Q8_0", hub)
    assert partials(hub) == []  # others need the room
    assert listed(hub) == []
    assert pull("owner/files:Q8_0", hub).came > 0


def test_a_token_is_sent_and_never_shown(standing: StandInHub, hub: Hub) -> None:
    standing.gone.add(FILE)
    with pytest.raises(ModelError) as error:
        pull("owner/files:Q8_0", Hub(cache_dir=hub.cache_dir, token="hf_secret"))
    assert "hf_secret" not in str(error.value)
    assert standing.authorizations == {"Bearer hf_secret"}


def command(hub: Hub, *arguments: str) -> list[str]:
    """Return a command in a process of its own, which reads in small pieces."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"  # ignored in the background
        "from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = 1000;"
        "from parlay.cli.main import main; status = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    return [sys.executable, "-c", code, *arguments, f"--download-dir={hub.cache_dir}"]


def test_an_interrupted_pull_goes_on(standing: StandInHub, endpoint: str, hub: Hub, files: Path) -> None:
    environment = os.environ | {"HF_ENDPOINT": endpoint}
    standing.cuts[FILE], standing.stalls = [6000], True
    with subprocess.Popen(
        command(hub, "pull", "owner/files:Q8_0"), env=environment, stderr=subprocess.PIPE, text=True
    ) as running:
        assert standing.stalled.wait(60)
        while not (partials(hub) and partials(hub)[0].stat().st_size):  # what was sent has yet to be written
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "`parlay pull owner/files:Q8_0` goes on from here" in said
    assert "Traceback" not in said
    assert listed(hub) == []
    [partial] = partials(hub)
    began = partial.stat().st_size
    assert 0 < began <= 6000
    standing.asked.clear()
    ran = subprocess.run(
        command(hub, "pull", "owner/files:Q8_0"), env=environment, capture_output=True, text=True, check=True
    )
    assert bodies(standing) == [began]
    assert f"{(files / FILE).stat().st_size / 1000:.0f} kB in {hub.cache_dir}" in ran.stdout
    assert listed(hub) == [f"owner/files/{FILE}"]


def test_pulls_at_the_same_time(standing: StandInHub, endpoint: str, hub: Hub, files: Path) -> None:
    """The second waits for the first, and finds what it fetched."""
    environment = os.environ | {"HF_ENDPOINT": endpoint}
    standing.cuts[FILE], standing.stalls = [6000], True

    def run(_: int) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command(hub, "pull", "owner/files:Q8_0"), env=environment, capture_output=True, text=True, check=False
        )

    with ThreadPoolExecutor(3) as pool:
        running = pool.map(run, range(3))
        assert standing.stalled.wait(60)
        standing.go_on.set()
        for ran in running:
            assert ran.returncode == 0, ran.stderr
    assert bodies(standing) == [0, 6000]
    assert pull("owner/files:Q8_0", hub).path.read_bytes() == (files / FILE).read_bytes()
    assert partials(hub) == []
