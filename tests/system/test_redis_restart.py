"""The server is killed, restarts or stands still, at random and at every crash point (F6, F22)."""

import random
import threading
import time

import pytest

from fairlead import Fairlead, State
from fairlead.core.errors import StoreUnavailable
from fairlead.runtime.points import POINTS
from tests.system.faults import Producer
from tests.system.redis_faults import RedisShop
from tests.system.tree import until

LEASE = ("--lease", "2")


def crash(shop: RedisShop, how: str, seconds: float) -> None:
    """Let the server end in one of its ways, and be away for a while."""
    assert shop.nodes == [shop.server]
    if how == "kill":
        shop.nodes[0].kill()
    else:
        shop.nodes[0].stop(how)
    time.sleep(seconds)
    shop.server.start()


def restarts(shop: RedisShop, seed: int, number: int) -> None:
    choose = random.Random(seed)
    for n in range(2):
        shop.start(*LEASE, "--processes", str(n + 1))
    with Producer(shop, pause=0.03) as producer, Producer(shop, "plain", pause=0.03):
        shop.until_up(processes=3)
        for n in range(number):
            running = shop.put("wait", 1.0)
            shop.until_started(running)
            time.sleep(choose.uniform(0.0, 0.3))
            crash(shop, ("kill", "fast")[n % 2], choose.uniform(0.0, 1.0))
            shop.check_back(processes=3)
            producer.until_more()
        assert producer.disturbed
    shop.until_final()
    for job in shop.accepted:
        assert shop.record(job).state is State.DONE


def test_nothing_is_lost_when_the_server_is_killed_under_load(redis_shop: RedisShop) -> None:
    """F22, I1, L2, P6: killed, and stopped in order; what runs meanwhile runs once."""
    restarts(redis_shop, seed=1, number=2)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_many_restarts_under_load(redis_shop: RedisShop, seed: int) -> None:
    """The big sister of the test above."""
    restarts(redis_shop, seed, number=20)


def test_the_server_is_killed_at_every_crash_point(redis_shop: RedisShop) -> None:
    """F22: the worker stands exactly there, and goes on before the server is back."""
    redis_shop.start(*LEASE, HOLD=",".join(POINTS))
    with Producer(redis_shop, pause=0.05):
        for name in POINTS:
            until((redis_shop.folder / f"at-{name}").exists, 20, f"point {name}")
            redis_shop.nodes[0].kill()
            (redis_shop.folder / f"go-{name}").touch()
            time.sleep(0.1)
            redis_shop.server.start()
            redis_shop.put("wait", 0.1)
    redis_shop.check_back()
    redis_shop.until_final()
    for job in redis_shop.accepted:
        assert redis_shop.record(job).state is State.DONE


@pytest.mark.chaos
def test_a_server_that_stands_still_costs_no_job_a_second_run(redis_shop: RedisShop) -> None:
    """F6: three leases long nobody can renew; whoever is back first leaves the others' jobs alone."""
    trees = [redis_shop.start(*LEASE) for _ in range(2)]
    redis_shop.until_up(processes=2)
    ending = [redis_shop.put("wait", 2.0), redis_shop.put("nap", 2.0)]
    going_on = [redis_shop.put("wait", 8.0), redis_shop.put("nap", 8.0)]
    for job in (*ending, *going_on):
        redis_shop.until_started(job)
    [server] = redis_shop.nodes
    server.freeze()
    time.sleep(6.0)
    server.thaw()
    redis_shop.check_back(processes=2)
    redis_shop.until_final(*ending)
    redis_shop.until_final()
    for job in (*ending, *going_on):
        assert (redis_shop.record(job).attempt, redis_shop.outcomes(job)) == (1, ["done"])
        assert len(redis_shop.starts(job)) == 1
    assert "lease passed" not in "".join(tree.log for tree in trees)


@pytest.mark.parametrize("way", ["blocking", "on a loop"])
def test_calls_to_a_server_that_stands_still_end_in_time(redis_shop: RedisShop, way: str) -> None:
    """F6, L9: each returns by its deadline; many at once wait side by side, not in a row."""
    app = Fairlead(redis_shop.url_with(timeout=1))
    task = app.task(name="t")(_noop)

    def put() -> None:
        call = task.call()
        if way == "blocking":
            app.enqueue_many([call])
        else:
            app.bridge.run(app.store.put([call.job]))

    put()
    [server] = redis_shop.nodes
    server.freeze()
    thaw = threading.Timer(8, server.thaw)
    thaw.start()
    problems: list[Exception] = []

    def fail() -> None:
        with pytest.raises(StoreUnavailable) as problem:
            put()
        problems.append(problem.value)

    threads = [threading.Thread(target=fail) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert thaw.is_alive(), "it took as long as the server did"
    assert len(problems) == 16
    assert any("no answer within 1 s" in str(problem) for problem in problems)
    thaw.cancel()
    server.thaw()
    put()
    app.close()


def _noop() -> None:
    pass


def test_an_idle_connection_that_ended_fails_nobody(redis_shop: RedisShop) -> None:
    """After a restart no put fails because its connection lay idle meanwhile."""
    redis_shop.put("quick")
    redis_shop.app.bridge.run(redis_shop.app.store.put([redis_shop.module.quick.call().job]))
    redis_shop.app.bridge.run(redis_shop.app.store.admin.count())
    crash(redis_shop, "kill", 0.0)
    redis_shop.put("quick")
    redis_shop.app.bridge.run(redis_shop.app.store.put([redis_shop.module.quick.call().job]))
    assert redis_shop.states()[State.WAITING] == 4
    redis_shop.waiting |= set(redis_shop.accepted)
