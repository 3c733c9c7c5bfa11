"""What a blocked process has not started is given back, and whatever the timing, runs once (F77)."""

import asyncio
import time
from collections.abc import Callable
from itertools import combinations_with_replacement

import pytest

from fairlead import Fairlead, Pool
from fairlead.core import events
from fairlead.core.ids import JobId
from fairlead.core.job import Job, State
from fairlead.runtime import board as module
from fairlead.runtime import revoke
from fairlead.runtime.board import ASYNC, HELD, PROCESS, RUNNING, THREAD, Board
from fairlead.runtime.keeper import Keeper, News
from fairlead.runtime.revoke import Revoker, unstarted
from fairlead.runtime.worker import Worker
from fairlead.runtime.workshop import Terms
from tests.runtime.heard import Heard
from tests.words import claim

ID = JobId("01890000-0000-7000-8000-000000000001")
FENCE = 42
STATE = module._HEADER.size
"""Where the state of the first record is."""


def held(fence: int = FENCE, claimed_at: int = FENCE) -> Job:
    return Job(ID, "t", 1, "mail", "{}", None, 1, 0, fence, 0, 0, claimed_at, claimed_at, 0, "w/1")


def test_a_job_as_the_store_tells_it_was_claimed_when_its_fence_says() -> None:
    assert held().claimed_at == held().fence == FENCE


# The protocol

BEFORE, MARKED, READ, AFTER = range(4)
"""The moments of a start: before the mark, after it, after the look, after all of it."""


class Interleaved(bytearray):
    """The memory of a board that does something at each of the moments."""

    def __init__(self, size: bytes, do: Callable[[int], None]) -> None:
        super().__init__(size)
        self._do = do

    def __setitem__(self, at: object, value: object) -> None:
        if at == STATE and value == HELD:
            self._do(READ)
        super().__setitem__(at, value)  # type: ignore[index,call-overload]
        if at == STATE and value != HELD:
            self._do(MARKED)


@pytest.mark.parametrize("moments", list(combinations_with_replacement(range(4), 2)))
@pytest.mark.parametrize("kind", [ASYNC, THREAD, PROCESS])
def test_exactly_one_side_gets_the_job(kind: int, moments: tuple[int, int]) -> None:
    """The supervisor's two steps come at any two moments of a start, in their order."""
    board = Board.private(1)
    place = board.hold(ID, FENCE, 0, 10.0)
    given_back: list[Job] = []

    def supervise(moment: int) -> None:
        if moments[0] == moment:
            board.revoke(20.0)
        if moments[1] == moment:
            given_back.extend(unstarted([held()], list(board.marks()), 20.0, board.asked_at))

    board._memory = Interleaved(board._memory[:], supervise)  # type: ignore[assignment]
    supervise(BEFORE)
    starts = board.send(place) if kind == PROCESS else board.start(place, kind, 1, 30.0, 19.0)
    if starts and READ in moments:
        supervise(READ)
    supervise(AFTER)
    if starts:
        assert given_back == [], "it runs, and was given back"
    [mark] = board.marks()
    assert mark.only_held == (not starts), "who does not start it gives it back"
    assert starts == (moments[0] >= READ), "a revocation is heeded, whatever follows it"


def test_what_was_asked_for_after_the_revocation_starts() -> None:
    board = Board.private(2)
    board.revoke(20.0)
    old, new = board.hold(ID, 1, 0, 20.0), board.hold(ID, 2, 0, 20.1)
    assert [board.start(place, ASYNC, 1, 30.0, 21.0) for place in (old, new)] == [False, True]
    assert {mark.fence: mark.only_held for mark in board.marks()} == {1: True, 2: False}


def test_a_start_in_a_process_of_its_own_was_asked_for_when_it_was_sent() -> None:
    board = Board.private(1)
    place = board.hold(ID, FENCE, 0, 10.0)
    assert board.send(place)
    board.revoke(20.0)
    [mark] = board.marks()
    assert (mark.sent, mark.running, mark.only_held) == (True, False, False)
    assert unstarted([held()], [mark], 20.0, 0.0) == []
    assert board.start(place, PROCESS, 1, 30.0, 21.0)


def test_what_comes_back_unstarted_from_such_a_process_is_held_and_revoked() -> None:
    board = Board.private(1)
    place = board.hold(ID, FENCE, 0, 10.0)
    board.send(place)
    board.revoke(20.0)
    board.take_back(place)
    assert [mark.only_held for mark in board.marks()] == [True]
    assert not board.send(place)


@pytest.mark.parametrize(("asked_at", "given_back"), [(19.0, True), (20.0, True), (20.1, False)])
def test_what_is_not_on_the_board_yet_is_given_back_unless_more_was_asked_for(
    asked_at: float, given_back: bool
) -> None:
    assert unstarted([held()], [], 20.0, asked_at) == ([held()] if given_back else [])


def test_a_job_claimed_as_lost_is_to_be_decided_on_and_not_given_back() -> None:
    lost = held(fence=FENCE + 1)
    board = Board.private(1)
    board.hold(ID, lost.fence, 0, 10.0)
    assert unstarted([lost], list(board.marks()), 20.0, 10.0) == []
    assert unstarted([lost], [], 20.0, 10.0) == []


def test_a_board_waits_for_what_was_asked_for_since_the_last_revocation() -> None:
    board = Board.private(3)
    assert not board.waits
    board.begin_claim(10.0)
    assert board.waits, "a claim is on its way"
    board.revoke(11.0)
    assert not board.waits, "it is revoked already"
    place = board.hold(ID, 1, 0, 10.0)
    board.end_claim()
    assert not board.waits
    board.begin_claim(12.0)
    board.end_claim()
    assert not board.waits, "it brought nothing"
    place = board.hold(ID, 2, 0, 12.0)
    assert board.waits
    board.start(place, ASYNC, 1, 30.0, 13.0)
    assert not board.waits


def test_a_process_that_has_not_begun_does_not_stand_still() -> None:
    board = Board.private(1)
    for _ in range(5):
        board.watch(0.5)
    assert board.still == 0.0
    board.beat(1.0, 0)
    for _ in range(3):
        board.watch(0.5)
    assert board.still == 1.0
    board.beat(2.0, 0)
    board.watch(0.5)
    assert board.still == 0.0


# The stations


async def test_jobs_of_a_claim_asked_for_before_the_revocation_never_start(
    any_app: Fairlead,
) -> None:
    """Their claim was answered when the process turned again: it finds the revocation first."""
    ran: list[int] = []

    @any_app.task(name="t")
    async def t() -> None:
        ran.append(1)

    job = await t.aenqueue()
    heard = Heard(any_app)
    workshop = any_app.workshop(Terms())
    board = Board.private(workshop.places)
    [claimed] = await claim(any_app.store, *any_app.queues.values(), worker="w")
    worker = Worker(workshop, "w", board)
    board.revoke(2.0)
    worker._take(worker._slots[0], [claimed], 1.0, late=False)
    worker.stop(0)
    await asyncio.wait_for(worker.run(), 5)
    record = await job.arecord()
    assert (record.state, record.attempt, ran) == (State.WAITING, 0, [])
    assert heard.story(job) == ["Returned"]


async def test_what_was_taken_back_is_renewed_no_more(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda: 1)
    jobs = [await task.aenqueue() for _ in range(2)]
    claimed = await claim(any_app.store, *any_app.queues.values(), worker="w/1")
    board = Board.private(4)
    for job in claimed:
        board.hold(job.id, job.fence, 0, 0.0)
    board.given_back = {(claimed[0].id, claimed[0].fence)}
    asked: list[JobId] = []
    extend = any_app.store.extend

    async def extended(pairs: list[tuple[JobId, int]], lease: int) -> object:
        asked.extend(job_id for job_id, _ in pairs)
        return await extend(pairs, lease)

    any_app.store.extend = extended  # type: ignore[method-assign,assignment]
    news: list[News] = []
    keeper = Keeper(any_app.workshop(), "w", lambda: {"w/1": board}, lambda _, n: news.append(n))
    await keeper.beat()
    assert (asked, news) == ([claimed[1].id], [])
    assert len(jobs) == 2


async def test_a_mark_that_comes_late_is_waited_for(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that read before the revocation was written may still be about to be seen."""
    monkeypatch.setattr(revoke, "TICK", 0.01)
    task = any_app.task(name="t")(lambda: 1)
    jobs = [await task.aenqueue() for _ in range(2)]
    claimed = await claim(any_app.store, *any_app.queues.values(), worker="w/1")
    board = Board.private(4)
    places = [board.hold(job.id, job.fence, 0, 0.0) for job in claimed]
    real = board.revoke

    def written(now: float) -> None:
        real(now)
        at = board._begins[places[0]]
        asyncio.get_running_loop().call_soon(board._memory.__setitem__, at, RUNNING)

    monkeypatch.setattr(board, "revoke", written)
    boards = {"w/1": board}
    revoker = Revoker(any_app.workshop(), "w", lambda: boards, lambda *_: None)
    heard = Heard(any_app)
    assert await revoker._revoke_unstarted("w/1", board) == 1
    assert heard.events == [], "one line tells of all of them"
    assert [line.pool for line in await any_app.store.admin.attempts(jobs[1].id)] == ["default"]
    states = [(await job.arecord()).state for job in jobs]
    assert states == [State.RUNNING, State.WAITING]
    assert board.given_back == {(claimed[1].id, claimed[1].fence)}


async def test_nothing_of_a_process_that_died_meanwhile_is_given_back(any_app: Fairlead) -> None:
    """Then its jobs are taken over, and its board is closed."""
    task = any_app.task(name="t")(lambda: 1)
    job = await task.aenqueue()
    [claimed] = await claim(any_app.store, *any_app.queues.values(), worker="w/1")
    board = Board.private(4)
    board.hold(claimed.id, claimed.fence, 0, 0.0)
    revoker = Revoker(any_app.workshop(), "w", dict, lambda *_: None)
    assert await revoker._revoke_unstarted("w/1", board) == 0
    assert (await job.arecord()).state is State.RUNNING


# All of it, inside this program


def patiently(condition: Callable[[], bool]) -> bool:
    """Block this thread until something is true; says whether it was in time."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("slots", [2, 20])
async def test_a_blocked_loop_strands_nobody(any_app: Fairlead, slots: int) -> None:
    """The handler blocks until others could have all that its process has not started."""
    app = Fairlead("memory://", pools=[Pool("default", slots=slots)])
    app.store = any_app.store
    ran: list[JobId] = []
    seen: list[bool] = []

    @app.task(name="block")
    async def block() -> None:
        given_back = patiently(lambda: all(job.status() is State.WAITING for job in jobs))
        seen.append(given_back and patiently(lambda: bool(heard.of(events.LoopBlocked))))

    @app.task(name="quick")
    async def quick(number: int) -> int:
        ran.append(number)
        return number

    blocker = block.call()
    calls = [quick.call(number) for number in range(6)]
    await app.aenqueue_many([blocker, *calls])
    jobs = [app.job(call.id) for call in calls]
    heard = Heard(app)
    async with app.worker():
        assert [await job.aresult(timeout=30) for job in jobs] == list(range(6))
    assert seen == [True]
    assert sorted(ran) == list(range(6)), "each ran once"
    [told] = heard.of(events.LoopBlocked)
    assert told.returned >= 1
    assert "/tests/runtime/" in (told.where or "")
    noise = (events.SettlementRefused, events.LeaseExpired, events.Trouble, events.Retried)
    assert [event for event in heard.events if isinstance(event, noise)] == []
    for job in jobs:
        record = await job.arecord()
        outcomes = [line.outcome for line in await app.store.admin.attempts(job.id)]
        assert (record.attempt, record.crashes) == (1, 0)
        assert outcomes in (["returned", "done"], ["done"])
