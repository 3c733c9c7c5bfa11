"""Which programs a step of the schema still serves, and what becomes of the others (P14, F54)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fairlead import SchemaOutdated
from fairlead.core.acts import FINAL
from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.job import NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.statements import numbered_steps
from fairlead.stores.steps import check_served
from tests import deeds
from tests.versions.conftest import SERVING_STORES, STRICT_STORES, Place
from tests.words import by, claim, done, new_job, plan

TOLD = "upgrade this program"
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("applied", "level"),
    [
        ([], 1),
        ([(1, 1), (2, 1)], 1),
        ([(1, 1), (2, 1), (3, 1), (9, 1)], 1),
        ([(1, 1), (2, 1), (3, 2)], 2),
        # What a program has itself, it can use: whatever is said of it.
        ([(1, 5), (2, 5)], 1),
    ],
)
def test_a_program_goes_on_while_every_newer_step_serves_it(
    applied: list[tuple[int, int]], level: int
) -> None:
    check_served(applied, 2, level)


@pytest.mark.parametrize(
    "applied", [[(3, 2)], [(3, 2), (4, 1)], [(4, 1), (3, 3)], [(3, 1), (4, 2)]]
)
def test_one_newer_step_that_does_not_serve_it_is_enough(applied: list[tuple[int, int]]) -> None:
    newest = max(number for number, _ in applied)
    told = f"the store's schema is version {newest}, this program needs 2; upgrade this program"
    with pytest.raises(SchemaOutdated, match=told):
        check_served(applied, 2, 1)


def test_a_step_says_in_its_file_whom_it_serves(tmp_path: Path) -> None:
    (tmp_path / "0001_tables.sql").write_text("CREATE TABLE a (b);\n")
    (tmp_path / "0002_more.sql").write_text("-- serves: 3\nDROP TABLE a;\n")
    assert [(step.number, step.name, step.serves) for step in numbered_steps(tmp_path)] == [
        (1, "tables", 1),
        (2, "more", 3),
    ]
    ours = numbered_steps(files("fairlead.stores.sqlite").joinpath("migrations"))
    assert [step.serves for step in ours] == [1]


# A step comes while programs are at work

SERVING = pytest.mark.parametrize("plain_place", SERVING_STORES, indirect=True)

ENDING = pytest.mark.parametrize(
    "plain_place", [name for name in SERVING_STORES if name != "sqlite"], indirect=True
)
"""Where verbs are the store's own, or what they touch never changes; the tables of a file may."""
ENDS = ("extend", "settle", "held")
"""What a program needs to end what it has claimed."""

Verb = Callable[[Store, NewJob], Awaitable[Any]]


async def _settle(store: Store, job: NewJob) -> object:
    record = await store.admin.find(job.id)
    assert record is not None
    return await store.settle([Settlement(job.id, record.fence, State.DONE, "done")])


VERBS: dict[str, Verb] = {
    "put": lambda store, _: store.put([new_job()]),
    "claim": lambda store, _: store.claim(plan(level=store.level)),
    "extend": lambda store, job: store.extend([(job.id, 1)], DAY),
    "settle": _settle,
    "held": lambda store, _: store.held("w1"),
    "cancel": lambda store, job: deeds.cancel(store, [job.id], "no", by()),
    "revive": lambda store, job: deeds.revive(store, [job.id], FINAL, by()),
    "pause": lambda store, _: deeds.pause(store, "other", by()),
    "announce": lambda store, _: store.announce(Worker("w", {}), DAY),
    "upkeep": lambda store, _: store.upkeep(DAY),
    "write": lambda store, _: store.entries.write([Change("kind", "key", "1")]),
    "read": lambda store, _: store.entries.read(Wanted("kind")),
    "find": lambda store, job: store.admin.find(job.id),
    "count": lambda store, _: store.admin.count(),
    "audit": lambda store, _: store.admin.audit(),
}


@pytest.fixture
async def store(plain_place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_for(plain_place.url, clock)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("plain_place", "verb"),
    [
        (place, verb)
        for place in STRICT_STORES
        for verb in VERBS
        if place == "sqlite" or verb not in ENDS
    ],
    indirect=["plain_place"],
)
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
async def test_a_program_that_is_no_longer_served_changes_nothing_more(
    store: Store, plain_place: Place, clock: ManualClock, verb: str, warm: bool
) -> None:
    """Whether it made the call before or not; and not only the first time."""
    job = new_job()
    await store.put([job])
    if warm:
        await VERBS[verb](store, job)
    plain_place.future.step(serves=2)
    newer = store_for(plain_place.url, clock)
    newer.level = 2
    before = await newer.admin.find(job.id), await newer.admin.count()
    for _ in range(4):
        with pytest.raises(SchemaOutdated, match=TOLD):
            await VERBS[verb](store, job)
    assert (await newer.admin.find(job.id), await newer.admin.count()) == before
    await newer.close()
    store.level = 2
    await VERBS[verb](store, job)


@ENDING
async def test_what_a_program_has_claimed_comes_to_its_end_though_it_is_no_longer_served(
    store: Store, plain_place: Place
) -> None:
    """A worker drains: what it runs is settled as it ended, and is neither lost nor repeated."""
    await store.put([new_job()])
    [job] = await claim(store)
    plain_place.future.step(serves=2)
    assert [each.id for each in await store.extend([(job.id, job.fence)], DAY)] == [job.id]
    assert [each.id for each in await store.held("w1")] == [job.id]
    assert set(await store.settle([done(job)])) == {job.id}
    store.level = 2
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.attempt) == (State.DONE, 1)


@SERVING
async def test_a_program_that_is_not_served_does_not_begin(
    plain_place: Place, clock: ManualClock
) -> None:
    plain_place.future.step(serves=2)
    for verb in VERBS.values():
        late = store_for(plain_place.url, clock)
        with pytest.raises(SchemaOutdated, match=TOLD):
            await verb(late, new_job())
        await late.close()


@SERVING
@pytest.mark.parametrize("verb", VERBS)
async def test_a_program_that_is_still_served_goes_on(
    store: Store, plain_place: Place, clock: ManualClock, verb: str
) -> None:
    job = new_job()
    await store.put([job])
    plain_place.future.step(serves=1)
    await VERBS[verb](store, job)
    again = store_for(plain_place.url, clock)
    await VERBS[verb](again, job)
    assert all(step.applied_at is not None for step in await again.admin.migrations())
    await again.close()
