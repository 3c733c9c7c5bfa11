"""The words tests are written in: new jobs, plans and settlements with sensible defaults."""

from collections.abc import Sequence
from typing import Any

from fairlead import Fairlead
from fairlead.core.acts import Action
from fairlead.core.clock import SECOND, ManualClock, SystemClock
from fairlead.core.failure import described
from fairlead.core.ids import IdMaker
from fairlead.core.job import Job, NewJob
from fairlead.core.outcome import (
    Done,
    Failed,
    Outcome,
    Policy,
    Returned,
    Settlement,
    decide,
    outcome_of,
)
from fairlead.core.queue import Queue
from fairlead.core.retry import Retry, fixed
from fairlead.core.selection import ClaimPlan
from fairlead.core.store import Accepted, Store
from fairlead.stores import store_for

new_id = IdMaker()
MAIL = Queue("mail")
POLICY = Policy(Retry(attempts=1))


def by(verb: str = "act") -> Action:
    """Somebody who does something, under an id of its own."""
    return Action(str(new_id()), "ada", verb, "what it is done to")


def new_job(task: str = "t", queue: str = "mail", **options: Any) -> NewJob:
    return NewJob(options.pop("id", None) or new_id(), task, queue, "{}", **options)


def plan(*queues: Queue, slots: int = 10, lease: float = 20, **options: Any) -> ClaimPlan:
    return ClaimPlan(
        worker=options.pop("worker", "w1"),
        queues=queues or (MAIL,),
        slots=slots,
        lease=round(lease * SECOND),
        **options,
    )


async def claim(store: Store, *queues: Queue, **options: Any) -> list[Job]:
    return (await store.claim(plan(*queues, **options))).jobs


async def take_over(app: Fairlead, url: str) -> None:
    """Claim what runs, as another worker would, long after its lease has passed."""
    later = ManualClock(SystemClock().now() + 3600 * SECOND)
    other = store_for(url, later)
    [job] = await claim(other, *app.queues.values(), worker="other", capable=app.tasks.versions())
    assert job.lost
    await other.close()


def settled(job: Job, outcome: Outcome, now: int = 0, policy: Policy | None = None) -> Settlement:
    policy = policy or Policy(Retry(backoff=fixed(10, jitter=0)))
    return decide(job, outcome, policy, now)


def done(job: Job, result: str | None = None) -> Settlement:
    return settled(job, Done(result))


def failed(job: Job, now: int, policy: Policy | None = None) -> Settlement:
    return settled(job, Failed(described("Oops", "it broke")), now, policy)


def returned(job: Job) -> Settlement:
    return settled(job, Returned())


async def work_off(app: Fairlead) -> int:
    """Run every job that may start, as a worker would; returns how many ran."""
    ran = 0
    queues = tuple(app.queues.values())
    while jobs := await claim(app.store, *queues, slots=100, capable=app.tasks.versions()):
        settlements = [decide(job, await _run(app, job), POLICY, 0) for job in jobs]
        ran += len(await app.store.settle(settlements))
    return ran


async def _run(app: Fairlead, job: Job) -> Outcome:
    task = app.tasks[job.task]
    try:
        args, kwargs = task.signature.decode(job.payload)
        value = task.function(*args, **kwargs)
        if task.is_async:
            value = await value
        return Done(task.signature.encode_result(value))
    except Exception as error:
        return outcome_of(error, task.options)


async def quiet(store: Store) -> int:
    """Wait until nothing of before is told any more; returns the mark."""
    mark = await store.wait(0)
    while (new := await store.wait(0.05, mark)) != mark:
        mark = new
    return mark


def are_new(answers: Sequence[Accepted]) -> list[bool]:
    """Say of what was put whether it is new."""
    return [answer.is_new for answer in answers]
