"""Handlers that leave their process in another state than they found it harm no other job (F41)."""

import pytest

from fairlead import State
from tests.system.tree import ALL_POOLS, Shop, until

HABITS = ("moves", "closes", "ignores", "floods")
"""Those of `shop.py`."""


@pytest.mark.parametrize("habit", HABITS)
def test_an_untidy_handler_in_a_process_keeps_nobody_from_working(shop: Shop, habit: str) -> None:
    """I22: what it changed is its process's alone; those after it there run all the same."""
    untidy = [shop.put("untidy", habit) for _ in range(3)]
    healthy = shop.put_many("nap", 6, 0.1, queue="process") + shop.put_many("wait", 3, 0.5)
    tree = shop.start(*ALL_POOLS)
    (pid,) = until(lambda: tree.workers)
    shop.until_final()
    for job in (*untidy, *healthy):
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0), record
    assert tree.workers == [pid]


@pytest.mark.parametrize("habit", HABITS)
def test_an_untidy_handler_beside_others_keeps_nobody_from_working(shop: Shop, habit: str) -> None:
    """There is no wall between handlers of one process; but the worker goes on, and ends when told."""
    untidy = shop.put("untidy_on_loop", habit)
    shop.start("--pool", "thread", "--pool", "loop")
    shop.until_final(untidy)
    healthy = shop.put_many("nap", 6, 0.1) + shop.put_many("wait", 3, 0.5)
    shop.until_final()
    for job in (untidy, *healthy):
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0), record
