"""Jobs as people see them: a table of many, a page about one."""

from collections.abc import Collection, Iterator, Sequence
from shlex import quote

import click

from fairlead.cli.command import hinted
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.words import ago, formatted, lasting, moment, painted
from fairlead.core.acts import AuditLine
from fairlead.core.admin import tags_of
from fairlead.core.codec import PAYLOAD_LIMIT
from fairlead.core.errors import DecodeError
from fairlead.core.failure import TRACEBACK_LIMIT, short_name
from fairlead.core.figures import wait_of
from fairlead.core.ids import shortened
from fairlead.core.job import (
    LONGEST_LABEL,
    MOST_LABELS,
    Attempt,
    Gate,
    JobRecord,
    PastAttempt,
    Reason,
    State,
)
from fairlead.core.text import QUOTED, SHOWN, counted, cut, escaped, listed
from fairlead.insight.explain import suspicion

_COLUMNS = (
    Column("ID"),
    Column("STATE", paint=painted),
    Column("TASK", least=12),
    Column("QUEUE", least=8, goes=2),
    Column("TRY", right=True, goes=3),
    Column("WHEN", right=True, goes=1),
    Column("WHY", least=28, most=SHOWN),
)


_UNCOUNTED = ("crashed", "returned", "snoozed")
"""How a run ends that is no attempt."""
_SAYS = {"Permanent": Reason.PERMANENT, "Ambiguous": Reason.UNCERTAIN}


def job_table(
    jobs: Sequence[JobRecord], *, full: bool = False, paused: Collection[str] = ()
) -> list[str]:
    """Return a line per job; ids are short, unless they are wanted in full.

    A job that nothing else holds waits for its queue, if that is among the paused ones.
    """
    shown = shortened([job.id for job in jobs])
    rows = [
        (
            job.id if full else shown[job.id],
            job.state,
            job.task,
            job.queue,
            _tries(job),
            _when(job),
            why(job) or ("queue paused" if _is_held(job, paused) else ""),
        )
        for job in jobs
    ]
    return table(_COLUMNS, rows, screen_width())


def _is_held(job: JobRecord, paused: Collection[str]) -> bool:
    return job.state is State.WAITING and job.queue in paused


def _tries(job: JobRecord) -> str:
    """Count the runs that count: attempts, and crashes, which are counted apart."""
    return str(job.attempt + job.crashes)


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
            return gate_name(job.gate) if job.gate else ""
        case State.RUNNING:
            return "cancel asked for" if job.cancel_requested else f"on {job.worker}"
        case State.DONE:
            return ""
        case State.CANCELLED:
            return job.reason or ""  # Its failures are those of earlier runs.
    if error and error.message and _SAYS.get(short_name(error.error)) == job.reason:
        told = error.message
    return f"{job.reason}: {told}" if told else job.reason or ""


def gate_name(gate: Gate) -> str:
    """Name a gate as people read it."""
    return str(gate).replace("_", " ")


def page(job: JobRecord, attempts: Sequence[Attempt], acts: Sequence[AuditLine]) -> Iterator[str]:
    """Tell everything about a job."""
    told = escaped(why(job))
    yield f"job {escaped(job.id)}: {painted(job.state)}" + (f" ({told})" if told else "")
    for label, text in _facts(job):
        yield f"  {label:12} {escaped(text, LONGEST_LABEL)}"
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
    if acts:
        yield ""
        yield click.style("By people", bold=True)
        for line in acts:
            before = f"; before: {line.before}" if line.before else ""
            yield f"  {ago(line.done_at)}: {escaped(f'{line.verb} by {line.who}{before}')}"
    if job.state is State.DEAD:
        yield ""
        id_ = escaped(quote(job.id), QUOTED)
        yield hinted(
            f"`fairlead dead edit {id_}` mends its arguments, `fairlead dead replay {id_}` "
            "lets it run again, `dead delete` forgets it"
        )


def _facts(job: JobRecord) -> list[tuple[str, str]]:
    facts = [
        ("task", f"{cut(job.task, QUOTED)} (version {job.version})"),
        ("queue", cut(job.queue, QUOTED)),
        ("attempt", _attempts(job)),
        ("enqueued", moment(job.enqueued_at)),
    ]
    if apart := suspicion(job):
        facts.append(("runs", apart))
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
        facts.append(("worker", cut(job.worker, QUOTED)))
    if tags_of(job):
        facts.append(("tags", listed(tags_of(job), MOST_LABELS)))
    return facts


def _attempts(job: JobRecord) -> str:
    """Tell attempts and crashes, which are counted apart."""
    if not job.crashes:
        return str(job.attempt)
    crashes = counted(job.crashes, "crash", "crashes")
    return f"{job.attempt or 'none'}; {crashes}, which count apart"


def _pretty(text: str) -> Iterator[str]:
    """Lay JSON out; of what cannot be read, and of more than fits into a job, the beginning."""
    try:
        told = formatted(_small(text), 2)
    except DecodeError as problem:
        told = f"not JSON we can read ({problem.problem}): {cut(text, 4 * QUOTED)}"
    for line in told.split("\n"):
        yield f"    {escaped(line, PAYLOAD_LIMIT)}"


def _small(text: str) -> str:
    if len(text) > PAYLOAD_LIMIT:
        raise DecodeError("the JSON", f"it is larger than {PAYLOAD_LIMIT:,} bytes")
    return text


def _attempt_table(attempts: Sequence[Attempt]) -> list[str]:
    columns = (
        Column("TRY", right=True),
        Column("OUTCOME"),
        Column("WAITED", right=True),
        Column("RAN", right=True),
        Column("ENDED", right=True),
        Column("WORKER", least=8, goes=1),
        Column("FINGERPRINT"),
    )
    rows = [
        (
            "-" if line.outcome in _UNCOUNTED else str(line.attempt),
            "given back" if line.outcome == "returned" else line.outcome,
            lasting(wait_of(line)),
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
    for line in cut(error.traceback or "", 2 * TRACEBACK_LIMIT).splitlines():
        yield f"    {escaped(line)}"
