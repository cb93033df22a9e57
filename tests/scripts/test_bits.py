"""Checksums of a model's tokens and log-probabilities."""

import pytest
from bits import checksum, main
from conftest import Pair


def test_a_checksum_is_of_the_model(models: dict[str, Pair], capsys: pytest.CaptureFixture[str]) -> None:
    targets = [str(models[dtype].target) for dtype in ("float32", "bfloat16")]
    first, second = map(checksum, targets)
    assert first != second
    main(targets)
    assert capsys.readouterr().out == "".join(
        f"{one} {path}\n" for one, path in zip((first, second), targets, strict=True)
    )
