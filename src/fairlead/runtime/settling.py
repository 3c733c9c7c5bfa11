"""What an outcome means is decided, written and told here, whoever saw the run end.

That is the settler of its process; or, if that is no more, its supervisor; or whoever gives back
what a worker left. All of them leave the same line in the attempt log.

A job whose end the store refuses is damaged. It becomes a dead letter, reason `unreadable`; if
the store refuses that too, the job is left in place, for `doctor` to name.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from fairlead.core.failure import describe, described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, Reason, State
from fairlead.core.outcome import Committed, Failed, Outcome, Policy, Settlement, decide
from fairlead.core.store import Store
from fairlead.runtime.contact import Troubles, said
from fairlead.runtime.narrate import narrate, narrate_late
from fairlead.runtime.split import in_parts
from fairlead.runtime.workshop import Workshop

Written = dict[JobId, Settlement]
Write = Callable[[], Awaitable[Written]]


class Ended(msgspec.Struct, frozen=True):
    """A run that is over: how it ended, and what the attempt log tells of it.

    `at` is when, by the store's clock. A run that had not begun has no `started_at`.
    """

    job: Job
    outcome: Outcome
    policy: Policy
    pool: str | None
    started_at: int | None
    at: int

    @classmethod
    def unseen(
        cls, workshop: Workshop, job: Job, outcome: Outcome, started_at: int | None, at: int
    ) -> "Ended":
        """Return a run that ended in a process which cannot tell of it any more.

        A queue belongs to one pool. Of a queue or a task of newer code nothing is known.
        """
        policy = workshop.tasks[job.task].options if job.task in workshop.tasks else Policy()
        return cls(job, outcome, policy, workshop.pool_of.get(job.queue), started_at, at)


async def _once(write: Write) -> Written:
    return await write()


class Settling:
    """Settles runs that are over, wherever they ran."""

    def __init__(self, workshop: Workshop, troubles: Troubles) -> None:
        self._workshop = workshop
        self._troubles = troubles

    async def settle(
        self,
        ended: Sequence[Ended],
        patiently: Callable[[Write], Awaitable[Written]] = _once,
        *,
        quietly: bool = False,
    ) -> list[Settlement | None]:
        """Decide what became of each run, write it, and tell it; returns what was written.

        None stands for a run whose lease is another one's now, or whose end cannot be written.
        An outage is raised, unless `patiently` knows better; nothing is told then. Who tells of
        all of them in one line settles them quietly.
        """
        settlements = [self._decided(each) for each in ended]
        pairs = list(zip(ended, settlements, strict=True))
        # What a handler is known to have committed itself is written already.
        written = {ours.id: ours for each, ours in pairs if _certain(each.outcome)}
        unwritten = [ours for each, ours in pairs if not _certain(each.outcome)]
        if unwritten:
            store, troubles = self._workshop.store, self._troubles
            written |= await patiently(lambda: _settle_in_parts(store, troubles, unwritten))
        return [self._ruled(each, ours, written, quietly) for each, ours in pairs]

    def _ruled(
        self,
        ended: Ended,
        settlement: Settlement,
        written: Written,
        quietly: bool,  # noqa: FBT001 (passed on)
    ) -> Settlement | None:
        """Return what was written of a run, after it was told."""
        ruled = written.get(settlement.id)
        if ruled is None or ruled.fence != settlement.fence:
            if not never_started(settlement):
                narrate_late(self._workshop.events, ended.job, settlement.outcome)
            return None
        if not quietly:
            narrate(self._workshop.events, ended.job, ruled, ended.started_at, ended.at)
        return ruled

    def _decided(self, ended: Ended) -> Settlement:
        """Decide what an outcome means, also where the task's own code for that fails."""
        job, policy = ended.job, ended.policy
        try:
            rule = decide(job, ended.outcome, policy, ended.at, self._workshop.random.random)
        except Exception as problem:  # noqa: BLE001 (a curve or a predicate is user code)
            failure = describe(problem)
            told = f"task {job.task!r} cannot say what happens next: {failure.in_brief}"
            self._troubles.tell(told)
            rule = decide(job, Failed(failure, transient=False), policy, ended.at)
        return replace(rule, started_at=ended.started_at, pool=ended.pool)


async def _settle_in_parts(
    store: Store, troubles: Troubles, settlements: Sequence[Settlement]
) -> Written:
    """Settle, and make dead letters of the jobs whose end the store refuses to write.

    Returns what is written, also if it was before: see `_written_before`.
    """
    damaged: list[Settlement] = []

    def bury(settlement: Settlement, problem: Exception) -> None:
        told = f"the store refused to write that it is {settlement.state}: {said(problem)}"
        troubles.tell(f"job {settlement.id} is damaged: {told}")
        damaged.append(
            replace(
                settlement,
                state=State.DEAD,
                reason=Reason.UNREADABLE,
                failure=described("Unreadable", told),
                result=None,
                run_at=None,
            )
        )

    def leave(settlement: Settlement, problem: Exception) -> None:
        troubles.tell(
            f"job {settlement.id} cannot be moved and stays where it is: {said(problem)}; "
            "`fairlead doctor` names the damage, `fairlead doctor --repair` mends it"
        )

    parts = await in_parts(store.settle, settlements, bury)
    if damaged:
        parts += await in_parts(store.settle, damaged, leave)
    written: Written = {}
    for part in parts:
        written |= part
    unwritten = [each for each in settlements if each.id not in written]
    # What was sent in parts may have been written by the part that was refused.
    asked = unwritten if len(parts) > 1 else [each for each in unwritten if not never_started(each)]
    return written | await _written_before(store, troubles, asked)


async def _written_before(
    store: Store, troubles: Troubles, settlements: Sequence[Settlement]
) -> Written:
    """Return what of this is written already, under the same fences: the attempt log tells.

    An earlier try of ours may have been, whose answer was lost, or which the store refused for the
    sake of another job; or the handler made its job done itself, and then that counts.
    """
    before: Written = {}
    for settlement in settlements:
        log = store.admin.attempts(settlement.id)
        for line in await troubles.found(f"the log of job {settlement.id}", log):
            if line.fence != settlement.fence:
                continue
            if line.outcome == settlement.outcome:
                before[settlement.id] = settlement
            elif line.outcome == "done":
                before[line.job_id] = Settlement(line.job_id, line.fence, State.DONE, line.outcome)
    return before


def never_started(settlement: Settlement) -> bool:
    """Say whether a run is given back before it began.

    If the store refuses that, the job was given back before, or has passed on to somebody else;
    it is all the same to who never ran it.
    """
    return settlement.outcome == "returned" and settlement.started_at is None


def _certain(outcome: Outcome) -> bool:
    """Say whether a handler is known to have committed its job's end itself."""
    return isinstance(outcome, Committed) and outcome.unless is None
