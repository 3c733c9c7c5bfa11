"""Names that look like keys, patterns or protocol (T8)."""

import json
from collections.abc import AsyncIterator
from itertools import product

import pytest

from fairlead import ConfigError, Fairlead, Queue, State
from fairlead.core.acts import Action
from fairlead.core.admin import Filter
from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis.keys import Keys
from tests import deeds
from tests.conftest import STORES
from tests.words import are_new, claim, done, failed, new_job

ODD = (
    *("a:b", "a", "b:c", "a:b:c", ":", "::", "bodies", "a:bodies", "queues", "news"),
    *("{a}", "{", "}", "}{", "{}", "{a}:bodies", "a}:ready", "%7B", "%7Ba%7D", "%", "%25"),
    *("*", "a*", "?", "[ab]", "\\", "a\\*", "a b", " ", "'", '"', "$1", "-", "(", "[", "+inf"),
    *("a\nb", "\n", "\r\n", "*1\r\n$8\r\nFLUSHALL\r\n", "\t", "a\0b", "\0", "a\0001\0w"),
    *("ü", "日本", "\u202e", "😀", "e\u0301", "\x7f", "\x1b[31m"),
)
"""Names that other programs would stumble over; the store must not, whoever let them through."""


def _noop() -> None:
    pass


# Names


@pytest.fixture(params=[name for name in ("redis", "cluster") if name in STORES])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    fixture = {"redis": "redis_crew_url", "cluster": "cluster_crew_url"}[request.param]
    store = store_for(request.getfixturevalue(fixture))
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


async def test_odd_queue_names_stay_apart(store: Store) -> None:
    """Each queue gives its own jobs and no others, pauses alone, and is counted alone."""
    jobs = {name: new_job(queue=name) for name in ODD}
    assert all(await store.put(list(jobs.values())))
    assert set(await store.admin.count()) == set(ODD)
    for name, job in jobs.items():
        found = await store.admin.find(job.id)
        assert found is not None
        assert found.queue == name
        assert [each.id for each in await deeds.jobs(store, Filter(queues=(name,)))] == [job.id]
    await deeds.pause(store, ODD[0], Action("1", "me", "pause", "x"))
    assert await deeds.paused(store) == {ODD[0]}
    await deeds.resume(store, ODD[0], Action("2", "me", "resume", "x"))
    for name, job in jobs.items():
        [claimed] = await claim(store, Served(name))
        assert (claimed.id, claimed.queue) == (job.id, name)
        assert await store.extend([(claimed.id, claimed.fence)], SECOND)
        assert await store.settle([done(claimed)])
    await store.upkeep(0)
    assert await store.admin.count() == {}


class Served(Queue, frozen=True):  # type: ignore[misc]
    """A queue that nobody has checked the name of."""

    def __post_init__(self) -> None:
        pass


async def test_odd_ids_tasks_tags_and_workers_come_back_as_they_went(store: Store) -> None:
    """Parked for want of a worker, too, and found under their own name after it."""
    # No task has a name with a zero in it: see below.
    jobs = [
        new_job(
            name.replace("\0", "zero"),
            # An id has printable ASCII characters only; test_redis_damage.py has the others.
            id=JobId(f"id {name}" if name.isascii() and name.isprintable() else f"id {n}"),
            options=f'{{"tags":[{json.dumps(name)}]}}',
        )
        for n, name in enumerate(ODD)
    ]
    assert all(await store.put(jobs))
    assert are_new(await store.put(jobs)) == [False] * len(jobs)
    for job in jobs:
        found = await store.admin.find(job.id)
        assert found is not None
        assert (found.task, found.options, found.queue) == (job.task, job.options, "mail")
    assert await claim(store, capable={"t": 1}, slots=100) == []
    assert await deeds.unknown(store) == {(job.task, 1): 1 for job in jobs}
    for name, job in zip(ODD, jobs, strict=True):
        [claimed] = await claim(store, capable={job.task: 1}, worker=name)
        assert (claimed.id, claimed.task, claimed.worker) == (job.id, job.task, name)
        assert [each.id for each in await store.held(name)] == [job.id]
        assert await store.settle([failed(claimed, claimed.claimed_at - 20 * SECOND)])
        [again] = await claim(store, capable={job.task: 1}, worker=name)
        assert await store.settle([done(again, json.dumps(name))])
        found = await store.admin.find(job.id)
        assert found is not None
        assert (found.state, found.result, found.worker) == (State.DONE, json.dumps(name), name)


def test_no_two_keys_of_two_queues_are_the_same() -> None:
    """Not for parts of names that are joined either, nor over prefixes that may be told apart."""
    queues = {*ODD, *(f"{a}{b}" for a, b in product(ODD, (":", "}", "{", "}:ready", "%")))}
    keys = [key for queue in queues for key in Keys("p").of(queue)]
    assert len(set(keys)) == len(keys)
    plain = Keys("p")
    assert not {plain.queues, plain.strays, plain.workers, plain.schema, plain.number} & set(keys)
    assert not set(keys) & {key for queue in queues for key in Keys("p:{a}").of(queue)}


@pytest.mark.parametrize("name", ["{a}", "a b", "*", "a\nb", "a\0b", "ü", "", "-a", "a" * 129])
def test_odd_names_are_refused_at_the_door(name: str) -> None:
    """What people write down is checked before it comes to any store."""
    with pytest.raises(ConfigError, match="cannot name a queue"):
        Queue(name)
    if name:
        with pytest.raises(ConfigError, match="cannot name a task"):
            Fairlead("memory://").task(name=name)(_noop)
