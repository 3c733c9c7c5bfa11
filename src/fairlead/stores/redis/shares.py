"""What a claim asks of each queue, and what it has got so far.

The selection rule says how many jobs each queue would give if all had enough. What is left then,
because some had not, is shared among the others.
"""

from collections.abc import Iterable
from typing import Any

from fairlead.core.asking import Asking
from fairlead.core.errors import DecodeError, StoreError
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, Reason, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.stores.redis.records import body_of, fence_of, job_of, run_of
from fairlead.stores.redis.talk import MOST_AT_ONCE, raise_outage

HAD_ENOUGH, LOOKED_ENOUGH = 2, 3
"""What a claim answers that stopped because of its bytes, or of the jobs that it stepped over."""

BEFORE_JOBS = 5
"""How much of an answer to a claim is before the jobs, of each of which it has three things."""


class Shares:
    """What a claim has got so far, and what it still asks for; `among` may have something.

    Its second part goes on from what the first was answered.
    """

    def __init__(self, plan: ClaimPlan, among: set[str], first: "Shares | None" = None) -> None:
        self._asking: Asking[Job] = Asking(plan, among)
        room = plan.room()
        self._room = room.shared + sum(room.reserve.values())
        self._bytes = plan.most_bytes
        self.problems: list[StoreError] = first.problems if first else []
        self._cut: set[str] = set()
        self._may_look_on = False
        self.damaged: list[Settlement] = []
        self.answered: bool = first.answered if first else False
        self.now: int = first.now if first else 0
        self.places: dict[JobId, int] = first.places if first else {}

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more."""
        return self._room <= 0 or self._bytes <= 0

    def look_on(self) -> None:
        """Take note that not all was looked at."""
        self._may_look_on = True

    def bytes_each(self, parts: int) -> int:
        """Return how many bytes each of so many queues may bring."""
        return max(1, self._bytes // parts)

    def wanted(self) -> dict[str, int]:
        """Return how many jobs more each queue may give, if those not empty have enough."""
        if self._bytes <= 0:
            return {}
        return {name: min(n, MOST_AT_ONCE) for name, n in self._asking.wanted().items()}

    def drop(self, queues: Iterable[str]) -> None:
        """Do not ask these."""
        for queue in queues:
            self._asking.gave(queue, (), more=False)

    def give_up(self, queue: str, problem: StoreError) -> None:
        """Take note that a queue is out of reach."""
        self._asking.gave(queue, (), more=False)
        self.problems.append(problem)

    def check(self) -> None:
        """Raise if all queues that were asked are out of reach: then so is the store."""
        if self.problems and not self.answered:
            raise_outage(self.problems)
            raise self.problems[0]

    def take(self, queue: str, wanted: int, answer: list[Any]) -> list[Job]:
        """Take what a queue gave, and return the jobs."""
        now, more, size, _, count = answer[:BEFORE_JOBS]
        given, rest = answer[BEFORE_JOBS : BEFORE_JOBS + 3 * count], rest_of(answer)
        lost = rest[2] if rest else ()
        self.answered = True
        self.now = max(self.now, now)
        jobs: list[Job] = []
        for raw_id, text, state in zip(given[::3], given[1::3], given[2::3], strict=True):
            job_id = raw_id.decode()
            try:
                body, run = body_of(job_id, text), run_of(job_id, state)
            except DecodeError as problem:
                fence = fence_of(job_id, state)
                self.damaged.append(_dead_letter(JobId(job_id), fence, problem))
            else:
                job = job_of(job_id, queue, body, run, lost=raw_id in lost)
                jobs.append(job)
                self.places[job.id] = run.order_at
        self._bytes -= size
        self._room -= len(jobs)
        self._cut.discard(queue)
        if more == HAD_ENOUGH:
            self._cut.add(queue)
        if wanted:
            has_more = count == wanted if more == 1 else more == HAD_ENOUGH and count > 0
            self._asking.gave(queue, jobs, more=has_more)
        return jobs

    def claim(self) -> Claim:
        """Return the jobs in the order they should start, and the credits after them."""
        jobs, credits = self._asking.in_turns()
        return Claim(jobs, credits, self.now, cut=self._may_look_on or bool(self._cut))


def rest_of(answer: list[Any]) -> list[Any]:
    """Return what an answer to a claim has after the jobs; see lua/claim.lua."""
    return answer[BEFORE_JOBS + 3 * answer[BEFORE_JOBS - 1] :]


def _dead_letter(job_id: JobId, fence: int, problem: DecodeError) -> Settlement:
    """Return what becomes of a job that somebody damaged."""
    failure = described("fairlead.core.errors.DecodeError", str(problem))
    return Settlement(
        job_id, fence, State.DEAD, "failed", reason=Reason.UNREADABLE, failure=failure
    )
