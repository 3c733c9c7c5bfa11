"""Ids may be shortened to their beginning, on every store, by whoever may list jobs."""

from pathlib import Path

import pytest

from fairlead import StoreUnavailable
from fairlead.cli.command import Exit, Problem
from fairlead.cli.which import whole
from fairlead.core.ids import SHORT, IdMaker, JobId, shortened
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds
from tests.cli.shop import Stock, listed, objects, refused, run, told
from tests.stores.test_postgres_roles import Yard, yard  # noqa: F401 (a fixture)
from tests.words import by, claim, done, new_job


def at(milliseconds: int) -> JobId:
    """Make an id of this moment."""
    return IdMaker(lambda: (1_790_000_000_000 + milliseconds) * 1_000_000)("mail")


async def test_the_beginning_of_an_id_means_its_job_wherever_that_is(store: Store) -> None:
    ended, dead, waiting = (new_job(id=at(n * 100_000)) for n in range(3))
    await store.put([ended])
    await store.settle([done(job) for job in await claim(store)])
    await store.put([dead])
    await deeds.cancel(store, [dead.id], "no", by("cancel"))
    await store.put([waiting])
    for job in (ended, dead, waiting):
        assert await whole(store, job.id) == job.id
        assert await whole(store, job.id[:SHORT]) == job.id
        assert await whole(store, job.id[:SHORT].upper()) == job.id
        assert await whole(store, shortened([job.id])[job.id]) == job.id
        assert await whole(store, job.id[:-1]) == job.id


async def test_a_beginning_that_several_have_is_not_guessed_at(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [new_job(id=at(n)) for n in range(12)]
    await store.put(jobs[:3])
    with pytest.raises(Problem, match="3 jobs have ids that begin with '.*'; write more") as told:
        await whole(store, jobs[0].id[:9])
    assert told.value.exit_code == Exit.MISUSED
    shown = capsys.readouterr().err
    assert all(job.id in shown for job in jobs[:3])
    await store.put(jobs)
    with pytest.raises(Problem, match="more than 10 jobs have ids that begin with"):
        await whole(store, jobs[0].id[:9])


async def test_a_beginning_that_no_id_has_is_told_as_that(store: Store) -> None:
    await store.put([new_job(id=at(0))])
    for part in ("0000", at(100_000)[:SHORT], "ffff", "zebra"):
        with pytest.raises(Problem, match="no job has an id that is or begins with") as told:
            await whole(store, part)
        assert told.value.exit_code == Exit.NOT_FOUND


async def test_a_beginning_of_less_than_four_characters_means_no_job(store: Store) -> None:
    job = new_job(id=at(0))
    await store.put([job])
    for part in ("", "0", "01a", "…", "01a…"):
        with pytest.raises(Problem, match="is too short for the beginning of an id") as told:
            await whole(store, part)
        assert told.value.exit_code == Exit.MISUSED
    assert await whole(store, job.id[:4]) == job.id


async def test_a_whole_id_that_others_begin_with_is_meant_itself(store: Store) -> None:
    """Ids that others made may be short."""
    await store.put([new_job(id=JobId("7")), new_job(id=JobId("77"))])
    assert await whole(store, "7") == "7"


async def test_a_producer_may_not_shorten_ids(yard: Yard) -> None:  # noqa: F811
    """It would learn of jobs that others put (T26)."""
    owner, producer = store_for(yard.url("operator")), store_for(yard.url("producer"))
    job = new_job()
    await producer.put([job])
    assert await whole(producer, job.id) == job.id
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await whole(producer, job.id[:SHORT])
    assert await whole(owner, job.id[:SHORT]) == job.id
    await owner.close()
    await producer.close()


# Commands


@pytest.mark.parametrize(
    "words",
    ["jobs show", "jobs wait", "explain", "jobs cancel --yes", "jobs retry", "jobs delete --yes"],
)
def test_every_command_takes_a_short_id(folder: Path, stock: Stock, words: str) -> None:
    state = {"jobs cancel --yes": stock.waiting, "jobs retry": stock.later}
    job_id = state.get(words, stock.done)
    answer = run(folder, *words.split(), job_id[:SHORT], FAIRLEAD_APP="shop:app")
    assert answer.returncode == 0, answer.stderr


def test_dead_letters_are_shown_edited_and_replayed_by_a_short_id(
    folder: Path, stock: Stock
) -> None:
    short = stock.bad[:SHORT]
    assert stock.bad in told(folder, "dead", "show", short)
    told(folder, "dead", "edit", short, '{"name": "good"}')
    told(folder, "dead", "replay", short)
    targets = [line["target"] for line in objects(folder, "audit", "list")]
    assert stock.bad in targets[0]
    assert stock.bad in targets[1]


def test_lists_show_short_ids_unless_asked(folder: Path, stock: Stock) -> None:
    lines = told(folder, "jobs", "list").splitlines()[1:]
    assert [line.split()[0] for line in lines] == [each[:SHORT] for each in listed(stock)]
    assert stock.done in told(folder, "jobs", "list", "--full")
    assert stock.bad in told(folder, "dead", "list", "--full")
    assert [each["id"] for each in objects(folder, "jobs", "list")] == listed(stock)


def test_several_candidates_are_listed(folder: Path, stock: Stock) -> None:
    problem = refused(folder, "jobs", "show", "shop:app", stock.done[:4])
    assert problem.startswith("7 jobs have ids that begin with")


@pytest.mark.parametrize(
    "words", ["jobs cancel --yes", "jobs delete --yes", "jobs show", "explain"]
)
def test_an_empty_id_or_filter_means_nothing(folder: Path, stock: Stock, words: str) -> None:
    """A variable that a script forgot to set must not cancel or delete a job."""
    problem = refused(folder, *words.split(), "shop:app", "")
    assert problem.endswith("the id of a job cannot be empty"), problem
    assert len(objects(folder, "jobs", "list")) == len(stock)
    problem = refused(folder, "jobs", "delete", "shop:app", "--error", "", "--yes")
    assert problem.endswith("what an error says cannot be empty"), problem
