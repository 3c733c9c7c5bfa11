"""What really happened, seen from outside the product, and what must not have.

The witness stands beside the store and the handlers. It believes neither: it
keeps its own account of leases, fences and runs, and notes every contradiction
of an invariant (the ids are those of the guarantees: I1, I5, …).
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import ALONE, Attempt, Job, JobRecord, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import ClaimPlan
from fairlead.core.store import Extended
from tests.simulation.loop import Process

Before = dict[tuple[JobId, int], JobRecord | None]
"""The jobs of stale settlements, as they were."""

UNCOUNTED = ("returned", "snoozed", "crashed")


class Seen:
    """One claim, and the run that came of it."""

    def __init__(self, job: Job, process: Process, now: int) -> None:
        self.id = job.id
        self.fence = job.fence
        self.task = job.task
        self.process = process
        self.claimed_at = now
        self.lease_until = job.lease_until
        self.lost = job.lost
        self.suspect = job.suspect
        self.delivered = False
        self.late = False
        self.started_in: Process | None = None
        self.deadline = 0
        self.ended: str | None = None
        self.told = False
        self.given_up = False
        self.taken_rightly = False

    @property
    def live(self) -> bool:
        """Whether its handler is still in the middle of something."""
        return self.started_in is not None and self.ended is None


class Fact:
    """What is known about one job."""

    def __init__(self, new: NewJob, now: int) -> None:
        self.new = new
        self.run_at = new.due_at(now)
        self.acked = False
        self.current: Seen | None = None
        self.claims: list[Seen] = []
        self.state: State | None = None
        self.cancelled = False
        self.unclear = False
        self.crash_deaths = 0
        self.lines: list[tuple[int, str]] = []


class Witness:
    """Keeps the history, and the list of broken promises."""

    def __init__(
        self,
        clock: Callable[[], int],
        look: Callable[[JobId], JobRecord | None],
        may_be_lost: Callable[[Seen, Process], bool],
        external: Callable[[str], bool],
    ) -> None:
        self._clock = clock
        self._look = look
        self._may_be_lost = may_be_lost
        self._external = external
        self.history: list[tuple[Any, ...]] = []
        self.facts: dict[JobId, Fact] = {}
        self.broken: list[tuple[str, JobId | None]] = []
        self.counts: Counter[str] = Counter()
        self.dead: set[JobId] = set()
        self.closed = False
        self._live: defaultdict[Process, list[Seen]] = defaultdict(list)

    def note(self, what: str, job: JobId | None = None, *more: object) -> None:
        self.counts[what] += 1
        self.history.append((self._clock(), what, job, *more))

    def complain(self, promise: str, job: JobId | None = None) -> None:
        if self.closed:
            return
        self.note("BROKEN: " + promise, job)
        self.broken.append((promise, job))

    def digest(self) -> str:
        return hashlib.sha256(repr(self.history).encode()).hexdigest()

    # What the store did

    def put(self, jobs: Sequence[NewJob], fresh: Sequence[bool]) -> None:
        now = self._clock()
        for job, new in zip(jobs, fresh, strict=True):
            if new == (job.id in self.facts):
                self.complain("a repeated put is recognised", job.id)
            if new:
                self.facts[job.id] = Fact(job, now)
            self.note("put", job.id, new)

    def acked(self, jobs: Sequence[NewJob]) -> None:
        for job in jobs:
            if job.id not in self.facts:
                self.complain("I1: an acked job is in the store", job.id)
            else:
                self.facts[job.id].acked = True

    def claimed(self, process: Process, plan: ClaimPlan, jobs: Sequence[Job]) -> None:
        now = self._clock()
        for job in jobs:
            fact = self.facts[job.id]
            self.note("claim", job.id, job.fence, process.name, job.attempt, job.lost)
            last = fact.claims[-1] if fact.claims else None
            if last is not None and job.fence <= last.fence:
                self.complain("I5: the fence grows with every claim", job.id)
            if fact.state is not None:
                self.complain(f"I4: a job that is {fact.state} is not claimed", job.id)
            if now < fact.run_at:
                self.complain("I11: nothing is claimed before its time", job.id)
            seen = Seen(job, process, now)
            self._check_claim(fact, seen, now)
            fact.claims.append(seen)
            fact.current = seen

    def _check_claim(self, fact: Fact, seen: Seen, now: int) -> None:
        held = fact.current
        if seen.lost != (held is not None):
            self.complain("a job is claimed as lost if and only if it is leased", seen.id)
        if held is None:
            return
        if held.lease_until > now:
            self.complain("I5: no lease is taken before it has passed", seen.id)
        held.taken_rightly = self._may_be_lost(held, seen.process)
        if not held.taken_rightly:
            self.complain("no lease passes while its machine is in good order", seen.id)
        if (held.started_in or held.lost) and self._external(held.task):
            fact.unclear = True

    def delivered(self, jobs: Sequence[Job]) -> None:
        now = self._clock()
        for job in jobs:
            for seen in self.facts[job.id].claims:
                if seen.fence == job.fence:
                    seen.late = 2 * (now - seen.claimed_at) > job.lease_until - seen.claimed_at
                    seen.delivered = not seen.late

    def extended(
        self,
        process: Process,
        leases: Sequence[tuple[JobId, int]],
        lease: int,
        extended: Sequence[Extended],
    ) -> None:
        now = self._clock()
        fences = dict(leases)
        for renewed in extended:
            current = self.facts[renewed.id].current
            if current is None or (renewed.id, current.fence) not in leases:
                self.complain("I6: only the current fence extends", renewed.id)
            else:
                current.lease_until = now + lease
                current.given_up = current.given_up or not lease
                self.note("extend", renewed.id, fences[renewed.id], process.name)

    def current(self, job_id: JobId, fence: int) -> Seen | None:
        """Return the run under this fence if that is the job's current one."""
        seen = self.facts[job_id].current
        return seen if seen is not None and seen.fence == fence else None

    def before_settle(self, settlements: Sequence[Settlement]) -> Before:
        """Look at what stale settlements must not change; the current one of a job may be with them."""
        current = {s.id for s in settlements if not self._is_stale(s)}
        stale = [s for s in settlements if self._is_stale(s)]
        return {(s.id, s.fence): None if s.id in current else self._look(s.id) for s in stale}

    def _is_stale(self, settlement: Settlement) -> bool:
        current = self.facts[settlement.id].current
        return current is None or current.fence != settlement.fence

    def settled(
        self,
        process: Process,
        settlements: Sequence[Settlement],
        written: Mapping[JobId, Settlement],
        before: Before,
    ) -> None:
        for settlement in settlements:
            job_id, pair = settlement.id, (settlement.id, settlement.fence)
            taken = job_id in written and written[job_id].fence == settlement.fence
            self.note("settle", job_id, settlement.fence, process.name, settlement.outcome, taken)
            if pair in before:
                self.counts["stale"] += 1
                record = before[pair]
                if taken or (record is not None and self._look(job_id) != record):
                    self.complain("I6: a stale settlement changes nothing", job_id)
            elif taken:
                self._end(self.facts[job_id], settlement)
            else:
                self.complain("a settlement under the current fence is written", job_id)

    def _end(self, fact: Fact, settlement: Settlement) -> None:
        seen = fact.current
        assert seen is not None
        fact.current = None
        fact.lines.append((settlement.fence, settlement.outcome))
        if seen.live:
            self.complain("no run is settled while its handler runs", fact.new.id)
        if settlement.outcome == "failed" and not self._has_failed(seen):
            self.complain(f"only a run that failed counts as failed, not {seen.ended}", fact.new.id)
        if seen.lost and settlement.outcome not in ("lost", "ambiguous"):
            self.complain("a lost run is decided on as lost", fact.new.id)
        if settlement.shared_deaths > ALONE:
            self.complain("P7: nobody shares more than three deaths", fact.new.id)
        if settlement.run_at is not None:
            fact.run_at = settlement.run_at
        record = self._look(fact.new.id)
        assert record is not None
        if record.state.final:
            fact.state = record.state
            if record.state is State.DEAD:
                self.dead.add(fact.new.id)

    def _has_failed(self, seen: Seen) -> bool:
        if seen.ended in ("raised", "late"):
            return True
        # Who buries a process cannot tell whether it died before or after a run was late.
        dead = not seen.process.alive or (seen.started_in and not seen.started_in.alive)
        return bool(dead) and seen.deadline <= self._clock()

    def cancelled(self, records: Mapping[JobId, JobRecord]) -> None:
        for job_id, record in records.items():
            self.note("cancel", job_id, record.state)
            fact = self.facts[job_id]
            if record.state is State.CANCELLED:
                fact.cancelled = True
                fact.state = State.CANCELLED
            elif record.state is State.RUNNING:
                fact.cancelled = True

    # What the handlers did

    def starts(self, job_id: JobId, fence: int, process: Process, limit: float) -> Seen:
        fact = self.facts[job_id]
        self.note("start", job_id, fence, process.name)
        seen = next(seen for seen in fact.claims if seen.fence == fence)
        earlier = [other for other in fact.claims if other.started_in and other is not seen]
        if seen.started_in is not None:
            self.complain("I4: a fence starts one handler", job_id)
        if any(other.fence > fence for other in earlier) and not seen.taken_rightly:
            self.complain("I5: fences grow over the starts of a job", job_id)
        if seen.late:
            self.complain(
                "nothing starts of a claim that came when half its lease was over", job_id
            )
        if seen.lost:
            self.complain("a lost run is decided on before any handler runs", job_id)
        if fact.current is not seen and not (
            seen.taken_rightly or self._may_be_lost(seen, process)
        ):
            self.complain("a handler starts under its lease", job_id)
        for other in earlier:
            if other.live and not (other.taken_rightly or seen.taken_rightly):
                self.complain("I5: no two handlers of a job run at once", job_id)
        if seen.suspect != process.hired:
            self.complain("P7: suspects, and only they, run in processes of their own", job_id)
        if fact.unclear:
            self.complain("`reconcile` is asked before an unclear run is repeated", job_id)
        seen.started_in = process
        seen.deadline = self._clock() + round(limit * SECOND)
        self._live[process].append(seen)
        return seen

    def ends(self, seen: Seen, how: str) -> None:
        seen.ended = how
        self._live[seen.started_in].remove(seen)  # type: ignore[index]
        self.note("end", seen.id, seen.fence, how)

    def asked(self, job_id: JobId, fence: int) -> None:
        self.note("reconcile", job_id, fence)
        self.facts[job_id].unclear = False

    def died(
        self,
        process: Process,
        *,
        crashed: bool,
        at: str = "",
        kin: Sequence[Process] = (),
        late: bool = False,
    ) -> None:
        """Note the death of a process, perhaps at a crash point, and of those that die with it."""
        self.note("crashed" if crashed else "exited", None, process.name, at)
        if crashed:
            self._blame(process, at)
        for dead in (process, *kin):
            for seen in self._live.pop(dead, []):
                seen.ended = "late" if late else "killed"
                self.note("end", seen.id, seen.fence, seen.ended)
                # What was taken over before it died was unclear from that moment on.
                if crashed and self._external(seen.task) and not seen.taken_rightly:
                    self.facts[seen.id].unclear = True

    def _blame(self, process: Process, at: str) -> None:
        """Count the crash for the one run that was open then, if it was one."""
        held = [fact for fact in self.facts.values() if fact.current is not None]
        # Who has ended in a process that was hired has told so, and so was not its company.
        began = [
            fact
            for fact in held
            if fact.current.started_in is process and (fact.current.live or not process.hired)
        ]
        if at == "started" and not began:  # One had begun, and its handler not said so yet.
            for fact in held:
                if fact.current.process is process and not fact.current.started_in:
                    fact.crash_deaths += 1
        elif at != "started" and len(began) == 1:
            began[0].crash_deaths += 1

    # After all

    def check_end(
        self,
        records: Mapping[JobId, JobRecord],
        log: Sequence[Attempt],
        attempts: Callable[[str], int],
        crash_limit: int,
    ) -> None:
        """Compare what the store says in the end with what was seen."""
        lines = Counter((line.job_id, line.fence) for line in log)
        for (job_id, _), count in lines.items():
            if count > 1:
                self.complain("one line in the attempt log per fence", job_id)
        by_job: defaultdict[JobId, list[Attempt]] = defaultdict(list)
        for line in log:
            by_job[line.job_id].append(line)
            if line.pool != "main":
                self.complain("the attempt log tells the pool", line.job_id)
        for job_id, fact in self.facts.items():
            record = records.get(job_id)
            if record is None:
                self.complain("I1: nothing is lost", job_id)
            elif not record.state.final:
                self.complain(f"every job ends; this one is {record.state}", job_id)
            else:
                self._check_job(fact, record, by_job[job_id], attempts(record.task), crash_limit)
        if set(records) - set(self.facts):
            self.complain("I8: nothing is in the store that nobody put")

    def _check_job(
        self, fact: Fact, record: JobRecord, log: list[Attempt], attempts: int, crash_limit: int
    ) -> None:
        job_id = record.id
        if [(line.fence, line.outcome) for line in log] != fact.lines:
            self.complain("the attempt log tells what was settled", job_id)
        counted = sum(line.outcome not in UNCOUNTED for line in log)
        if record.attempt != counted:
            told = f"{record.attempt} attempts told, {counted} counted"
            self.complain(f"I9: what does not count gives its attempt back: {told}", job_id)
        if counted > attempts:
            self.complain("I9: no more attempts than allowed", job_id)
        if record.crashes > min(crash_limit, fact.crash_deaths):
            told = f"{record.crashes} crashes told, {fact.crash_deaths} seen"
            self.complain(f"a crash counts for who was alone with it: {told}", job_id)
        starts = sum(seen.started_in is not None for seen in fact.claims)
        if starts > len(log):
            self.complain("I9: every start ends in a line of the attempt log", job_id)
        if fact.cancelled and record.state is State.DONE:
            self.complain("I17: a cancelled job is not done", job_id)
        if record.state is State.DONE and record.result is not None:
            winner = next((s for s in fact.claims if str(s.fence) == record.result), None)
            if winner is None or winner.ended != "returned":
                self.complain("I18: the result is that of the run that won", job_id)

    def trace(self, job_id: JobId | None) -> str:
        """Return the history of one job, and what happened around it."""
        around = ("crashed", "exited", "fault")
        told = [
            f"  {(at - self.history[0][0]) / 1e6:9.3f}  {what:10} {' '.join(map(str, more))}"
            for at, what, about, *more in self.history
            if about == job_id or (what in around and job_id is not None)
        ]
        return "\n".join(told)
