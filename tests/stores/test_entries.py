"""Entries: written by compare-and-set, read by key, by range and by due time, gone with their job."""

import asyncio

import pytest

from fairlead import ConfigError, LeaseLost
from fairlead.core.acts import FINAL
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import (
    LONGEST_KEY,
    LONGEST_VALUE,
    MOST_BYTES,
    MOST_ENTRIES,
    Change,
    Wanted,
)
from fairlead.core.ids import JobId
from fairlead.core.job import Job, State
from fairlead.core.store import BATCH, Store
from tests import deeds
from tests.words import by, claim, done, failed, new_job, settled

DAY = 86_400 * SECOND


async def written(store: Store, *changes: Change) -> list[int]:
    versions = await store.entries.write(changes)
    assert None not in versions
    return [version or 0 for version in versions]


async def keys(store: Store, wanted: Wanted) -> list[str]:
    return [entry.key for entry in await store.entries.read(wanted)]


async def values(store: Store, kind: str, owner: JobId | None = None) -> dict[str, str]:
    return {each.key: each.value for each in await store.entries.read(Wanted(kind, owner))}


# Writing


async def test_what_is_written_is_read(store: Store, clock: ManualClock) -> None:
    at = clock.now() + DAY
    change = Change("step", "schlüssel/1", '{"a": "ä☃"}', due_at=at, expires_at=at + 5)
    [version] = await written(store, change)
    [entry] = await store.entries.read(Wanted("step"))
    assert (entry.kind, entry.key, entry.value) == ("step", "schlüssel/1", '{"a": "ä☃"}')
    assert (entry.version, entry.owner) == (version, None)
    assert (entry.due_at, entry.expires_at) == (at, at + 5)


async def test_a_write_replaces_all_of_an_entry(store: Store, clock: ManualClock) -> None:
    await written(store, Change("step", "a", "1", due_at=5, expires_at=clock.now() + DAY))
    await written(store, Change("step", "a", "2"))
    [entry] = await store.entries.read(Wanted("step"))
    assert (entry.value, entry.due_at, entry.expires_at) == ("2", None, None)


async def test_kinds_are_apart(store: Store) -> None:
    await written(store, Change("step", "a", "1"), Change("tick", "a", "2"))
    assert await values(store, "step") == {"a": "1"}
    assert await values(store, "tick") == {"a": "2"}


async def test_versions_grow_even_after_a_removal(store: Store, clock: ManualClock) -> None:
    [first] = await written(store, Change("step", "a", "1"))
    [second] = await written(store, Change("step", "a", "2"))
    clock.advance(1)
    assert await written(store, Change("step", "a")) == [0]
    [third] = await written(store, Change("step", "a", "3"))
    assert 0 < first < second < third


@pytest.mark.parametrize("is_owned", [False, True])
async def test_versions_of_one_call_are_apart_even_after_a_removal(
    store: Store, clock: ManualClock, is_owned: bool
) -> None:
    """Else who has seen the first of them could replace the last."""
    owner = (await running(store)).id if is_owned else None
    first, gone, last = await store.entries.write(
        [Change("step", "a", value, owner=owner) for value in ("1", None, "2")]
    )
    assert gone == 0
    assert first is not None
    assert last is not None
    assert first < last
    passing = Change("step", "a", "3", owner=owner, expires_at=clock.now())
    [expired, again] = await written(store, passing, Change("step", "a", "4", owner=owner))
    assert last < expired < again


async def test_only_what_was_expected_is_replaced(store: Store) -> None:
    [version] = await written(store, Change("step", "a", "1"))
    write = store.entries.write
    assert await write([Change("step", "a", "x", expect=0)]) == [None]
    assert await write([Change("step", "a", "x", expect=version - 1)]) == [None]
    assert await write([Change("step", "b", "x", expect=version)]) == [None]
    assert await values(store, "step") == {"a": "1"}
    [later] = await write([Change("step", "a", "2", expect=version)])
    assert later is not None
    assert later > version
    assert await write([Change("step", "b", "1", expect=0)]) != [None]


async def test_only_what_was_expected_is_removed(store: Store) -> None:
    [version] = await written(store, Change("step", "a", "1"))
    assert await store.entries.write([Change("step", "a", expect=version + 1)]) == [None]
    assert await store.entries.write([Change("step", "a", expect=version)]) == [0]
    assert await store.entries.write([Change("step", "a")]) == [0]
    assert await values(store, "step") == {}


async def test_one_that_is_refused_keeps_no_other_from_being_written(store: Store) -> None:
    await written(store, Change("step", "b", "old"))
    answers = await store.entries.write(
        [Change("step", key, "new", expect=0) for key in ("a", "b", "c")]
    )
    assert [answer is None for answer in answers] == [False, True, False]
    assert await values(store, "step") == {"a": "new", "b": "old", "c": "new"}


async def test_of_several_under_one_key_each_sees_the_one_before(store: Store) -> None:
    answers = await store.entries.write(
        [
            Change("step", "a", "1", expect=0),
            Change("step", "a", "2", expect=0),
            Change("step", "a", "3"),
        ]
    )
    assert answers[1] is None
    assert answers[0] is not None
    assert answers[2] is not None
    assert answers[0] < answers[2]
    assert await values(store, "step") == {"a": "3"}


async def test_of_many_writers_who_expect_the_same_one_wins(store: Store) -> None:
    await written(store, Change("step", "a", "0"))
    wins = 0
    for _ in range(5):
        [entry] = await store.entries.read(Wanted("step"))
        answers = await asyncio.gather(
            *(
                store.entries.write([Change("step", "a", str(n), expect=entry.version)])
                for n in range(8)
            )
        )
        wins += sum(answer != [None] for answer in answers)
    assert wins == 5


async def test_nothing_is_written_without_changes(store: Store) -> None:
    assert await store.entries.write([]) == []


# Reading


async def test_they_come_by_key_byte_by_byte(store: Store) -> None:
    names = ["b", "a", "B", "ä", "a/2", "a/10", "☃", "a "]
    await written(store, *(Change("step", name, "1") for name in names))
    assert await keys(store, Wanted("step")) == sorted(names, key=str.encode)


async def test_some_are_read_by_their_keys(store: Store) -> None:
    await written(store, *(Change("step", name, "1") for name in "abcd"))
    assert await keys(store, Wanted("step", keys=("d", "b", "x"))) == ["b", "d"]
    assert await keys(store, Wanted("step", keys=())) == []


async def test_a_range_is_read_in_pages(store: Store) -> None:
    names = [f"k{number:03}" for number in range(25)]
    await written(store, *(Change("step", name, "1") for name in reversed(names)))
    seen: list[str] = []
    while page := await keys(store, Wanted("step", after=seen[-1] if seen else "", limit=10)):
        assert len(page) <= 10
        seen += page
    assert seen == names


async def test_a_range_is_read_by_the_beginning_of_its_keys(store: Store) -> None:
    names = ["a/1", "a/2", "a0", "ab", "b/1", "ä/1", "a%1", "a_1"]
    await written(store, *(Change("step", name, "1") for name in names))
    assert await keys(store, Wanted("step", prefix="a/")) == ["a/1", "a/2"]
    assert await keys(store, Wanted("step", prefix="a/", after="a/1")) == ["a/2"]
    assert await keys(store, Wanted("step", prefix="ä")) == ["ä/1"]
    assert await keys(store, Wanted("step", prefix="a%")) == ["a%1"]
    assert await keys(store, Wanted("step", prefix="a_")) == ["a_1"]


async def test_what_falls_due_is_read_by_time(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    times = {"late": 30, "soon": 10, "also": 10, "never": None}
    await written(
        store,
        *(
            Change("tick", key, "1", due_at=None if at is None else now + at * SECOND)
            for key, at in times.items()
        ),
        Change("other", "x", "1", due_at=now),
    )
    assert await keys(store, Wanted("tick", due_before=now + 10 * SECOND)) == []
    assert await keys(store, Wanted("tick", due_before=now + 11 * SECOND)) == ["also", "soon"]
    assert await keys(store, Wanted("tick", due_before=now + 31 * SECOND, limit=3)) == [
        "also",
        "soon",
        "late",
    ]
    await written(store, Change("tick", "soon", "2", due_at=now + 60 * SECOND))
    await written(store, Change("tick", "also"))
    assert await keys(store, Wanted("tick", due_before=now + 31 * SECOND)) == ["late"]


async def test_what_has_expired_is_not_there(store: Store, clock: ManualClock) -> None:
    expiring = Change("step", "a", "1", due_at=0, expires_at=clock.now() + 10 * SECOND)
    await written(store, expiring, Change("step", "b", "1"))
    clock.advance(10)
    assert await values(store, "step") == {"b": "1"}
    assert await keys(store, Wanted("step", keys=("a",))) == []
    assert await keys(store, Wanted("step", due_before=clock.now())) == []
    assert await store.entries.write([Change("step", "a", "2", expect=0)]) != [None]
    assert await values(store, "step") == {"a": "2", "b": "1"}


async def test_upkeep_removes_what_has_expired(store: Store, clock: ManualClock) -> None:
    at = clock.now() + 10 * SECOND
    await written(store, *(Change("step", str(n), "1", expires_at=at) for n in range(7)))
    await written(store, Change("step", "stays", "1", expires_at=at + DAY))
    assert (await store.upkeep(DAY)).pruned_entries == 0
    clock.advance(11)
    assert (await store.upkeep(DAY)).pruned_entries == 7
    assert (await store.upkeep(DAY)).pruned_entries == 0
    assert await values(store, "step") == {"stays": "1"}


# Owners


async def running(store: Store) -> Job:
    await store.put([new_job()])
    [job] = await claim(store)
    return job


async def test_an_owned_entry_is_apart_from_others_of_its_key(store: Store) -> None:
    one, two = new_job(), new_job(queue="reports")
    await store.put([one, two])
    await written(
        store,
        Change("saved", "a", "0"),
        Change("saved", "a", "1", owner=one.id),
        Change("saved", "a", "2", owner=two.id),
    )
    assert await values(store, "saved") == {"a": "0"}
    assert await values(store, "saved", one.id) == {"a": "1"}
    [entry] = await store.entries.read(Wanted("saved", two.id))
    assert (entry.value, entry.owner) == ("2", two.id)


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELLED])
async def test_it_goes_with_its_job_and_comes_back_with_it(store: Store, state: State) -> None:
    job = await running(store)
    changes = [Change("saved", key, f'"{key}"', owner=job.id) for key in ("ä", "b")]
    await written(store, *changes, Change("step", "s", "1", owner=job.id, due_at=7))
    before = await _owned(store, job.id)
    ended = done(job)
    if state is not State.DONE:
        ended = type(ended)(job.id, job.fence, state, "failed", reason="because")
    await store.settle([ended])
    assert await _owned(store, job.id) == before
    assert await store.entries.write([Change("saved", "c", "1", owner=job.id)]) == [None]
    assert await store.entries.write([Change("saved", "b", owner=job.id)]) == [None]
    await deeds.revive(store, [job.id], [state], by())
    assert await _owned(store, job.id) == before
    await written(store, Change("saved", "b", "2", owner=job.id))
    assert await values(store, "saved", job.id) == {"ä": '"ä"', "b": "2"}


async def _owned(store: Store, job_id: JobId) -> list[object]:
    return [
        each
        for kind in ("saved", "step")
        for each in await store.entries.read(Wanted(kind, job_id))
    ]


async def test_it_stays_while_its_job_fails_and_waits_again(
    store: Store, clock: ManualClock
) -> None:
    job = await running(store)
    await written(store, Change("saved", "a", "1", owner=job.id))
    await store.settle([failed(job, clock.now())])
    assert await values(store, "saved", job.id) == {"a": "1"}
    await written(store, Change("saved", "a", "2", owner=job.id))
    clock.advance(60)
    [again] = await claim(store)
    assert await values(store, "saved", again.id) == {"a": "2"}


async def test_it_goes_with_a_job_that_is_cancelled_or_expires(
    store: Store, clock: ManualClock
) -> None:
    cancelled, expired = new_job(), new_job(expires_in=5 * SECOND)
    await store.put([cancelled, expired])
    for job in (cancelled, expired):
        await written(store, Change("saved", "a", f'"{job.id}"', owner=job.id))
    await deeds.cancel(store, [cancelled.id], "no", by())
    clock.advance(6)
    await store.upkeep(DAY)
    for job in (cancelled, expired):
        assert await values(store, "saved", job.id) == {"a": f'"{job.id}"'}
        assert await store.entries.write([Change("saved", "a", "x", owner=job.id)]) == [None]


async def test_it_is_forgotten_with_its_job(store: Store, clock: ManualClock) -> None:
    deleted, pruned = await running(store), await running(store)
    for job in (deleted, pruned):
        await written(store, Change("saved", "a", "1", owner=job.id))
        await store.settle([done(job)])
    await deeds.delete(store, [deleted.id], [State.DONE], by())
    assert await values(store, "saved", deleted.id) == {}
    clock.advance(3 * 86_400)
    while (await store.upkeep(DAY)).more:
        pass
    assert await values(store, "saved", pruned.id) == {}
    # A job of the same id begins with nothing.
    await store.put([new_job(id=deleted.id)])
    assert await values(store, "saved", deleted.id) == {}


async def test_a_job_with_many_entries_is_forgotten_in_bounded_steps(
    store: Store, clock: ManualClock
) -> None:
    """And does not run again meanwhile: it would find a part of its steps, and do the others again."""
    job, other = await running(store), await running(store)
    for first in range(0, 2_500, 500):
        names = [f"{number:04}" for number in range(first, first + 500)]
        await written(store, *(Change("saved", name, "1", owner=job.id) for name in names))
    await written(store, Change("saved", "a", "1", owner=other.id))
    await store.settle([done(job), done(other)])
    clock.advance(3 * 86_400)
    for _ in range(4):
        done_now = await store.upkeep(DAY)
        assert done_now.pruned_entries <= BATCH
        assert await deeds.revive(store, [job.id], FINAL, by()) == []
    while (await store.upkeep(DAY)).more:
        pass
    assert await store.admin.find(job.id) is None
    await store.put([new_job(id=each.id) for each in (job, other)])
    assert await values(store, "saved", job.id) == {}
    assert await values(store, "saved", other.id) == {}
    assert await store.admin.audit() == []


async def test_nobody_owns_what_has_no_job(store: Store) -> None:
    stranger = new_job().id
    assert await store.entries.write([Change("saved", "a", "1", owner=stranger)]) == [None]
    assert await values(store, "saved", stranger) == {}


# Fences


async def test_who_lost_its_lease_writes_nothing(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    fence = (job.id, job.fence)
    owned, free = Change("saved", "a", "1", owner=job.id), Change("once", "a", "1")
    assert None not in await store.entries.write([owned, free], fence)
    clock.advance(60)
    [taken] = await claim(store)
    for change in (owned, free):
        with pytest.raises(LeaseLost):
            await store.entries.write([change, Change("once", "b", "1")], fence)
    assert await values(store, "once") == {"a": "1"}
    assert None not in await store.entries.write([free], (taken.id, taken.fence))


async def test_who_has_ended_writes_nothing(store: Store) -> None:
    job = await running(store)
    await store.settle([done(job)])
    with pytest.raises(LeaseLost):
        await store.entries.write([Change("once", "a", "1")], (job.id, job.fence))
    assert await values(store, "once") == {}


async def test_what_was_written_under_a_fence_outlives_the_job_unless_it_owns_it(
    store: Store,
) -> None:
    job = await running(store)
    await store.entries.write([Change("once", "a", "1")], (job.id, job.fence))
    await store.settle([done(job)])
    await deeds.delete(store, [job.id], [State.DONE], by())
    assert await values(store, "once") == {"a": "1"}


# What is refused


@pytest.mark.parametrize("kind", ["", "a b", "ä", "a" * 65, "a\0", "a:b"])
def test_a_kind_is_a_plain_name(kind: str) -> None:
    with pytest.raises(ConfigError, match="is no kind of entries"):
        Change(kind, "a")
    with pytest.raises(ConfigError, match="is no kind of entries"):
        Wanted(kind)


@pytest.mark.parametrize("key", ["", "a\0b", "x" * (LONGEST_KEY + 1), "ä" * (LONGEST_KEY // 2 + 1)])
def test_a_key_has_a_length_and_no_nul(key: str) -> None:
    with pytest.raises(ConfigError, match="the key of an entry"):
        Change("step", key)
    with pytest.raises(ConfigError, match="the key of an entry"):
        Wanted("step", keys=(key,))


async def test_the_longest_key_and_value_are_kept(store: Store) -> None:
    key, value = "ä" * (LONGEST_KEY // 2), '"' + "x" * (LONGEST_VALUE - 2) + '"'
    await written(store, Change("k" * 64, key, value))
    assert await values(store, "k" * 64) == {key: value}
    with pytest.raises(ConfigError, match="is longer than 64 KiB; keep it in a place"):
        Change("step", "a", value + " ")


def test_a_value_with_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match="the value of entry 'a' has a NUL in it"):
        Change("step", "a", '"\0"')


async def test_one_call_writes_a_bounded_number_of_bytes(store: Store) -> None:
    value = '"' + "x" * (LONGEST_VALUE - 2) + '"'
    changes = [Change("step", f"{n:04}", value) for n in range(MOST_BYTES // LONGEST_VALUE + 1)]
    with pytest.raises(ConfigError, match=r"at most 1 MiB of entries, not 1,1\d\d,\d\d\d bytes"):
        await store.entries.write(changes)
    assert None not in await store.entries.write(changes[:-2])


def test_half_a_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="the value of an entry has half a character"):
        Change("step", "a", "\ud800")
    with pytest.raises(ConfigError, match="the key of an entry has half a character"):
        Change("step", "\ud800", "1")


@pytest.mark.parametrize("at", [-1, 2**60 + 1])
def test_a_time_is_an_instant(at: int) -> None:
    with pytest.raises(ConfigError, match="due_at of entry 'a' is no instant"):
        Change("step", "a", "1", due_at=at)


def test_an_owner_is_the_id_of_a_job() -> None:
    with pytest.raises(ConfigError, match="cannot own an entry"):
        Change("step", "a", "1", owner=JobId("ä"))


def test_what_is_due_is_not_asked_for_by_key() -> None:
    with pytest.raises(ConfigError, match="what is due, or for keys"):
        Wanted("step", keys=("a",), due_before=5)


async def test_one_call_writes_a_bounded_number(store: Store) -> None:
    changes = [Change("step", f"{n:04}", "1") for n in range(MOST_ENTRIES + 1)]
    with pytest.raises(ConfigError, match="at most 1,000 entries, not 1,001"):
        await store.entries.write(changes)
    assert None not in await store.entries.write(changes[:-1])
    assert len(await store.entries.read(Wanted("step"))) == MOST_ENTRIES
    with pytest.raises(ConfigError, match="1 to 1,000 entries; ask again"):
        Wanted("step", limit=MOST_ENTRIES + 1)


async def test_a_job_with_entries_is_settled_with_others(store: Store) -> None:
    """One batch may mix jobs with and without."""
    await store.put([new_job() for _ in range(4)])
    jobs = await claim(store, slots=4)
    for job in jobs[::2]:
        await written(store, Change("saved", "a", f'"{job.id}"', owner=job.id))
    await store.settle([done(job) for job in jobs])
    for job in jobs:
        kept = {"a": f'"{job.id}"'} if job in jobs[::2] else {}
        assert await values(store, "saved", job.id) == kept


async def test_a_job_given_back_keeps_them(store: Store) -> None:
    from fairlead.core.outcome import Returned

    job = await running(store)
    await written(store, Change("saved", "a", "1", owner=job.id))
    await store.settle([settled(job, Returned())])
    assert await values(store, "saved", job.id) == {"a": "1"}
