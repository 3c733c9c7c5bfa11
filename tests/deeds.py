"""What people do and count, for tests: a verb each, in terms of `Admin.act` and `Admin.stats`."""

from collections.abc import Collection, Mapping, Sequence

from fairlead.core.acts import LIVE, Action, Cancel, Delete, Edit, Note, Pause, Resume, Revive
from fairlead.core.admin import ALL, MOST_LISTED, Filter, Part, Running, Waiting
from fairlead.core.ids import JobId
from fairlead.core.job import JobRecord, State
from fairlead.core.store import Store


async def cancel(
    store: Store,
    ids: Collection[JobId],
    reason: str,
    by: Action,
    states: Collection[State] = LIVE,
) -> dict[JobId, JobRecord]:
    """Cancel jobs; returns those that it touched as they are then."""
    touched = await store.admin.act(Cancel(ids, reason, states), by)
    found = [await store.admin.find(JobId(job_id)) for job_id in touched]
    return {record.id: record for record in found if record is not None}


async def revive(
    store: Store, ids: Collection[JobId], states: Collection[State], by: Action
) -> list[str]:
    return await store.admin.act(Revive(ids, states), by)


async def delete(
    store: Store, ids: Collection[JobId], states: Collection[State], by: Action
) -> list[str]:
    return await store.admin.act(Delete(ids, states), by)


async def edit(
    store: Store, job_id: JobId, was: str, payload: str, version: int, by: Action
) -> bool:
    return bool(await store.admin.act(Edit(job_id, was, payload, version), by))


async def pause(store: Store, queue: str, by: Action) -> bool:
    return bool(await store.admin.act(Pause(queue), by))


async def resume(store: Store, queue: str, by: Action) -> bool:
    return bool(await store.admin.act(Resume(queue), by))


async def note(store: Store, by: Action, count: int, job_id: JobId | None = None) -> None:
    await store.admin.act(Note(count, job_id), by)


async def waiting(store: Store) -> Mapping[str, Waiting]:
    return (await store.admin.stats([Part.WAITING])).waiting


async def running(store: Store) -> Sequence[Running]:
    return (await store.admin.stats([Part.RUNNING])).running


async def unknown(store: Store) -> Mapping[tuple[str, int], int]:
    return (await store.admin.stats([Part.UNKNOWN])).unknown


async def paused(store: Store) -> Collection[str]:
    return (await store.admin.stats([Part.PAUSED])).paused


async def jobs(store: Store, which: Filter = ALL, limit: int = MOST_LISTED) -> list[JobRecord]:
    """Return all jobs that a filter means, page by page."""
    found: list[JobRecord] = []
    cursor: str | None = None
    while True:
        page = await store.admin.page(which, limit, cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found
