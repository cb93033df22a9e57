"""Wheels are built; this machine's is installed and used as a newcomer would, ARM's runs under qemu."""

import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY, SIGNATURE = 0xC, 0x1D  # LC_LOAD_DYLIB and LC_CODE_SIGNATURE of mach-o/loader.h


def load_commands(module: bytes) -> Iterator[tuple[int, str]]:
    """Yield kind and name, if it is a library's, of what macOS does to load a module (mach-o/loader.h)."""
    (count,) = struct.unpack_from("<I", module, 16)
    at = 32
    for _ in range(count):
        kind, size, name = struct.unpack_from("<III", module, at)
        yield kind, module[at + name : at + size].split(b"\0")[0].decode() if kind == LIBRARY else ""
        at += size


def build(platform: str, output: Path) -> Path:
    command = [sys.executable, ROOT / "scripts" / "wheels.py", "--platform", platform, "--output", output]
    subprocess.run(command, check=True)
    (wheel,) = output.glob("*.whl")
    return wheel


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="wheels for Linux")
def test_a_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """From `pip install` to the first token in under two minutes; demo, verification and client after it."""
    assert "manylinux_2_28" in build("linux-x86_64", tmp_path).name
    subprocess.run([sys.executable, ROOT / "scripts" / "try_wheel.py", tmp_path], check=True)


@pytest.mark.soak
@pytest.mark.skipif(not (ROOT / "build" / "arm" / ".built").exists(), reason="no Python for ARM here; see `make arm`")
def test_the_wheel_for_arm(tmp_path: Path) -> None:
    """Its module is compiled by Clang, and has the bits of the one that GCC compiles, which are this machine's."""
    with zipfile.ZipFile(build("linux-aarch64", tmp_path)) as wheel:
        (module,) = (name for name in wheel.namelist() if name.endswith(".so"))
        made = tmp_path / "module" / Path(module).name
        made.parent.mkdir()
        made.write_bytes(wheel.read(module))
    (tmp_path / "root").symlink_to(ROOT / "build" / "arm" / "root")
    tests = ROOT / "tests" / "kernels" / "test_arm.py"
    variables = {**os.environ, "PARLAY_TEST_ARM": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "pytest", "-k", "not all_of", tests], cwd=ROOT, env=variables, check=True)


@pytest.mark.soak
def test_the_wheel_for_macos(tmp_path: Path) -> None:
    """Nothing here runs it; its module is for that system and machine, is signed, and needs nothing else."""
    wheel = build("macos-arm64", tmp_path)
    assert "macosx_11_0_arm64" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        (module,) = (name for name in files.namelist() if name.endswith(".so"))
        made = files.read(module)
    assert made[:8] == struct.pack("<II", 0xFEEDFACF, 0x0100000C)  # a 64-bit Mach-O file for ARM
    commands = dict(load_commands(made))
    assert LIBRARY in commands
    assert SIGNATURE in commands
    assert {name for kind, name in load_commands(made) if kind == LIBRARY} == {"/usr/lib/libSystem.B.dylib"}
