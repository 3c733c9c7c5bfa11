"""The closing table's figures."""

import pytest

from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.demo.figures import Figures, figures_of, quantile
from tests.demo.lines import line

A, B, C = JobId("a"), JobId("b"), JobId("c")


def test_jobs_are_counted_by_their_end_and_runs_beyond_the_first_as_retried() -> None:
    lines = [
        line(A, outcome="failed"),
        line(A, outcome="failed"),
        line(A),
        line(B),
        line(C, outcome="failed"),
    ]
    (mail,) = figures_of(lines, {A: State.DONE, B: State.DONE, C: State.DEAD})
    assert (mail.done, mail.retried, mail.dead) == (2, 2, 1)


def test_a_run_that_was_given_back_is_none() -> None:
    (mail,) = figures_of([line(A, outcome="returned", started_at=None), line(A)], {A: State.DONE})
    assert (mail.done, mail.retried) == (1, 0)


def test_a_wait_lasts_until_the_handler_began_or_else_until_the_claim() -> None:
    began = line(A, ready_at=1, claimed_at=2, started_at=5, finished_at=6)
    unknown = line(B, ready_at=1, claimed_at=2, started_at=None, finished_at=6)
    (mail,) = figures_of([began, unknown], {A: State.DONE, B: State.DONE})
    assert (mail.wait_p50, mail.wait_p99) == (1.0, 4.0)


def test_throughput_is_what_was_done_from_the_first_start_to_the_last_end() -> None:
    lines = [line(A, claimed_at=10, finished_at=11), line(B, claimed_at=11, finished_at=14)]
    (mail,) = figures_of(lines, {A: State.DONE, B: State.DONE})
    assert mail.per_second == 0.5


def test_queues_come_in_the_order_of_their_first_line() -> None:
    lines = [line(A, queue="videos"), line(B, queue="mail"), line(C, queue="videos")]
    found = figures_of(lines, dict.fromkeys((A, B, C), State.DONE))
    assert [figures.queue for figures in found] == ["videos", "mail"]
    assert found[1] == Figures("mail", 1, 0, 0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(("part", "value"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_quantiles_of_a_hundred_values(part: float, value: int) -> None:
    assert quantile(range(1, 101), part) == value


def test_quantiles_of_one_value() -> None:
    assert quantile([7.0], 0.5) == quantile([7.0], 0.99) == 7.0
