import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.clock import (
    FAR_FUTURE,
    SECOND,
    ManualClock,
    SystemClock,
    as_datetime,
    instant,
    span,
)


def test_the_system_clock_tells_the_machines_time_in_microseconds() -> None:
    before = time.time_ns() // 1_000
    now = SystemClock().now()
    after = time.time_ns() // 1_000

    assert before <= now <= after


def test_a_manual_clock_moves_only_when_told_to() -> None:
    clock = ManualClock(start=5 * SECOND)
    assert clock.now() == clock.now() == 5 * SECOND

    clock.advance(0.25)
    assert clock.now() == 5_250_000

    clock.advance(-1)
    assert clock.now() == 4_250_000


def test_the_epoch_is_instant_zero() -> None:
    assert instant(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert as_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)


def test_an_instant_is_the_same_in_every_time_zone() -> None:
    utc = datetime(2024, 3, 31, 0, 30, tzinfo=UTC)
    tokyo = utc.astimezone(timezone(timedelta(hours=9)))
    berlin = utc.astimezone(ZoneInfo("Europe/Berlin"))

    assert instant(utc) == instant(tokyo) == instant(berlin)


def test_the_hour_that_happens_twice_is_two_instants() -> None:
    first = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=0)
    second = first.replace(fold=1)

    assert instant(second) - instant(first) == 3_600 * SECOND


def test_a_datetime_without_time_zone_names_no_instant() -> None:
    with pytest.raises(ValueError) as caught:
        instant(datetime(2024, 1, 2, 3, 4, 5))  # noqa: DTZ001 (the point of the test)

    assert str(caught.value) == (
        "2024-01-02T03:04:05 has no time zone, so it names no instant; "
        "pass an aware datetime, for example datetime.now(UTC)"
    )


@given(st.datetimes(timezones=st.timezones()))
def test_instants_and_datetimes_are_the_same_to_the_microsecond(moment: datetime) -> None:
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:  # the first and last day of the calendar, in some zones
        return

    assert as_datetime(instant(moment)) == utc


def test_the_far_future_is_the_last_moment_a_datetime_can_show() -> None:
    assert as_datetime(FAR_FUTURE) == datetime.max.replace(tzinfo=UTC)
    with pytest.raises(OverflowError):
        as_datetime(FAR_FUTURE + 1)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0),
        (1, 1_000_000),
        (0.1, 100_000),
        (-2.5, -2_500_000),
        (1e-7, 0),
        (timedelta(days=1), 86_400 * SECOND),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=-1), -1),
    ],
)
def test_a_span_is_a_duration_in_microseconds(duration: float | timedelta, expected: int) -> None:
    assert span(duration) == expected


@given(st.integers(min_value=-(100 * 366 * 86_400 * SECOND), max_value=100 * 366 * 86_400 * SECOND))
def test_a_timedelta_of_a_lifetime_keeps_every_microsecond(microseconds: int) -> None:
    assert span(timedelta(microseconds=microseconds)) == microseconds
