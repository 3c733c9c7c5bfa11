"""Time as the code sees it.

An instant is an int: microseconds since 1970, UTC. It is exact, it sorts, and
SQL, Lua and Python agree on it. Datetimes exist only at the faces; `instant()`
and `as_datetime()` are the two doors.

Nothing in Fairlead reads the machine's time directly. Stores take a `Clock`,
so that tests and the simulator can move it.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

SECOND = 1_000_000
"""One second in microseconds, the unit of every instant and span."""

FAR_FUTURE = 253_402_300_800 * SECOND - 1
"""The last moment of the year 9999: what a datetime can still show."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Something that knows the current instant."""

    def now(self) -> int:
        """Return microseconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> int:
        """Return microseconds since 1970, UTC."""
        return time.time_ns() // 1_000


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: int = 1_700_000_000 * SECOND) -> None:
        self._now = start

    def now(self) -> int:
        """Return microseconds since 1970, UTC."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move by this many seconds; negative goes back, as a wrong NTP step would."""
        self._now += span(seconds)


def instant(moment: datetime) -> int:
    """Turn an aware datetime into an instant."""
    if moment.tzinfo is None:
        raise ValueError(
            f"{moment.isoformat()} has no time zone, so it names no instant; "
            "pass an aware datetime, for example datetime.now(UTC)"
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)


def as_datetime(at: int) -> datetime:
    """Turn an instant into an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=at)


def span(duration: float | timedelta) -> int:
    """Turn seconds or a timedelta into microseconds."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return round(seconds * SECOND)
