"""Jobs as people see them: a table of many, a page about one."""

from collections.abc import Iterator, Sequence

import click
import msgspec

from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.words import ago, lasting, moment, painted
from fairlead.core.admin import AuditLine, tags_of
from fairlead.core.job import Attempt, JobRecord, PastAttempt, Reason, State
from fairlead.log import escaped

_COLUMNS = (
    Column("ID"),
    Column("STATE", paint=painted),
    Column("TASK", gives_way=True),
    Column("QUEUE", gives_way=True),
    Column("TRY", right=True),
    Column("WHEN", right=True),
    Column("WHY", gives_way=True),
)


_SAYS = {"Permanent": Reason.PERMANENT, "Ambiguous": Reason.UNCERTAIN}


def job_table(jobs: Sequence[JobRecord]) -> list[str]:
    """Return a line per job."""
    rows = [
        (job.id, job.state, job.task, job.queue, str(job.attempt), _when(job), why(job))
        for job in jobs
    ]
    return table(_COLUMNS, rows, screen_width())


def _when(job: JobRecord) -> str:
    return ago(job.finished_at or job.claimed_at or job.enqueued_at)


def why(job: JobRecord) -> str:
    """Say in a few words what matters about a job in its state."""
    error = job.errors[-1] if job.errors else None
    told = f"{short_name(error.error)}: {error.message}" if error and error.error else ""
    match job.state:
        case State.WAITING if job.gate == "not_due":
            return f"due {ago(job.run_at)}" + (f", after {told}" if told else "")
        case State.WAITING:
            return str(job.gate).replace("_", " ") if job.gate else ""
        case State.RUNNING:
            return "cancel asked for" if job.cancel_requested else f"on {job.worker}"
        case State.DONE:
            return ""
        case State.CANCELLED:
            return job.reason or ""  # Its failures are those of earlier runs.
    if error and error.message and _SAYS.get(short_name(error.error)) == job.reason:
        told = error.message
    return f"{job.reason}: {told}" if told else job.reason or ""


def short_name(error: str | None) -> str:
    """Return an exception's name without our own modules before it."""
    return (error or "").removeprefix("fairlead.core.errors.")


def page(job: JobRecord, attempts: Sequence[Attempt], deeds: Sequence[AuditLine]) -> Iterator[str]:
    """Tell everything about a job."""
    yield f"job {job.id}: {painted(job.state)}" + (f" ({escaped(why(job))})" if why(job) else "")
    for label, text in _facts(job):
        yield f"  {label:12} {escaped(text)}"
    yield "  arguments"
    yield from _pretty(job.payload)
    if job.result is not None:
        yield "  result"
        yield from _pretty(job.result)
    if attempts:
        yield ""
        yield from _attempt_table(attempts)
    if job.errors:
        yield ""
        yield from _failure(job.errors[-1])
    if deeds:
        yield ""
        yield click.style("By people", bold=True)
        for deed in deeds:
            before = f"; before: {deed.before}" if deed.before else ""
            yield f"  {ago(deed.done_at)}: {escaped(f'{deed.verb} by {deed.who}{before}')}"


def _facts(job: JobRecord) -> list[tuple[str, str]]:
    facts = [
        ("task", f"{job.task} (version {job.version})"),
        ("queue", job.queue),
        ("attempt", str(job.attempt) + (f", {job.crashes} crashes" if job.crashes else "")),
        ("enqueued", moment(job.enqueued_at)),
    ]
    if job.state is State.WAITING:
        facts.append(("due", moment(job.run_at)))
    if job.priority:
        facts.append(("head start", f"{job.priority} s"))
    for label, at in (
        ("expires", job.expires_at),
        ("claimed", job.claimed_at),
        ("lease until", job.lease_until),
        ("ended", job.finished_at),
    ):
        if at is not None:
            facts.append((label, moment(at)))
    if job.worker:
        facts.append(("worker", job.worker))
    if tags_of(job):
        facts.append(("tags", ", ".join(tags_of(job))))
    return facts


def _pretty(text: str) -> Iterator[str]:
    try:
        text = msgspec.json.format(text.encode(), indent=2).decode()
    except (msgspec.MsgspecError, ValueError):
        text = f"not JSON: {text}"
    for line in text.splitlines():
        yield f"    {escaped(line)}"


def _attempt_table(attempts: Sequence[Attempt]) -> list[str]:
    columns = (
        Column("TRY", right=True),
        Column("OUTCOME"),
        Column("WAITED", right=True),
        Column("RAN", right=True),
        Column("ENDED", right=True),
        Column("WORKER", gives_way=True),
        Column("FINGERPRINT"),
    )
    rows = [
        (
            str(line.attempt),
            line.outcome,
            lasting((line.started_at or line.claimed_at) - line.ready_at),
            lasting(line.finished_at - line.started_at) if line.started_at else "",
            ago(line.finished_at),
            line.worker or "",
            line.fingerprint or "",
        )
        for line in attempts
    ]
    return table(columns, rows, screen_width())


def _failure(error: PastAttempt) -> Iterator[str]:
    yield click.style("Last failure", bold=True)
    yield f"  {escaped(short_name(error.error))}: {escaped(error.message or '')}"
    for line in (error.traceback or "").splitlines():
        yield f"    {escaped(line)}"
