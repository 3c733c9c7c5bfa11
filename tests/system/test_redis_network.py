"""Replies are lost or cut in the middle, connections reset, packets dropped (F11 to F14, F17, F18)."""

import asyncio
import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from fairlead import Fairlead, Queue, State
from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreError, StoreUnavailable
from fairlead.core.ids import JobId
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis.functions import FUNCTIONS
from tests.conftest import LOAD
from tests.servers.proxy import TO_CLIENT, TO_SERVER, Proxy
from tests.servers.redis import RedisServer
from tests.servers.talk import RedisTalk
from tests.system.faults import BACK_SECONDS, Producer
from tests.system.redis_faults import CREW, LOOP, RedisShop, claim_all
from tests.system.tree import send, until
from tests.words import are_new, claim, done, new_job, plan


@pytest.fixture
def way(rough_redis: RedisServer) -> Iterator[Proxy]:
    """A way to the server on which things go wrong; functions are loaded past it."""
    rough_redis.start()
    rough_redis.execute(*LOAD)
    with Proxy(rough_redis.port, RedisTalk) as proxy:
        yield proxy


def verb(name: str) -> bytes:
    """Return what is in every call of a function."""
    return FUNCTIONS[name].name.encode()


# A reply is lost after the request was carried out


@pytest.mark.parametrize("asked", ["put", "EXEC", "register"])
@pytest.mark.parametrize("put", ["blocking", "on a loop"])
def test_a_put_that_is_repeated_is_one_job(
    redis_shop: RedisShop, way: Proxy, put: str, asked: str
) -> None:
    """F13: nobody knows whether it happened, so it is repeated, and recognised."""
    app = Fairlead(redis_shop.url_with(way.port), queues=[LOOP, Queue("thread")])
    tasks = [app.task(name="t", queue="loop")(_noop), app.task(name="u", queue="thread")(_noop)]
    calls = [task.call() for task in (tasks if asked == "EXEC" else tasks[:1])]

    def enqueue() -> int:
        if put == "blocking":
            return app.enqueue_many(calls)
        return app.bridge.run(app.aenqueue_many(calls))

    app.open()
    fault = way.lose_reply(verb(asked) if asked in FUNCTIONS else asked.encode())
    assert enqueue() == (len(calls) if asked == "register" else 0)
    assert fault.happened.wait(10)
    assert enqueue() == 0
    assert redis_shop.states() == {State.WAITING: len(calls)}
    app.close()


def _noop() -> None:
    pass


@pytest.mark.parametrize("asked", [b"HSETNX", b"HMGET", verb("put")])
async def test_a_stray_that_is_repeated_is_one_job(
    redis_shop: RedisShop, way: Proxy, asked: bytes
) -> None:
    """F13: nor is an id lost that does not tell its queue, whichever of its replies is."""
    store = store_for(redis_shop.url_with(way.port))
    job = new_job(queue="loop", id=JobId("a-name-of-my-own"))
    way.lose_reply(asked)
    assert are_new(await store.put([job])) == [asked != verb("put")]
    assert are_new(await store.put([job])) == [False]
    found = await store.admin.find(job.id)
    assert found is not None
    assert (found.queue, found.state) == ("loop", State.WAITING)
    assert redis_shop.states() == {State.WAITING: 1}
    await store.close()


async def test_a_settlement_that_is_repeated_is_recognised(
    redis_shop: RedisShop, way: Proxy
) -> None:
    """F13, I6: the fence is no longer the job's, so nothing is written twice."""
    store = store_for(redis_shop.url_with(way.port))
    await store.put([new_job(queue="loop"), new_job(queue="loop")])
    jobs = await claim(store, LOOP)
    way.lose_reply(verb("settle"))
    with pytest.raises(StoreUnavailable):
        await store.settle([done(job) for job in jobs])
    records = [await store.admin.find(job.id) for job in jobs]
    assert [record and record.state for record in records] == [State.DONE] * 2
    assert await store.settle([done(job, "2") for job in jobs]) == {}
    assert [await store.admin.find(job.id) for job in jobs] == records
    assert [len(await store.admin.attempts(job.id)) for job in jobs] == [1, 1]
    await store.close()


async def test_a_lost_claim_comes_back_after_its_lease(redis_shop: RedisShop, way: Proxy) -> None:
    """F13: under a higher fence, and marked, so that it is decided on before it runs."""
    store = store_for(redis_shop.url_with(way.port))
    jobs = [new_job(queue="loop") for _ in range(3)]
    await store.put(jobs)
    way.lose_reply(verb("claim"))
    with pytest.raises(StoreUnavailable):
        await claim(store, LOOP, lease=0.3)
    first = {job.id: redis_shop.record(job.id).fence for job in jobs}
    assert redis_shop.states() == {State.RUNNING: 3}
    async with asyncio.timeout(BACK_SECONDS):
        again = await claim_all(store, first, lease=5)
    assert all(job.lost and job.fence > first[job.id] for job in again)
    await store.close()


def test_workers_lose_replies_of_every_verb(redis_shop: RedisShop, way: Proxy) -> None:
    """F13: a settlement is known to be written; nothing runs twice."""
    redis_shop.url = redis_shop.url_with(way.port)
    tree = redis_shop.start("--lease", "2")
    redis_shop.until_up()
    long = redis_shop.put("wait", 3.0)
    redis_shop.until_started(long)
    for name in ("settle", "extend", "announce", "claim"):
        fault = way.lose_reply(verb(name))
        redis_shop.put_many("quick", 3)
        assert fault.happened.wait(20), f"nobody asked {name}"
    redis_shop.until_final()
    for job in redis_shop.accepted:
        assert redis_shop.outcomes(job) in (["done"], ["lost", "done"])
        assert len(redis_shop.starts(job)) == 1
    assert redis_shop.outcomes(long) == ["done"]
    assert "came too late" not in tree.log


# A reply is cut in the middle


@pytest.mark.parametrize("size", [1, 3, 5, 21, 60, 700, 5_000, 12_000])
async def test_a_reply_that_was_cut_is_no_reply_to_anything(
    redis_shop: RedisShop, way: Proxy, size: int
) -> None:
    """F14: the connection is discarded, and what comes next answers what was asked next."""
    store = store_for(redis_shop.url_with(way.port))
    jobs = [new_job(queue="loop", options='{"tags":["' + "x" * 500 + '"]}') for _ in range(20)]
    await store.put(jobs)
    cut = way.cut_within(verb("claim"), size)
    with pytest.raises(StoreUnavailable):
        await claim(store, LOOP, slots=20, lease=0.1)
    assert cut.happened.wait(10)
    for job in jobs:
        found = await store.admin.find(job.id)
        assert found is not None
        assert found.id == job.id
    async with asyncio.timeout(BACK_SECONDS):
        await claim_all(store, [job.id for job in jobs], slots=20, lease=5)
    await store.close()


# Connections are reset


def test_resets_cost_nothing(redis_shop: RedisShop, way: Proxy) -> None:
    """F11, F17: all connections, again and again, under load; none is left over."""
    redis_shop.url = redis_shop.url_with(way.port)
    redis_shop.start("--lease", "2")
    redis_shop.until_up()
    with Producer(redis_shop, pause=0.03) as producer:
        for n in range(20):
            way.cut()
            time.sleep(0.03 * (n % 5))
        redis_shop.check_back()
        producer.until_more()
    redis_shop.until_final()
    redis_shop.check_done_once()
    assert way.alive <= 8


# Nothing passes, and nobody is told


async def _verbs(store: Store) -> dict[str, Callable[[], Any]]:
    """Return everything that a worker or a producer says to the store."""
    await store.put([new_job(queue="loop")])
    [job] = await claim(store, LOOP)
    worker = Worker("w", {"t": 1}, (), 1, 0, 0)
    return {
        "put": lambda: store.put([new_job(queue="loop")]),
        "put_blocking": lambda: asyncio.to_thread(store.put_blocking, [new_job(queue="loop")]),
        "claim": lambda: store.claim(plan(LOOP)),
        "extend": lambda: store.extend([(job.id, job.fence)], 10 * SECOND),
        "held": lambda: store.held("w1"),
        "attempts": lambda: store.admin.attempts(job.id),
        "announce": lambda: store.announce(worker, 10 * SECOND),
        "workers": store.admin.workers,
        "upkeep": lambda: store.upkeep(3600 * SECOND),
        "find": lambda: store.admin.find(job.id),
        "settle": lambda: store.settle([done(job)]),
    }


@pytest.mark.parametrize("cut", ["", TO_SERVER, TO_CLIENT])
async def test_every_verb_has_its_deadline(redis_shop: RedisShop, way: Proxy, cut: str) -> None:
    """F12, L9: one way or both; all of them at once, and all of them again after it."""
    store = store_for(redis_shop.url_with(way.port, timeout=0.5))
    verbs = await _verbs(store)
    for ask in verbs.values():
        await ask()
    way.drop(cut)
    async with asyncio.timeout(BACK_SECONDS):
        told = await asyncio.gather(*(ask() for ask in verbs.values()), return_exceptions=True)
    named = dict(zip(verbs, told, strict=True))
    others = {name: x for name, x in named.items() if not isinstance(x, StoreUnavailable)}
    assert others == {}
    way.heal(cut)
    async with asyncio.timeout(BACK_SECONDS):
        for ask in verbs.values():
            await ask()
    await store.close()


CLONE_NEWNET = 0x40000000
ELSEWHERE = "02:00:00:00:00:01"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Cable:
    """A network of two machines: ours, and a namespace whose processes have only this way out.

    It is cut by giving the other end an address that it does not have: what is sent there
    gets lost, and nobody hears of it.
    """

    def __init__(self) -> None:
        number = secrets.randbelow(60_000)
        self.name = f"fairlead-{number}"
        self._ends = f"flh{number}", f"flw{number}"
        self._net = f"198.18.{number % 250}."
        self.host = f"{self._net}1"

    def __enter__(self) -> Self:
        ours, theirs = self._ends
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self.name)
        for end, number, where in ((ours, 1, ()), (theirs, 2, ("-n", self.name))):
            run("ip", *where, "addr", "add", f"{self._net}{number}/30", "dev", end)
            run("ip", *where, "link", "set", end, "up")
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        told = (run("ip", *where, "-br", "link") for where in ((), ("-n", self.name)))
        self._macs = [
            re.search(rf"^{end}\S* +\S+ +(\S+)", text, re.MULTILINE)[1]  # type: ignore[index]
            for end, text in zip(self._ends, told, strict=True)
        ]
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.CalledProcessError):
            run("ip", "link", "del", self._ends[0])
        run("ip", "netns", "del", self.name)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Start processes in there."""
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            assert libc.setns(there, CLONE_NEWNET) == 0
            yield
        finally:
            assert libc.setns(home, CLONE_NEWNET) == 0
            os.close(home)
            os.close(there)

    def cut(self, way: str = "") -> None:
        """Let nothing pass, one way or both."""
        if way != TO_SERVER:
            self._lead(self._ends[0], (), 2, ELSEWHERE)
        if way != TO_CLIENT:
            self._lead(self._ends[1], ("-n", self.name), 1, ELSEWHERE)

    def heal(self) -> None:
        self._lead(self._ends[0], (), 2, self._macs[1])
        self._lead(self._ends[1], ("-n", self.name), 1, self._macs[0])

    def _lead(self, end: str, where: tuple[str, ...], number: int, mac: str) -> None:
        place = (f"{self._net}{number}", "lladdr", mac, "dev", end)
        run("ip", *where, "neigh", "replace", *place, "nud", "permanent")


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0:
        pytest.skip("only root can make a network")
    with Cable() as cable:
        yield cable


@pytest.fixture
def far_shop(tmp_path: Path, cable: Cable) -> Iterator[RedisShop]:
    """A shop whose worker trees are on the other machine, if they are started in there."""
    settings = {"bind": f"127.0.0.1 {cable.host}", "protected-mode": "no"}
    with RedisServer(acl=[CREW], settings=settings) as server, RedisShop(tmp_path, server) as shop:
        yield shop


def start_far(shop: RedisShop, cable: Cable, *options: str) -> Any:
    near = shop.url
    shop.url = near.replace("127.0.0.1", cable.host)
    with cable.inside():
        tree = shop.start(*options)
    shop.url = near
    return tree


@pytest.mark.parametrize("way", ["", pytest.param(TO_CLIENT, marks=pytest.mark.chaos)])
def test_a_cut_shorter_than_the_lease_goes_unnoticed(
    far_shop: RedisShop, cable: Cable, way: str
) -> None:
    """F12, L2: no second run, though somebody waits for one; and all parts are back after it."""
    far = start_far(far_shop, cable, "--lease", "6")
    far_shop.until_up()
    jobs = [far_shop.put("wait", 3.0), far_shop.put("nap", 3.0)]
    for job in jobs:
        far_shop.until_started(job)
    near = far_shop.start("--lease", "6")
    far_shop.until_up(processes=2)
    cable.cut(way)
    time.sleep(2.5)
    cable.heal()
    far_shop.check_back(processes=2)
    far_shop.until_final()
    for job in jobs:
        assert (far_shop.outcomes(job), len(far_shop.starts(job))) == (["done"], 1)
    assert "too late" not in far.log + near.log


@pytest.mark.chaos
def test_a_cut_longer_than_the_lease_loses_the_job_to_another(
    far_shop: RedisShop, cable: Cable
) -> None:
    """F12, F18, I6: another worker ends it; the late one is told, its outcome refused."""
    far = start_far(far_shop, cable, "--lease", "2")
    far_shop.until_up()
    running, ending = far_shop.put("wait", 7.0), far_shop.put("nap", 4.0)
    far_shop.doubled = {running, ending}
    for job in (running, ending):
        far_shop.until_started(job)
    near = far_shop.start("--lease", "2")
    far_shop.until_up(processes=2)
    cable.cut()
    for job in (running, ending):
        far_shop.until_started(job, 2)
    cable.heal()
    told = until(lambda: far_shop.lines(running, "cancelled"), BACK_SECONDS, "LeaseLost")
    assert (told[0].detail, told[0].fence) == ("LeaseLost", far_shop.starts(running)[0].fence)
    far_shop.check_back(processes=2)
    far_shop.until_final(ending)
    for job in (running, ending):
        until(lambda: re.search(f"came too late: .*job={job}", far.log), what="a word of it")
    assert near.stop() == 0, "it cannot be that one"
    far_shop.until_final()
    assert far_shop.outcomes(ending) == ["lost", "done"]
    assert "too late" not in near.log


def test_who_died_during_a_cut_is_taken_care_of_after_it(far_shop: RedisShop, cable: Cable) -> None:
    """F12: its lease would last for a minute; its supervisor ends its runs when it can."""
    tree = start_far(far_shop, cable, "--lease", "60")
    far_shop.until_up()
    job = far_shop.put("wait", 1.5)
    far_shop.until_started(job)
    cable.cut()
    send(tree.workers[0], signal.SIGKILL)
    time.sleep(1.0)
    cable.heal()
    far_shop.until_final(job, seconds=2 * BACK_SECONDS)
    assert (far_shop.record(job).state, len(far_shop.starts(job))) == (State.DONE, 2)


def test_who_puts_through_a_cut_is_told_in_time(far_shop: RedisShop, cable: Cable) -> None:
    """F12, L9: from threads and from a loop; what is repeated after it is one job."""
    url = far_shop.url_with(timeout=1).replace("127.0.0.1", cable.host)
    script = f"""
import sys
from fairlead import Fairlead, Queue
from fairlead.core.errors import StoreUnavailable
app = Fairlead({url!r}, queues=[Queue("loop")])
calls = [app.task(name="shop.quick", queue="loop")(lambda: None).call()]
app.open()
print("ready", flush=True)
for line in sys.stdin:
    for put in (app.enqueue_many, lambda calls: app.bridge.run(app.aenqueue_many(calls))):
        try:
            print(put(calls), flush=True)
        except StoreUnavailable as problem:
            print("no", problem, flush=True)
"""
    with cable.inside():
        program = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert program.stdin is not None
    assert program.stdout is not None
    guard = threading.Timer(30, program.kill)
    guard.start()
    try:
        assert program.stdout.readline() == "ready\n"
        told = []
        for cut in (True, False):
            cable.cut() if cut else cable.heal()
            program.stdin.write("go\n")
            program.stdin.flush()
            told += [program.stdout.readline() for _ in range(2)]
    finally:
        guard.cancel()
        program.kill()
        program.communicate()
    assert [line[:2] for line in told] == ["no", "no", "1\n", "0\n"] or told[2:] == ["0\n", "0\n"]
    assert far_shop.states() == {State.WAITING: 1}


async def test_who_hears_nothing_any_more_notices(redis_shop: RedisShop, way: Proxy) -> None:
    """F12, L3: a listener asks for a sign of life, and listens anew; what it missed is made up for."""
    store = store_for(redis_shop.url_with(way.port, timeout=1))
    other = store_for(redis_shop.url_with())
    mark = await store.wait(0)
    way.drop(TO_CLIENT)
    await other.put([new_job(queue="loop")])
    for _ in range(3):
        with suppress(StoreError):
            mark = await store.wait(2, mark)
    way.heal(TO_CLIENT)
    async with asyncio.timeout(BACK_SECONDS):
        while (new := await store.wait(BACK_SECONDS, mark)) == mark:
            pass
        mark = new
    await asyncio.sleep(0.1)
    mark = await store.wait(0)
    hearing = asyncio.ensure_future(store.wait(30, mark))
    await asyncio.sleep(0.1)
    await other.put([new_job(queue="loop")])
    async with asyncio.timeout(BACK_SECONDS):
        assert await hearing != mark
    await store.close()
    await other.close()
