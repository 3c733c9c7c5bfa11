"""When a failed job is tried again, and whether it makes sense to.

A curve says how long to wait after the nth attempt. `classify` says whether an
exception is worth another attempt at all, and whether the other side asked for
a certain delay. What becomes of the job is decided in `outcome.decide`.
"""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from fairlead.core.errors import ConfigError, DecodeError, EncodeError, Permanent
from fairlead.core.text import brief

LONGEST_DELAY = 366 * 24 * 3600.0
"""No curve and no `Retry-After` may put a job off for longer: one year, in seconds."""


class Exponential(msgspec.Struct, frozen=True, tag="exponential", tag_field="curve"):
    """`base * factor ** (attempt - 1)` seconds, at most `cap`."""

    base: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.3

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        _check(self)

    def __call__(self, attempt: int) -> float:
        """Return the seconds to wait after this attempt, before jitter."""
        try:
            return min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            return self.cap if self.base else 0.0


class Linear(msgspec.Struct, frozen=True, tag="linear", tag_field="curve"):
    """`base + step * (attempt - 1)` seconds, at most `cap`."""

    base: float = 1.0
    step: float = 1.0
    cap: float = 300.0
    jitter: float = 0.3

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        _check(self)

    def __call__(self, attempt: int) -> float:
        """Return the seconds to wait after this attempt, before jitter."""
        return min(self.cap, self.base + self.step * (attempt - 1))


class Fixed(msgspec.Struct, frozen=True, tag="fixed", tag_field="curve"):
    """Always the same number of seconds, less up to `jitter` of it: `jitter=0` is exact.

    Jobs that failed together do not come back together, so `fixed(600)` waits 420 to 600 s.
    """

    seconds: float = 1.0
    jitter: float = 0.3

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        _check(self)

    def __call__(self, attempt: int) -> float:
        """Return the seconds to wait after this attempt, before jitter."""
        return self.seconds


Curve = Exponential | Linear | Fixed
Backoff = Curve | Callable[[int], float]

# As people write them: Retry(backoff=exponential(base=2)).
exponential, linear, fixed = Exponential, Linear, Fixed


def _check(curve: Curve) -> None:
    for name in curve.__struct_fields__:
        value = getattr(curve, name)
        top = 1.0 if name == "jitter" else LONGEST_DELAY
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 <= value <= top):
            raise ConfigError(
                f"a retry curve's {name} must lie between 0 and {top:g}, not {brief(value)}"
            )


class Retry(msgspec.Struct, frozen=True):
    """How often a task is tried, how long it waits between, and for what.

    `on` and `never` override the usual classification for the exceptions they
    name (the most specific class wins); `when` is asked for all others and may
    answer None to leave the decision to the usual rules.
    """

    attempts: int = 5
    backoff: Backoff = Exponential()
    on: tuple[type[BaseException], ...] = ()
    never: tuple[type[BaseException], ...] = ()
    when: Callable[[BaseException], bool | None] | None = None

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        whole = isinstance(self.attempts, int) and not isinstance(self.attempts, bool)
        if not (whole and 1 <= self.attempts <= 1000):
            raise ConfigError(
                f"Retry(attempts=…) must lie between 1 and 1000, not {brief(self.attempts)}"
            )
        for name in ("on", "never"):
            kinds = getattr(self, name)
            if isinstance(kinds, type):
                msgspec.structs.force_setattr(self, name, (kinds,))
        if not callable(self.backoff):
            raise ConfigError(
                "Retry(backoff=…) must be a curve such as exponential(), or a function "
                f"from the attempt to seconds, not {brief(self.backoff)}"
            )

    def delay(self, attempt: int, random: Callable[[], float], after: float | None = None) -> float:
        """Return the seconds to wait after this attempt.

        Jitter keeps jobs that failed together from coming back together. It only
        shortens, by up to the given part, so a cap stays a cap; but when the
        other side said "not before `after`", it can only lengthen.
        """
        jitter = getattr(self.backoff, "jitter", 0.0) * random()
        if after is not None:
            return after * (1 + jitter)
        try:
            seconds = float(min(self.backoff(attempt), LONGEST_DELAY))
        except Exception:  # noqa: BLE001 (user code: a job that failed must be settled)
            seconds = Exponential()(attempt)
        if not math.isfinite(seconds):
            seconds = LONGEST_DELAY
        return max(0.0, seconds * (1 - jitter))


class Verdict(msgspec.Struct, frozen=True):
    """Whether an exception is worth another attempt, and after how many seconds at least."""

    transient: bool
    after: float | None = None


PERMANENT = Verdict(False)
_TRANSIENT_STATUS = frozenset({408, 425, 429})


def classify(error: BaseException, retry: Retry, now: datetime | None = None) -> Verdict:
    """Tell transient from permanent failures, most specific knowledge first."""
    if isinstance(error, Permanent | DecodeError | EncodeError | ConfigError):
        return PERMANENT  # No attempt will find another program.
    told = _told_by_task(error, retry)
    if told is not None:
        return Verdict(told, retry_after(error, now) if told else None)
    status, after = http_status(error), retry_after(error, now)
    if after is None and status not in _TRANSIENT_STATUS and 400 <= (status or 0) < 500:
        return PERMANENT
    return Verdict(True, after)


def _told_by_task(error: BaseException, retry: Retry) -> bool | None:
    for kind in type(error).__mro__:
        if kind in retry.never:
            return False
        if kind in retry.on:
            return True
    if retry.when is None:
        return None
    try:
        answer = retry.when(error)
    except Exception:  # noqa: BLE001 (user code, asked about an exception it may not know)
        return None
    return None if answer is None else bool(answer)


def http_status(error: BaseException) -> int | None:
    """Find the HTTP status in an exception of httpx, requests, aiohttp, urllib or boto."""
    response = _read(error, "response")
    for holder, name in (
        (response, "status_code"),
        (response, "status"),
        (_metadata(response), "HTTPStatusCode"),
        (error, "status_code"),
        (error, "status"),
        (error, "code"),
    ):
        value = _read(holder, name)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


def retry_after(error: BaseException, now: datetime | None = None) -> float | None:
    """Read a `Retry-After` of the response behind an exception: seconds, or an HTTP date."""
    response = _read(error, "response")
    for headers in (
        _read(response, "headers"),
        _read(_metadata(response), "HTTPHeaders"),
        _read(error, "headers"),
    ):
        read = getattr(headers, "get", None)
        value = read and (read("Retry-After") or read("retry-after"))
        if value is not None:
            return _seconds(str(value).strip(), now)
    return None


def _read(holder: object, name: str) -> object:
    try:
        return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    except Exception:  # noqa: BLE001 (user code: a property may raise anything)
        return None


def _metadata(response: object) -> object:
    return _read(response, "ResponseMetadata") if isinstance(response, Mapping) else None


def _seconds(text: str, now: datetime | None) -> float | None:
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_DELAY)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 (rarely needed, slow to import)

    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    wait = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(0.0, wait), LONGEST_DELAY)
