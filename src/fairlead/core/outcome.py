"""How a run ended, and what that means for its job.

A runner turns whatever happened into an `Outcome`. `decide` turns the outcome
into a `Settlement`, and is the only place that knows what happens next. Both
are values; the settler writes settlements, and the store refuses those whose
fence is no longer the job's.
"""

import random as _random
from collections.abc import Callable
from datetime import datetime
from typing import Literal

import msgspec

from fairlead.core import errors
from fairlead.core.clock import SECOND
from fairlead.core.failure import Failure, clean, describe, described
from fairlead.core.ids import JobId
from fairlead.core.job import MOST_RUNS, Job, PastAttempt, Reason, State, decode_options
from fairlead.core.retry import LONGEST_DELAY, Retry, classify

Knowledge = Literal["done", "not_done", "unknown"]
"""What a task's `reconcile` found out about an outside effect."""


class Done(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The handler returned; `result` is its JSON text."""

    result: str | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The handler raised, or ran past its time limit."""

    failure: Failure
    transient: bool = True
    after: float | None = None
    timed_out: bool = False
    unreadable: bool = False


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """The handler asked to be run later."""

    seconds: float


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """The handler, or a person, called the job off."""

    reason: str


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The lease passed without a word from the worker that held it."""


class Crashed(msgspec.Struct, frozen=True, tag=True):
    """The process died under the handler; `how` names the signal or exit code.

    With `company`, other handlers ran in the same process, and any of them may
    have killed it.
    """

    how: str
    company: bool = False


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The worker gave the job back unfinished, as it does when it stops.

    `cut_off` says that its handler had started, and was ended in the middle.
    """

    cut_off: bool = False


class Ambiguous(msgspec.Struct, frozen=True, tag=True):
    """An outside effect may have happened.

    `cause` is what ended the run, when it was not the handler that said so.
    `known` is the answer of the task's `reconcile`, once it was asked.
    """

    evidence: str
    cause: Failed | Lost | Crashed | Returned | None = None
    known: Knowledge | None = None


Ending = Done | Failed | Snoozed | Cancelled | Lost | Crashed | Returned | Ambiguous
"""What the settler writes."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    """The handler made its job done itself, in a transaction with data of its own.

    `unless` is what the run comes to if that transaction was not committed, which
    then only the store can tell; without it the commit is certain. `trouble` says
    what went wrong after it.
    """

    unless: Ending | None = None
    trouble: str | None = None


Outcome = Ending | Committed


class Policy(msgspec.Struct, frozen=True):
    """What a task says about its failures."""

    retry: Retry = Retry()
    effects: Literal["none", "external"] = "none"
    idempotent: bool = False
    crash_limit: int = 3


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What to write for a run that ended.

    A run that does not count gives its attempt back; one that crashed adds to the
    job's crashes. `shared_deaths` is what the job has from then on. A job that goes back
    to waiting gets a new place at `run_at`, or keeps its old one if that is None.
    """

    id: JobId
    fence: int
    state: State
    outcome: str
    counts: bool = True
    crashed: bool = False
    shared_deaths: int = 0
    run_at: int | None = None
    result: str | None = None
    reason: str | None = None
    failure: Failure | None = None
    started_at: int | None = None
    pool: str | None = None

    def remembered(
        self, attempt: int, worker: str | None, claimed_at: int, now: int
    ) -> PastAttempt | None:
        """Return the failed run as kept with its job; None if it did not fail."""
        if self.failure is None:
            return None
        return PastAttempt(
            attempt=attempt,
            outcome=self.outcome,
            worker=worker,
            claimed_at=claimed_at,
            started_at=self.started_at,
            finished_at=now,
            error=self.failure.error,
            message=self.failure.message,
            traceback=self.failure.traceback,
            fingerprint=self.failure.fingerprint,
        )


def outcome_of(error: BaseException, policy: Policy, now: datetime | None = None) -> Ending:
    """Turn what a handler raised into an outcome."""
    match error:
        case errors.Snooze(seconds=seconds):
            return Snoozed(_seconds(seconds))
        case errors.Cancel(reason=reason):
            return Cancelled(clean(str(reason)))
        case errors.Ambiguous(evidence=evidence):
            return Ambiguous(clean(str(evidence)))
        case errors.RetryAfter(seconds=seconds):
            return Failed(describe(error), after=_seconds(seconds))
        case errors.DecodeError():
            return Failed(describe(error), transient=False, unreadable=True)
    verdict = classify(error, policy.retry, now)
    return Failed(describe(error), verdict.transient, verdict.after)


def ambiguous(outcome: Outcome, policy: Policy) -> Ambiguous | None:
    """Say whether this outcome leaves it open if an outside effect happened.

    If so, and the task has a `reconcile`, the runtime asks it and puts the
    answer in `known` before it calls `decide`.
    """
    match outcome:
        case Ambiguous():
            return outcome
        case Committed(unless) if unless is not None:
            return ambiguous(unless, policy)
        case Lost() | Crashed() | Failed(timed_out=True) | Returned(cut_off=True):
            if policy.effects == "external":
                return Ambiguous(_evidence(outcome), cause=outcome)
    return None


def _seconds(value: object) -> float:
    """Read what a handler gave as seconds; a header's text will do, nonsense waits longest."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return LONGEST_DELAY


def decide(
    job: Job,
    outcome: Outcome,
    policy: Policy,
    now: int,
    random: Callable[[], float] = _random.random,
) -> Settlement:
    """Say what an outcome means for its job.

    Snoozes and give-backs return their attempt. A crash counts apart: the
    attempt comes back, and `crash_limit` crashes make a dead letter. A crash in
    company counts for nobody, but all who ran remember that they shared it. A run
    that ends by itself clears that. Any other failure is tried again until the
    attempts are used up, if it is worth it.
    """
    match outcome:
        case Done(result):
            return _settle(job, outcome, State.DONE, result=result)
        case Cancelled(reason):
            return _settle(job, outcome, State.CANCELLED, reason=reason)
        case Snoozed(seconds):
            run_at = now + _micros(seconds)
            return _settle(job, outcome, State.WAITING, counts=False, run_at=run_at)
        case Returned(cut_off=False):
            return _settle_open(job, outcome)
        case Committed(unless):
            return decide(job, unless or Done(), policy, now, random)
    unclear = ambiguous(outcome, policy)
    if unclear is not None:
        return _decide_ambiguous(job, unclear, policy, now, random)
    return _decide_failure(job, outcome, policy, now, random)


def _decide_failure(
    job: Job,
    outcome: Outcome,
    policy: Policy,
    now: int,
    random: Callable[[], float],
) -> Settlement:
    retry = _retry_of(job, policy)
    match outcome:
        case Crashed():
            return _decide_crash(job, outcome, policy.crash_limit)
        case Returned():
            return _settle_open(job, outcome)
        case Failed(failure=failure, unreadable=True):
            return _dead(job, outcome, Reason.UNREADABLE, failure)
        case Failed(failure=failure, transient=False):
            return _dead(job, outcome, Reason.PERMANENT, failure)
        case Failed(failure=failure, after=after):
            run_at: int | None = now + _micros(retry.delay(job.attempt, random, after))
        case _:
            # Lost: the lease time has passed already, and the job was first in its line.
            failure, run_at = described("LeaseLost", _evidence(outcome)), None
    if job.attempt >= retry.attempts:
        return _dead(job, outcome, Reason.EXHAUSTED, failure)
    # Nobody knows what a lost run did, so who was a suspect before it still is.
    shared = job.shared_deaths if isinstance(outcome, Lost) else 0
    return _settle(
        job, outcome, State.WAITING, run_at=run_at, failure=failure, shared_deaths=shared
    )


def _settle_open(job: Job, outcome: Outcome) -> Settlement:
    """Give a job back as it was: its run came to no end of its own."""
    return _settle(job, outcome, State.WAITING, counts=False, shared_deaths=job.shared_deaths)


def _decide_crash(job: Job, outcome: Crashed, limit: int) -> Settlement:
    if outcome.company:
        failure = described("Crashed", f"{outcome.how}, with other jobs in the same process")
        return _settle(
            job,
            outcome,
            State.WAITING,
            counts=False,
            shared_deaths=min(job.shared_deaths + 1, MOST_RUNS),
            failure=failure,
        )
    crashes = job.crashes + 1
    poison = crashes >= limit
    return _settle(
        job,
        outcome,
        State.DEAD if poison else State.WAITING,
        counts=False,
        crashed=True,
        shared_deaths=job.shared_deaths,
        reason=Reason.POISON if poison else None,
        failure=described("Crashed", f"{outcome.how}, crash {crashes} of {limit}"),
    )


def _decide_ambiguous(
    job: Job,
    outcome: Ambiguous,
    policy: Policy,
    now: int,
    random: Callable[[], float],
) -> Settlement:
    if outcome.known == "done":
        return _settle(job, outcome, State.DONE)
    failure = _failure_of(outcome)
    if outcome.known != "not_done" and not policy.idempotent:
        return _dead(job, outcome, Reason.UNCERTAIN, failure)
    return _decide_failure(job, outcome.cause or Failed(failure), policy, now, random)


def overrule(settlement: Settlement, reason: str) -> Settlement:
    """Return the settlement of a run that a person cancelled while it ran.

    Whatever the run came to, it is not stored as a success and is not tried
    again. A dead letter stays one: a failure must not be hidden by a cancel. A
    handler that called its job off itself keeps its own words.
    """
    own_words = settlement.state is State.CANCELLED and settlement.reason != Reason.CANCELLED
    if settlement.state is State.DEAD or own_words:
        return settlement
    return msgspec.structs.replace(settlement, state=State.CANCELLED, reason=reason, result=None)


def _retry_of(job: Job, policy: Policy) -> Retry:
    try:
        options = decode_options(job.options)
    except errors.DecodeError:
        return policy.retry
    if options.attempts is None and options.backoff is None:
        return policy.retry
    return msgspec.structs.replace(
        policy.retry,
        attempts=min(max(1, options.attempts or policy.retry.attempts), 1000),
        backoff=options.backoff or policy.retry.backoff,
    )


def _evidence(outcome: Outcome) -> str:
    match outcome:
        case Crashed(how):
            return f"the process died while the handler ran: {how}"
        case Failed(failure=failure):
            return f"the handler ran past its time limit: {failure.message}"
        case Returned():
            return "the worker stopped while the handler ran"
    return "the worker fell silent and its lease passed"


def _failure_of(outcome: Ambiguous) -> Failure:
    if isinstance(outcome.cause, Failed):
        return outcome.cause.failure
    return described("Ambiguous", outcome.evidence)


def _micros(seconds: float) -> int:
    # NaN compares as false, so it waits longest: neither a hot loop nor an error.
    within = max(0.0, seconds) if seconds < LONGEST_DELAY else LONGEST_DELAY
    return round(within * SECOND)


def _settle(
    job: Job,
    outcome: Outcome,
    state: State,
    *,
    counts: bool = True,
    crashed: bool = False,
    shared_deaths: int = 0,
    run_at: int | None = None,
    result: str | None = None,
    reason: str | None = None,
    failure: Failure | None = None,
) -> Settlement:
    return Settlement(
        job.id,
        job.fence,
        state,
        type(outcome).__name__.lower(),
        counts,
        crashed,
        shared_deaths,
        run_at,
        result,
        reason,
        failure,
    )


def _dead(job: Job, outcome: Outcome, reason: Reason, failure: Failure) -> Settlement:
    return _settle(job, outcome, State.DEAD, reason=reason, failure=failure)
