"""Workers are killed all the time, or have wrong clocks; the server's clock is the one (F1, F28)."""

import signal
import time

import pytest

from fairlead import State
from tests.system.faults import PostgresShop
from tests.system.test_chaos import rampage, told
from tests.system.tree import send, until

HOUR = 3600


def test_trees_are_killed_with_short_leases(pg_shop: PostgresShop) -> None:
    """F1, I21: whatever is killed when, every job ends and the audit is clean."""
    began = time.monotonic()
    pg_shop.put_many("wait", 150, 0.05)
    pg_shop.put_many("quick", 150)
    pg_shop.put_many("plain", 100)
    kills = rampage(pg_shop, ("--lease", "1"), [50, 150, 250])
    pg_shop.until_final()
    print(told(pg_shop, kills, time.monotonic() - began))
    states = pg_shop.states()
    assert states[State.DONE] + states[State.DEAD] == 400
    assert states[State.DONE] >= 395


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_many_trees_are_killed_with_short_leases(pg_shop: PostgresShop) -> None:
    """The big sister of the test above."""
    pg_shop.put_many("wait", 4_000, 0.05)
    pg_shop.put_many("plain", 4_000)
    rampage(pg_shop, ("--lease", "1", "--processes", "2"), list(range(200, 7_000, 400)))
    pg_shop.until_final(seconds=200)
    states = pg_shop.states()
    assert states[State.DONE] + states[State.DEAD] == 8_000


def test_wrong_clocks_of_workers_change_nothing(pg_shop: PostgresShop) -> None:
    """F28, I11: leases last, delays are kept, retries come soon; by the server's clock."""
    trees = [pg_shop.start("--lease", "2", CLOCK=str(wrong)) for wrong in (HOUR, -HOUR)]
    pg_shop.until_up(processes=2)
    # More than one of them has slots for.
    long = [pg_shop.put("wait", 5.0) for _ in range(30)]
    delayed = [pg_shop.put("quick", delay=2.0) for _ in range(10)]
    again = pg_shop.put_many("second_time", 10)
    expiring = pg_shop.put("quick", expires=20.0)
    for job in long:
        pg_shop.until_started(job)
    pids = {line.pid for line in pg_shop.starts()}
    assert all(pids & set(tree.workers) for tree in trees), "one of them had nothing to do"
    for job in (*delayed, *again, expiring):
        pg_shop.until_final(job, seconds=20)
        assert pg_shop.record(job).state is State.DONE
    for job in delayed:
        due = pg_shop.record(job).run_at / 1e6 - time.time() + time.monotonic()
        assert pg_shop.starts(job)[0].time >= due
    pg_shop.until_final()
    for job in long:
        assert (pg_shop.outcomes(job), len(pg_shop.starts(job))) == (["done"], 1)


@pytest.mark.parametrize("wrong", [HOUR, pytest.param(-HOUR, marks=pytest.mark.chaos)])
def test_what_a_dead_process_had_runs_again_soon_whatever_its_clock(
    pg_shop: PostgresShop, wrong: int
) -> None:
    """The supervisor ends its runs in its place, and says when they run again."""
    tree = pg_shop.start("--lease", "20", CLOCK=str(wrong))
    jobs = [pg_shop.put("wait", 1.0) for _ in range(5)]
    waiting = pg_shop.put_many("nap", 10, 0.2)
    for job in jobs:
        pg_shop.until_started(job)
    send(tree.workers[0], signal.SIGKILL)
    pg_shop.until_final(*jobs, *waiting, seconds=15)
    until(lambda: pg_shop.starts(jobs[0])[1:], what="a second run")
    assert {pg_shop.record(job).state for job in (*jobs, *waiting)} == {State.DONE}
