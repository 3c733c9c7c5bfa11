"""The store says that its schema is too new for this program: a worker drains, and says so once."""

import asyncio
from typing import Any

import pytest

from fairlead import Fairlead, SchemaOutdated
from fairlead.core import events
from fairlead.core.job import State
from fairlead.runtime.takeover import Death, take_over
from tests.runtime.heard import Heard

TOO_OLD = SchemaOutdated(found=9, needed=1)
TOLD = "no longer served: the store's schema is version 9, this program needs 1"


async def too_old(*_args: object, **_named: object) -> Any:
    raise TOO_OLD


@pytest.mark.parametrize("verb", ["claim", "wait", "extend", "announce", "upkeep"])
async def test_whichever_verb_says_it_what_runs_finishes_and_nothing_more_is_claimed(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("fairlead.runtime.upkeep.UPKEEP_SECONDS", 0.01)
    started, go_on = asyncio.Event(), asyncio.Event()

    @any_app.task(name="t")
    async def t() -> str:
        started.set()
        await go_on.wait()
        return "finished"

    heard = Heard(any_app)
    with pytest.raises(SchemaOutdated) as raised:
        async with any_app.worker(lease=2.0) as worker:
            job = await t.aenqueue()
            await asyncio.wait_for(started.wait(), 10)
            monkeypatch.setattr(any_app.store, verb, too_old)
            told = await heard.until(events.Trouble)
            monkeypatch.undo()
            later = await t.aenqueue()
            go_on.set()
            assert await job.aresult(timeout=10) == "finished"
            assert worker._working is not None
            await asyncio.wait([worker._working], timeout=10)
            assert await later.astatus() is State.WAITING
    assert raised.value is TOO_OLD
    assert TOLD in told.problem
    assert "Update the program, and start the worker again" in told.problem
    assert heard.of(events.Trouble) == [told]
    assert heard.of(events.StoreLost) == []
    assert [line.outcome for line in await any_app.store.admin.attempts(job.id)] == ["done"]


async def test_what_cannot_be_settled_any_more_is_told_and_left_to_newer_workers(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = any_app.task(name="t")(lambda: None)
    heard = Heard(any_app)
    with pytest.raises(SchemaOutdated):
        async with any_app.worker():
            monkeypatch.setattr(any_app.store, "settle", too_old)
            job = await task.aenqueue()
            await heard.until(events.Trouble, 2)
    told = {trouble.problem.partition(":")[0] for trouble in heard.of(events.Trouble)}
    assert told == {f"jobs {job.id} were not settled", "this program is no longer served"}
    assert await job.astatus() is State.RUNNING
    assert heard.of(events.StoreLost) == []


async def test_a_dead_process_is_not_taken_over_for_a_program_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for that to change, as they would for the end of an outage."""
    app = Fairlead("memory://")
    workshop = app.workshop()
    monkeypatch.setattr(app.store, "held", too_old)
    heard = Heard(app)
    death = Death("w/1", "SIGKILL", (), 5.0, False, {})
    async with asyncio.timeout(5):
        estate = await take_over(workshop, death, 60.0)
    assert (estate.crashed, estate.returned, estate.unclear) == (0, 0, ())
    assert workshop.served.problem is TOO_OLD
    [trouble] = heard.of(events.Trouble)
    assert "run again when their leases pass" in trouble.problem
