"""One bad job harms only itself (I22): what the store refuses is split off, the rest goes on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import Fairlead, Pool, Queue
from fairlead.core import events
from fairlead.core.errors import DecodeError, StoreRefused, StoreUnavailable
from fairlead.core.job import NewJob, Reason, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import MOST_BYTES, Claim, ClaimPlan
from fairlead.producer import found
from fairlead.runtime.board import ASYNC, Board
from fairlead.runtime.keeper import Keeper, News
from fairlead.runtime.split import in_parts
from fairlead.runtime.takeover import Death, take_over
from tests.runtime.heard import Heard
from tests.words import claim

REFUSED = StoreRefused("store", "this row is damaged")


def refusing(
    real: Callable[..., Any], is_bad: Callable[[Any], bool], problem: Exception = REFUSED
) -> Callable[..., Any]:
    """Return a verb of a store that refuses a whole batch for one bad item in it."""

    async def verb(batch: Any, *more: Any) -> Any:
        items = batch.queues if isinstance(batch, ClaimPlan) else batch
        if any(map(is_bad, items)):
            raise problem
        return await real(batch, *more)

    return verb


# Splitting


@pytest.mark.parametrize("bad", [set(), {0}, {6}, {2, 3}, set(range(7))])
async def test_all_that_is_sound_is_sent_and_each_bad_one_is_told(bad: set[int]) -> None:
    sent: list[int] = []
    told: list[int] = []

    async def send(items: Sequence[int]) -> int:
        if bad.intersection(items):
            raise REFUSED
        sent.extend(items)
        return len(items)

    answers = await in_parts(send, range(7), lambda item, _: told.append(item))
    assert (sorted(sent), sorted(told)) == (sorted(set(range(7)) - bad), sorted(bad))
    assert sum(answers) == 7 - len(bad)


async def test_an_outage_is_raised_at_once_and_nothing_is_split() -> None:
    calls: list[int] = []

    async def send(items: Sequence[int]) -> None:
        calls.append(len(items))
        raise StoreUnavailable("store", "is away")

    with pytest.raises(StoreUnavailable):
        await in_parts(send, range(8), lambda *_: None)
    assert calls == [8]


# The stations


@pytest.mark.parametrize("problem", [REFUSED, DecodeError("a job", "?"), RecursionError()])
async def test_a_queue_with_damage_in_it_keeps_no_other_queue_waiting(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    names = [f"queue-{n}" for n in range(5)]
    app = Fairlead("memory://", queues=[Queue(name) for name in names])
    verb = refusing(app.store.claim, lambda queue: queue.name == "queue-3", problem)
    monkeypatch.setattr(app.store, "claim", verb)
    task = app.task(name="t", queue="queue-0")(lambda: 7)
    heard = Heard(app)
    async with app.worker():
        jobs = [await task.using(queue=name).aenqueue() for name in names]
        for job in jobs[:3] + jobs[4:]:
            assert await job.aresult(timeout=10) == 7
        trouble = await heard.until(events.Trouble)
        assert await jobs[3].astatus() is State.WAITING
    assert "queue 'queue-3' is not served" in trouble.problem


async def test_jobs_of_one_queue_are_run_though_the_store_goes_away_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are leased already: if nobody ran them, they would come back as lost."""
    app = Fairlead("memory://", queues=[Queue("a"), Queue("b")])
    task = app.task(name="t", queue="a")(lambda: 7)
    real = app.store.claim
    asked: list[tuple[str, ...]] = []

    async def verb(plan: ClaimPlan) -> Claim:
        asked.append(tuple(queue.name for queue in plan.queues))
        if len(asked) == 1:
            raise REFUSED
        if len(asked) == 3:
            raise StoreUnavailable("store", "is away")
        return await real(plan)

    job = await task.aenqueue()
    monkeypatch.setattr(app.store, "claim", verb)
    heard = Heard(app)
    async with app.worker():
        assert await job.aresult(timeout=10) == 7
    assert asked[:3] == [("a", "b", "default"), ("a",), ("b", "default")]
    assert heard.story(job) == ["Started", "Finished"]


async def test_slots_that_a_resting_queue_fills_are_not_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Fairlead(
        "memory://",
        queues=[Queue("a"), Queue("b")],
        pools=[Pool("all", queues=["a", "b"], slots=2)],
    )
    go_on, running, most = asyncio.Event(), 0, 0

    @app.task(name="t", queue="a")
    async def t() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1

    async with app.worker():
        held = [await t.aenqueue(), await t.aenqueue()]
        while running < 2:
            await asyncio.sleep(0)
        verb = refusing(app.store.claim, lambda queue: queue.name == "a")
        monkeypatch.setattr(app.store, "claim", verb)
        more = [await t.using(queue="b").aenqueue() for _ in range(3)]
        await asyncio.sleep(0.1)
        go_on.set()
        for job in held + more:
            await job.aresult(timeout=10)
    assert most == 2


async def test_a_lease_that_cannot_be_renewed_costs_no_other_its_own(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = any_app.task(name="t")(lambda: None)
    jobs = [await task.aenqueue() for _ in range(5)]
    claimed = await claim(any_app.store, *any_app.queues.values(), worker="w/1", lease=60)
    bad = claimed[1].id
    monkeypatch.setattr(
        any_app.store, "extend", refusing(any_app.store.extend, lambda pair: pair[0] == bad)
    )
    board = Board.private(8)
    for job in claimed:
        board.hold(job.id, job.fence, 0, -100.0)
    told: list[News] = []
    keeper = Keeper(any_app.workshop(), "w", lambda: {"w/1": board}, lambda _, n: told.append(n))
    before = {job.id: job.lease_until for job in claimed}
    await keeper.beat()
    records = [await found(any_app.store, job.id) for job in jobs]
    renewed = {r.id for r in records if (r.lease_until or 0) < before[r.id]}
    assert renewed == {job.id for job in claimed} - {bad}
    assert [news.lost for news in told] == [((bad, claimed[1].fence),)]


async def test_what_a_heartbeat_cannot_read_costs_no_lease_and_no_word_to_others(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged attempt log, and a process that stands still whose jobs cannot be asked for."""
    task = any_app.task(name="t")(lambda: None)
    for _ in range(3):
        await task.aenqueue()
    kept, *gone = await claim(any_app.store, *any_app.queues.values(), worker="w/1", lease=60)
    board = Board.private(8)
    board.beat(1.0, 0)
    for job in (kept, *gone):
        board.hold(job.id, job.fence - (job is not kept), 0, -100.0)

    async def refuse(_asked: str) -> None:
        raise REFUSED

    monkeypatch.setattr(any_app.store.admin, "attempts", refuse)
    monkeypatch.setattr(any_app.store, "held", refuse)
    told: list[News] = []
    heard = Heard(any_app)
    keeper = Keeper(any_app.workshop(), "w", lambda: {"w/1": board}, lambda _, n: told.append(n))
    await keeper.beat()
    record = await any_app.store.admin.find(kept.id)
    assert record is not None
    assert (record.lease_until or 0) < kept.lease_until
    [news] = told
    assert {job_id for job_id, _ in news.lost} == {job.id for job in gone}
    assert len(heard.of(events.Trouble)) == 3


async def test_a_keeper_survives_whatever_a_duty_raises(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, int] = {}

    def broken(name: str) -> Callable[..., Any]:
        async def verb(*_: object) -> None:
            calls[name] = calls.get(name, 0) + 1
            raise RecursionError("nested too deep")

        return verb

    for name in ("upkeep", "announce"):
        monkeypatch.setattr(any_app.store, name, broken(name))
    monkeypatch.setattr("fairlead.runtime.upkeep.UPKEEP_SECONDS", 0.01)
    heard = Heard(any_app)
    task = any_app.task(name="t")(lambda: 7)
    async with any_app.worker(lease=0.2):
        assert await (await task.aenqueue()).aresult(timeout=10) == 7
        async with asyncio.timeout(10):
            while min(calls.get("upkeep", 0), calls.get("announce", 0)) < 3:
                await asyncio.sleep(0.01)
    told = {trouble.problem for trouble in heard.of(events.Trouble)}
    assert len(told) == len(heard.of(events.Trouble)) == 2


async def test_a_job_whose_end_is_refused_altogether_stays_and_is_told(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = any_app.task(name="t")(lambda: 7)
    bad, good = await task.aenqueue(), await task.aenqueue()
    verb = refusing(any_app.store.settle, lambda settlement: settlement.id == bad.id)
    monkeypatch.setattr(any_app.store, "settle", verb)
    heard = Heard(any_app)
    async with any_app.worker():
        assert await good.aresult(timeout=10) == 7
        await heard.until(events.Trouble, 2)
        assert await bad.astatus() is State.RUNNING
    told = [trouble.problem for trouble in heard.of(events.Trouble)]
    assert "is damaged" in told[0]
    assert "stays where it is" in told[1]
    assert "fairlead doctor --repair" in told[1]


async def test_a_batch_that_nothing_can_be_done_with_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a settlement raises that is neither an outage nor a refusal (I22)."""
    app = Fairlead("memory://")
    task = app.task(name="t")(lambda: 7)
    real, calls = app.store.settle, 0

    async def verb(settlements: Sequence[Settlement]) -> Any:
        nonlocal calls
        calls += 1
        return 7 if calls == 1 else await real(settlements)

    monkeypatch.setattr(app.store, "settle", verb)
    heard = Heard(app)
    async with app.worker(slots=1):
        left = await task.aenqueue()
        trouble = await heard.until(events.Trouble)
        assert await (await task.aenqueue()).aresult(timeout=10) == 7
        assert await left.astatus() is State.RUNNING
    assert f"jobs {left.id} were not settled: TypeError" in trouble.problem
    assert "they will run again" in trouble.problem


@pytest.mark.parametrize("job_id", ["x" * 37, "jöb", "ä" * 36])
async def test_a_job_that_the_board_cannot_hold_is_left_and_told(job_id: Any) -> None:
    """Its supervisor would renew and take over another job, or none."""
    app = Fairlead("memory://")
    task = app.task(name="t")(lambda: 7)
    await app.store.put([NewJob(job_id, "t", "default", "{}")])
    heard = Heard(app)
    async with app.worker(slots=1):
        assert await (await task.aenqueue()).aresult(timeout=10) == 7
        trouble = await heard.until(events.Trouble)
    assert f"job {job_id} cannot be taken in hand" in trouble.problem
    [found] = await app.store.admin.audit()
    assert "with which no worker takes it in hand" in found.problem


async def test_a_job_that_a_claim_brings_twice_runs_once_and_costs_no_slot(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two rows of one id do, where somebody dropped the index that forbids them."""
    real = any_app.store.claim

    async def verb(plan: ClaimPlan) -> Claim:
        claim = await real(plan)
        return replace(claim, jobs=claim.jobs * 2)

    monkeypatch.setattr(any_app.store, "claim", verb)
    ran: list[int] = []
    task = any_app.task(name="t")(ran.append)
    heard = Heard(any_app)
    async with any_app.worker(slots=1):
        for n in range(3):
            await (await task.aenqueue(n)).aresult(timeout=10)
    assert ran == [0, 1, 2]
    assert "cannot be taken in hand" in heard.of(events.Trouble)[0].problem


async def test_a_dead_process_s_sound_jobs_are_given_back_beside_a_damaged_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Fairlead("memory://")
    task = app.task(name="t")(lambda: None)
    handles = [await task.aenqueue() for _ in range(4)]
    bad = handles[2].id
    await claim(app.store, *app.queues.values(), worker="w/1")

    def is_bad(settlement: Settlement) -> bool:
        return settlement.id == bad and settlement.state is not State.DEAD

    monkeypatch.setattr(app.store, "settle", refusing(app.store.settle, is_bad))
    await take_over(app.workshop(), Death("w/1", "SIGKILL", (), 5.0, False, {}), 1.0)
    records = [await handle.arecord() for handle in handles]
    assert [r.state for r in records] == ["waiting", "waiting", "dead", "waiting"]
    assert records[2].reason == Reason.UNREADABLE


async def test_what_a_refused_settlement_wrote_is_told_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store of many parts writes some of a batch, and refuses the rest."""
    app = Fairlead("memory://")
    task = app.task(name="t")(lambda: None)
    handles = [await task.aenqueue() for _ in range(4)]
    await claim(app.store, *app.queues.values(), worker="w/1")
    bad = handles[3].id
    real = app.store.settle

    async def verb(settlements: Sequence[Settlement]) -> Any:
        written = await real([each for each in settlements if each.id != bad])
        if len(written) < len(settlements) and any(each.id == bad for each in settlements):
            raise REFUSED
        return written

    monkeypatch.setattr(app.store, "settle", verb)
    heard = Heard(app)
    estate = await take_over(app.workshop(), Death("w/1", "SIGKILL", (), 5.0, False, {}), 1.0)
    assert estate.returned == 4
    assert [heard.story(handle) for handle in handles[:3]] == [["Returned"]] * 3


async def test_a_dead_process_that_cannot_be_asked_about_ends_no_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Fairlead("memory://")
    heard = Heard(app)

    async def broken(_worker: str) -> None:
        raise DecodeError("job x", "?")

    monkeypatch.setattr(app.store, "held", broken)
    estate = await take_over(app.workshop(), Death("w/1", "SIGKILL", (), 5.0, False, {}), 1.0)
    assert (estate.crashed, estate.returned, estate.unclear) == (0, 0, ())
    assert "cannot be taken over" in heard.of(events.Trouble)[0].problem


@pytest.mark.parametrize("job_id", ["a", "job-1", "ä", "x" * 36])
def test_an_id_comes_back_from_the_board_as_it_was(job_id: Any) -> None:
    board = Board.private(2)
    board.start(board.hold(job_id, 7, 0, 1.0), ASYNC, 1, 2.0, 1.0)
    [mark] = board.marks()
    assert mark.job_id == job_id


async def test_a_job_with_a_short_id_is_renewed_and_taken_over(any_app: Fairlead) -> None:
    any_app.task(name="t")(lambda: None)
    await any_app.store.put([NewJob("short", "t", "default", "{}")])  # type: ignore[arg-type]
    [job] = await claim(any_app.store, *any_app.queues.values(), worker="w/1", lease=60)
    board = Board.private(4)
    board.start(board.hold(job.id, job.fence, 0, -100.0), ASYNC, 1, 99.0, 1.0)
    told: list[News] = []
    keeper = Keeper(any_app.workshop(), "w", lambda: {"w/1": board}, lambda _, n: told.append(n))
    await keeper.beat()
    assert told == []
    death = Death("w/1", "SIGKILL", tuple(board.marks()), 5.0, False, {})
    assert (await take_over(any_app.workshop(), death, 1.0)).crashed == 1


# Bytes


async def test_a_claim_that_large_payloads_cut_off_is_followed_by_the_next_at_once(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[Claim] = []
    real = any_app.store.claim

    async def heard(plan: ClaimPlan) -> Claim:
        claims.append(await real(plan))
        return claims[-1]

    monkeypatch.setattr(any_app.store, "claim", heard)

    @any_app.task(name="t")
    async def t(text: str) -> int:
        return len(text)

    size = 200_000
    jobs = [await t.aenqueue("x" * size) for _ in range(60)]
    async with any_app.worker(slots=100):
        for job in jobs:
            assert await job.aresult(timeout=10) == size
    bytes_of = [sum(len(job.payload) for job in claim.jobs) for claim in claims]
    assert max(bytes_of) <= MOST_BYTES + size + 20
    assert claims[0].cut
    assert sum(len(claim.jobs) for claim in claims) == 60
