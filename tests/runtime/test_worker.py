"""The stations of a worker at their seams: stopping, outages, leases, full boards."""

import asyncio
import gc
import threading
import warnings
from typing import Any

import pytest

from fairlead import Fairlead, Pool, Queue, Retry, StoreUnavailable, current_job
from fairlead.core import events
from fairlead.core.job import Reason, State
from fairlead.core.outcome import Crashed, Settlement
from fairlead.core.retry import fixed
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.turns import Credits
from fairlead.runtime.board import Board
from fairlead.runtime.embedded import EmbeddedWorker
from fairlead.runtime.keeper import Keeper, News
from fairlead.runtime.pool import Slots, phase_of
from fairlead.runtime.run import GIVEN_BACK
from fairlead.runtime.takeover import Unclear
from fairlead.runtime.worker import Worker
from fairlead.runtime.workshop import Terms
from tests.runtime.heard import Heard, ended
from tests.words import claim

THRICE = Retry(attempts=3, backoff=fixed(0, jitter=0))


# Stopping


async def test_a_worker_that_stops_lets_running_jobs_finish(any_app: Fairlead) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @any_app.task(name="t")
    async def t() -> str:
        started.set()
        await go_on.wait()
        return "finished"

    async with any_app.worker():
        job = await t.aenqueue()
        await asyncio.wait_for(started.wait(), 10)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert await job.aresult(timeout=0) == "finished"


async def test_what_is_not_finished_in_the_grace_time_is_given_back_uncounted(
    any_app: Fairlead,
) -> None:
    started = asyncio.Event()

    @any_app.task(name="t")
    async def t() -> None:
        started.set()
        await asyncio.Event().wait()

    heard = Heard(any_app)
    async with any_app.worker(grace=0.05):
        job = await t.aenqueue()
        await asyncio.wait_for(started.wait(), 10)
    record = await job.arecord()
    assert (record.state, record.attempt, record.worker) == (State.WAITING, 0, None)
    assert heard.story(job) == ["Enqueued", "Started", "Returned"]
    assert [line.outcome for line in await any_app.store.admin.attempts(job.id)] == ["returned"]


async def test_what_was_claimed_ahead_is_given_back_uncounted(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slots, "_ahead", lambda _self, _now: 10)
    started, go_on = asyncio.Event(), asyncio.Event()

    @any_app.task(name="t")
    async def t() -> None:
        started.set()
        await go_on.wait()

    jobs = [await t.aenqueue() for _ in range(5)]
    heard = Heard(any_app)
    async with any_app.worker(slots=1):
        await asyncio.wait_for(started.wait(), 10)
        assert {await job.astatus() for job in jobs} == {State.RUNNING}
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    records = [await job.arecord() for job in jobs]
    assert [record.state for record in records] == [State.DONE] + [State.WAITING] * 4
    assert [record.attempt for record in records] == [1, 0, 0, 0, 0]
    assert len(heard.of(events.Returned)) == 4
    again = await claim(any_app.store, *any_app.queues.values())
    assert [job.id for job in again] == [job.id for job in jobs[1:]], "the order is kept"


async def test_jobs_whose_claim_comes_in_while_the_worker_stops_are_given_back(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that was on its way when the worker was told to stop is no loss of a lease time."""
    claiming, answer = asyncio.Event(), asyncio.Event()
    ran: list[int] = []
    real = any_app.store.claim

    async def slow(plan: ClaimPlan) -> Claim:
        claimed = await real(plan)
        if claimed.jobs:
            claiming.set()
            await answer.wait()
        return claimed

    monkeypatch.setattr(any_app.store, "claim", slow)

    @any_app.task(name="t")
    async def t() -> None:
        ran.append(1)

    job = await t.aenqueue()
    async with any_app.worker():
        await asyncio.wait_for(claiming.wait(), 10)
        asyncio.get_running_loop().call_later(0.1, answer.set)
    record = await job.arecord()
    assert (record.state, record.attempt) == (State.WAITING, 0)
    assert ran == []


async def test_a_worker_that_stops_at_once_ends(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its keeper's thread comes to life only after it was told to stop."""
    any_app.task(name="t")(lambda: 1)
    told = threading.Event()
    real = EmbeddedWorker._keep

    def late(self: EmbeddedWorker, keeper: Keeper, loop: asyncio.AbstractEventLoop) -> None:
        told.wait(5)
        real(self, keeper, loop)

    monkeypatch.setattr(EmbeddedWorker, "_keep", late)
    worker = any_app.worker()
    await worker.__aenter__()
    asyncio.get_running_loop().call_later(0.3, told.set)
    await asyncio.wait_for(worker.__aexit__(), 5)
    assert await any_app.store.admin.workers() == []


async def test_a_worker_that_cannot_begin_leaves_nothing_open(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StoreUnavailable("store", "is away")

    any_app.task(name="t")(lambda: 1)
    with monkeypatch.context() as outage:
        outage.setattr(any_app.store, "open", away)
        with pytest.raises(StoreUnavailable):
            await any_app.worker().__aenter__()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []


async def test_a_worker_is_announced_while_it_works(any_app: Fairlead) -> None:
    any_app.task(name="t", version=3)(lambda: 1)
    async with any_app.worker():
        [worker] = await any_app.store.admin.workers()
        assert worker.capable == {"t": 3}
    assert await any_app.store.admin.workers() == []


async def test_a_worker_begins_its_rounds_at_a_phase_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Fairlead("memory://", queues=[Queue("a"), Queue("b", weight=2)])
    asked = asyncio.get_running_loop().create_future()
    real = app.store.claim

    async def seen(plan: ClaimPlan) -> Claim:
        if not asked.done():
            asked.set_result(plan)
        return await real(plan)

    monkeypatch.setattr(app.store, "claim", seen)
    async with app.worker() as worker:
        plan = await asyncio.wait_for(asked, 10)
    assert plan.credits == Credits.at_phase(plan.lineup, phase_of(worker.name, 1))


async def test_a_run_called_off_before_its_first_step_ends_as_such(any_app: Fairlead) -> None:
    ran: list[int] = []

    @any_app.task(name="t")
    async def t() -> None:
        ran.append(1)

    job = await t.aenqueue()
    workshop = any_app.workshop(Terms())
    [claimed] = await claim(any_app.store, *any_app.queues.values(), worker="w")
    worker = Worker(workshop, "w", Board.private(workshop.places))
    worker._take(worker._slots[0], [claimed], 1.0, late=False)
    worker._call_off((job.id, claimed.fence), GIVEN_BACK)
    worker.stop(0)
    await asyncio.wait_for(worker.run(), 3)
    record = await job.arecord()
    assert (record.state, record.attempt, ran) == (State.WAITING, 0, [])


# Outages


async def test_a_store_outage_loses_no_outcome_and_tells_nothing_early(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard(any_app)
    real = any_app.store.settle
    tries: list[list[str]] = []

    async def broken(settlements: list[Settlement]) -> set[Any]:
        tries.append(heard.story(job))
        if len(tries) < 3:
            raise StoreUnavailable("store", "is away")
        return await real(settlements)

    monkeypatch.setattr(any_app.store, "settle", broken)
    task = any_app.task(name="t")(lambda: 7)
    job = await task.aenqueue()
    async with any_app.worker():
        assert await job.aresult(timeout=10) == 7
        await heard.until(events.Finished)
    assert tries == [["Enqueued", "Started"]] * 3
    assert heard.story(job) == ["Enqueued", "Started", "Finished"]
    assert heard.of(events.StoreLost)[0].problem == "store: is away"
    assert heard.of(events.StoreFound)


async def test_claims_go_on_after_an_outage(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = any_app.store.claim
    tries: list[int] = []

    async def broken(plan: ClaimPlan) -> Claim:
        tries.append(1)
        if len(tries) < 3:
            raise StoreUnavailable("store", "is away")
        return await real(plan)

    monkeypatch.setattr(any_app.store, "claim", broken)
    task = any_app.task(name="t")(lambda: 7)
    async with any_app.worker():
        assert await (await task.aenqueue()).aresult(timeout=10) == 7


async def test_a_settlement_whose_answer_was_lost_is_not_called_refused(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = any_app.store.settle
    tries: list[int] = []

    async def forgetful(settlements: list[Settlement]) -> set[Any]:
        written = await real(settlements)
        tries.append(1)
        if len(tries) == 1:
            raise StoreUnavailable("store", "hung up")
        return written

    monkeypatch.setattr(any_app.store, "settle", forgetful)
    task = any_app.task(name="t")(lambda: 7)
    heard = Heard(any_app)
    async with any_app.worker():
        job = await task.aenqueue()
        await heard.until(events.Finished)
    assert heard.story(job) == ["Enqueued", "Started", "Finished"]
    assert len(tries) == 2


async def test_one_settlement_that_cannot_be_written_does_not_fail_the_others(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = any_app.store.settle

    async def picky(settlements: list[Settlement]) -> set[Any]:
        if any(settlement.result == '"bad"' for settlement in settlements):
            raise ValueError("cannot take this")
        return await real(settlements)

    monkeypatch.setattr(any_app.store, "settle", picky)

    @any_app.task(name="t")
    async def t(word: str) -> str:
        return word

    heard = Heard(any_app)
    async with any_app.worker():
        bad = await t.aenqueue("bad")
        good = [await t.aenqueue(f"good {n}") for n in range(5)]
        for n, job in enumerate(good):
            assert await job.aresult(timeout=10) == f"good {n}"
        trouble = await heard.until(events.Trouble)
        record = await ended(bad)
    assert f"job {bad.id} is damaged" in trouble.problem
    assert (record.state, record.reason) == (State.DEAD, Reason.UNREADABLE)
    assert "cannot take this" in (record.errors[-1].message or "")


async def test_a_worker_that_came_too_late_is_told_so(any_app: Fairlead) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @any_app.task(name="t")
    async def t() -> int:
        started.set()
        await go_on.wait()
        return 7

    heard = Heard(any_app)
    async with any_app.worker(slots=1):
        job = await t.aenqueue()
        await asyncio.wait_for(started.wait(), 10)
        record = await job.arecord()
        await any_app.store.extend([(job.id, record.fence)], 0)
        [stolen] = await claim(any_app.store, *any_app.queues.values(), worker="thief", lease=60)
        assert stolen.lost
        go_on.set()
        refused = await heard.until(events.SettlementRefused)
    assert (refused.job_id, refused.fence, refused.outcome) == (job.id, record.fence, "done")
    assert (await job.arecord()).fence == stolen.fence
    assert heard.of(events.Finished) == []


async def test_a_subscriber_that_raises_does_no_harm(
    any_app: Fairlead, caplog: pytest.LogCaptureFixture
) -> None:
    def angry(event: events.Event) -> None:
        raise ValueError("not with me")

    any_app.events.subscribe(angry)
    heard = Heard(any_app)
    task = any_app.task(name="t")(lambda: 7)
    async with any_app.worker():
        job = await task.aenqueue()
        assert await job.aresult(timeout=10) == 7
        await heard.until(events.Finished)
    assert f"a subscriber failed on Finished of job {job.id}" in caplog.text


# Leases


async def test_a_run_that_was_lost_to_ourselves_is_called_off_and_the_new_one_counts(
    any_app: Fairlead,
) -> None:
    runs: list[int] = []
    told: list[Any] = []

    @any_app.task(name="t", retry=THRICE)
    async def t() -> str:
        runs.append(current_job().attempt)
        if len(runs) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as problem:
                told.extend(problem.args)
                raise
        return "again"

    job = await t.aenqueue()
    queues = any_app.queues.values()
    workshop = any_app.workshop(Terms())
    heard = Heard(any_app)
    worker = Worker(workshop, "w", Board.private(workshop.places))
    [first] = await claim(any_app.store, *queues, worker="w")
    worker._take(worker._slots[0], [first], 1.0, late=False)
    await heard.until(events.Started)
    await any_app.store.extend([(first.id, first.fence)], 0)
    working = asyncio.create_task(worker.run())  # Claims its own job, as lost.
    assert await job.aresult(timeout=10) == "again"
    worker.stop(1)
    await asyncio.wait_for(working, 3)
    assert [type(problem).__name__ for problem in told] == ["LeaseLost"]
    assert runs == [1, 2]
    assert worker._slots[0].in_hand == 0
    assert list(worker._board.marks()) == []


async def test_of_two_runs_of_a_job_only_the_newer_keeps_its_lease() -> None:
    app = Fairlead("memory://")
    task = app.task(name="t")(lambda: 1)
    job = await task.aenqueue()
    [old] = await claim(app.store, *app.queues.values(), worker="w/1")
    await app.store.extend([(old.id, old.fence)], 0)
    [new] = await claim(app.store, *app.queues.values(), worker="w/2")
    boards = {"w/1": Board.private(4), "w/2": Board.private(4)}
    boards["w/1"].hold(old.id, old.fence, 0, 0.0)
    boards["w/2"].hold(new.id, new.fence, 0, 0.0)
    news: list[tuple[str, News]] = []
    keeper = Keeper(app.workshop(), "w", lambda: boards, lambda *told: news.append(told))
    await keeper.beat()
    assert news == [("w/1", News(lost=((job.id, old.fence),), cancelled=()))]


async def test_a_run_that_is_asked_about_in_another_process_keeps_its_pool_and_its_start(
    any_app: Fairlead,
) -> None:
    app = Fairlead(
        "memory://", queues=[Queue("money")], pools=[Pool("rest"), Pool("bank", queues=["money"])]
    )
    app.store = any_app.store
    asking = {"effects": "external", "reconcile": lambda _job: "done"}
    task = app.task(name="pay", queue="money", **asking)(lambda: None)
    job = await task.aenqueue()
    [claimed] = await claim(app.store, *app.queues.values(), worker="w/1")
    started_at = claimed.claimed_at + 5
    workshop = app.workshop()
    worker = Worker(workshop, "w/2", Board.private(workshop.places))
    worker.inherit(Unclear(claimed, Crashed("SIGKILL"), "bank", started_at))
    working = asyncio.create_task(worker.run())
    assert (await ended(job)).state is State.DONE
    worker.stop(1)
    await asyncio.wait_for(working, 3)
    [line] = await app.store.admin.attempts(job.id)
    assert (line.pool, line.started_at) == ("bank", started_at)


# Full boards


async def test_a_worker_whose_board_was_full_goes_on_when_there_is_room(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs, everything waits to be settled: the end of that must be noticed."""
    monkeypatch.setattr("fairlead.runtime.workshop.Workshop.places", 4)
    real = any_app.store.settle
    full, go_on = asyncio.Event(), asyncio.Event()

    async def slow(settlements: list[Settlement]) -> set[Any]:
        await go_on.wait()
        return await real(settlements)

    monkeypatch.setattr(any_app.store, "settle", slow)
    ran = 0

    @any_app.task(name="t")
    async def t() -> None:
        nonlocal ran
        ran += 1
        if ran == 4:
            full.set()

    jobs = [await t.aenqueue() for _ in range(9)]
    async with any_app.worker():
        await asyncio.wait_for(full.wait(), 10)
        go_on.set()
        for job in jobs:
            await job.aresult(timeout=10)


async def test_pools_that_claim_at_once_do_not_overfill_the_board(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Fairlead(
        "memory://",
        queues=[Queue("a"), Queue("b")],
        pools=[Pool("a", queues=["a"], slots=3), Pool("b", queues=["b"], slots=3)],
    )
    app.store = any_app.store
    monkeypatch.setattr("fairlead.runtime.workshop.Workshop.places", 4)
    real = app.store.claim

    async def slow(plan: ClaimPlan) -> Claim:
        claimed = await real(plan)
        await asyncio.sleep(0.01)  # Both are on their way at once.
        return claimed

    monkeypatch.setattr(app.store, "claim", slow)

    @app.task(name="t", queue="a")
    async def t() -> None:
        await asyncio.sleep(0)

    jobs = [await t.using(queue=queue).aenqueue() for _ in range(20) for queue in "ab"]
    async with app.worker():
        for job in jobs:
            assert (await ended(job)).state is State.DONE
