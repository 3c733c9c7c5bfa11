"""Figures of a queue from the attempt log."""

import pytest

from fairlead.core.clock import SECOND
from fairlead.core.figures import figures_of, quantile
from fairlead.core.ids import JobId
from tests.demo.lines import line

A, B, C = JobId("a"), JobId("b"), JobId("c")


def test_jobs_runs_and_successes_are_counted() -> None:
    failed = [line(A, outcome="failed"), line(A, outcome="failed"), line(C, outcome="failed")]
    mail = figures_of([*failed, line(A), line(B)])["mail"]
    assert (mail.jobs, mail.runs, mail.done) == (3, 5, 2)


def test_a_run_that_was_given_back_is_none() -> None:
    mail = figures_of([line(A, outcome="returned", started_at=None), line(A)])["mail"]
    assert (mail.jobs, mail.runs) == (1, 1)


def test_a_wait_lasts_until_the_handler_began_or_else_until_the_claim() -> None:
    began = line(A, ready_at=1, claimed_at=2, started_at=5, finished_at=6)
    unknown = line(B, ready_at=1, claimed_at=2, started_at=None, finished_at=6)
    mail = figures_of([began, unknown])["mail"]
    assert (mail.wait_p50, mail.wait_p99) == (1 * SECOND, 4 * SECOND)
    assert (mail.run_p50, mail.run_p99) == (1 * SECOND, 4 * SECOND)


def test_the_pace_is_what_was_done_from_the_first_start_to_the_last_end_or_until_now() -> None:
    lines = [line(A, claimed_at=10, finished_at=11), line(B, claimed_at=11, finished_at=14)]
    assert figures_of(lines)["mail"].per_second == 0.5
    assert figures_of(lines, until=20 * SECOND)["mail"].per_second == 0.2


def test_each_queue_has_figures_of_its_own() -> None:
    lines = [line(A, queue="videos"), line(B, queue="mail"), line(C, queue="videos")]
    found = figures_of(lines)
    assert {name: figures.jobs for name, figures in found.items()} == {"videos": 2, "mail": 1}


@pytest.mark.parametrize(("part", "value"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_quantiles_of_a_hundred_values(part: float, value: int) -> None:
    assert quantile(range(1, 101), part) == value


def test_quantiles_of_one_value() -> None:
    assert quantile([7], 0.5) == quantile([7], 0.99) == 7
