"""`fairlead explain`: why a job waits."""

from collections.abc import Iterator
from shlex import quote

import click
import msgspec

from fairlead.cli.command import AppCommand, hinted
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.listing import gate_name, why
from fairlead.cli.output import Output, show, shown
from fairlead.cli.which import id_argument, whole
from fairlead.cli.words import (
    ago,
    as_json,
    instant_text,
    json_line,
    lasting,
    moment,
    painted,
)
from fairlead.core.job import Gate, State
from fairlead.core.store import Store
from fairlead.core.text import QUOTED, counted, escaped
from fairlead.insight.explain import Barrier, Explanation, suspicion
from fairlead.insight.explain import explain as ask


@click.command(
    cls=AppCommand,
    epilog="Example: fairlead explain shop:app 01993e7c-5a52-7c43-9f0d-3a3e5f0b9c11",
    short_help="Say why a job waits, and until when.",
)
@id_argument
@shown
@at_desk
def explain(desk: Desk, id_: str, output: Output) -> None:
    """Say why a job is where it is.

    For a waiting job: the gates before it in the order they are asked, what would
    open each closed one, how many jobs are before it, and when it should start.
    """
    tasks = desk.app.tasks.versions() if desk.app else None

    async def gather(store: Store) -> Explanation:
        return await ask(store, await whole(store, id_), tasks)

    show(desk, output, gather, _lines, lambda told: [_json(told)])


_CLOSED = {
    Gate.PAUSED: "its queue is paused",
    Gate.NEWER_PROGRAM: "only a newer program can start it",
    Gate.EXPIRED: "it has expired",
    Gate.NOT_DUE: "it is not due yet",
    Gate.LEASE_SPARED: "its worker may be back in a moment",
    Gate.NO_CAPABLE_WORKER: "no live worker can run it",
    Gate.NO_SLOT: "the slots are taken, or others come first",
}
_OPEN = {
    Gate.PAUSED: "its queue is not paused",
    Gate.EXPIRED: "it has not expired",
    Gate.NOT_DUE: "it is due",
    Gate.LEASE_SPARED: "no lost run has to be waited for",
    Gate.NO_CAPABLE_WORKER: "a live worker knows its task and serves its queue",
    Gate.NO_SLOT: "a slot is free, and it is its turn",
}


def _closed(gate: Gate) -> str:
    return _CLOSED.get(gate) or f"its limit has no room: {gate_name(gate)}"


def _open(gate: Gate) -> str:
    return _OPEN.get(gate) or f"a limit has room, or does not count it: {gate_name(gate)}"


def _lines(told: Explanation) -> Iterator[str]:
    job = told.job
    task, queue = (escaped(name, QUOTED) for name in (job.task, job.queue))
    whose = f"job {escaped(job.id)} of task {task} on queue {queue}"
    if not told.gates:
        yield f"{whose}: {painted(job.state)}"
        yield f"  {hinted(escaped(_settled(told)))}"
        return
    verdict = _closed(told.gate) if told.gate else "the next claim takes it"
    if told.damaged:
        yield f"{whose}: {painted(job.state)}, but its row is damaged"
        yield f"  {hinted(told.basis)}"
        return
    yield f"{whose}: {painted(job.state)}, {verdict}"
    earlier_open = True
    for barrier in told.gates:
        if barrier.gate is Gate.NEWER_PROGRAM and not barrier.closed:
            continue  # Of interest only while programs of two versions are at work.
        yield _gate_line(barrier, told, relevant=earlier_open)
        if barrier.opens:
            yield f"             opens with {hinted(escaped(barrier.opens))}"
        earlier_open = earlier_open and not barrier.closed
    yield f"  before it  {counted(told.ahead, 'due job')} of its queue"
    start = "unknown" if told.starts_at is None else _about(told)
    yield f"  start      {start}: {escaped(told.basis)}"
    if apart := suspicion(job):
        yield f"  runs       {escaped(apart)}"


def _gate_line(barrier: Barrier, told: Explanation, *, relevant: bool) -> str:
    if barrier.closed:
        due = f" (in {lasting(told.job.run_at - told.now)})" if barrier.gate is Gate.NOT_DUE else ""
        return click.style(f"  closed     {_closed(barrier.gate)}{due}", fg="red")
    if barrier.gate is Gate.NO_SLOT and not relevant:
        return "  later      a slot is looked for when the gates above are open"
    return f"  open       {_open(barrier.gate)}"


def _about(told: Explanation) -> str:
    assert told.starts_at is not None
    return "now" if told.starts_at <= told.now else f"about {moment(told.starts_at)}"


def _settled(told: Explanation) -> str:
    """Say why a job that does not wait is where it is."""
    job = told.job
    match job.state:
        case State.RUNNING:
            asked = "; it was asked to stop, and ends when its handler notices"
            return (
                f"it runs on {job.worker}, claimed {ago(job.claimed_at)}, attempt {job.attempt}; "
                f"its lease lasts until {moment(job.lease_until)}, unless its worker renews it"
                f"{f'; it runs {apart}' if (apart := suspicion(job)) else ''}"
                f"{asked if job.cancel_requested else ''}"
            )
        case State.DEAD:
            return (
                f"it died {ago(job.finished_at)} ({why(job)}); fairlead dead show {quote(job.id)}"
            )
        case State.CANCELLED:
            return f"it was cancelled {ago(job.finished_at)} ({why(job)})"
    return f"it was done {ago(job.finished_at)}; fairlead jobs show {quote(job.id)} has its result"


def _json(told: Explanation) -> str:
    return json_line(
        {
            "job": msgspec.Raw(as_json(told.job)),
            "gate": told.gate,
            "gates": told.gates,
            "ahead": told.ahead,
            "starts_at": None if told.starts_at is None else instant_text(told.starts_at),
            "basis": told.basis,
            "damaged": told.damaged,
        }
    )
