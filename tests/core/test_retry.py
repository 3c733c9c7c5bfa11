import math
import socket
import ssl
import urllib.error
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import ConfigError, DecodeError, EncodeError, Permanent
from fairlead.core.retry import (
    LONGEST_DELAY,
    Backoff,
    Curve,
    Exponential,
    Fixed,
    Linear,
    Retry,
    Verdict,
    classify,
    exponential,
    fixed,
    http_status,
    linear,
    retry_after,
)

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)

seconds = st.floats(min_value=0, max_value=LONGEST_DELAY)
parts = st.floats(min_value=0, max_value=1)
curves = st.one_of(
    st.builds(exponential, seconds, seconds, seconds, parts),
    st.builds(linear, seconds, seconds, seconds, parts),
    st.builds(fixed, seconds, parts),
)


# Curves


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        (exponential(), [1, 2, 4, 8, 16]),
        (exponential(base=0.5, factor=3), [0.5, 1.5, 4.5, 13.5, 40.5]),
        (exponential(base=100, cap=250), [100, 200, 250, 250, 250]),
        (exponential(base=8, factor=0.5), [8, 4, 2, 1, 0.5]),
        (linear(), [1, 2, 3, 4, 5]),
        (linear(base=10, step=20, cap=60), [10, 30, 50, 60, 60]),
        (fixed(7), [7, 7, 7, 7, 7]),
        (exponential(base=400, cap=300), [300, 300, 300, 300, 300]),
    ],
    ids=repr,
)
def test_a_curve_gives_the_seconds_after_each_attempt(curve: Curve, expected: list[float]) -> None:
    assert [curve(attempt) for attempt in range(1, 6)] == expected


@pytest.mark.parametrize("factor", [2, 2.0, 1.5, LONGEST_DELAY])
def test_the_ten_thousandth_attempt_waits_for_the_cap(factor: float) -> None:
    assert exponential(factor=factor, cap=300)(10_000) == 300
    assert linear(step=factor, cap=300)(10_000) == 300


def test_nothing_times_anything_is_nothing_even_after_ten_thousand_attempts() -> None:
    assert exponential(base=0, factor=3.0)(10_000) == 0


@given(curves, st.integers(min_value=1, max_value=10_000))
def test_a_curve_never_passes_its_cap(curve: Curve, attempt: int) -> None:
    cap = curve.seconds if isinstance(curve, Fixed) else curve.cap
    assert 0 <= curve(attempt) <= cap


@given(curves, st.integers(min_value=1, max_value=10_000), st.floats(0, 1, exclude_max=True))
def test_jitter_only_shortens_and_only_by_its_part(
    curve: Curve, attempt: int, random: float
) -> None:
    full = curve(attempt)
    delay = Retry(backoff=curve).delay(attempt, lambda: random)

    assert full * (1 - curve.jitter) <= delay <= full or math.isclose(delay, full)


def test_jitter_spreads_jobs_that_failed_together() -> None:
    retry = Retry(backoff=fixed(100, jitter=0.3))

    assert retry.delay(1, lambda: 0.0) == 100
    assert retry.delay(1, lambda: 0.5) == 85
    assert retry.delay(1, lambda: 0.999) == pytest.approx(70, abs=0.1)


def test_jitter_is_on_unless_switched_off() -> None:
    assert exponential().jitter == linear().jitter == fixed().jitter == 0.3
    assert getattr(Retry().backoff, "jitter", None) == 0.3
    assert Retry(backoff=fixed(10, jitter=0)).delay(1, lambda: 0.999) == 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: exponential(base=-1),
        lambda: exponential(factor=math.inf),
        lambda: exponential(cap=math.nan),
        lambda: linear(step=-0.1),
        lambda: fixed(LONGEST_DELAY + 1),
    ],
)
def test_a_curve_of_impossible_numbers_is_refused(make: Callable[[], Curve]) -> None:
    with pytest.raises(ConfigError, match="must lie between 0 and"):
        make()


def test_a_refused_curve_names_the_number() -> None:
    with pytest.raises(ConfigError) as caught:
        exponential(jitter=1.5)

    assert str(caught.value) == "a retry curve's jitter must lie between 0 and 1, not 1.5"


@pytest.mark.parametrize("value", ["1", None, timedelta(seconds=1)], ids=repr)
def test_a_curve_of_things_that_are_no_numbers_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="base"):
        exponential(base=value)


@pytest.mark.parametrize("curve", [Exponential(2, 3, 4, 0.5), Linear(2, 3, 4, 0.5), Fixed(2, 0.5)])
def test_a_curve_travels_as_json(curve: Curve) -> None:
    assert msgspec.json.decode(msgspec.json.encode(curve), type=Curve) == curve


# Retry


def test_a_task_is_tried_five_times_by_default() -> None:
    assert Retry() == Retry(attempts=5, backoff=exponential(base=1, factor=2, cap=300, jitter=0.3))


@pytest.mark.parametrize("attempts", [0, -1, 1001])
def test_attempts_must_lie_between_one_and_a_thousand(attempts: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(attempts=attempts)

    assert str(caught.value) == f"Retry(attempts=…) must lie between 1 and 1000, not {attempts}"


@pytest.mark.parametrize("attempts", [None, "5", 2.5, True], ids=repr)
def test_attempts_must_be_a_whole_number(attempts: Any) -> None:
    with pytest.raises(ConfigError, match="attempts"):
        Retry(attempts=attempts)


def test_a_backoff_must_be_a_curve_or_a_function() -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(backoff=5)  # type: ignore[arg-type]

    assert str(caught.value) == (
        "Retry(backoff=…) must be a curve such as exponential(), or a function "
        "from the attempt to seconds, not 5"
    )


@pytest.mark.parametrize("option", ["on", "never"])
def test_a_single_exception_class_is_taken_or_refused_but_never_breaks_a_worker(
    option: str,
) -> None:
    """`Retry(on=ValueError)` is an easy slip; it must not surface as a TypeError in a worker."""
    try:
        retry = Retry(**{option: ValueError})  # type: ignore[arg-type]
    except ConfigError:
        return
    assert classify(ValueError(), retry).transient is (option == "on")


def test_any_function_can_be_a_backoff() -> None:
    retry = Retry(backoff=lambda attempt: attempt * 10)

    assert [retry.delay(attempt, lambda: 0.999) for attempt in (1, 2, 3)] == [10, 20, 30]


def test_a_function_may_bring_its_own_jitter() -> None:
    class Steps:
        jitter = 0.5

        def __call__(self, attempt: int) -> float:
            return 100.0

    assert Retry(backoff=Steps()).delay(1, lambda: 0.5) == 75


@pytest.mark.parametrize(
    "backoff",
    [
        lambda _: math.nan,
        lambda _: math.inf,
        lambda _: -math.inf,
        lambda _: 1e300,
        lambda _: -5,
        lambda attempt: 3**attempt,
    ],
    ids=["nan", "inf", "-inf", "1e300", "-5", "3**attempt"],
)
def test_whatever_number_a_function_returns_the_delay_is_one_a_job_can_wait(
    backoff: Backoff,
) -> None:
    """`3 ** attempt` is no float any more at attempt 1,000."""
    assert 0 <= Retry(attempts=1000, backoff=backoff).delay(1000, lambda: 0.5) <= LONGEST_DELAY


def test_a_negative_backoff_means_at_once() -> None:
    assert Retry(backoff=lambda _: -5).delay(1, lambda: 0.5) == 0


def broken(_: int) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "backoff",
    [broken, lambda _: None, lambda _: "soon", lambda _: timedelta(seconds=5)],
    ids=["raises", "None", "text", "timedelta"],
)
def test_a_function_that_fails_still_gives_a_delay(backoff: Any) -> None:
    """The job failed already; its settlement must not fail on top of it."""
    assert 0 <= Retry(backoff=backoff).delay(1, lambda: 0.5) <= LONGEST_DELAY


# Stand-ins, shaped like the exceptions of HTTP libraries


class Response:
    """The part of a response that httpx and requests share."""

    def __init__(self, status: int, **headers: str) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HTTPStatusError(Exception):
    """httpx.HTTPStatusError, and requests.HTTPError: the status is in the response."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status_code}")
        self.response = response


class ConnectTimeout(Exception):
    """requests.ConnectTimeout: there is a response attribute, but no response."""

    response = None


class ClientResponseError(Exception):
    """aiohttp.ClientResponseError: status and headers are the exception's own."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{status}")
        self.status, self.headers = status, headers


class ClientError(Exception):
    """botocore.exceptions.ClientError: the response is a dict."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"{status}")
        self.response = {
            "Error": {"Code": "SlowDown", "Message": "…"},
            "ResponseMetadata": {
                "HTTPStatusCode": status,
                "HTTPHeaders": {name.replace("_", "-"): text for name, text in headers.items()},
            },
        }


def urllib_error(status: int, **headers: str) -> urllib.error.HTTPError:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("https://example.org", status, "…", message, None)


def httpx_error(status: int, **headers: str) -> Exception:
    return HTTPStatusError(Response(status, **headers))


def aiohttp_error(status: int, **headers: str) -> Exception:
    return ClientResponseError(
        status, {name.replace("_", "-"): value for name, value in headers.items()}
    )


Library = Callable[..., Exception]
LIBRARIES = pytest.mark.parametrize(
    "library", [urllib_error, httpx_error, aiohttp_error, ClientError], ids=lambda f: f.__name__
)


# Classification


@LIBRARIES
@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
def test_errors_of_the_server_are_transient(library: Library, status: int) -> None:
    assert classify(library(status), Retry()) == Verdict(True)


@LIBRARIES
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 499])
def test_errors_of_the_client_are_permanent(library: Library, status: int) -> None:
    assert classify(library(status), Retry()) == Verdict(False)


@LIBRARIES
@pytest.mark.parametrize("status", [408, 425, 429])
def test_too_early_too_slow_and_too_many_are_transient(library: Library, status: int) -> None:
    assert classify(library(status), Retry()) == Verdict(True)


@LIBRARIES
@pytest.mark.parametrize("status", [429, 503])
def test_a_retry_after_is_honoured(library: Library, status: int) -> None:
    assert classify(library(status, Retry_After="120"), Retry()) == Verdict(True, after=120)


@LIBRARIES
def test_a_retry_after_makes_any_client_error_transient(library: Library) -> None:
    """Some answer 403 with Retry-After when a rate limit is hit; they asked us to come back."""
    assert classify(library(403, Retry_After="60"), Retry()) == Verdict(True, after=60)


@LIBRARIES
def test_the_status_is_found_in_the_exceptions_of_every_library(library: Library) -> None:
    assert http_status(library(418)) == 418


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "refused"),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        socket.gaierror(-2, "Name or service not known"),
        ssl.SSLError("handshake"),
        urllib.error.URLError("no route to host"),
        ConnectTimeout(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_connection_and_time_out_errors_are_transient(error: Exception) -> None:
    assert classify(error, Retry()) == Verdict(True)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), AssertionError(), OSError(5)])
def test_anything_else_is_transient(error: Exception) -> None:
    assert classify(error, Retry()) == Verdict(True)


@pytest.mark.parametrize(
    "error",
    [Permanent("no such user"), DecodeError("the payload", "no"), EncodeError("t", "a", "no")],
)
def test_permanent_and_bad_arguments_are_permanent_whatever_the_task_says(
    error: Exception,
) -> None:
    assert classify(error, Retry()) == Verdict(False)
    assert classify(error, Retry(on=(Exception,), when=lambda _: True)) == Verdict(False)


@pytest.mark.parametrize("code", ["404", 1006, 7, True, None, 404.0])
def test_a_code_that_is_no_http_status_says_nothing(code: object) -> None:
    """SQLAlchemy, websockets and others have a `code` of their own."""
    error = RuntimeError()
    error.code = code  # type: ignore[attr-defined]

    assert http_status(error) is None
    assert classify(error, Retry()).transient


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"ResponseMetadata": None},
        {"ResponseMetadata": {}},
        {"ResponseMetadata": {"HTTPStatusCode": "404"}},
        {"ResponseMetadata": "404"},
        {"status": "error"},
        "404",
        7,
        Ellipsis,
    ],
    ids=repr,
)
def test_a_response_of_another_shape_says_nothing(response: object) -> None:
    error = RuntimeError()
    error.response = response  # type: ignore[attr-defined]

    assert http_status(error) is None
    assert classify(error, Retry()) == Verdict(True)


def test_an_exception_that_cannot_be_looked_at_is_like_any_other() -> None:
    """A property that raises anything but AttributeError passes through getattr()."""

    class Guarded(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("the response has not been set")

    assert classify(Guarded(), Retry()) == Verdict(True)


# Retry-After


def after(value: object, now: datetime = NOW) -> float | None:
    return retry_after(ClientResponseError(429, {"Retry-After": value}), now)  # type: ignore[dict-item]


def test_a_retry_after_may_be_seconds() -> None:
    assert after("120") == 120
    assert after(" 7 ") == 7
    assert after("0") == 0
    assert after(30) == 30


def test_a_retry_after_may_be_a_date() -> None:
    assert after("Wed, 01 May 2024 12:01:30 GMT") == 90
    assert after(format_datetime(NOW + timedelta(hours=1))) == 3600
    assert after("Wednesday, 01-May-24 12:01:30 GMT") == 90
    assert after("Wed May  1 12:01:30 2024") == 90


def test_a_date_that_has_passed_means_at_once() -> None:
    assert after("Wed, 01 May 2024 11:00:00 GMT") == 0


def test_a_date_is_compared_with_the_machines_time_if_no_other_is_given() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=False)

    found = retry_after(ClientResponseError(429, {"Retry-After": soon}))

    assert found is not None
    assert 3_500 < found <= 3_600


@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
def test_a_retry_after_is_found_in_plain_dicts_too(name: str) -> None:
    assert retry_after(ClientResponseError(429, {name: "5"})) == 5


@pytest.mark.parametrize(
    "value",
    ["", "soon", "-5", "1.5", "NaN", "٣", "²", "Wed, 99 May 2024 12:00:00 GMT", "\ud800", "0x10"],
)
def test_a_retry_after_nobody_can_read_says_nothing(value: str) -> None:
    assert after(value) is None
    assert classify(ClientResponseError(429, {"Retry-After": value}), Retry()) == Verdict(True)


@pytest.mark.parametrize("value", ["9" * 400, "9" * 5_000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_huge_retry_after_is_a_year_at_most(value: str) -> None:
    assert after(value) == LONGEST_DELAY


@given(
    st.text()
    | st.from_regex(
        r"\A[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{1,6} \d\d:\d\d:\d\d [-+]?\d{1,30}\Z"
    )
    | st.from_regex(r"\A\d{1,2} (Jan|May) \d{1,5} \d{1,3}:\d{1,3}:\d{1,3} ([-+]\d{1,12}|GMT)\Z")
)
def test_no_retry_after_harms_us(value: str) -> None:
    found = after(value)

    assert found is None or 0 <= found <= LONGEST_DELAY


@pytest.mark.parametrize("zone", ["+9999", "-9999", "+99999999999999"])
def test_a_date_in_an_impossible_time_zone_harms_nobody(zone: str) -> None:
    found = after(f"Wed, 01 May 2024 12:00:00 {zone}")

    assert found is None or 0 <= found <= LONGEST_DELAY


# on=, never= and when=


class Bank(Exception):
    pass


class Declined(Bank):
    pass


class Fraud(Declined):
    pass


def test_never_makes_an_exception_permanent() -> None:
    retry = Retry(never=(Bank,))

    assert classify(Bank(), retry) == Verdict(False)
    assert classify(Fraud(), retry) == Verdict(False)
    assert classify(ValueError(), retry) == Verdict(True)


def test_on_makes_an_exception_transient() -> None:
    retry = Retry(on=(HTTPStatusError,))

    assert classify(httpx_error(404), retry) == Verdict(True)
    assert classify(aiohttp_error(404), retry) == Verdict(False)


def test_on_honours_a_retry_after() -> None:
    retry = Retry(on=(HTTPStatusError,))

    assert classify(httpx_error(404, Retry_After="9"), retry) == Verdict(True, after=9)


def test_never_wants_no_delay() -> None:
    retry = Retry(never=(HTTPStatusError,))

    assert classify(httpx_error(503, Retry_After="9"), retry) == Verdict(False)


@pytest.mark.parametrize(
    ("error", "transient"),
    [(Bank(), True), (Declined(), False), (Fraud(), True)],
    ids=lambda value: type(value).__name__,
)
def test_the_most_specific_class_wins(error: Exception, transient: bool) -> None:
    retry = Retry(on=(Fraud, Bank), never=(Declined,))

    assert classify(error, retry).transient is transient


def test_never_wins_over_on_for_the_same_class() -> None:
    assert classify(Bank(), Retry(on=(Bank,), never=(Bank,))) == Verdict(False)


def test_when_is_asked_only_about_what_on_and_never_leave_open() -> None:
    asked: list[BaseException] = []

    def when(error: BaseException) -> bool:
        asked.append(error)
        return False

    retry = Retry(on=(Bank,), never=(KeyError,), when=when)
    classify(Bank(), retry)
    classify(KeyError(), retry)
    assert asked == []

    error = ValueError()
    assert classify(error, retry) == Verdict(False)
    assert asked == [error]


def test_when_may_leave_the_decision_to_the_usual_rules() -> None:
    retry = Retry(when=lambda _: None)

    assert classify(httpx_error(404), retry) == Verdict(False)
    assert classify(httpx_error(503), retry) == Verdict(True)


def test_when_can_make_a_client_error_transient() -> None:
    assert classify(httpx_error(404), Retry(when=lambda _: True)) == Verdict(True)


@pytest.mark.parametrize(
    ("answer", "transient"), [(1, True), ("yes", True), (0, False), ((), False)]
)
def test_the_answer_of_when_is_a_plain_yes_or_no(answer: Any, transient: bool) -> None:
    """`error.args and …` answers `()`, which must not be taken for a yes further on."""
    assert classify(ValueError(), Retry(when=lambda _: answer)).transient is transient


def test_a_predicate_that_fails_leaves_the_decision_to_the_usual_rules() -> None:
    """`when` is the user's code, asked about exceptions it may never have seen."""

    def when(error: BaseException) -> bool:
        return bool(error.args[0].startswith("timeout"))

    assert classify(ValueError(), Retry(when=when)) == Verdict(True)
    assert classify(httpx_error(404), Retry(when=lambda _: 1 / 0 > 0)) == Verdict(False)
