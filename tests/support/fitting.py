"""What suits each speculative method: `fitting_NAME.py` in its folder of `tests/proposers/methods`.

Such a file may have, all of them optional:
    TEXT                        a prompt for the embedded model, after which some guesses from tokens alone are right;
    GUESSES_ON_RANDOM_TEXTS     whether such guesses are right at times on texts of random models;
    options(pair)               what the method cannot do without, or does little without, on random models;
    write(path, target)         writes weights that agree with a random target in part;
    VARIANTS                    other kinds of such weights, by name: of each what writes them.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "proposers" / "methods"


@cache
def fitting(method: str) -> Any:
    """Return the module of a method, or an empty object where it has none."""
    file = _FOLDER / method / f"fitting_{method}.py"
    if not file.is_file():
        return object()
    spec = spec_from_file_location(f"fitting_{method}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FITTED = sorted(folder.name for folder in _FOLDER.iterdir() if hasattr(fitting(folder.name), "write"))


def variants(method: str) -> dict[str, Callable[[Path, Path], None]]:
    """Return a method's other kinds of weights."""
    found: dict[str, Callable[[Path, Path], None]] = getattr(fitting(method), "VARIANTS", {})
    return found


def fitted(method: str, target: Path, variant: str = "") -> Path:
    """Return a head for a target, made beside it when first asked for."""
    path = target.parent / (f"{method}-{variant}" if variant else method)
    if not path.is_dir():
        (variants(method)[variant] if variant else fitting(method).write)(path, target)
    return path
