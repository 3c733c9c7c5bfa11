"""The server loses its last writes, and comes back as it was before them (F35, I6)."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import State
from fairlead.core.clock import SECOND
from fairlead.core.job import Job
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests.servers.redis import RedisServer
from tests.system.redis_faults import CREW, LOOP, RedisShop
from tests.system.tree import until
from tests.words import claim, done, failed, new_job


@pytest.fixture
def forgetful_shop(tmp_path: Path) -> Iterator[RedisShop]:
    """A shop on a server whose state can be kept and brought back."""
    with (
        RedisServer(appendfsync="always", acl=[CREW]) as server,
        RedisShop(tmp_path, server) as shop,
    ):
        yield shop


def _folders(shop: RedisShop) -> tuple[Path, Path]:
    assert isinstance(shop.server, RedisServer)
    return shop.server.folder / "appendonlydir", shop.server.folder / "kept"


def keep(shop: RedisShop) -> None:
    """Copy what the server has on disk, which is everything it was told."""
    kept = _folders(shop)
    subprocess.run(["cp", "-a", *map(str, kept)], check=True)


def lose(shop: RedisShop) -> None:
    """Kill the server, and let it come back without what it was told since."""
    now, kept = _folders(shop)
    shop.nodes[0].kill()
    shutil.rmtree(now)
    kept.rename(now)
    shop.server.start()


async def test_fences_do_not_go_back(forgetful_shop: RedisShop) -> None:
    """Who ran a job in the time that was lost can change nothing any more."""
    store = store_for(forgetful_shop.url)
    await store.put([new_job(queue="loop") for _ in range(9)])
    again = await claim(store, LOOP, slots=3, lease=20)
    await store.settle([failed(job, job.claimed_at - 10 * SECOND) for job in again])
    held = await claim(store, LOOP, slots=3, lease=0.5)
    assert len({job.id for job in (*again, *held)}) == 6
    keep(forgetful_shop)

    # What is lost: first runs, second runs, takeovers, a settlement, and one after a failure.
    before = list(held)
    for _ in range(3):
        before += await _claim(store, 9)
        await store.settle([failed(job, job.claimed_at - 10 * SECOND) for job in before[-9:]])
    before += await _claim(store, 9)
    await store.settle([done(job) for job in before[-2:]])
    await asyncio.to_thread(lose, forgetful_shop)

    highest = {
        job_id: max(job.fence for job in before if job.id == job_id)
        for job_id in {job.id for job in before}
    }
    after = await _claim(store, 9)
    assert len({job.id for job in after}) == 9
    for job in after:
        assert job.fence > highest[job.id]
    records = {job.id: await store.admin.find(job.id) for job in after}
    assert await store.settle([done(job) for job in before]) == {}
    assert await store.extend([(job.id, job.fence) for job in before], 60 * SECOND) == []
    assert {job.id: await store.admin.find(job.id) for job in after} == records
    assert len(await store.settle([done(job) for job in after])) == 9
    assert {state for each in (await store.admin.count()).values() for state in each} == {
        State.DONE
    }
    await store.close()


async def _claim(store: Store, number: int) -> list[Job]:
    """Claim so many, as soon as what another held for half a second can be had."""
    found: list[Job] = []
    while len(found) < number:
        found += await claim(store, LOOP, slots=number)
    return found


def test_workers_go_on_after_the_server_lost_its_last_second(forgetful_shop: RedisShop) -> None:
    """What was running runs again, under a later fence; the run of before is told, and refused."""
    shop = forgetful_shop
    tree = shop.start("--lease", "2")
    shop.until_up()
    ended = shop.put("quick")
    shop.until_final(ended)
    jobs = [*shop.put_many("wait", 3, 3.0, delay=0.5), *shop.put_many("quick", 20, delay=0.5)]
    shop.doubled = set(jobs)
    keep(shop)
    gone = shop.put("quick")
    for job in jobs:
        shop.until_started(job)
    until(lambda: shop.record(jobs[-1]).state.final, what="the end of the quick ones")
    lose(shop)
    shop.check_back()
    shop.until_final()
    assert shop.app.bridge.run(shop.app.store.admin.find(gone)) is None
    for job in jobs:
        assert shop.record(job).state is State.DONE
        first, *others = shop.starts(job)
        assert [line.fence for line in others] == [shop.record(job).fence]
        assert first.fence < others[0].fence
    assert {line.detail for job in jobs[:3] for line in shop.lines(job, "cancelled")} == {
        "LeaseLost"
    }
    assert "Traceback" not in tree.log
    # The log knows of one run only, the handlers of two.
    shop.accepted = [job for job in shop.accepted if job not in {*jobs, gone}]
