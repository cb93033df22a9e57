"""The native module with emulated tile instructions (AMX), in place of this machine's.

As a plugin of pytest (`-p amx_native`) it takes the place of `parlay.kernels._native` before anything imports that.
As a script it runs parlay's command line with it: `python tests/support/amx_native.py verify tiny-code`.

PARLAY_AMX is the folder that `scripts/amx.sh` built.
"""

import importlib.util
import os
import sys
from pathlib import Path

import parlay.kernels


def _load(folder: Path) -> None:
    (path,) = folder.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("parlay.kernels._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[module.__name__] = module
    parlay.kernels._native = module


assert "parlay.kernels._native" not in sys.modules, "this machine's module is there already"
_load(Path(os.environ["PARLAY_AMX"]))

if __name__ == "__main__":
    from parlay.cli.main import main

    sys.exit(main())
