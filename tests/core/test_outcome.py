import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core import errors
from fairlead.core.clock import FAR_FUTURE, SECOND
from fairlead.core.failure import MESSAGE_LIMIT, describe
from fairlead.core.ids import JobId
from fairlead.core.job import (
    MOST_RUNS,
    Job,
    JobOptions,
    PastAttempt,
    Reason,
    State,
    encode_options,
)
from fairlead.core.outcome import (
    Ambiguous,
    Cancelled,
    Committed,
    Crashed,
    Done,
    Failed,
    Knowledge,
    Lost,
    Outcome,
    Policy,
    Returned,
    Settlement,
    Snoozed,
    ambiguous,
    decide,
    outcome_of,
    overrule,
)
from fairlead.core.retry import LONGEST_DELAY, Retry, fixed, linear

NOW = 1_700_000_000 * SECOND
FAILURE = describe(ValueError("no"))
FAILED = Failed(FAILURE)
TIMED_OUT = Failed(FAILURE, timed_out=True)
PLAIN = Policy(retry=Retry(attempts=5, backoff=fixed(10, jitter=0)))
EXTERNAL = msgspec.structs.replace(PLAIN, effects="external")
IDEMPOTENT = msgspec.structs.replace(EXTERNAL, idempotent=True)
TEN_SECONDS_LATER = NOW + 10 * SECOND


def job(
    attempt: int = 1,
    crashes: int = 0,
    options: JobOptions | str | None = None,
    shared_deaths: int = 0,
) -> Job:
    return Job(
        id=JobId("018f"),
        task="mail.send",
        version=1,
        queue="mail",
        payload="{}",
        options=encode_options(options) if isinstance(options, JobOptions) else options,
        attempt=attempt,
        crashes=crashes,
        shared_deaths=shared_deaths,
        fence=42,
        run_at=NOW - 60 * SECOND,
        enqueued_at=NOW - 60 * SECOND,
        expires_at=None,
        claimed_at=NOW - 5 * SECOND,
        lease_until=NOW + 15 * SECOND,
        worker="w1",
        lost=False,
    )


def settled(outcome: Outcome, policy: Policy = PLAIN, **more: Any) -> Settlement:
    return decide(job(**more), outcome, policy, NOW, lambda: 0.5)


def shape(settlement: Settlement) -> tuple[State, bool, bool, int | None, str | None]:
    return (
        settlement.state,
        settlement.counts,
        settlement.crashed,
        settlement.run_at,
        settlement.reason,
    )


# From exceptions to outcomes


def test_a_snooze_is_no_failure() -> None:
    assert outcome_of(errors.Snooze(60), PLAIN) == Snoozed(60)


def test_a_cancel_carries_its_reason() -> None:
    assert outcome_of(errors.Cancel("withdrawn"), PLAIN) == Cancelled("withdrawn")


def test_an_ambiguous_end_carries_its_evidence() -> None:
    assert outcome_of(errors.Ambiguous("no answer"), PLAIN) == Ambiguous("no answer")


def test_a_retry_after_is_a_failure_with_a_delay() -> None:
    outcome = outcome_of(errors.RetryAfter(90, "closed"), PLAIN)

    assert isinstance(outcome, Failed)
    assert (outcome.transient, outcome.after) == (True, 90)
    assert outcome.failure.message == "closed"


def test_a_permanent_failure_is_not_transient() -> None:
    outcome = outcome_of(errors.Permanent("no such user"), PLAIN)

    assert isinstance(outcome, Failed)
    assert (outcome.transient, outcome.unreadable) == (False, False)
    assert outcome.failure.message == "no such user"


def test_a_payload_nobody_can_read_is_unreadable() -> None:
    outcome = outcome_of(errors.DecodeError("the payload", "truncated"), PLAIN)

    assert isinstance(outcome, Failed)
    assert (outcome.transient, outcome.unreadable) == (False, True)


def test_any_other_exception_is_classified_by_the_policy() -> None:
    policy = Policy(retry=Retry(never=(KeyError,)))

    assert outcome_of(ValueError("no"), policy) == Failed(describe(ValueError("no")))
    assert outcome_of(KeyError("no"), policy) == Failed(describe(KeyError("no")), transient=False)


def test_a_retry_after_of_the_other_side_reaches_the_outcome() -> None:
    error = RuntimeError("slow down")
    error.status = 429  # type: ignore[attr-defined]
    error.headers = {"Retry-After": "Wed, 01 May 2024 12:01:30 GMT"}  # type: ignore[attr-defined]

    outcome = outcome_of(error, PLAIN, datetime(2024, 5, 1, 12, 0, tzinfo=UTC))

    assert isinstance(outcome, Failed)
    assert outcome.after == 90


def test_a_signal_of_the_users_own_kind_counts_as_its_parent() -> None:
    class NextMorning(errors.Snooze):
        def __init__(self) -> None:
            super().__init__(3600)

    assert outcome_of(NextMorning(), PLAIN) == Snoozed(3600)


# Decisions


def test_a_settlement_names_the_job_the_fence_and_the_outcome() -> None:
    """The store refuses a settlement whose fence is no longer the job's."""
    for outcome in (Done(), FAILED, Snoozed(1), Cancelled("x"), Lost(), Crashed("x"), Returned()):
        settlement = settled(outcome)

        assert (settlement.id, settlement.fence) == ("018f", 42)
        assert settlement.outcome == type(outcome).__name__.lower()


def test_a_job_that_is_done_keeps_its_result() -> None:
    settlement = settled(Done('{"sent":true}'))

    assert shape(settlement) == (State.DONE, True, False, None, None)
    assert settlement.result == '{"sent":true}'


def test_a_cancelled_job_says_why() -> None:
    assert shape(settled(Cancelled("withdrawn"))) == (
        State.CANCELLED, True, False, None, "withdrawn",
    )  # fmt: skip


def test_a_snooze_gives_the_attempt_back() -> None:
    assert shape(settled(Snoozed(10))) == (State.WAITING, False, False, TEN_SECONDS_LATER, None)


def test_a_snooze_is_possible_after_the_last_attempt() -> None:
    assert settled(Snoozed(10), attempt=5).state is State.WAITING


def test_a_snooze_into_the_past_means_at_once() -> None:
    assert settled(Snoozed(-10)).run_at == NOW


def test_a_job_given_back_keeps_its_place_and_its_attempt() -> None:
    assert shape(settled(Returned())) == (State.WAITING, False, False, None, None)
    assert settled(Returned(), attempt=5).state is State.WAITING


def test_a_failure_is_tried_again_after_the_backoff() -> None:
    settlement = settled(FAILED)

    assert shape(settlement) == (State.WAITING, True, False, TEN_SECONDS_LATER, None)
    assert settlement.failure == FAILURE


@pytest.mark.parametrize(("attempt", "pause"), [(1, 1), (2, 3), (3, 5)])
def test_the_backoff_knows_the_attempt(attempt: int, pause: int) -> None:
    policy = Policy(retry=Retry(backoff=linear(base=1, step=2, jitter=0)))

    assert settled(FAILED, policy, attempt=attempt).run_at == NOW + pause * SECOND


def test_the_jitter_is_drawn_from_the_given_chance() -> None:
    policy = Policy(retry=Retry(backoff=fixed(10, jitter=0.5)))

    assert decide(job(), FAILED, policy, NOW, lambda: 0.0).run_at == NOW + 10 * SECOND
    assert decide(job(), FAILED, policy, NOW, lambda: 1.0).run_at == NOW + 5 * SECOND


@pytest.mark.parametrize("attempt", [5, 6, 100])
def test_a_failure_after_the_last_attempt_is_a_dead_letter(attempt: int) -> None:
    settlement = settled(FAILED, attempt=attempt)

    assert shape(settlement) == (State.DEAD, True, False, None, Reason.EXHAUSTED)
    assert settlement.failure == FAILURE


def test_a_permanent_failure_is_a_dead_letter_at_once() -> None:
    settlement = settled(Failed(FAILURE, transient=False))

    assert shape(settlement) == (State.DEAD, True, False, None, Reason.PERMANENT)
    assert settlement.failure == FAILURE


def test_an_unreadable_job_is_a_dead_letter_at_once() -> None:
    settlement = settled(Failed(FAILURE, transient=False, unreadable=True))

    assert shape(settlement) == (State.DEAD, True, False, None, Reason.UNREADABLE)


def test_a_predicate_that_answers_something_false_makes_a_dead_letter() -> None:
    policy = Policy(retry=Retry(when=lambda error: error.args and True))  # type: ignore[return-value]

    assert settled(outcome_of(ValueError(), policy), policy).reason == Reason.PERMANENT


def test_a_delay_the_other_side_asked_for_is_not_cut_short() -> None:
    policy = Policy(retry=Retry(backoff=fixed(1, jitter=0.5)))
    outcome = Failed(FAILURE, after=60)

    assert decide(job(), outcome, policy, NOW, lambda: 0.0).run_at == NOW + 60 * SECOND
    assert decide(job(), outcome, policy, NOW, lambda: 1.0).run_at == NOW + 90 * SECOND


def test_a_delay_the_other_side_asked_for_does_not_bring_back_a_used_up_job() -> None:
    assert settled(Failed(FAILURE, after=60), attempt=5).reason == Reason.EXHAUSTED


def test_a_lost_job_keeps_its_place_and_counts() -> None:
    settlement = settled(Lost())

    assert shape(settlement) == (State.WAITING, True, False, None, None)
    assert settlement.failure is not None
    assert settlement.failure.error == "LeaseLost"
    assert settlement.failure.message == "the worker fell silent and its lease passed"


def test_a_job_lost_at_its_last_attempt_is_a_dead_letter() -> None:
    assert shape(settled(Lost(), attempt=5)) == (State.DEAD, True, False, None, Reason.EXHAUSTED)


def test_a_time_out_is_an_ordinary_failure_where_nothing_outside_happened() -> None:
    assert shape(settled(TIMED_OUT)) == (State.WAITING, True, False, TEN_SECONDS_LATER, None)


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_crash_counts_apart_from_attempts(crashes: int) -> None:
    settlement = settled(Crashed("SIGSEGV"), crashes=crashes)

    assert shape(settlement) == (State.WAITING, False, True, None, None)
    assert settlement.failure is not None
    told = f"SIGSEGV, crash {crashes + 1} of 3"
    assert (settlement.failure.error, settlement.failure.message) == ("Crashed", told)
    assert settlement.failure.detail == told


def test_a_crash_at_the_last_attempt_is_not_the_end() -> None:
    assert settled(Crashed("SIGSEGV"), attempt=5).state is State.WAITING


@pytest.mark.parametrize("crashes", [2, 3, 10])
def test_the_third_crash_is_poison(crashes: int) -> None:
    settlement = settled(Crashed("SIGSEGV"), crashes=crashes)

    assert shape(settlement) == (State.DEAD, False, True, None, Reason.POISON)
    assert settlement.failure is not None
    assert settlement.failure.message == f"SIGSEGV, crash {crashes + 1} of 3"


def test_all_crashes_of_a_job_have_one_fingerprint() -> None:
    failures = [settled(Crashed("SIGSEGV"), crashes=crashes).failure for crashes in range(3)]
    assert len({failure.fingerprint for failure in failures if failure}) == 1


def test_a_task_may_set_its_own_limit_of_crashes() -> None:
    settlement = settled(Crashed("SIGKILL"), Policy(crash_limit=1))

    assert settlement.reason == Reason.POISON
    assert settlement.failure is not None
    assert settlement.failure.message == "SIGKILL, crash 1 of 1"


# Ambiguity


@pytest.mark.parametrize("policy", [PLAIN, EXTERNAL])
@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ("done", (State.DONE, True, False, None, None)),
        ("not_done", (State.WAITING, True, False, TEN_SECONDS_LATER, None)),
        ("unknown", (State.DEAD, True, False, None, Reason.UNCERTAIN)),
        (None, (State.DEAD, True, False, None, Reason.UNCERTAIN)),
    ],
)
def test_an_ambiguous_end_is_decided_by_what_is_known(
    policy: Policy, known: Knowledge | None, expected: tuple[object, ...]
) -> None:
    assert shape(settled(Ambiguous("no answer", known=known), policy)) == expected


def test_the_evidence_of_an_uncertain_job_is_kept() -> None:
    settlement = settled(Ambiguous("the bank did not answer"))

    assert settlement.failure is not None
    assert settlement.failure.error == "Ambiguous"
    assert settlement.failure.message == "the bank did not answer"


@pytest.mark.parametrize("known", ["not_done", "unknown", None])
def test_an_idempotent_task_is_simply_tried_again(known: Knowledge | None) -> None:
    assert shape(settled(Ambiguous("no answer", known=known), IDEMPOTENT)) == (
        State.WAITING, True, False, TEN_SECONDS_LATER, None,
    )  # fmt: skip


def test_an_effect_that_happened_is_not_repeated_even_if_it_could_be() -> None:
    assert settled(Ambiguous("no answer", known="done"), IDEMPOTENT).state is State.DONE


@pytest.mark.parametrize("policy", [EXTERNAL, IDEMPOTENT])
def test_an_ambiguous_end_of_the_last_attempt_is_a_dead_letter(policy: Policy) -> None:
    settlement = settled(Ambiguous("no answer", known="not_done"), policy, attempt=5)

    assert shape(settlement) == (State.DEAD, True, False, None, Reason.EXHAUSTED)


@pytest.mark.parametrize(
    ("outcome", "evidence"),
    [
        (Lost(), "the worker fell silent and its lease passed"),
        (Crashed("SIGKILL"), "the process died while the handler ran: SIGKILL"),
        (TIMED_OUT, "the handler ran past its time limit: no"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_end_from_outside_is_ambiguous_for_external_effects(
    outcome: Outcome, evidence: str
) -> None:
    assert ambiguous(outcome, EXTERNAL) == Ambiguous(evidence, cause=outcome)  # type: ignore[arg-type]
    assert ambiguous(outcome, PLAIN) is None

    settlement = settled(outcome, EXTERNAL)
    assert shape(settlement) == (State.DEAD, True, False, None, Reason.UNCERTAIN)
    assert settlement.failure is not None


@pytest.mark.parametrize(
    "outcome", [Done(), FAILED, Snoozed(1), Cancelled("x"), Returned()], ids=lambda o: repr(o)[:9]
)
def test_an_end_the_handler_chose_is_never_ambiguous(outcome: Outcome) -> None:
    assert ambiguous(outcome, EXTERNAL) is None
    assert settled(outcome, EXTERNAL) == settled(outcome, PLAIN)


def test_what_is_ambiguous_stays_as_it_is() -> None:
    outcome = Ambiguous("no answer", known="done")

    assert ambiguous(outcome, PLAIN) is outcome


@pytest.mark.parametrize("outcome", [Lost(), Crashed("SIGKILL"), TIMED_OUT])
def test_an_idempotent_task_treats_an_end_from_outside_as_any_other(outcome: Outcome) -> None:
    assert settled(outcome, IDEMPOTENT) == settled(outcome, PLAIN)


@pytest.mark.parametrize("outcome", [Lost(), Crashed("SIGKILL"), TIMED_OUT])
def test_an_effect_that_did_not_happen_leaves_an_end_like_any_other(
    outcome: Lost | Crashed | Failed,
) -> None:
    asked = Ambiguous("…", cause=outcome, known="not_done")

    assert settled(asked, EXTERNAL) == settled(outcome, PLAIN)


def test_a_crash_is_poison_at_the_limit_though_the_effect_did_not_happen() -> None:
    asked = Ambiguous("…", cause=Crashed("SIGKILL"), known="not_done")

    assert shape(settled(asked, EXTERNAL, crashes=2)) == (
        State.DEAD, False, True, None, Reason.POISON,
    )  # fmt: skip


def test_a_job_is_done_if_its_effect_happened_before_the_end_from_outside() -> None:
    asked = Ambiguous("…", cause=Crashed("SIGKILL"), known="done")

    assert shape(settled(asked, EXTERNAL, crashes=2)) == (State.DONE, True, False, None, None)


# Options of the job


def test_a_job_may_have_its_own_number_of_attempts() -> None:
    fewer = JobOptions(attempts=2)
    more = JobOptions(attempts=9)

    assert settled(FAILED, attempt=2, options=fewer).reason == Reason.EXHAUSTED
    assert settled(FAILED, attempt=8, options=more).run_at == TEN_SECONDS_LATER
    assert settled(FAILED, attempt=9, options=more).reason == Reason.EXHAUSTED
    assert settled(Lost(), attempt=2, options=fewer).reason == Reason.EXHAUSTED


def test_a_job_may_have_its_own_backoff() -> None:
    options = JobOptions(backoff=fixed(77, jitter=0))

    assert settled(FAILED, options=options).run_at == NOW + 77 * SECOND
    assert settled(FAILED, attempt=5, options=options).reason == Reason.EXHAUSTED


def test_the_options_of_the_job_hold_for_ambiguous_ends_too() -> None:
    options = JobOptions(attempts=2, backoff=fixed(77, jitter=0))
    outcome = Ambiguous("no answer", known="not_done")

    assert settled(outcome, options=options).run_at == NOW + 77 * SECOND
    assert settled(outcome, options=options, attempt=2).reason == Reason.EXHAUSTED


def test_other_options_of_the_job_change_nothing() -> None:
    options = JobOptions(timeout=5, tags=("a",), correlation_id="x")

    assert settled(FAILED, options=options) == settled(FAILED)


GARBAGE = ["", "{", "[]", '{"attempts":"many"}', '{"backoff":{"curve":"spiral"}}']


@pytest.mark.parametrize("options", GARBAGE)
def test_a_job_with_unreadable_options_can_still_become_a_dead_letter(options: str) -> None:
    """Otherwise it can never be settled, and is claimed and lost for ever."""
    outcome = Failed(FAILURE, transient=False, unreadable=True)

    assert settled(outcome, options=options).reason == Reason.UNREADABLE


@pytest.mark.parametrize("options", [*GARBAGE, '{"attempts":0}', '{"attempts":5000}'])
def test_unreadable_options_do_not_stop_a_decision(options: str) -> None:
    for outcome in (FAILED, Lost(), Crashed("SIGKILL"), Ambiguous("no answer", known="not_done")):
        assert settled(outcome, options=options).state in (State.WAITING, State.DEAD)


# Odd numbers and texts from handlers


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e300, -5])
def test_a_snooze_of_any_length_ends_within_the_calendar(seconds: float) -> None:
    run_at = settled(outcome_of(errors.Snooze(seconds), PLAIN)).run_at

    assert run_at is not None
    assert NOW <= run_at <= FAR_FUTURE


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e300, -5, LONGEST_DELAY])
def test_a_retry_after_of_any_length_is_a_year_at_most(seconds: float) -> None:
    policy = Policy(retry=Retry(backoff=fixed(1, jitter=1)))
    settlement = decide(job(), outcome_of(errors.RetryAfter(seconds), policy), policy, NOW)

    assert settlement.run_at is not None
    assert NOW <= settlement.run_at <= NOW + LONGEST_DELAY * SECOND


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["nul", "surrogate"])
def test_the_reason_of_a_cancel_can_be_stored(text: str) -> None:
    reason = settled(outcome_of(errors.Cancel(text), PLAIN)).reason

    assert reason is not None
    assert "\0" not in reason
    reason.encode("utf-8")


@pytest.mark.parametrize(
    "text", ["a\0b", "\ud800", "x" * 1_000_000], ids=["nul", "surrogate", "long"]
)
def test_the_evidence_of_an_ambiguous_end_can_be_stored(text: str) -> None:
    failure = settled(outcome_of(errors.Ambiguous(text), PLAIN)).failure

    assert failure is not None
    assert "\0" not in failure.message
    assert len(failure.message) <= 2 * MESSAGE_LIMIT
    failure.message.encode("utf-8")


# Properties

finite = st.floats(min_value=-1e9, max_value=1e9)


def failures(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Failed]:
    return st.builds(
        Failed,
        failure=st.text().map(lambda text: describe(ValueError(text))),
        transient=st.booleans(),
        after=st.none() | numbers,
        timed_out=st.booleans(),
        unreadable=st.booleans(),
    )


def every_outcome(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[Outcome, ...]]:
    """One outcome of each kind, so that every example meets every branch."""
    crashes = st.builds(Crashed, st.text())
    causes = st.none() | failures(numbers) | crashes | st.just(Lost())
    known = st.none() | st.sampled_from(["done", "not_done", "unknown"])
    return st.tuples(
        st.builds(Done, st.none() | st.text()),
        failures(numbers),
        st.builds(Failed, failure=st.just(FAILURE), after=numbers),
        st.builds(Snoozed, numbers),
        st.builds(Cancelled, st.text()),
        st.just(Lost()),
        crashes,
        st.just(Returned()),
        st.builds(Ambiguous, st.text(), causes, known),
    )


policies = st.builds(
    Policy,
    retry=st.builds(
        Retry,
        attempts=st.integers(1, 20),
        backoff=st.builds(fixed, st.floats(0, 1e6), st.floats(0, 1)),
    ),
    effects=st.sampled_from(["none", "external"]),
    idempotent=st.booleans(),
    crash_limit=st.integers(1, 5),
)
jobs = st.builds(
    job,
    attempt=st.integers(1, 30),
    crashes=st.integers(0, 6),
    options=st.none()
    | st.builds(
        JobOptions,
        attempts=st.none() | st.integers(1, 20),
        backoff=st.none() | st.builds(fixed, st.floats(0, 1e6), st.floats(0, 1)),
    ),
)


def attempts_of(claimed: Job, policy: Policy) -> int:
    options = msgspec.json.decode(claimed.options or "{}", type=JobOptions)
    return options.attempts or policy.retry.attempts


@given(jobs, every_outcome(finite), policies)
def test_no_job_is_tried_again_at_its_own_cost_once_its_attempts_are_used_up(
    claimed: Job, outcomes: tuple[Outcome, ...], policy: Policy
) -> None:
    for outcome in outcomes:
        settlement = decide(claimed, outcome, policy, NOW)
        if settlement.state is State.WAITING and settlement.counts:
            assert claimed.attempt < attempts_of(claimed, policy)


@given(jobs, every_outcome(finite), policies)
def test_a_job_that_crashed_too_often_never_waits_again_after_a_crash(
    claimed: Job, outcomes: tuple[Outcome, ...], policy: Policy
) -> None:
    for outcome in outcomes:
        settlement = decide(claimed, outcome, policy, NOW)
        if settlement.crashed and settlement.state is State.WAITING:
            assert claimed.crashes + 1 < policy.crash_limit


@given(jobs, every_outcome(finite), policies)
def test_every_decision_makes_sense(
    claimed: Job, outcomes: tuple[Outcome, ...], policy: Policy
) -> None:
    for outcome in outcomes:
        settlement = decide(claimed, outcome, policy, NOW)

        assert settlement.state is not State.RUNNING
        assert settlement.run_at is None or settlement.state is State.WAITING
        assert settlement.run_at is None or settlement.run_at >= NOW
        assert settlement.result is None or settlement.state is State.DONE
        if settlement.state is State.DEAD:
            assert settlement.reason in set(Reason)
            assert settlement.failure is not None


@given(
    jobs,
    every_outcome(st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 1e300])),
    policies,
)
def test_a_decision_never_raises(
    claimed: Job, outcomes: tuple[Outcome, ...], policy: Policy
) -> None:
    for outcome in outcomes:
        settlement = decide(claimed, outcome, policy, NOW)

        assert settlement.run_at is None or NOW <= settlement.run_at <= FAR_FUTURE


def test_a_backoff_that_raises_does_not_stop_a_decision() -> None:
    """A job whose end cannot be decided could never be settled."""

    def broken(attempt: int) -> float:
        return 1 / 0

    assert settled(FAILED, Policy(retry=Retry(backoff=broken))).state is State.WAITING


# A person's cancel


def test_a_cancelled_run_is_not_stored_as_a_success() -> None:
    settlement = overrule(settled(Done("7")), "withdrawn")

    assert (settlement.state, settlement.reason) == (State.CANCELLED, "withdrawn")
    assert settlement.result is None
    assert (settlement.id, settlement.fence, settlement.outcome) == ("018f", 42, "done")


@pytest.mark.parametrize("outcome", [FAILED, Snoozed(5), Returned(), Lost(), Crashed("SIGKILL")])
def test_a_cancelled_run_is_not_tried_again(outcome: Outcome) -> None:
    settlement = overrule(settled(outcome), "withdrawn")

    assert (settlement.state, settlement.reason) == (State.CANCELLED, "withdrawn")
    assert settlement.failure == settled(outcome).failure


@pytest.mark.parametrize(
    "settlement",
    [
        settled(Failed(FAILURE, transient=False)),
        settled(FAILED, attempt=5),
        settled(Crashed("SIGKILL"), crashes=2),
        settled(Ambiguous("no answer")),
        settled(Cancelled("by the handler")),
    ],
    ids=lambda s: str(s.reason),
)
def test_a_cancel_hides_no_dead_letter_and_no_other_reason(settlement: Settlement) -> None:
    assert overrule(settlement, "withdrawn") == settlement


def test_a_persons_words_stand_where_the_worker_only_did_as_told() -> None:
    settlement = overrule(settled(Cancelled(Reason.CANCELLED)), "withdrawn")

    assert (settlement.state, settlement.reason) == (State.CANCELLED, "withdrawn")


# What is kept with the job


def test_a_failed_run_is_remembered_with_its_times_and_error() -> None:
    settlement = msgspec.structs.replace(settled(FAILED), started_at=NOW - 1)

    assert settlement.remembered(3, "w1", NOW - 5, NOW) == PastAttempt(
        attempt=3,
        outcome="failed",
        worker="w1",
        claimed_at=NOW - 5,
        started_at=NOW - 1,
        finished_at=NOW,
        error="ValueError",
        message="no",
        traceback="ValueError: no\n",
        fingerprint=FAILURE.fingerprint,
    )


@pytest.mark.parametrize("outcome", [Done("1"), Snoozed(5), Returned(), Cancelled("x")])
def test_a_run_that_did_not_fail_is_not_remembered(outcome: Outcome) -> None:
    assert settled(outcome).remembered(1, "w1", NOW - 5, NOW) is None


# Suspects


@pytest.mark.parametrize("limit", [1, 3])
def test_a_crash_in_company_is_blamed_on_nobody(limit: int) -> None:
    policy = msgspec.structs.replace(PLAIN, crash_limit=limit)

    settlement = settled(Crashed("SIGSEGV", company=True), policy, attempt=5, crashes=2)

    assert shape(settlement) == (State.WAITING, False, False, None, None)
    assert settlement.shared_deaths == 1
    assert settlement.failure is not None
    assert settlement.failure.message == "SIGSEGV, with other jobs in the same process"


@pytest.mark.parametrize(
    ("before", "after"), [(0, 1), (1, 2), (2, 3), (3, 4), (MOST_RUNS, MOST_RUNS)]
)
def test_a_crash_in_company_is_one_more_shared_death(before: int, after: int) -> None:
    settlement = settled(Crashed("SIGSEGV", company=True), shared_deaths=before)

    assert settlement.shared_deaths == after


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        (FAILED, 0),
        (TIMED_OUT, 0),
        (Snoozed(1), 0),
        (Crashed("SIGSEGV"), 2),
        (Returned(), 2),
        (Returned(cut_off=True), 2),
        (Lost(), 2),
    ],
)
def test_only_a_run_that_ends_by_itself_clears_shared_deaths(outcome: Outcome, after: int) -> None:
    assert settled(outcome, shared_deaths=2).shared_deaths == after


def test_a_crash_in_company_of_a_task_with_outside_effects_is_ambiguous_first() -> None:
    crash = Crashed("SIGSEGV", company=True)

    assert settled(crash, EXTERNAL).reason == Reason.UNCERTAIN
    assert settled(crash, IDEMPOTENT).shared_deaths == 1
    known = Ambiguous("?", cause=crash, known="not_done")
    assert settled(known, EXTERNAL).shared_deaths == 1


@pytest.mark.parametrize(
    ("shared", "crashes", "suspect", "alone"),
    [
        *((0, 0, False, False), (1, 0, True, False), (2, 0, True, False), (3, 0, True, True)),
        *((0, 1, True, True), (1, 2, True, True), (MOST_RUNS, 0, True, True)),
    ],
)
def test_who_may_have_killed_a_process_runs_apart_and_at_last_alone(
    shared: int, crashes: int, suspect: bool, alone: bool
) -> None:
    found = job(crashes=crashes, shared_deaths=shared)

    assert (found.suspect, found.runs_alone) == (suspect, alone)


# A handler's own transaction


def test_a_run_that_committed_is_done() -> None:
    settlement = settled(Committed())
    assert (settlement.state, settlement.outcome, settlement.counts) == (State.DONE, "done", True)


def test_a_run_that_may_have_committed_is_settled_as_if_it_had_not() -> None:
    """The store refuses that if it had."""
    failed = Failed(describe(ValueError("no")))
    assert settled(Committed(unless=failed)) == settled(failed)


def test_what_may_have_committed_is_as_unclear_as_its_end() -> None:
    external = Policy(effects="external")
    cut_off = Returned(cut_off=True)
    assert ambiguous(Committed(unless=cut_off), external) == ambiguous(cut_off, external)
    assert ambiguous(Committed(unless=cut_off), external) is not None
    assert ambiguous(Committed(), external) is None
