"""Runs a cell of the table and compares what comes of it with plain decoding."""

from typing import Any

import pytest
from asking import assert_same, assert_same_so_far, run, with_params
from conftest import MakeLLM, Pair, Plain
from table import CONFIGURATIONS, Cell

NO_METHOD = {"target", "grammar", "prediction"}  # sources of tokens that are no proposer's


def check_cell(
    cell: Cell,
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> None:
    """Ask an engine what the cell says; `options` are the engine's, beside the cell's own."""
    how = CONFIGURATIONS[cell.configuration]
    condition = how.conditions[cell.condition]
    asks = condition.asks(plain, cell.dtype, cell.temperature)
    expected = plain(cell.dtype, [with_params(ask, prediction=None, speculative=None) for ask in asks])
    condition.patch(monkeypatch)
    more = cell.more if condition.lengths is None else {"lengths": condition.lengths, **cell.more}
    config = how.config(models[cell.dtype], **more)
    llm = make_llm(speculative_config=config, dtype=cell.dtype, **cell.options, **options)
    meddle, compare = condition.meddle(), assert_same_so_far if condition.aborts else assert_same
    runs = []
    for again in range(condition.runs):
        order = -1 if again else 1
        together = [asks[::order]] if not condition.alone else [[ask] for ask in asks]
        answers = [answer for some in together for answer in run(llm, some, meddle)]
        compare(answers, expected[::order])
        runs.append(answers)
    assert not llm.engine.snapshot().faults, "a proposer has failed requests, which went on without it: see the log"
    assert condition.arose(*runs)
    if None not in (how.right, condition.right):
        sources = {source for answers in runs for answer in answers for source in answer.sources}
        assert bool(sources - NO_METHOD) == (how.right and condition.right)
