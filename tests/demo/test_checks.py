"""The demo's checks: what they let pass, and above all what they do not."""

from itertools import accumulate

import pytest

from fairlead.core.admin import Finding
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Reason, State
from fairlead.demo import checks
from fairlead.demo.checks import Unexpected
from tests.demo.lines import line, record

WEIGHTS = {"mail": 4, "reports": 2, "thumbnails": 1}


def claims(rounds: int, **per_round: int) -> list[Attempt]:
    """So many jobs of each queue in each round; the rounds are an instant apart."""
    return [
        line(f"{queue}-{number}-{n}", queue=queue, claimed_at=number)
        for number in range(rounds)
        for queue, count in per_round.items()
        for n in range(count)
    ]


def left_over(at: int, **counts: int) -> list[Attempt]:
    return [
        line(f"{queue}-late-{n}", queue=queue, claimed_at=at)
        for queue, count in counts.items()
        for n in range(count)
    ]


# Shares


def test_shares_that_follow_the_weights() -> None:
    lines = [*claims(10, mail=4, reports=2, thumbnails=1), *left_over(20, thumbnails=60)]
    found = checks.shares(lines, WEIGHTS)
    assert [(share.queue, share.claimed) for share in found] == [
        ("mail", 36),
        ("reports", 18),
        ("thumbnails", 9),
    ]
    assert [share.part for share in found] == [share.fair for share in found]


def test_equal_shares_do_not_follow_the_weights() -> None:
    with pytest.raises(Unexpected, match="'mail' got 33% of the claims .* its weight says 57%"):
        checks.shares(claims(10, mail=1, reports=1, thumbnails=1), WEIGHTS)


def test_one_queue_after_the_other_does_not_follow_the_weights() -> None:
    lines = [
        *left_over(1, mail=100),
        *left_over(2, reports=100),
        *left_over(3, thumbnails=100),
    ]
    with pytest.raises(Unexpected, match="'mail' got 0%"):
        checks.shares(lines, WEIGHTS)


def test_a_queue_that_was_never_served() -> None:
    with pytest.raises(Unexpected, match="'thumbnails'"):
        checks.shares(claims(10, mail=4, reports=2), WEIGHTS)


# Pauses


def flaky(*pauses: float, last: str = "done") -> list[Attempt]:
    starts = list(accumulate(pauses, initial=0.0))
    return [
        line(
            "a",
            attempt=number,
            ready_at=start,
            claimed_at=start,
            finished_at=start,
            outcome="failed" if number < len(starts) else last,
        )
        for number, start in enumerate(starts, 1)
    ]


def test_pauses_that_grow() -> None:
    assert checks.growing_pauses(flaky(0.5, 1.0, 2.0), 3) == [0.5, 1.0, 2.0]


def test_pauses_that_stay_the_same() -> None:
    with pytest.raises(Unexpected, match="should grow"):
        checks.growing_pauses(flaky(0.5, 0.5, 2.0), 3)


def test_a_flaky_job_that_fails_less_often_or_for_good() -> None:
    for lines in (flaky(0.5, 1.0), flaky(0.5, 1.0, 2.0, last="failed")):
        with pytest.raises(Unexpected, match="should fail 3 times and be done"):
            checks.growing_pauses(lines, 3)


# Dead letters


def test_a_dead_letter_after_one_run_is_as_it_should_be() -> None:
    dead = record(State.DEAD, Reason.PERMANENT, "no such currency")
    checks.dead_at_once(dead, [line("a", outcome="failed")], Reason.PERMANENT)


def test_a_dead_letter_for_another_reason_or_none_at_all() -> None:
    for job in (record(State.DEAD, Reason.EXHAUSTED, "no"), record(State.DONE)):
        with pytest.raises(Unexpected, match="should be a dead letter, permanent"):
            checks.dead_at_once(job, [line("a")], Reason.PERMANENT)


def test_a_dead_letter_that_was_tried_again() -> None:
    dead = record(State.DEAD, Reason.PERMANENT, "no such currency")
    with pytest.raises(Unexpected, match="should have run once; it ran 2 times"):
        checks.dead_at_once(dead, [line("a"), line("a")], Reason.PERMANENT)


def test_a_replay() -> None:
    checks.replayed(record(State.DONE), [line("a", outcome="failed"), line("a")])
    for job, lines in [
        (record(State.DEAD), [line("a", outcome="failed"), line("a", outcome="failed")]),
        (record(State.DONE), [line("a")]),
    ]:
        with pytest.raises(Unexpected, match="should be done in its second run"):
            checks.replayed(job, lines)


# The killed process

CUT_OFF = line("a", worker="w/1", outcome="crashed")
ELSEWHERE = line("a", worker="w/2")
OTHER = line("b", worker="w/2")


def test_a_job_that_went_on_elsewhere() -> None:
    (moved,) = checks.moved([CUT_OFF, ELSEWHERE, OTHER], "w/1")
    assert (moved.job_id, moved.killed.worker, moved.again.worker) == ("a", "w/1", "w/2")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([OTHER], "no job was running in the process that was killed"),
        (
            [line("a", worker="w/1", outcome="returned", started_at=None), ELSEWHERE],
            "no job was running",
        ),
        ([line("a", worker="w/1", outcome="crashed", started_at=None), ELSEWHERE], "no job was"),
        ([line("a", worker="w/3", outcome="crashed"), ELSEWHERE], "no job was running"),
        ([CUT_OFF], "its last run was crashed"),
        ([CUT_OFF, line("a", worker="w/1")], "should go on elsewhere"),
        ([CUT_OFF, line("a", worker="w/2", attempt=2)], "lose no attempt"),
    ],
    ids=["none", "not started", "start unknown", "another's", "lost", "the same", "counted"],
)
def test_a_kill_that_proves_nothing(lines: list[Attempt], problem: str) -> None:
    with pytest.raises(Unexpected, match=problem):
        checks.moved(lines, "w/1")


# The end

A, B = JobId("a"), JobId("b")


def test_all_ended() -> None:
    states = {A: State.DONE, B: State.DEAD}
    checks.all_ended(states, states, [])


def test_a_job_in_another_state_or_in_none() -> None:
    for states, told in [({A: State.WAITING}, "waiting"), ({}, "lost")]:
        with pytest.raises(Unexpected, match=f"job a should be done; it is {told}"):
            checks.all_ended(states, {A: State.DONE}, [])


def test_a_finding_of_the_audit() -> None:
    with pytest.raises(Unexpected, match="the audit found: two places; move it"):
        checks.all_ended({}, {}, [Finding("two places", "move it")])
