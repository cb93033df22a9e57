"""A wheel is built, installed into an empty environment without a compiler, and used as a newcomer would."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="wheels for Linux")
def test_a_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """From `pip install` to the first token in under two minutes; demo, verification and client after it."""
    subprocess.run([sys.executable, ROOT / "scripts" / "wheels.py", "--output", tmp_path], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "manylinux_2_28" in wheel.name
    subprocess.run([sys.executable, ROOT / "scripts" / "try_wheel.py", tmp_path], check=True)
