"""The server restarts, is killed or stands still, at random and at every crash point (F6, F21)."""

import random
import time

import pytest

from fairlead import State
from fairlead.runtime.points import POINTS
from tests.system.faults import PostgresShop, Producer
from tests.system.tree import until

LEASE = ("--lease", "2")


def crash(shop: PostgresShop, how: str, seconds: float) -> None:
    """Let the server end in one of its ways, and be away for a while."""
    if how == "kill":
        shop.server.kill()
    else:
        shop.server.stop(how)
    time.sleep(seconds)
    shop.server.start()


def restarts(shop: PostgresShop, seed: int, number: int) -> None:
    choose = random.Random(seed)
    for n in range(2):
        shop.start(*LEASE, "--processes", str(n + 1))
    with Producer(shop) as producer, Producer(shop, "plain"):
        shop.until_up(processes=3)
        for n in range(number):
            running = shop.put("wait", 1.0)
            shop.until_started(running)
            time.sleep(choose.uniform(0.0, 0.3))
            crash(shop, ("kill", "immediate", "fast")[n % 3], choose.uniform(0.0, 1.0))
            shop.check_back(processes=3)
            producer.until_more()
        assert producer.disturbed
    shop.until_final()
    for job in shop.accepted:
        assert shop.record(job).state is State.DONE


def test_nothing_is_lost_when_the_server_restarts_under_load(pg_shop: PostgresShop) -> None:
    """I1, L2, P6: killed, stopped at once, stopped in order; what runs meanwhile runs once."""
    restarts(pg_shop, seed=1, number=3)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_many_restarts_under_load(pg_shop: PostgresShop, seed: int) -> None:
    """The big sister of the test above."""
    restarts(pg_shop, seed, number=20)


def test_the_server_is_killed_at_every_crash_point(pg_shop: PostgresShop) -> None:
    """F21: the worker stands exactly there, and goes on before the server is back."""
    pg_shop.start(*LEASE, HOLD=",".join(POINTS))
    with Producer(pg_shop, pause=0.05):
        for name in POINTS:
            until((pg_shop.folder / f"at-{name}").exists, 20, f"point {name}")
            pg_shop.server.kill()
            (pg_shop.folder / f"go-{name}").touch()
            time.sleep(0.1)
            pg_shop.server.start()
            pg_shop.put("wait", 0.1)
    pg_shop.check_back()
    pg_shop.until_final()
    for job in pg_shop.accepted:
        assert pg_shop.record(job).state is State.DONE


@pytest.mark.chaos
def test_a_server_that_stands_still_costs_no_job_a_second_run(pg_shop: PostgresShop) -> None:
    """F6: five leases long nobody can renew; whoever is back first leaves the others' jobs alone."""
    trees = [pg_shop.start(*LEASE) for _ in range(2)]
    pg_shop.until_up(processes=2)
    ending = [pg_shop.put("wait", 2.0), pg_shop.put("nap", 2.0)]
    going_on = [pg_shop.put("wait", 12.0), pg_shop.put("nap", 12.0)]
    for job in (*ending, *going_on):
        pg_shop.until_started(job)
    pg_shop.server.freeze()
    time.sleep(10.0)
    pg_shop.server.thaw()
    pg_shop.check_back(processes=2)
    pg_shop.until_final(*ending)
    pg_shop.until_final()
    for job in (*ending, *going_on):
        assert (pg_shop.record(job).attempt, pg_shop.outcomes(job)) == (1, ["done"])
        assert len(pg_shop.starts(job)) == 1
    assert "lease passed" not in "".join(tree.log for tree in trees)
