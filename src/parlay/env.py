"""The only reader and writer of `os.environ`.

Variables:
    PARLAY_KERNELS   `native` or `reference`: which kernels to use (default: native where it was built).
    PARLAY_ISA       `amx`, `avx512bf16`, `avx512vnni`, `avx512`, `avx2` or `baseline`; on ARM `neonbf16`, `neoni8mm`,
                     `neondot`, `neon` or `baseline`: instruction set of the native kernels.
    PARLAY_CHECK_KERNELS  `1`: check every slot, block, row offset and token id that the native kernels are given, and
                     raise an error that names a wrong one. Slow; to find mistakes in parlay (default: 0).
    PARLAY_THREADS   threads for compute (default: one per core that may be used, within a container's quota).
    PARLAY_RANK_TIMEOUT  seconds that a rank waits for another before the engine gives up (default: 20).
    PARLAY_RANK_KEY  secret that ranks of several machines show each other, at least 16 characters.
    PARLAY_MEMORY    bytes of memory for weights and cache (default: what is free).
    PARLAY_LOG       level of the `parlay` logger (default: WARNING).
    OPENAI_API_KEY   key that `parlay verify --url` sends.
    PARLAY_API_KEY   keys of `parlay serve`, separated by commas.
    PARLAY_FLAG_     what variables for flags begin with, such as PARLAY_FLAG_MAX_MODEL_LEN for `--max-model-len`.
    OLLAMA_MODELS    where Ollama keeps its models (default: ~/.ollama/models, and where its service does).
    XDG_CACHE_HOME   in its folder `parlay`, results of the self-check are kept (default: ~/.cache).
    XDG_CONFIG_HOME  in its folder `parlay`, `models.toml` holds the user's short names (default: ~/.config).

Variables of other libraries that may alter the bits of their results are read too, never set: see `ARITHMETIC`.
"""

import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from parlay import cgroups, system
from parlay.errors import ConfigError, shown

ARITHMETIC = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
)


MOST_THREADS = 1024
FLAG = "PARLAY_FLAG_"
_WAITING = "OMP_WAIT_POLICY"


def ollama_models() -> list[Path]:
    """Return the folders in which Ollama may keep models."""
    given = os.environ.get("OLLAMA_MODELS")
    if given:
        return [Path(given)]
    found = [Path("/usr/share/ollama/.ollama/models")]
    with suppress(RuntimeError):  # a user without a home
        found.insert(0, Path.home() / ".ollama/models")
    return found


def prepare_process() -> None:
    """Set what must be set before torch is imported.

    libgomp's workers spin for milliseconds after each parallel region unless told to wait passively. On few
    cores they would take the core that the step's Python code and the native kernels need next.
    """
    os.environ.setdefault(_WAITING, "PASSIVE")


def kernels() -> str | None:
    """Return which kernels were asked for, or None."""
    return os.environ.get("PARLAY_KERNELS") or None


def isa() -> str | None:
    """Return the instruction set the native kernels are to use, or None for the machine's best."""
    return os.environ.get("PARLAY_ISA") or None


def checks_kernels() -> bool:
    """Return whether the native kernels' offsets are to be checked.

    Raises:
        ConfigError: PARLAY_CHECK_KERNELS is neither 0 nor 1.
    """
    asked = os.environ.get("PARLAY_CHECK_KERNELS") or "0"
    if asked not in ("0", "1"):
        raise ConfigError(f"PARLAY_CHECK_KERNELS must be 0 or 1, not {shown(asked)}")
    return asked == "1"


def threads() -> int:
    """Return how many threads compute may use.

    Raises:
        ConfigError: PARLAY_THREADS is no number from 1 to `MOST_THREADS`.
    """
    asked = _number("PARLAY_THREADS", MOST_THREADS, f"a number from 1 to {MOST_THREADS} (so must --threads)")
    if asked is not None:
        return asked
    return min(system.core_count(), cgroups.available_processors())


def rank_timeout() -> float:
    """Return how many seconds a rank waits for another, far more than any layer takes.

    Raises:
        ConfigError: PARLAY_RANK_TIMEOUT is no number above 0.
    """
    asked = os.environ.get("PARLAY_RANK_TIMEOUT")
    if not asked:
        return 20.0
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"PARLAY_RANK_TIMEOUT must be a number of seconds above 0, not {shown(asked)}")
    return seconds


def rank_key() -> bytes:
    """Return the secret by which ranks of several machines know each other.

    Raises:
        ConfigError: PARLAY_RANK_KEY is missing or short.
    """
    key = os.environ.get("PARLAY_RANK_KEY", "")
    if len(key) < 16:
        raise ConfigError(
            "ranks that join over the network need a key; set PARLAY_RANK_KEY to the same 16 characters or more on "
            "all machines"
        )
    return key.encode()


def threads_of(parts: int) -> int:
    """Return how many threads each of several engines may use, which divide them."""
    return max(1, threads() // parts)


def share(parts: int, processors: int = MOST_THREADS) -> dict[str, str]:
    """Return variables under which an engine takes its part, where several divide threads and memory.

    Args:
        parts: number of engines.
        processors: processors that this one runs on, if it does not use all; it has no more threads.
    """
    if parts == 1:
        return {}
    threads = min(threads_of(parts), processors)
    return {"PARLAY_THREADS": str(threads), "PARLAY_MEMORY": str(available_memory() // parts)}


def with_temporary_folder(folder: Path) -> dict[str, str]:
    """Return the variables of a child process whose temporary files are to lie in a folder."""
    return {**os.environ, "TMPDIR": str(folder)}


def adopt(variables: Mapping[str, str]) -> None:
    """Set variables of this process, which must not have read them yet."""
    os.environ.update(variables)


def flags() -> dict[str, str]:
    """Return the values of flags that variables give, by the flags' names with underscores."""
    return {name.removeprefix(FLAG).lower(): text for name, text in os.environ.items() if name.startswith(FLAG)}


def arithmetic() -> dict[str, str]:
    """Return those variables of `ARITHMETIC` that are set."""
    return {name: os.environ[name] for name in ARITHMETIC if os.environ.get(name)}


def api_key() -> str | None:
    """Return the key for another server, or None."""
    return os.environ.get("OPENAI_API_KEY") or None


def inherited(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of another engine's process: this one's, with `more` set.

    How libgomp's threads wait is left out, which was set for parlay's own.
    """
    return {**{name: value for name, value in os.environ.items() if name != _WAITING}, **more}


def cache_dir() -> Path | None:
    """Return the folder for what may be computed or fetched again, which need not exist; None if there is no home."""
    return _folder("XDG_CACHE_HOME", ".cache")


def config_dir() -> Path | None:
    """Return the folder for what the user settles, which need not exist; None if there is no home."""
    return _folder("XDG_CONFIG_HOME", ".config")


def _folder(variable: str, default: str) -> Path | None:
    given = os.environ.get(variable, "")
    if Path(given).is_absolute():  # the specification has relative ones ignored
        return Path(given) / "parlay"
    try:
        return Path.home() / default / "parlay"
    except RuntimeError:
        return None


def log_level() -> str:
    """Return the level of the `parlay` logger.

    Raises:
        ConfigError: PARLAY_LOG names no level.
    """
    level = (os.environ.get("PARLAY_LOG") or "WARNING").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ConfigError(f"PARLAY_LOG must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not {shown(level)}")
    return level


def api_keys() -> tuple[str, ...]:
    """Return the server's keys."""
    return tuple(key.strip() for key in os.environ.get("PARLAY_API_KEY", "").split(",") if key.strip())


def available_memory() -> int:
    """Return the bytes of memory that can be taken without swapping, within the control groups' limits if any.

    Raises:
        ConfigError: PARLAY_MEMORY is no number of bytes.
    """
    most = _number("PARLAY_MEMORY", sys.maxsize, "a number of bytes above 0") or sys.maxsize
    return min(system.free_memory(), cgroups.available_memory(), _available_addresses(), most)


def _number(variable: str, most: int, form: str) -> int | None:
    """Return a variable's value from 1 on; None if it is not set."""
    asked = os.environ.get(variable)
    if not asked:
        return None
    if not (asked.isascii() and asked.isdigit() and len(asked) < 20 and 1 <= int(asked) <= most):
        raise ConfigError(f"{variable} must be {form}, not {shown(asked)}")
    return int(asked)


def _available_addresses() -> int:
    """Return what the limit of `ulimit -v` leaves."""
    most, taken = resource.getrlimit(resource.RLIMIT_AS)[0], system.addresses_in_use()
    return sys.maxsize if most == resource.RLIM_INFINITY or taken is None else max(0, most - taken)
