"""Suspects: who shares a process with whom, and what becomes of them if it dies (F76, P7)."""

import asyncio
import signal
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import Fairlead
from fairlead.core.ids import JobId
from fairlead.core.job import Job
from fairlead.core.outcome import Cancelled, Crashed, Done, Ending, Failed, Lost, Outcome, Returned
from fairlead.runtime import group_runner
from fairlead.runtime.board import PROCESS, Board
from fairlead.runtime.group import CallOff, Group, Message
from fairlead.runtime.group_runner import MOST_ALONE, MOST_PROCESSES, Care, GroupRunner
from fairlead.runtime.grouping import fate, shares
from fairlead.runtime.run import CUT_OFF, GIVEN_BACK, Run
from fairlead.runtime.sending import Home
from fairlead.runtime.solo import Order, Recall, Word

APP = Fairlead("memory://")
APP.task(name="plain")(lambda: None)


@APP.task(name="coroutine")
async def coroutine() -> int:
    await asyncio.get_running_loop().create_future()
    return 1


def new_run(n: int, shared: int = 1, crashes: int = 0, task: str = "coroutine") -> Run:
    counts = (1, crashes, n, 0, 0, None, 0, 0, "w", False, shared)
    job = Job(JobId(f"job-{n}"), task, 1, "mail", "{}", None, *counts)
    return Run(job, APP.tasks[task], "p", n, APP.store)


def sizes(runs: list[Run]) -> list[int]:
    return [len(share) for share in shares(runs)]


# Who shares a process


def test_nobody_needs_no_process() -> None:
    assert shares([]) == []


@pytest.mark.parametrize("count", [1, 2, 100])
def test_after_one_shared_death_all_run_together(count: int) -> None:
    assert sizes([new_run(n) for n in range(count)]) == [count]


@pytest.mark.parametrize(
    ("count", "found"),
    [
        *((1, [1]), (2, [2]), (3, [3]), (4, [2, 2]), (9, [3, 3, 3]), (10, [4, 3, 3])),
        (100, [10] * 10),
    ],
)
def test_after_two_they_are_divided_into_groups_as_large_as_there_are_many(
    count: int, found: list[int]
) -> None:
    assert sizes([new_run(n, 2) for n in range(count)]) == found


@pytest.mark.parametrize(("shared", "crashes"), [(3, 0), (4, 0), (0, 1), (1, 1), (2, 3)])
def test_after_three_and_after_a_crash_alone_each_has_a_process_to_itself(
    shared: int, crashes: int
) -> None:
    assert sizes([new_run(n, shared, crashes) for n in range(5)]) == [1] * 5


def test_kinds_are_kept_apart_and_nobody_is_forgotten() -> None:
    runs = [new_run(n, 1 + n % 4) for n in range(40)]
    divided = shares(runs)
    assert [len(share) for share in divided] == [10, 4, 3, 3, *[1] * 20]
    assert all(len({run.job.shared_deaths for run in share}) == 1 for share in divided)
    assert sorted(run.place for share in divided for run in share) == list(range(40))


@pytest.mark.parametrize("poison", [0, 57, 99])
def test_a_poison_interrupts_its_neighbours_three_times_at_most_and_is_alone_then(
    poison: int,
) -> None:
    """The rule by itself: each round, the processes of those that have not ended."""
    shared, crashes, interrupted = [1] * 100, 0, [1] * 100
    left = set(range(100))
    while crashes < 3:
        divided = shares([new_run(n, shared[n], crashes if n == poison else 0) for n in left])
        for share in divided:
            members = [run.place for run in share]
            if poison not in members:
                left -= set(members)
            elif len(members) == 1:
                crashes += 1
            else:
                for member in members:
                    shared[member] += 1
                    interrupted[member] += 1
    assert left == {poison}
    assert max(interrupted) == 3


# What becomes of them

TIMED_OUT = Failed(new_run(0).timed_out("shop.py:1").failure, timed_out=True)


@pytest.mark.parametrize(
    ("called_off", "running", "on_purpose", "outcome"),
    [
        (None, 1, False, Crashed("SIGSEGV")),
        (None, 2, False, Crashed("SIGSEGV", company=True)),
        (None, 1, True, CUT_OFF),
        (None, 9, True, CUT_OFF),
        (TIMED_OUT, 1, True, TIMED_OUT),
        (TIMED_OUT, 2, False, TIMED_OUT),
        (Cancelled("no"), 2, False, Cancelled("no")),
        (Lost(), 1, True, Lost()),
        (GIVEN_BACK, 1, True, CUT_OFF),
        (CUT_OFF, 2, False, CUT_OFF),
    ],
)
def test_how_a_run_ended_whose_process_died(
    called_off: Ending | None, running: int, on_purpose: bool, outcome: Outcome
) -> None:
    assert fate(called_off, "SIGSEGV", running, on_purpose=on_purpose) == outcome


# The runner, without processes


class FakeHand:
    """A process that does only what a test says."""

    made: "list[FakeHand]"
    full = False

    def __init__(
        self, role: str, target: str, hire: Any, on_news: Any, handles: Any, recruit: object
    ) -> None:
        if FakeHand.full:
            raise OSError("no more processes")
        self.recruit = recruit
        self.on_news = on_news
        self.told: list[Message] = []
        self.words: list[Word] = []
        self.dead = False
        self.how = "SIGSEGV"
        self.signals: list[int] = []
        self.left = False
        self.pid = 1_000 + len(FakeHand.made)
        FakeHand.made.append(self)

    @property
    def orders(self) -> list[Order]:
        return [order for message in self.told if isinstance(message, list) for order in message]

    def tell(self, message: Message) -> None:
        self.told.append(message)

    def receive(self) -> tuple[list[Word], bool]:
        words, self.words = self.words, []
        return words, self.dead

    async def lines(self) -> dict[int, str]:
        return {7: "shop.py:7 in nap", 1: "shop.py:1 in main"}

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def leave(self) -> None:
        self.left = True

    def bury(self) -> tuple[str, list[Word]]:
        self.dead = True
        return self.how, self.receive()[0]

    # For tests

    def say(self, *words: Word) -> None:
        self.words += words
        self.on_news()

    def start_all(self) -> None:
        self.say(*(Word(starts=order.number, thread=7) for order in self.orders))

    def die(self) -> None:
        self.dead = True
        self.on_news()


class Bench:
    """A runner, and what it told."""

    def __init__(self, recruit: Any = None) -> None:
        self.ended: dict[int, Outcome] = {}
        self.prolonged: list[int] = []
        self.overdue: list[tuple[int, str | None]] = []
        self.died: list[tuple[int, str, int, int]] = []
        care = Care(
            0.0,
            lambda run, _: self.prolonged.append(run.place),
            lambda run, where: self.overdue.append((run.place, where)),
            lambda *told: self.died.append(told),
        )
        self.board = Board.private(1_000)
        home = Home("t", self.board, self.begin, self.end, lambda *_: None, lambda: 5)
        self.runner = GroupRunner(home, care, recruit)

    def begin(self, run: Run, kind: int, _thread: int) -> bool:
        assert kind == PROCESS
        run.started_at = 5
        return True

    def end(self, run: Run, outcome: Outcome) -> None:
        assert run.place not in self.ended
        self.ended[run.place] = outcome

    async def start(self, *runs: Run) -> None:
        for run in runs:
            self.runner.start(run)
        await asyncio.sleep(0)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    FakeHand.made, FakeHand.full = [], False
    monkeypatch.setattr(group_runner, "Hand", FakeHand)
    monkeypatch.setattr(group_runner, "KILL_SECONDS", 0.0)
    monkeypatch.setattr(group_runner, "HEED_SECONDS", 0.0)
    return Bench()


async def test_the_first_group_runs_in_a_process_that_was_started_for_it(bench: Bench) -> None:
    recruit = object()
    early = Bench(recruit)
    await early.start(new_run(1), new_run(2))
    await early.start(new_run(3, crashes=1))
    first, second = FakeHand.made
    assert (first.recruit, [order.job.id for order in first.orders]) == (
        recruit,
        ["job-1", "job-2"],
    )
    assert (second.recruit, [order.job.id for order in second.orders]) == (None, ["job-3"])
    early.runner.watch()
    assert first.signals == second.signals == []


async def test_a_process_that_was_started_for_nobody_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_runner, "SPARE_SECONDS", 0.0)
    early = Bench(object())
    early.runner.watch()
    [spare] = FakeHand.made
    assert spare.signals == [signal.SIGTERM]
    await early.start(new_run(1))
    assert [len(hand.orders) for hand in FakeHand.made] == [0, 1]
    spare.die()
    assert (early.ended, early.died) == ({}, [])


async def test_a_revoked_suspect_is_given_back_and_sent_to_nobody(bench: Bench) -> None:
    """F77: it was asked for until the revocation, and others may have it already."""
    old = bench.board.hold(JobId("job-1"), 1, 0, 10.0)
    new = bench.board.hold(JobId("job-2"), 2, 0, 30.0)
    bench.board.revoke(20.0)
    runs = [new_run(1), new_run(2)]
    runs[0].place, runs[1].place = old, new
    await bench.start(*runs)
    await asyncio.sleep(0)
    [hand] = FakeHand.made
    assert [order.job.id for order in hand.orders] == ["job-2"]
    assert bench.ended == {old: GIVEN_BACK}
    assert [mark.sent for mark in bench.board.marks()] == [False, True]


async def test_all_that_come_together_share_one_process(bench: Bench) -> None:
    await bench.start(*(new_run(n) for n in range(5)))
    [hand] = FakeHand.made
    assert [order.job.id for order in hand.orders] == [f"job-{n}" for n in range(5)]


async def test_who_comes_before_the_process_has_begun_joins_and_later_ones_get_another(
    bench: Bench,
) -> None:
    await bench.start(new_run(0))
    await bench.start(new_run(1))
    await bench.start(new_run(2, 2), new_run(3, 3))
    assert [len(hand.orders) for hand in FakeHand.made] == [2, 1, 1]
    FakeHand.made[0].start_all()
    await bench.start(new_run(4))
    assert [len(hand.orders) for hand in FakeHand.made] == [2, 1, 1, 1]


async def test_a_process_ends_with_its_group(bench: Bench) -> None:
    await bench.start(new_run(0), new_run(1))
    [hand] = FakeHand.made
    hand.start_all()
    hand.say(Word(0, Done("1")))
    assert not hand.left
    hand.say(Word(1, Done("2")))
    assert hand.left
    assert bench.ended == {0: Done("1"), 1: Done("2")}
    hand.die()
    assert bench.died == []


async def test_all_who_ran_share_the_death_and_the_others_start_again(bench: Bench) -> None:
    runs = [new_run(n) for n in range(3)]
    await bench.start(*runs)
    [hand] = FakeHand.made
    hand.say(Word(starts=0), Word(starts=1))
    hand.die()
    together = Crashed("SIGSEGV", company=True)
    assert bench.ended == {0: together, 1: together}
    assert bench.died == [(hand.pid, "SIGSEGV", 2, 1)]
    await asyncio.sleep(0)
    assert [order.job.id for order in FakeHand.made[1].orders] == ["job-2"]


async def test_who_is_left_alone_and_kills_the_process_has_crashed(bench: Bench) -> None:
    await bench.start(new_run(0), new_run(1))
    [hand] = FakeHand.made
    hand.start_all()
    # Its last words are heard after its death, too.
    hand.words.append(Word(0, Done("1")))
    hand.dead = True
    bench.runner.watch()
    assert bench.ended == {0: Done("1"), 1: Crashed("SIGSEGV")}


async def test_a_process_that_runs_nothing_is_not_started_again_at_once(bench: Bench) -> None:
    await bench.start(new_run(0))
    FakeHand.made[0].die()
    await asyncio.sleep(0)
    assert (len(FakeHand.made), bench.ended) == (1, {})
    assert [run.place for run in bench.runner.take_back(float("inf"))] == [0]


async def test_without_room_for_a_process_runs_wait_and_can_be_taken_back(bench: Bench) -> None:
    FakeHand.full = True
    await bench.start(new_run(0), new_run(1, 3))
    assert {run.place for run in bench.runner.take_back(float("inf"))} == {0, 1}


# How many processes


async def test_nobody_waits_for_another_ones_end_with_one_poison_among_a_thousand(
    bench: Bench,
) -> None:
    """F76: there are processes for all groups but one, and for its members."""
    await bench.start(*(new_run(n, 2) for n in range(1_000)))
    assert sum(len(hand.orders) for hand in FakeHand.made) == 1_000
    largest = FakeHand.made[0]
    for hand in list(FakeHand.made):
        hand.start_all()
    largest.die()
    await bench.start(*(new_run(order.number, 3) for order in largest.orders))
    alone = [hand for hand in FakeHand.made if len(hand.orders) == 1]
    assert len(alone) == len(largest.orders) == 33


async def test_so_many_run_alone_at_a_time_and_the_next_start_as_these_end(bench: Bench) -> None:
    """A thousand processes would take 20 GB, and their start would block the loop for seconds."""
    await bench.start(*(new_run(n, 3) for n in range(1_000)))
    assert len(FakeHand.made) == MOST_ALONE
    for hand in FakeHand.made[:10]:
        hand.start_all()
        hand.say(Word(hand.orders[0].number, Done("1")))
        hand.die()
    await asyncio.sleep(0)
    assert len(FakeHand.made) == MOST_ALONE + 10
    assert [hand.orders[0].number for hand in FakeHand.made] == list(range(MOST_ALONE + 10))


async def test_who_runs_alone_leaves_processes_to_groups(bench: Bench) -> None:
    await bench.start(*(new_run(n, 3) for n in range(100)))
    await bench.start(*(new_run(n) for n in range(100, 200)))
    *_, hand = FakeHand.made
    assert [order.number for order in hand.orders] == list(range(100, 200))


async def test_groups_are_bounded_however_few_come_at_a_time(bench: Bench) -> None:
    for n in range(100):
        await bench.start(new_run(n, 2))
    assert len(FakeHand.made) == MOST_PROCESSES


async def test_who_waits_for_another_ones_end_is_given_back_only_when_the_worker_stops(
    bench: Bench,
) -> None:
    """Else it would be claimed again at once, with a line of the attempt log each second."""
    await bench.start(*(new_run(n, 3) for n in range(MOST_ALONE + 2)))
    assert bench.runner.take_back(float("inf")) == []
    bench.runner.recall()
    assert bench.ended == {MOST_ALONE: GIVEN_BACK, MOST_ALONE + 1: GIVEN_BACK}


async def test_who_waits_for_a_process_may_be_revoked_meanwhile(bench: Bench) -> None:
    """F77: it is not marked as sent before it is."""
    runs = []
    for n in range(MOST_ALONE + 1):
        place = bench.board.hold(JobId(f"job-{n}"), n, 0, 10.0)
        runs.append(new_run(n, 3))
        runs[-1].place = place
    await bench.start(*runs)
    assert [mark.sent for mark in bench.board.marks()].count(False) == 1
    bench.board.revoke(20.0)
    FakeHand.made[0].start_all()
    FakeHand.made[0].die()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.ended == {runs[0].place: Crashed("SIGSEGV"), runs[-1].place: GIVEN_BACK}


# Ending runs


async def test_a_run_that_is_called_off_is_told_so_and_its_company_goes_on(bench: Bench) -> None:
    runs = [new_run(0), new_run(1)]
    await bench.start(*runs)
    [hand] = FakeHand.made
    hand.start_all()
    runs[0].called_off = Cancelled("no")
    bench.runner.call_off(runs[0])
    bench.runner.watch()
    assert hand.told[-1] == CallOff(0, Cancelled("no"))
    assert hand.signals == []
    hand.say(Word(0, Cancelled("no")))
    bench.runner.watch()
    assert (bench.ended, hand.signals) == ({0: Cancelled("no")}, [])


async def test_a_process_in_which_all_are_called_off_is_ended(bench: Bench) -> None:
    runs = [new_run(0), new_run(1, task="plain")]
    await bench.start(*runs)
    [hand] = FakeHand.made
    hand.start_all()
    for run, outcome in zip(runs, (Lost(), CUT_OFF), strict=True):
        run.called_off = outcome
        bench.runner.call_off(run)
    bench.runner.watch()
    bench.runner.watch()
    assert hand.signals == [signal.SIGTERM, signal.SIGKILL]
    hand.die()
    assert bench.ended == {0: Lost(), 1: CUT_OFF}


async def test_a_thread_past_its_limit_ends_its_process_and_its_company_is_given_back(
    bench: Bench,
) -> None:
    runs = [new_run(0, task="plain"), new_run(1)]
    await bench.start(*runs)
    [hand] = FakeHand.made
    hand.start_all()
    bench.runner.time_out(runs[0])
    assert hand.told[-1] == CallOff(0, None)
    await asyncio.sleep(0)
    assert bench.overdue == [(0, "shop.py:7 in nap")]
    assert bench.prolonged == [0]
    bench.runner.watch()
    assert hand.signals == [signal.SIGTERM]
    hand.die()
    late = bench.ended[0]
    assert isinstance(late, Failed)
    assert late.timed_out
    assert "shop.py:7 in nap" in late.failure.message
    assert bench.ended[1] == Returned(cut_off=True)
    assert bench.died == []


async def test_who_heeds_its_limit_costs_its_company_nothing(bench: Bench) -> None:
    runs = [new_run(0), new_run(1)]
    await bench.start(*runs)
    [hand] = FakeHand.made
    hand.start_all()
    bench.runner.time_out(runs[0])
    hand.say(Word(0, TIMED_OUT))
    bench.runner.watch()
    assert (bench.ended, hand.signals) == ({0: TIMED_OUT}, [])


async def test_what_has_not_started_is_recalled(bench: Bench) -> None:
    await bench.start(new_run(0), new_run(1))
    [hand] = FakeHand.made
    hand.say(Word(starts=0))
    bench.runner.start(new_run(2, 3))
    bench.runner.recall()
    assert hand.told[-1] == Recall()
    assert bench.ended == {2: GIVEN_BACK}
    hand.say(Word(1, GIVEN_BACK))
    assert bench.ended == {1: GIVEN_BACK, 2: GIVEN_BACK}


async def test_nothing_starts_again_that_was_recalled(bench: Bench) -> None:
    await bench.start(new_run(0), new_run(1))
    [hand] = FakeHand.made
    hand.say(Word(starts=0))
    bench.runner.recall()
    hand.die()
    await asyncio.sleep(0)
    assert bench.ended == {0: Crashed("SIGSEGV"), 1: GIVEN_BACK}
    assert FakeHand.made == [hand]


# The group, without a process


class Scene:
    """A group, and what it said."""

    def __init__(self) -> None:
        self.said: list[Word] = []
        self.group = Group(APP.tasks, APP.store, self.said.append, None)

    def order(self, *runs: Run) -> None:
        self.group.heed([Order(run.place, run.job, run.pool, (5, 0.0)) for run in runs])

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_group_tells_of_each_start_before_any_handler_has_ended() -> None:
    scene = Scene()
    scene.order(*(new_run(n) for n in range(3)))
    await scene.turn()
    assert scene.said == [Word(starts=n) for n in range(3)]


async def test_a_start_is_on_the_board_before_anything_is_said_of_it() -> None:
    """The worker process may be blocked, and die before it hears."""
    board = Board.private(2)
    run = new_run(board.hold(JobId("job-0"), 7, 0, 1.0))
    seen: list[bool] = []
    group = Group(
        APP.tasks, APP.store, lambda _: seen.extend(mark.running for mark in board.marks()), board
    )
    group.heed([Order(run.place, run.job, run.pool, (5, 0.0))])
    await asyncio.sleep(0)
    assert seen == [True]
    [mark] = board.marks()
    assert (mark.kind, mark.deadline - mark.since) == (PROCESS, pytest.approx(run.timeout))


async def test_a_group_gives_back_only_what_has_not_started() -> None:
    scene = Scene()
    scene.order(new_run(0))
    await scene.turn()
    scene.order(new_run(1))
    scene.group.heed(Recall())
    await scene.turn()
    assert scene.said == [Word(starts=0), Word(1, GIVEN_BACK)]


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        (Cancelled("no"), Cancelled("no")),
        (Lost(), Lost()),
        (GIVEN_BACK, CUT_OFF),
        (CUT_OFF, CUT_OFF),
    ],
)
async def test_a_coroutine_of_a_group_is_cancelled_as_told(told: Ending, outcome: Outcome) -> None:
    scene = Scene()
    scene.order(new_run(0), new_run(1))
    await scene.turn()
    scene.group.heed(CallOff(0, told))
    await scene.turn()
    assert scene.said[2:] == [Word(0, outcome)]


async def test_a_coroutine_past_its_limit_tells_its_line() -> None:
    scene = Scene()
    scene.order(new_run(0))
    await scene.turn()
    scene.group.heed(CallOff(0, None))
    await scene.turn()
    outcome = scene.said[-1].outcome
    assert isinstance(outcome, Failed)
    assert outcome.timed_out
    assert "test_groups.py" in outcome.failure.message


async def test_who_has_ended_is_not_called_off() -> None:
    scene = Scene()
    scene.group.heed(CallOff(9, Lost()))
    assert scene.said == []


async def test_a_task_that_the_code_no_longer_has_fails_by_itself() -> None:
    scene = Scene()
    scene.group.heed([Order(0, replace(new_run(0).job, task="gone"), "p", (5, 0.0))])
    [word] = scene.said
    assert isinstance(word.outcome, Failed)
    assert word.outcome.failure.error == "UnknownTask"
