"""Who shared the death of a process runs again at once, in groups, until it is clear who did it (F76)."""

import signal
from collections import Counter, defaultdict
from collections.abc import Collection

import pytest

from fairlead import Retry, State
from fairlead.core.ids import JobId
from fairlead.core.job import ALONE
from tests.system.tree import (
    Line,
    Shop,
    Tree,
    alive,
    children,
    in_short,
    on_every_store,
    send,
    until,
)

ONCE = Retry(attempts=1)


def all_start(shop: Shop, jobs: Collection[JobId], count: int) -> list[Line]:
    """Wait until each of these jobs has started so often; returns those starts."""

    def found() -> list[Line]:
        starts = defaultdict(list)
        for line in shop.starts():
            starts[line.job].append(line)
        last = [starts[job][count - 1] for job in jobs if len(starts[job]) >= count]
        return last if len(last) == len(jobs) else []

    return until(found, 40, f"start {count} of {len(jobs)} jobs")


def kill_worker(shop: Shop, tree: Tree, jobs: Collection[JobId]) -> tuple[int, list[Line]]:
    """Kill the process that runs all these; returns the one they run in next, and their starts."""
    (worker,) = {line.pid for line in all_start(shop, jobs, 1)}
    assert worker in tree.workers
    send(worker, signal.SIGKILL)
    starts = all_start(shop, jobs, 2)
    (group,) = {line.pid for line in starts}
    (new,) = tree.workers
    assert group in children(new)
    return group, starts


def check_done(shop: Shop, jobs: Collection[JobId], outcomes: list[str]) -> None:
    for job in jobs:
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0), record
        assert shop.outcomes(job) == outcomes, shop.attempts(job)


@on_every_store
def test_all_who_ran_in_a_killed_process_start_again_together_and_at_once(shop: Shop) -> None:
    """No one waits for another one's end, and each is interrupted once."""
    jobs = shop.put_many("wait", 15, 3.0)
    tree = shop.start("--pool", "loop")
    group, starts = kill_worker(shop, tree, jobs)
    shop.until_final()
    ends = shop.lines(what="end")
    assert max(line.time for line in starts) < min(line.time for line in ends)
    assert {line.pid for line in ends} == {group}
    check_done(shop, jobs, ["crashed", "done"])
    until(lambda: not alive(group), what="the end of the group's process")


@in_short("neighbours", [11], 5)
def test_a_poison_job_is_soon_alone_and_interrupts_nobody_more_than_three_times(
    shop: Shop, neighbours: int
) -> None:
    healthy = shop.put_many("wait", neighbours, 2.0)
    poison = shop.put("adie", "kill", 0.4)
    tree = shop.start("--pool", "loop")
    shop.until_final(seconds=60)
    record = shop.record(poison)
    assert (record.state, record.reason, record.crashes) == (State.DEAD, "poison", 3)
    assert set(shop.outcomes(poison)) == {"crashed"}
    assert len(shop.starts(poison)) <= ALONE + 3
    for job in healthy:
        assert len(shop.starts(job)) <= 1 + ALONE
        check_done(shop, [job], ["crashed"] * (len(shop.starts(job)) - 1) + ["done"])
    mates = Counter(line.pid for line in shop.starts())
    alone = [line for line in shop.starts(poison) if mates[line.pid] == 1]
    assert len(alone) == 3
    assert "dead: poison" in tree.log


@on_every_store
def test_a_second_death_divides_them_and_a_third_leaves_each_alone(shop: Shop) -> None:
    jobs = shop.put_many("wait", 9, 6.0)
    tree = shop.start("--pool", "loop")
    group, _ = kill_worker(shop, tree, jobs)
    workers = tree.workers
    send(group, signal.SIGKILL)
    thirds = all_start(shop, jobs, 3)
    groups = Counter(line.pid for line in thirds)
    assert len(groups) >= 3
    assert all(shop.record(job).shared_deaths == 2 for job in jobs)
    [(victim, size)] = groups.most_common(1)
    assert size > 1
    send(victim, signal.SIGKILL)
    members = [line.job for line in thirds if line.pid == victim]
    fourths = all_start(shop, members, 4)
    assert len({line.pid for line in fourths}) == size
    shop.until_final()
    check_done(shop, members, ["crashed"] * 3 + ["done"])
    check_done(shop, set(jobs) - set(members), ["crashed"] * 2 + ["done"])
    assert tree.workers == workers


@on_every_store
def test_the_death_of_the_worker_process_gives_a_group_back_uncounted(shop: Shop) -> None:
    jobs = shop.put_many("wait", 5, 3.0)
    tree = shop.start("--pool", "loop")
    group, _ = kill_worker(shop, tree, jobs)
    (worker,) = tree.workers
    send(worker, signal.SIGKILL)
    all_start(shop, jobs, 3)
    assert not alive(group)
    assert all(shop.record(job).shared_deaths == 1 for job in jobs)
    shop.until_final()
    check_done(shop, jobs, ["crashed", "returned", "done"])


def test_plain_functions_run_in_threads_of_their_group(shop: Shop) -> None:
    jobs = shop.put_many("nap", 4, 2.0) + shop.put_many("wait", 4, 2.0)
    tree = shop.start("--pool", "thread", "--pool", "loop")
    (worker,) = {line.pid for line in all_start(shop, jobs, 1)}
    send(worker, signal.SIGKILL)
    starts = all_start(shop, jobs, 2)
    assert {line.pid for line in starts}.isdisjoint(tree.workers)
    shop.until_final()
    check_done(shop, jobs, ["crashed", "done"])


@pytest.mark.parametrize("plain", [False, True])
def test_suspects_take_slots_of_their_pool_and_no_others(shop: Shop, plain: bool) -> None:
    """Also where threads serve themselves, which know nothing of suspects."""
    jobs = shop.put_many("nap", 9, 0.8)
    shop.start("--pool", "thread", **({"PLAIN": "1"} if plain else {}))
    until(lambda: len(shop.starts()) >= 4)
    send(shop.starts()[0].pid, signal.SIGKILL)
    shop.until_final()
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    running: set[tuple[JobId, int]] = set()
    killed = shop.starts()[0].pid
    for line in sorted(shop.lines(), key=lambda line: line.time):
        if line.pid == killed:
            continue
        if line.what == "start":
            running.add((line.job, line.fence))
        if line.what == "end":
            running.remove((line.job, line.fence))
        assert len(running) <= 4


def test_a_coroutine_past_its_limit_is_cancelled_and_its_company_goes_on(shop: Shop) -> None:
    late = shop.put("wait", 60.0, timeout=3, retry=ONCE)
    jobs = shop.put_many("wait", 3, 5.0)
    tree = shop.start("--pool", "loop")
    group, _ = kill_worker(shop, tree, [late, *jobs])
    shop.until_final()
    check_done(shop, jobs, ["crashed", "done"])
    assert {line.pid for line in shop.lines(what="end")} == {group}
    record = shop.record(late)
    assert (record.state, record.reason, record.attempt) == (State.DEAD, "exhausted", 1)
    assert "ran past its time limit of 3 s, at" in (record.errors[-1].message or "")
    assert [line.detail for line in shop.lines(late, "cancelled")] == ["TimeoutError"]


@pytest.mark.parametrize(("grace", "outcome"), [("20", []), ("1", ["returned"])])
def test_a_thread_past_its_limit_ends_its_group_after_the_grace_time(
    shop: Shop, grace: str, outcome: list[str]
) -> None:
    """Its company finishes first, or is given back uncounted."""
    late = shop.put("nap", 60.0, timeout=2, retry=ONCE)
    jobs = shop.put_many("nap", 2, 6.0)
    tree = shop.start("--pool", "thread", "--grace", grace)
    kill_worker(shop, tree, [late, *jobs])
    workers = tree.workers
    shop.until_final(seconds=60)
    check_done(shop, jobs, ["crashed", *outcome, "done"])
    record = shop.record(late)
    assert (record.state, record.reason, record.attempt) == (State.DEAD, "exhausted", 1)
    assert "ran past its time limit of 2 s, at " in (record.errors[-1].message or "")
    assert tree.workers == workers


def test_a_group_whose_loop_is_blocked_past_a_limit_is_ended(shop: Shop) -> None:
    late = shop.put("sleep_on_loop", 60.0, timeout=2, retry=ONCE)
    tree = shop.start("--pool", "loop", "--grace", "1", "--lease", "5")
    first = shop.until_started(late)
    send(first.pid, signal.SIGKILL)
    workers = until(lambda: [pid for pid in tree.workers if pid != first.pid])
    shop.until_final(seconds=60)
    record = shop.record(late)
    assert (record.state, record.reason) == (State.DEAD, "exhausted")
    assert "ran past its time limit of 2 s, at " in (record.errors[-1].message or "")
    assert tree.workers == workers


def test_a_person_cancels_one_of_a_group(shop: Shop) -> None:
    jobs = shop.put_many("wait", 4, 5.0)
    tree = shop.start("--pool", "loop", "--lease", "4")
    kill_worker(shop, tree, jobs)
    shop.app.job(jobs[0]).cancel()
    shop.until_final()
    assert shop.record(jobs[0]).state is State.CANCELLED
    assert [line.detail for line in shop.lines(jobs[0], "cancelled")] == ["Cancel"]
    check_done(shop, jobs[1:], ["crashed", "done"])


def test_who_stops_lets_groups_finish(shop: Shop) -> None:
    jobs = shop.put_many("wait", 4, 3.0)
    tree = shop.start("--pool", "loop")
    kill_worker(shop, tree, jobs)
    assert tree.stop() == 0
    check_done(shop, jobs, ["crashed", "done"])


def test_who_stops_at_the_end_of_the_grace_time_gives_groups_back(shop: Shop) -> None:
    jobs = shop.put_many("wait", 3, 60.0) + shop.put_many("nap", 2, 60.0)
    shop.waiting.update(jobs)
    tree = shop.start("--pool", "loop", "--pool", "thread", "--grace", "1")
    (worker,) = {line.pid for line in all_start(shop, jobs, 1)}
    send(worker, signal.SIGKILL)
    all_start(shop, jobs, 2)
    assert tree.stop(30) == 0
    for job in jobs:
        assert shop.outcomes(job) == ["crashed", "returned"]
        assert (shop.record(job).attempt, shop.record(job).shared_deaths) == (0, 1)
