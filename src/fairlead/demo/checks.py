"""What must be true after each scene, read from what the store kept. Pure.

Each check returns what it found, for the story to tell, or raises.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from fairlead.core.admin import Finding
from fairlead.core.clock import SECOND
from fairlead.core.figures import began_at
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, Reason, State

TOLERANCE = 0.2
"""How far a queue's share may be from its weight, as a part of that share."""


class Unexpected(Exception):
    """Something did not end as it should; one sentence says what."""


class Share(msgspec.Struct, frozen=True):
    """How many jobs of a queue were claimed while all queues had work: counted, and by weight."""

    queue: str
    weight: int
    claimed: int
    part: float
    fair: float


class Moved(msgspec.Struct, frozen=True):
    """A job that ran in a process when that was killed, and where it ran then."""

    job_id: JobId
    killed: Attempt
    again: Attempt


def shares(lines: Sequence[Attempt], weights: Mapping[str, int]) -> list[Share]:
    """Compare what was claimed while all of these queues had work with their weights."""
    lines = [line for line in lines if line.queue in weights]
    last = {line.queue: line.claimed_at for line in sorted(lines, key=lambda x: x.claimed_at)}
    if last.keys() != weights.keys():
        raise Unexpected(f"queues {sorted(weights.keys() - last.keys())} were never served")
    # A claim takes several jobs at the same instant, so the one that emptied a queue is left out.
    until = min(last.values())
    counted = Counter(line.queue for line in lines if line.claimed_at < until)
    found = [
        Share(
            queue,
            weight,
            counted[queue],
            part=counted[queue] / max(1, counted.total()),
            fair=weight / sum(weights.values()),
        )
        for queue, weight in weights.items()
    ]
    for share in found:
        if abs(share.part - share.fair) > TOLERANCE * share.fair:
            raise Unexpected(
                f"queue {share.queue!r} got {share.part:.0%} of the claims while all had work; "
                f"its weight says {share.fair:.0%}"
            )
    return found


def growing_pauses(lines: Sequence[Attempt], failures: int) -> list[float]:
    """Return the seconds between the runs of a job that failed so often and was done then."""
    outcomes = [line.outcome for line in lines]
    if outcomes != ["failed"] * failures + ["done"]:
        raise Unexpected(f"the flaky job should fail {failures} times and be done, not {outcomes}")
    # A busy machine may start a job late; it is due when it should be.
    due = [after.ready_at - before.finished_at for before, after in pairwise(lines)]
    if any(after <= before for before, after in pairwise(due)):
        raise Unexpected(f"the pauses of the flaky job should grow; they were {due} µs")
    return [(began_at(after) - before.finished_at) / SECOND for before, after in pairwise(lines)]


def dead_at_once(record: JobRecord, lines: Sequence[Attempt], reason: Reason) -> None:
    """Insist that a job is a dead letter, for this reason, after its only run."""
    if record.state is not State.DEAD or record.reason != reason:
        raise Unexpected(
            f"{record.task} should be a dead letter, {reason}; it is {record.state}, "
            f"{record.reason}"
        )
    if len(lines) != 1 or not record.errors:
        raise Unexpected(f"{record.task} should have run once; it ran {len(lines)} times")


def replayed(record: JobRecord, lines: Sequence[Attempt]) -> None:
    """Insist that a dead letter was done when it ran again."""
    outcomes = [line.outcome for line in lines]
    if record.state is not State.DONE or outcomes != ["failed", "done"]:
        raise Unexpected(
            f"the replayed {record.task} should be done in its second run; it is {record.state} "
            f"after {outcomes}"
        )


def moved(lines: Iterable[Attempt], killed: str) -> list[Moved]:
    """Return the jobs that ran in the killed process and were done in another, uncounted."""
    runs: dict[JobId, list[Attempt]] = defaultdict(list)
    for line in lines:
        runs[line.job_id].append(line)
    found = []
    for job_id, ended in runs.items():
        cut_off = [
            line
            for line in ended
            if line.worker == killed and line.outcome == "crashed" and line.started_at is not None
        ]
        last = ended[-1]
        if last.outcome != "done":
            raise Unexpected(f"job {job_id} should be done; its last run was {last.outcome}")
        if not cut_off:
            continue
        if last.worker == killed or last.attempt != cut_off[-1].attempt:
            raise Unexpected(
                f"job {job_id} should go on elsewhere and lose no attempt; it was done by "
                f"{last.worker} in attempt {last.attempt}"
            )
        found.append(Moved(job_id, cut_off[-1], last))
    if not found:
        raise Unexpected("no job was running in the process that was killed")
    return found


def all_ended(
    states: Mapping[JobId, State | None],
    expected: Mapping[JobId, State],
    findings: Sequence[Finding],
) -> None:
    """Insist that every accepted job is where it should be, and that all marks agree."""
    if findings:
        raise Unexpected(f"the audit found: {findings[0].problem}; {findings[0].remedy}")
    for job_id, state in expected.items():
        if states.get(job_id) is not state:
            told = states.get(job_id) or "lost"
            raise Unexpected(f"job {job_id} should be {state}; it is {told}")
