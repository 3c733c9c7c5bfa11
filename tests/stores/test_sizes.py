"""The limits of core are written once more in SQL and in Lua: every store knows the same numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairlead.core.clock import ManualClock
from fairlead.core.codec import DEPTH_LIMIT, PAYLOAD_LIMIT
from fairlead.core.errors import EnqueueError
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_ID, LONGEST_NAME, MOST_LABELS, NewJob
from fairlead.core.queue import Queue
from fairlead.core.selection import ClaimPlan
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests.conftest import STORES
from tests.words import are_new, new_id, plan


class Size(NamedTuple):
    """What may be how large, a job that is so large, and the stores that refuse a larger one.

    What a store takes all the same was refused by the producer, before it came there.
    """

    most: int
    make: Callable[[int], NewJob]
    refused_by: set[str]


def job(**parts: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "task": "t", "queue": "mail", "payload": "{}"} | parts)


def filled(size: int, name: str) -> str:
    """Return JSON of so many bytes."""
    return json.dumps({name: "x" * (size - len(json.dumps({name: ""})))})


def nested(depth: int) -> str:
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


def tagged(count: int) -> str:
    return json.dumps({"tags": [str(number) for number in range(count)]})


SIZES = {
    "payload": Size(
        PAYLOAD_LIMIT, lambda size: job(payload=filled(size, "a")), {"postgres", "redis"}
    ),
    "options": Size(
        PAYLOAD_LIMIT,
        lambda size: job(options=filled(size, "correlation_id")),
        {"postgres", "redis"},
    ),
    "id": Size(LONGEST_ID, lambda size: job(id=JobId("x" * size)), {"postgres", "redis"}),
    "queue": Size(LONGEST_NAME, lambda size: job(queue="q" * size), {"postgres"}),
    "task": Size(LONGEST_NAME, lambda size: job(task="t" * size), {"postgres"}),
    "tags": Size(MOST_LABELS, lambda count: job(options=tagged(count)), {"postgres"}),
    "depth": Size(DEPTH_LIMIT, lambda depth: job(payload=nested(depth)), {"postgres"}),
}
REFUSED = [
    (name, store)
    for name, size in SIZES.items()
    for store in STORES
    if store.replace("cluster", "redis") in size.refused_by
]


@pytest.mark.parametrize("what", SIZES)
async def test_what_is_as_large_as_it_may_be_is_taken_and_given(what: str, store: Store) -> None:
    size = SIZES[what]
    job = size.make(size.most)
    assert are_new(await store.put([job])) == [True]
    [claimed] = (await store.claim(plan_for(job))).jobs
    assert (claimed.id, claimed.task, claimed.queue) == (job.id, job.task, job.queue)
    assert (claimed.payload, claimed.options) == (job.payload, job.options)


def plan_for(job: NewJob) -> ClaimPlan:
    return plan(Queue(job.queue), capable={job.task: 1})


@pytest.mark.parametrize(("what", "any_url"), REFUSED, indirect=["any_url"])
async def test_what_is_larger_by_one_is_refused(
    what: str, any_url: str, clock: ManualClock
) -> None:
    size = SIZES[what]
    store = store_for(any_url, clock)
    with pytest.raises(EnqueueError, match="refuses this job"):
        await store.put([size.make(size.most + 1)])
    assert await store.admin.count() == {}
    await store.close()


async def test_an_id_that_is_too_long_is_not_kept_by_sqlite(tmp_path: Path) -> None:
    """It takes what it is given; the claim that meets it moves it out under a new id."""
    store = store_for(f"sqlite:///{tmp_path}/jobs.db")
    long = SIZES["id"].make(LONGEST_ID + 1)
    await store.put([long])
    assert (await store.claim(plan_for(long))).jobs == []
    assert await store.admin.find(long.id) is None
    assert await store.admin.audit() == []
    await store.close()
