"""Installs a wheel into an empty environment and uses it as a newcomer would: `python scripts/try_wheel.py [FOLDER]`.

Nothing but that environment's programs is on PATH, so there is no compiler; home and caches are empty. Everything is
downloaded first and then installed without the index: what is measured is the time from `pip install` to the first
token, which is to be under two minutes. Then the demo, `parlay verify --quick`, and the documents' client snippet
beside a server. It also looks which OpenMP libraries the process has: two of them would slow each other down.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 120.0  # seconds from the installation's begin to the first token
INSIDE = """
import re, torch
from pathlib import Path
from parlay import LLM
from parlay.kernels.select import instruction_sets
from parlay.models import select
maps = Path("/proc/self/maps")  # Linux's; elsewhere nobody looks
found = set(re.findall(r"/\\S*(?:gomp|libomp|iomp)\\S*", maps.read_text())) if maps.exists() else {"unknown"}
print(*instruction_sets(), "|", *found)
"""


class Newcomer:
    """An empty environment and home, whose commands are timed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        self.programs = folder / "environment" / "bin"
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "PARLAY_"))}
        self.variables = {**kept, "PATH": str(self.programs), "HOME": str(folder / "home"), "LANG": "C.UTF-8"}
        (folder / "home").mkdir()

    def run(self, *command: object) -> str:
        """Run a command to its end and return what it printed."""
        began = time.monotonic()
        program, *rest = map(str, command)
        done = subprocess.run(
            [self.programs / program, *rest],
            env=self.variables,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(f"{time.monotonic() - began:7.1f} s  {' '.join(map(str, command))[:100]}", flush=True)
        if done.returncode:
            sys.exit(f"status {done.returncode}:\n{done.stdout}")
        return done.stdout

    def serve(self, snippet: str) -> str:
        """Run a client's Python beside a server that answers to the name in it."""
        command = [self.programs / "parlay", "serve", "tiny-code", "--served-model-name", "smollm2", "--port", "0"]
        with subprocess.Popen(command, env=self.variables, stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stderr is not None
                for line in server.stderr:
                    if found := re.search(r"listening on (http://\S+)", line):
                        break
                else:
                    sys.exit("the server did not start")
                return self.run("python", "-c", snippet.replace("http://127.0.0.1:8000", found[1]))
            finally:
                server.terminate()


def snippet() -> str:
    """Return the quick start's client."""
    text = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
    return next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "base_url" in block)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="?", default=ROOT / "dist", help="folder (default: dist)")
    parser.add_argument(
        "--bill", type=Path, help="write what is installed with it, as CycloneDX (needs cyclonedx-bom)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = try_all(Newcomer(Path(folder)), options.wheels.resolve(), options.bill)
    return 1 if seconds > LIMIT else 0


def try_all(newcomer: Newcomer, wheels: Path, bill: Path | None) -> float:
    """Return the seconds from the installation's begin to the first token."""
    pip = "python", "-m", "pip", "--disable-pip-version-check"
    newcomer.run(*pip, "download", "--no-index", "--no-deps", "--find-links", wheels, "--dest", "files", "parlay")
    (wheel,) = (newcomer.folder / "files").glob("*.whl")
    print(wheel.name)
    wanted = f"parlay[serve] @ {wheel.as_uri()}"
    newcomer.run(*pip, "download", "--constraint", ROOT / "constraints.txt", "--dest", "files", wanted, "openai")
    began = time.monotonic()
    newcomer.run(*pip, "install", "--no-index", "--find-links", "files", "parlay[serve]")
    newcomer.run("parlay", "generate", "def fibonacci(n):", "--max-tokens", 1)
    seconds = time.monotonic() - began
    print(f"{seconds:7.1f} s  from pip install to the first token")
    newcomer.run(*pip, "check")
    if bill is not None:
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--validate", "--output-reproducible"]
        given = ["--pyproject", ROOT / "pyproject.toml", "--output-file", bill, newcomer.programs / "python"]
        subprocess.run([*command, *given], check=True)
    sets, _, libraries = newcomer.run("python", "-c", INSIDE).partition("|")
    print(f"           instruction sets: {sets}; OpenMP: {libraries.strip()}")
    if not sets.strip() or len(libraries.split()) != 1:
        sys.exit("the wheel is to have native kernels, and one OpenMP library is to be loaded")
    newcomer.run("parlay", "demo", "tiny-code")
    newcomer.run("parlay", "verify", "--quick")
    newcomer.run(*pip, "install", "--no-index", "--find-links", "files", "openai")
    if not newcomer.serve(snippet()).strip():
        sys.exit("the client got no answer")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
