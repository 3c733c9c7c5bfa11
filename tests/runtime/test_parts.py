"""Small parts of a worker: stacks, fates of a dead process's jobs, events of settlements, names."""

import asyncio
import os
import socket
from random import Random
from typing import Any

import msgspec
import pytest

from fairlead import Fairlead, Pool, Queue, StoreGone
from fairlead.core import events
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.events import Bus, Event
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, JobOptions, encode_options
from fairlead.core.outcome import (
    Cancelled,
    Crashed,
    Done,
    Failed,
    Lost,
    Outcome,
    Policy,
    Returned,
    Snoozed,
    decide,
)
from fairlead.core.retry import Retry, fixed
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.runtime.board import ASYNC, NEVER, PROCESS, THREAD, UNCLEAR, Board, Mark
from fairlead.runtime.contact import LONGEST_PAUSE, Contact
from fairlead.runtime.feeder import Feeder
from fairlead.runtime.keeper import Keeper
from fairlead.runtime.names import worker_name
from fairlead.runtime.narrate import narrate, narrate_late, narrate_start
from fairlead.runtime.pool import Slots
from fairlead.runtime.spawn import how_it_ended
from fairlead.runtime.stacks import Stacks, innermost
from fairlead.runtime.takeover import Death, fates, idle_since, take_over
from fairlead.stores.memory.store import MemoryStore
from tests.words import claim

NOW = 1_700_000_000 * SECOND


# Stacks

DUMP = """\
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/shop.py", line 12 in pack
  File "/home/me/shop.py", line 30 in ship

Thread 0x00007f0000000002 [worker] (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select

Thread 0x00007f0000000003 (most recent call first):
  <no Python frame>

Current thread 0x00007f0000000004 (most recent call first):
  File "<frozen runpy>", line 198 in _run_module_as_main
  File "/home/me/odd "name".py", line 1 in <lambda>
"""


def test_the_innermost_line_is_the_applications_own() -> None:
    assert innermost(DUMP) == {
        0x7F0000000001: "/home/me/shop.py:12 in pack",
        0x7F0000000002: "/usr/lib/python3.11/selectors.py:468 in select",
        0x7F0000000004: '/home/me/odd "name".py:1 in <lambda>',
    }


@pytest.mark.parametrize("at", range(0, len(DUMP), 7))
def test_half_an_answer_is_no_error(at: int) -> None:
    assert len(innermost(DUMP[:at])) <= 3


async def test_a_process_that_is_gone_has_no_stacks() -> None:
    stacks = Stacks()
    assert await stacks.ask(2**22 + 1) == {}
    stacks.close()


# Fates


def mark(n: int, *, running: bool = True, kind: int = ASYNC, deadline: float = 99.0) -> Mark:
    return Mark(running, kind, 0, n, 1, deadline, 0.0, 5.0, n, JobId(f"job-{n}"))


def test_a_process_stands_idle_from_when_nothing_with_a_limit_runs() -> None:
    """A handler that blocked its loop may have ended just now; each look begins anew after one."""
    limited, held = mark(1, deadline=9.0), mark(2, running=False)
    assert idle_since([limited, held], 20.0, None) is None
    assert idle_since([held], 21.0, None) == 21.0
    assert idle_since([held], 22.0, 21.0) == 21.0
    assert idle_since([mark(1, deadline=NEVER)], 22.0, 21.0) == 21.0
    assert idle_since([limited], 23.0, 21.0) is None


def death(*marks: Mark, on_purpose: bool = False) -> Death:
    return Death("w/1", "SIGSEGV", marks, 10.0, on_purpose, {7: "shop.py:3 in pack"})


ALONE, TOGETHER = Crashed("SIGSEGV"), Crashed("SIGSEGV", company=True)
CUT_OFF = Returned(cut_off=True)


@pytest.mark.parametrize(
    ("ended", "fate"),
    [
        (death(), {}),
        (death(mark(1, running=False)), {}),
        (death(mark(1)), {1: ALONE}),
        (death(mark(1), mark(2, running=False)), {1: ALONE}),
        (death(mark(1), mark(2, kind=THREAD)), {1: TOGETHER, 2: TOGETHER}),
        (death(mark(1), mark(2, kind=PROCESS)), {1: ALONE, 2: CUT_OFF}),
        (death(mark(1, kind=PROCESS)), {1: CUT_OFF}),
        (death(mark(1, kind=UNCLEAR)), {1: None}),
        (death(mark(1, kind=UNCLEAR), on_purpose=True), {1: None}),
        (death(mark(1), on_purpose=True), {1: CUT_OFF}),
        (death(mark(1), mark(2), on_purpose=True), {1: CUT_OFF, 2: CUT_OFF}),
    ],
)
def test_what_becomes_of_a_dead_process_s_jobs(
    ended: Death, fate: dict[int, Outcome | None]
) -> None:
    assert fates(ended) == {(JobId(f"job-{n}"), n): outcome for n, outcome in fate.items()}


@pytest.mark.parametrize("on_purpose", [True, False])
@pytest.mark.parametrize("kind", [ASYNC, THREAD, PROCESS])
def test_a_run_past_its_limit_is_timed_out_whoever_ended_the_process(
    on_purpose: bool, kind: int
) -> None:
    [outcome] = fates(death(mark(7, kind=kind, deadline=10.0), on_purpose=on_purpose)).values()
    assert isinstance(outcome, Failed)
    assert outcome.timed_out
    assert outcome.failure.message == (
        "ran past its time limit of 5 s, at shop.py:3 in pack, and its process had to be ended"
    )


async def test_jobs_of_a_dead_process_are_settled_and_given_back() -> None:
    app = Fairlead("memory://")
    task = app.task(name="t", crash_limit=1)(lambda: None)
    handles = [await task.aenqueue() for _ in range(3)]
    ran, unstarted, _unknown = await claim(app.store, *app.queues.values(), worker="w/1")
    board = Board.private(4)
    place = board.hold(ran.id, ran.fence, 0, 0.0)
    board.start(place, ASYNC, 1, 99.0, 1.0)
    board.hold(unstarted.id, unstarted.fence, 0, 0.0)
    ended = Death("w/1", "SIGKILL", tuple(board.marks()), 5.0, False, {})
    estate = await take_over(app.workshop(), ended, 1.0)
    records = [await handle.arecord() for handle in handles]
    assert (estate.crashed, estate.returned, estate.unclear) == (1, 2, ())
    assert [record.state for record in records] == ["dead", "waiting", "waiting"]
    assert [record.attempt for record in records] == [0, 0, 0]


async def test_the_attempt_log_tells_the_pool_and_the_start_of_runs_whose_process_died(
    any_app: Fairlead,
) -> None:
    app = Fairlead(
        "memory://",
        queues=[Queue("mail"), Queue("pdf")],
        pools=[Pool("light", queues=["mail"]), Pool("heavy", queues=["pdf"]), Pool("rest")],
    )
    app.store = any_app.store
    task = app.task(name="t", queue="mail")(lambda: None)
    for queue in ("mail", "pdf", "default"):
        await task.using(queue=queue).aenqueue()
    jobs = await claim(app.store, *app.queues.values(), worker="w/1")
    board = Board.private(4)
    for job in jobs:
        place = board.hold(job.id, job.fence, 0, 0.0)
        if job.queue != "mail":
            board.start(place, ASYNC, job.claimed_at + 5, 99.0, 1.0)
    ended = Death("w/1", "SIGKILL", tuple(board.marks()), 5.0, False, {})
    await take_over(app.workshop(), ended, 1.0)
    lines = {job.queue: (await app.store.admin.attempts(job.id))[0] for job in jobs}
    told = {queue: (line.outcome, line.pool) for queue, line in lines.items()}
    assert told == {
        "mail": ("returned", "light"),
        "pdf": ("crashed", "heavy"),
        "default": ("crashed", "rest"),
    }
    assert lines["mail"].started_at is None
    assert lines["pdf"].started_at == lines["pdf"].claimed_at + 5


async def test_what_another_worker_took_over_meanwhile_is_left_to_it() -> None:
    app = Fairlead("memory://")
    task = app.task(name="t")(lambda: None)
    job = await task.aenqueue()
    [old] = await claim(app.store, *app.queues.values(), worker="w/1")
    board = Board.private(4)
    board.start(board.hold(old.id, old.fence, 0, 0.0), ASYNC, 1, NEVER, 1.0)
    await app.store.extend([(old.id, old.fence)], 0)
    [new] = await claim(app.store, *app.queues.values(), worker="w/2")
    estate = await take_over(
        app.workshop(), Death("w/1", "SIGKILL", tuple(board.marks()), 5.0, False, {}), 1.0
    )
    record = await job.arecord()
    assert (estate.crashed, estate.returned) == (0, 0)
    assert (record.state, record.fence, record.attempt) == ("running", new.fence, 1)


async def test_an_unclear_run_of_a_dead_process_is_left_for_whoever_can_ask() -> None:
    app = Fairlead("memory://")
    task = app.task(name="pay", effects="external", reconcile=lambda _: "done")(lambda: None)
    asked, crashed = [await task.aenqueue() for _ in range(2)]
    jobs = await claim(app.store, *app.queues.values(), worker="w/1")
    board = Board.private(4)
    places = [board.hold(job.id, job.fence, 0, 0.0) for job in jobs]
    for place in places:
        board.start(place, ASYNC, 1, NEVER, 1.0)
    board.ask(places[0], 99.0)
    estate = await take_over(
        app.workshop(), Death("w/1", "SIGKILL", tuple(board.marks()), 5.0, False, {}), 1.0
    )
    assert [(run.job.id, run.pool, run.started_at) for run in estate.unclear] == [
        (crashed.id, "default", 1)
    ]
    [again] = await claim(app.store, *app.queues.values(), worker="w/2")
    assert (again.id, again.lost) == (asked.id, True)


# Events of settlements


def job(**options: Any) -> Job:
    given = encode_options(JobOptions(correlation_id="order-7"))
    plain = Job(
        JobId("j"), "t", 1, "mail", "{}", given, 2, 0, 9, NOW, NOW - SECOND, None, NOW, NOW, "w"
    )
    return msgspec.structs.replace(plain, **options)


def told(outcome: Outcome, **options: Any) -> list[Event]:
    heard: list[Event] = []
    bus = Bus(lambda *_: None)
    bus.subscribe(heard.append)
    policy = Policy(Retry(attempts=3, backoff=fixed(10, jitter=0)))
    claimed = job(**options)
    narrate(bus, claimed, decide(claimed, outcome, policy, NOW), NOW - 2 * SECOND, NOW)
    return heard


WHOSE: tuple[Any, ...] = (JobId("j"), "t", "mail", "order-7")
CRASH = "x, crash 1 of 3"
OOPS = Failed(described("Oops", "it broke"))
TIMES = {"run_seconds": 2.0, "wait_seconds": 0.0}


@pytest.mark.parametrize(
    ("outcome", "attempt", "expected"),
    [
        (Done('"x"'), 2, [events.Finished(*WHOSE, attempt=2, **TIMES)]),
        (OOPS, 2, [events.Retried(*WHOSE, 2, 10.0, "Oops", None, "it broke", **TIMES)]),
        (OOPS, 3, [events.Died(*WHOSE, 3, "exhausted", "Oops", None, "it broke", **TIMES)]),
        (Cancelled("no"), 2, [events.Cancelled(*WHOSE, reason="no", **TIMES)]),
        (Snoozed(4), 2, [events.Snoozed(*WHOSE, attempt=2, delay_seconds=4.0, **TIMES)]),
        (Returned(), 2, [events.Returned(*WHOSE, attempt=2)]),
        (Lost(), 2, [events.LeaseExpired(*WHOSE, worker="w")]),
        (
            Lost(),
            3,
            [
                events.LeaseExpired(*WHOSE, worker="w"),
                events.Died(
                    *WHOSE,
                    attempt=3,
                    reason="exhausted",
                    error="LeaseLost",
                    detail="the worker fell silent and its lease passed",
                    error_message="the worker fell silent and its lease passed",
                    **TIMES,
                ),
            ],
        ),
        (
            Crashed("x"),
            2,
            [events.Retried(*WHOSE, 2, 0.0, "Crashed", CRASH, CRASH, **TIMES)],
        ),
    ],
)
def test_a_settlement_is_told_as_what_it_means(
    outcome: Outcome, attempt: int, expected: list[Event]
) -> None:
    assert told(outcome, attempt=attempt) == expected


def test_what_never_started_is_told_without_times() -> None:
    heard: list[Event] = []
    bus = Bus(lambda *_: None)
    bus.subscribe(heard.append)
    narrate(bus, job(), decide(job(), Cancelled("no"), Policy(), NOW), None, NOW)
    assert heard == [events.Cancelled(*WHOSE, reason="no")]


def test_a_job_with_damaged_options_is_told_of_without_them() -> None:
    [event] = told(Done(None), options="{damaged")
    assert isinstance(event, events.Finished)
    assert event.correlation_id is None


def test_a_start_tells_how_long_the_job_waited_since_it_was_due() -> None:
    heard: list[Event] = []
    bus = Bus(lambda *_: None)
    bus.subscribe(heard.append)
    narrate_start(bus, job(run_at=NOW - 3 * SECOND, enqueued_at=NOW - 60 * SECOND), NOW)
    assert heard == [events.Started(*WHOSE, attempt=2, wait_seconds=3.0)]


def test_an_end_tells_how_long_the_job_waited_since_it_was_due() -> None:
    [event] = told(Done(None), run_at=NOW - 5 * SECOND, enqueued_at=NOW - 60 * SECOND)
    assert isinstance(event, events.Finished)
    assert (event.wait_seconds, event.run_seconds) == (3.0, 2.0)


def test_a_refusal_names_the_fence_that_came_too_late() -> None:
    heard: list[Event] = []
    bus = Bus(lambda *_: None)
    bus.subscribe(heard.append)
    narrate_late(bus, job(), "done")
    assert heard == [events.SettlementRefused(*WHOSE, fence=9, outcome="done")]


# Contact


class Pauses:
    """Stands in for asyncio.sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def contact(lease: float = 20, heartbeat: float = 5) -> tuple[Contact, list[Event]]:
    heard: list[Event] = []
    bus = Bus(lambda *_: None)
    bus.subscribe(heard.append)
    return Contact("w", bus, lease, heartbeat, Random(1)), heard


async def test_pauses_grow_up_to_a_limit_and_are_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = contact(lease=40, heartbeat=10)
    pauses = Pauses(monkeypatch)
    for _ in range(2_000):
        await ours.lost(OSError("away"), 0.0)
    expected = [min(LONGEST_PAUSE, 0.1 * 2**n) for n in range(8)]
    for pause, full in zip(pauses.seconds, expected, strict=False):
        assert full / 2 <= pause <= full
    assert all(LONGEST_PAUSE / 2 <= pause <= LONGEST_PAUSE for pause in pauses.seconds[5:])
    assert len(set(pauses.seconds)) > 1_000


async def test_an_outage_is_told_once_and_its_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, heard = contact()
    pauses = Pauses(monkeypatch)
    now = asyncio.get_running_loop().time()
    for _ in range(3):
        await ours.lost(OSError("away"), now)
    ours.found(now)
    ours.found(now)
    assert [type(event) for event in heard] == [events.StoreLost, events.StoreFound]
    await ours.lost(OSError("away"), now)
    assert pauses.seconds[-1] <= 0.1, "the next outage begins anew"


async def test_a_store_that_is_gone_is_left_to_tell_to_who_ends_the_worker_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, heard = contact()
    Pauses(monkeypatch)
    await ours.lost(StoreGone("sqlite:///jobs.db", "removed"), asyncio.get_running_loop().time())
    assert heard == []


async def test_an_outage_longer_than_a_lease_spares_what_looks_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Pauses(monkeypatch)
    ours, _ = contact(lease=20, heartbeat=5)
    now = asyncio.get_running_loop().time()
    assert not ours.spares(now)
    await ours.lost(OSError("away"), now - 25)
    assert ours.spares(now), "while it lasts"
    ours.found(now)
    assert ours.spares(now + 4.9), "for one heartbeat after it"
    assert not ours.spares(now + 6)


async def test_a_short_outage_spares_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    Pauses(monkeypatch)
    ours, _ = contact(lease=20)
    now = asyncio.get_running_loop().time()
    await ours.lost(OSError("away"), now - 7)
    assert not ours.spares(now)
    ours.found(now)
    assert not ours.spares(now)


async def test_a_call_that_took_long_is_as_good_as_an_outage() -> None:
    ours, heard = contact(lease=20, heartbeat=5)
    now = asyncio.get_running_loop().time()
    ours.found(now - 8)
    assert ours.spares(now)
    assert not heard, "the store was slow, not away"


@pytest.mark.parametrize(("seconds", "spares"), [(None, True), (4.9, True), (5.1, False)])
async def test_who_begins_spares_what_looks_lost_unless_another_has_seen_the_store_for_a_heartbeat(
    seconds: float | None, spares: bool
) -> None:
    """Workers that begin together after an outage learn nothing of it from each other."""
    clock = ManualClock()
    workshop = Fairlead("memory://", clock=clock).workshop()
    if seconds is not None:
        other = Keeper(workshop, "other", dict, lambda *_: None)
        await other.begin()
        clock.advance(seconds)
    ours = Keeper(workshop, "ours", dict, lambda *_: None)
    await ours.begin()
    now = asyncio.get_running_loop().time()
    assert ours.contact.spares(now + 4) is spares


# Names


def test_a_worker_is_named_for_where_it_runs_and_no_two_alike() -> None:
    names = {worker_name() for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith(f"{socket.gethostname()}-{os.getpid()}-") for name in names)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-11, "SIGSEGV"),
        (-9, "SIGKILL (killed, by hand or for want of memory)"),
        (-63, "signal 63"),
    ],
)
def test_the_end_of_a_process_is_named_for_people(code: int, told: str) -> None:
    assert how_it_ended(code) == told


# The feeder


async def test_a_feeder_that_is_stopped_while_it_claims_waits_for_no_more_work() -> None:
    """It would lie in wait for a whole poll interval otherwise, and its worker with it."""
    app = Fairlead("memory://")
    waits: list[float] = []

    class Watched(MemoryStore):
        async def claim(self, plan: ClaimPlan) -> Claim:
            feeder.stop()
            return await super().claim(plan)

        async def wait(self, timeout: float, since: int = 0, *, for_work: bool = False) -> int:
            waits.append(timeout)
            return await super().wait(timeout if not timeout else 0.01, since)

    app.store = Watched()
    workshop = app.workshop()
    slots = Slots(workshop.pools[0], lambda _: None)
    feeder = Feeder(
        workshop,
        "w",
        slots,
        Contact("w", app.events, 20, 5, Random(1)),
        hear=lambda *_: None,
        take=lambda *_: None,
        spares=lambda _: False,
        places=lambda: 100,
        store_time=lambda: 0,
        board=Board.private(1),
    )
    await feeder.run()
    assert waits == [0]
