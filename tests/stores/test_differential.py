"""What a store claims is what the rule chooses: equal when nobody interferes, in order when many do."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core import turns
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob
from fairlead.core.queue import Queue
from fairlead.core.selection import ClaimPlan, Head, Line, Snapshot, select
from fairlead.core.store import Store
from fairlead.core.turns import Lineup
from fairlead.stores import store_for
from tests import deeds
from tests.words import by, claim, new_job, plan, returned

NAMES = [*"abcdefghijklmnopqrstuvwxyz", *(f"q{number}" for number in range(34))]


class Case(NamedTuple):
    """Jobs (queue, head start, delay and task of each), and what claims ask for in turn."""

    jobs: list[tuple[str, int, int, str]]
    queues: Lineup
    sizes: list[int]
    paused: frozenset[str]


def cases(
    most_queues: int,
    weights: st.SearchStrategy[list[int]],
    sizes: st.SearchStrategy[list[int]],
    paused: st.SearchStrategy[frozenset[str]],
) -> st.SearchStrategy[Case]:
    jobs = st.lists(
        st.tuples(
            st.sampled_from(NAMES[:most_queues]),
            st.sampled_from([0, 0, 0, 2, 9]),
            st.sampled_from([0, 0, 0, 4]),
            st.sampled_from(["t", "t", "t", "strange"]),
        ),
        min_size=1,
        max_size=40,
    )
    return st.builds(Case, jobs, weights.map(queues_of), sizes, paused)


def queues_of(weights: Sequence[int]) -> Lineup:
    return Lineup(Queue(name, weight=weight) for name, weight in zip(NAMES, weights, strict=False))


FEW = cases(
    3,
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.sampled_from([frozenset(), frozenset({"b"})]),
)
MANY = cases(
    len(NAMES),
    st.lists(st.integers(1, 5), min_size=20, max_size=len(NAMES)),
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.frozensets(st.sampled_from(NAMES), max_size=5),
)
"""Most of them empty, of many weights, and more of them than a claim has slots, or fewer."""
EVEN = cases(
    12,
    st.integers(2, 12).map(lambda number: [1] * number),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.frozensets(st.sampled_from(NAMES[:12]), max_size=2),
)
"""All of the same weight."""


@settings(max_examples=30)
@given(FEW)
def test_the_claim_is_the_rule(new_url: Callable[[], str], case: Case) -> None:
    """Claims of a whole run, against the rule over a list kept by hand."""
    asyncio.run(_compare(new_url(), case))


@settings(max_examples=20)
@given(MANY)
def test_the_claim_is_the_rule_with_many_queues(new_url: Callable[[], str], case: Case) -> None:
    asyncio.run(_compare(new_url(), case))


@settings(max_examples=20)
@given(EVEN)
def test_the_claim_is_the_rule_with_two_jobs_a_turn(new_url: Callable[[], str], case: Case) -> None:
    with patch.object(turns, "MANY", 2):
        asyncio.run(_compare(new_url(), case))


async def _compare(url: str, case: Case) -> None:
    queues, paused = case.queues, case.paused
    clock = ManualClock()
    store = store_for(url, clock)
    waiting: dict[str, list[Head]] = {name: [] for name in queues.names}
    served = [job for job in case.jobs if job[0] in queues.at]
    for number, (queue, priority, delay, task) in enumerate(served):
        job = NewJob(
            JobId(f"{number:03}"), task, queue, "{}", priority=priority, delay=delay * SECOND
        )
        await store.put([job])
        run_at = clock.now() + delay * SECOND
        waiting[queue].append(Head(job.id, task, 1, run_at - priority * SECOND, run_at))
        clock.advance(0.25)
    for queue in paused:
        await deeds.pause(store, queue, by())
    credits: Mapping[str, float] = {}
    for size in case.sizes:
        wish = ClaimPlan("w", queues, size, SECOND * 3600, credits=credits, capable={"t": 1})
        lines = {
            queue.name: Line(
                queue,
                sorted(waiting[queue.name], key=lambda job: (job.order_at, job.id)),
                queue.name in paused,
            )
            for queue in queues
        }
        expected = select(Snapshot(wish, clock.now(), lines))
        answer = await store.claim(wish)
        assert [job.id for job in answer.jobs] == [job.id for _, job in expected.chosen]
        assert answer.credits == expected.credits
        credits = answer.credits
        taken = {job.id for job in answer.jobs}
        waiting = {q: [job for job in heads if job.id not in taken] for q, heads in waiting.items()}
        clock.advance(1)
    assert await store.admin.audit() == []
    await store.close()


async def test_under_races_each_job_is_claimed_once_and_in_order(store: Store) -> None:
    """Many claimers at once: each sees a subsequence of the rule's order, together all of it."""
    queues = (Queue("a", weight=2), Queue("b"))
    await store.put([new_job(queue=name) for _ in range(200) for name in "ab"])
    order = {job: n for n, job in enumerate(await _order(store))}

    async def claimer(name: str) -> list[JobId]:
        mine: list[JobId] = []
        while jobs := await claim(store, *queues, slots=7, worker=name, lease=3600):
            mine += [job.id for job in jobs]
            await asyncio.sleep(0)
        return mine

    shares = await asyncio.gather(*(claimer(f"w{n}") for n in range(8)))
    counts = Counter(job for share in shares for job in share)
    assert set(counts.values()) == {1}
    assert len(counts) == 400
    for share in shares:
        for queue in "ab":
            places = [order[job] for job in share if order[job] % 2 == "ab".index(queue)]
            assert places == sorted(places)


async def _order(store: Store) -> list[JobId]:
    """Return the ids in the order they were put: the queues take turns in it."""
    jobs = (await store.claim(plan(Queue("a"), Queue("b"), slots=400, worker="peek"))).jobs
    await store.settle([returned(job) for job in jobs])
    return [job.id for job in jobs]
