"""The server's clock jumps, and those of workers are wrong (F28, I5, I11)."""

import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from fairlead import State
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests.servers.redis import RedisServer
from tests.system.redis_faults import CREW, LOOP, RedisShop
from tests.system.tree import until
from tests.words import claim, done, failed, new_job

HOUR = 3600
SHIM = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec right;
    char text[32] = {0};
    int file = open(getenv("CLOCK_FILE"), O_RDONLY);
    clock_gettime(CLOCK_REALTIME, &right);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    now->tv_sec = right.tv_sec + atol(text);
    now->tv_usec = right.tv_nsec / 1000;
    return 0;
}
"""
"""A clock that is wrong by as many seconds as a file says. (libfaketime does not go with the
allocator of Redis.)"""


class Server(RedisServer):
    """A Redis with that clock."""

    def _command(self) -> Sequence[str]:
        shim = self.folder / "clock.so"
        if not shim.exists():
            command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(shim), "-"]
            subprocess.run(command, input=SHIM, text=True, check=True)
        self.set_clock(0)
        clock = f"CLOCK_FILE={self.folder}/clock"
        return ["env", f"LD_PRELOAD={shim}", clock, *super()._command()]

    def set_clock(self, seconds: int) -> None:
        """Let its clock be wrong by so many seconds, from now on."""
        new = self.folder / "clock.new"
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.rename(self.folder / "clock")


@pytest.fixture
def odd_shop(tmp_path: Path) -> Iterator[RedisShop]:
    """A shop on a server whose clock jumps."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, to give the server a clock")
    with Server(acl=[CREW]) as server, RedisShop(tmp_path, server) as shop:
        yield shop


def _jump(shop: RedisShop, seconds: int) -> None:
    assert isinstance(shop.server, Server)
    shop.server.set_clock(seconds)
    told = int(shop.do("TIME")[0])
    assert abs(told - time.time() - seconds) < 5, "the clock does not jump"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_workers_live_through_a_jump_of_the_servers_clock(odd_shop: RedisShop, jump: int) -> None:
    """F28: what runs goes on or runs again under a later fence; all of it ends."""
    shop = odd_shop
    tree = shop.start("--lease", "2")
    shop.until_up()
    running = [shop.put("wait", 2.5), shop.put("nap", 2.5)]
    far = shop.put("quick", delay=10 * HOUR)
    for job in running:
        shop.until_started(job)
    _jump(shop, jump)
    shop.doubled = set(running)
    beats = shop.beats()
    until(lambda: shop.beats() != beats, 10, "a heartbeat")
    shop.until_final(shop.put("quick"))
    shop.put_many("second_time", 5)
    soon = shop.put("quick", delay=0.5)
    until(lambda: shop.record(soon).state.final, 10, "what is delayed after the jump")
    for job in shop.accepted:
        if job != far:
            shop.until_final(job)
            assert shop.record(job).state is State.DONE
    assert shop.record(far).state is State.WAITING
    shop.waiting = {far}
    assert "Traceback" not in tree.log


def test_wrong_clocks_of_workers_change_nothing(redis_shop: RedisShop) -> None:
    """F28, I11: leases last, delays are kept, retries come soon; by the server's clock."""
    trees = [redis_shop.start("--lease", "2", CLOCK=str(wrong)) for wrong in (HOUR, -HOUR)]
    redis_shop.until_up(processes=2)
    # More than one of them has slots for.
    long = [redis_shop.put("wait", 3.0) for _ in range(30)]
    delayed = [redis_shop.put("quick", delay=1.5) for _ in range(10)]
    again = redis_shop.put_many("second_time", 10)
    expiring = redis_shop.put("quick", expires=20.0)
    for job in long:
        redis_shop.until_started(job)
    pids = {line.pid for line in redis_shop.starts()}
    assert all(pids & set(tree.workers) for tree in trees), "one of them had nothing to do"
    for job in (*delayed, *again, expiring):
        redis_shop.until_final(job, seconds=20)
        assert redis_shop.record(job).state is State.DONE
    for job in delayed:
        due = redis_shop.record(job).run_at / 1e6 - time.time() + time.monotonic()
        assert redis_shop.starts(job)[0].time >= due
    redis_shop.until_final()
    for job in long:
        assert (redis_shop.outcomes(job), len(redis_shop.starts(job))) == (["done"], 1)


# The same by a clock that is given to the scripts


@pytest.fixture
async def clock_store(redis_crew_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_for(redis_crew_url, clock)
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


async def test_a_fence_grows_where_the_clock_went_back(
    clock_store: Store, clock: ManualClock
) -> None:
    """I6: a job that runs again before the time of its last run has a later fence all the same."""
    clock.advance(24 * HOUR)
    await clock_store.put([new_job(queue="loop", run_at=clock.now() - 20 * HOUR * SECOND)])
    fences = []
    for _ in range(4):
        [job] = await claim(clock_store, LOOP)
        fences.append(job.fence)
        assert await clock_store.settle([failed(job, clock.now() - 10 * HOUR * SECOND)])
        clock.advance(-HOUR)
    assert fences == sorted(set(fences))


async def test_a_clock_that_goes_back_brings_no_fence_back(
    clock_store: Store, clock: ManualClock
) -> None:
    """I6, I11: leases hold as they were, delays stay, and fences only grow."""
    clock.advance(24 * HOUR)
    now = clock.now()
    await clock_store.put([new_job(queue="loop") for _ in range(3)])
    await clock_store.put([new_job(queue="loop", delay=600 * SECOND)])
    jobs = await claim(clock_store, LOOP, lease=60)
    assert len(jobs) == 3
    for _ in range(3):
        clock.advance(-HOUR / 2)
        assert await claim(clock_store, LOOP) == []
    renewed = await clock_store.extend([(job.id, job.fence) for job in jobs], 60 * SECOND)
    assert len(renewed) == 3
    assert await claim(clock_store, LOOP) == []
    clock.advance(2 * HOUR)
    taken = await claim(clock_store, LOOP, worker="w2")
    assert len(taken) == 4, "the three, and the one whose time has come meanwhile"
    fences = {job.id: job.fence for job in jobs}
    assert all(job.lost and job.fence > fences[job.id] for job in taken if job.id in fences)
    assert await clock_store.settle([done(job) for job in jobs]) == {}
    assert len(await clock_store.settle([done(job) for job in taken])) == 4
    assert clock.now() > now + 600 * SECOND
