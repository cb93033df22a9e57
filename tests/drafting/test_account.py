"""Asking for guesses costs no more than it gains, but for a small share of the time."""

import pytest

from parlay.drafting.account import Account

STEP, ASK = 1e-3, 20e-6


def steps(account: Account, count: int, gain: float) -> int:
    """Run steps in each of which one request may be asked for; a guess saves `gain`. Return how often it was."""
    asked = 0
    for _ in range(count):
        account.save(STEP)
        if account.pays or account.pay():
            account.spend(ASK, 1)
            account.gain(gain)
            asked += 1
    return asked


def test_what_pays_is_always_asked() -> None:
    assert steps(Account(), 5000, 2 * ASK) == 5000


def test_what_never_pays_costs_half_a_per_cent() -> None:
    account = Account()
    steps(account, 300, 0.0)
    before = account.seconds
    asked = steps(account, 10_000, 0.0)
    assert asked * ASK == pytest.approx(account.seconds - before)
    assert 0.004 < (account.seconds - before) / (10_000 * STEP) < 0.0051


def test_rows_that_cost_more_than_they_gain_end_it_too() -> None:
    account = Account()
    steps(account, 300, -5 * ASK)
    assert not account.pays


def test_a_text_that_begins_to_repeat_itself_is_noticed() -> None:
    account = Account()
    steps(account, 5000, 0.0)
    assert not account.pays
    steps(account, 400, 50 * ASK)
    assert account.pays


def test_a_long_time_without_gain_is_made_up_for_by_a_single_good_try() -> None:
    """What is paid for by what was saved up is not owed as well, and little of what went wrong before is."""
    account = Account()
    steps(account, 5000, -2 * ASK)
    assert not account.pays
    account.save(STEP, 8)
    while not account.pay():
        account.save(STEP, 8)
    account.spend(8 * ASK, 8)
    account.gain(16 * ASK)
    assert account.pays


def test_a_whole_batch_is_saved_up_for() -> None:
    account, tries = Account(), 0
    steps(account, 300, 0.0)
    for _ in range(10_000):
        account.save(STEP, 32)
        if account.pay():
            account.spend(32 * ASK, 32)
            tries += 1
    assert 0.0045 < tries * 32 * ASK / (10_000 * STEP) < 0.0051


def test_what_is_saved_up_for_a_batch_is_not_spent_on_the_few_that_are_left_of_it() -> None:
    """Batch after batch the tries would fall on its last requests, and say nothing of all together."""
    account, tries = Account(), dict[int, int]()
    steps(account, 300, 0.0)
    for step in range(10_000):
        requests = 8 if step % 20 < 16 else 1
        account.save(STEP, requests)
        if account.pay():
            account.spend(requests * ASK, requests)
            tries[requests] = tries.get(requests, 0) + 1
    assert 8 * tries.get(8, 0) > 2 * tries.get(1, 0)


def test_a_text_that_ends_to_repeat_itself_is_noticed() -> None:
    account = Account()
    steps(account, 5000, 50 * ASK)
    steps(account, 3000, 0.0)
    assert not account.pays


def test_a_process_that_was_stopped_changes_little() -> None:
    account = Account()
    for _ in range(1000):
        account.spend(ASK, 1)
        account.gain(1.5 * ASK)
    account.spend(3600.0, 1)
    steps(account, 2000, 1.5 * ASK)
    assert account.pays


def test_nothing_is_saved_up_for_long() -> None:
    account = Account()
    steps(account, 300, 0.0)
    for _ in range(100_000):
        account.save(STEP)
    asked = 0
    while account.pay():
        account.spend(ASK, 1)
        asked += 1
    assert asked <= 9
