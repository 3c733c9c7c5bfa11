"""What a claim asks of each queue, and what it has got so far.

The selection rule says how many jobs each queue would give if all had enough. What is left then,
because some had not, is shared among the others.
"""

from collections import Counter
from math import inf
from typing import Any

from fairlead.core.errors import DecodeError, StoreError
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, Reason, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import ClaimPlan, in_turns, share
from fairlead.core.turns import Credits
from fairlead.stores.redis.records import body_of, fence_of, job_of, run_of
from fairlead.stores.redis.talk import raise_outage

MOST_AT_ONCE = 500
"""How many jobs one call may touch: it keeps everybody else waiting."""
_HAD_ENOUGH = 2
"""What a claim answers that stopped because of its bytes."""


class Shares:
    """What a claim has got so far, and what it still asks for."""

    def __init__(self, plan: ClaimPlan) -> None:
        self._plan = plan
        self._jobs: dict[str, list[Job]] = {queue.name: [] for queue in plan.queues}
        self._empty: set[str] = set()
        self._most = inf
        self._problems: list[StoreError] = []
        self._bytes = plan.most_bytes
        self._cut: set[str] = set()
        self.damaged: list[Settlement] = []
        self.now = 0

    @property
    def is_cut(self) -> bool:
        """Whether there is more, but it had enough bytes."""
        return bool(self._cut)

    def bytes_each(self, parts: int) -> int:
        """Return how many bytes each of so many queues may bring."""
        return max(1, self._bytes // parts)

    def shares(self) -> dict[str, int]:
        """Return how many jobs more each queue may give, if those not empty have enough."""
        if self._bytes <= 0:
            return {}
        if len(self._empty) == len(self._jobs) or sum(map(len, self._jobs.values())) >= self._most:
            return {}
        ready = {
            name: len(jobs) if name in self._empty else inf for name, jobs in self._jobs.items()
        }
        wanted = Counter(share(self._plan, ready).turns)
        self._most = wanted.total()
        return {
            name: min(count - len(self._jobs[name]), MOST_AT_ONCE)
            for name, count in wanted.items()
            if count > len(self._jobs[name])
        }

    def give_up(self, queue: str, problem: StoreError) -> None:
        """Take note that a queue is out of reach; if all were from the first, so is the store."""
        self._empty.add(queue)
        self._problems.append(problem)
        if len(self._problems) == len(self._jobs) and not any(self._jobs.values()):
            raise_outage(self._problems)
            raise problem

    def take(self, queue: str, wanted: int, answer: list[Any]) -> None:
        """Take what a queue gave."""
        now, ids, bodies, runs, more, _, _, lost, size = answer
        self.now = max(self.now, now)
        jobs = self._jobs[queue]
        for raw_id, text, state in zip(ids, bodies, runs, strict=True):
            job_id = raw_id.decode()
            try:
                body, run = body_of(job_id, text), run_of(job_id, state)
            except DecodeError as problem:
                fence = fence_of(job_id, state)
                self.damaged.append(_dead_letter(JobId(job_id), fence, problem))
            else:
                jobs.append(job_of(job_id, queue, body, run, lost=raw_id in lost))
        self._bytes -= size
        self._cut.discard(queue)
        if more == _HAD_ENOUGH:
            self._cut.add(queue)
        if wanted and not (more == _HAD_ENOUGH and ids) and (len(ids) < wanted or not more):
            self._empty.add(queue)

    def chosen(self) -> tuple[list[Job], Credits]:
        """Return the jobs in the order they should start, and the credits after them."""
        return in_turns(self._plan, self._jobs)


def _dead_letter(job_id: JobId, fence: int, problem: DecodeError) -> Settlement:
    """Return what becomes of a job that somebody damaged."""
    failure = described("fairlead.core.errors.DecodeError", str(problem))
    return Settlement(
        job_id, fence, State.DEAD, "failed", reason=Reason.UNREADABLE, failure=failure
    )
