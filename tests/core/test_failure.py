import asyncio
import os.path
import sysconfig
import uuid
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.failure import (
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    Failure,
    describe,
    described,
)

texts = st.text(st.characters(exclude_categories=()))


def raised(error: BaseException) -> BaseException:
    """Return the exception with a traceback, as a handler would leave it."""
    try:
        raise error
    except BaseException as caught:
        return caught


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def assert_storable(failure: Failure) -> None:
    """Small, valid UTF-8, and without the NUL that PostgreSQL refuses."""
    for text, limit in (
        (failure.error, 1_024),
        (failure.message, MESSAGE_LIMIT),
        (failure.traceback or "", TRACEBACK_LIMIT),
        (failure.fingerprint, 16),
    ):
        text.encode("utf-8")
        assert "\0" not in text
        assert len(text) <= 2 * limit


class Sticky(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text today")


def test_a_failure_names_the_class_the_message_and_the_place() -> None:
    failure = describe(raised(ValueError("no such user")))

    assert failure.error == "ValueError"
    assert failure.message == "no such user"
    assert failure.traceback is not None
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert "in raised" in failure.traceback
    assert failure.traceback.endswith("ValueError: no such user\n")


def test_a_class_is_named_with_its_module() -> None:
    class Declined(Exception):
        pass

    assert describe(Declined()).error.endswith(f"{__name__}.{Declined.__qualname__}")
    assert describe(KeyError("x")).error == "KeyError"


def test_an_exception_that_was_never_raised_can_be_described() -> None:
    failure = describe(ValueError("no"))

    assert failure.message == "no"
    assert failure.traceback == "ValueError: no\n"


def test_an_exception_without_a_message_can_be_described() -> None:
    assert describe(ValueError()).message == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_exceptions_that_are_no_errors_can_be_described(error: BaseException) -> None:
    assert describe(raised(error)).error == type(error).__name__


def test_an_exception_that_cannot_be_printed_says_so() -> None:
    failure = describe(raised(Sticky()))

    assert failure.message == "<its text cannot be printed: RuntimeError>"
    assert failure.error.endswith(".Sticky")
    assert_storable(failure)


class Stop(BaseException):
    """Not an Exception, like asyncio.CancelledError and the exceptions of gevent and others."""


@pytest.mark.parametrize("inner", [Stop, asyncio.CancelledError, RecursionError])
def test_whatever_a_text_raises_stays_inside(inner: type[BaseException]) -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise inner

    error = raised(Nasty())
    try:
        failure = describe(error)
    except BaseException as escaped:
        # Not let through: pytest would stop at a BaseException, or print the exception again.
        problem: str | None = type(escaped).__name__
    else:
        problem = None
        assert_storable(failure)

    assert problem is None


def test_a_text_that_is_no_text_is_put_up_with() -> None:
    class Odd(Exception):
        def __str__(self) -> Any:
            return 5  # noqa: PLE0307 (the point of the test)

    assert_storable(describe(raised(Odd())))


def test_a_message_of_a_hundred_megabytes_is_cut_in_the_middle() -> None:
    failure = describe(raised(ValueError("begin" + "x" * 100_000_000 + "end")))

    assert failure.message.startswith("beginx")
    assert failure.message.endswith("xend")
    assert "characters left out" in failure.message
    assert_storable(failure)


@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 100])
def test_a_message_is_never_longer_than_the_limit(extra: int) -> None:
    text = "x" * (MESSAGE_LIMIT + extra)
    failure = describe(ValueError(text))

    assert (failure.message == text) is (extra <= 0)
    assert len(failure.message) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    "letter", ["\0", "\ud800", "é", "\U0001f600"], ids=["nul", "surrogate", "accent", "emoji"]
)
def test_a_message_of_letters_that_must_be_replaced_is_not_longer_either(letter: str) -> None:
    assert len(describe(ValueError(letter * MESSAGE_LIMIT)).message) <= MESSAGE_LIMIT


def test_lone_surrogates_and_nul_are_written_out() -> None:
    failure = describe(raised(ValueError("a\ud800b\0c")))

    assert failure.message == "a\\ud800b\\x00c"
    assert_storable(failure)


def test_causes_that_run_in_a_circle_come_to_an_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    failure = describe(raised(one))

    assert failure.message == "one"
    assert failure.traceback is not None
    assert "two" in failure.traceback
    assert_storable(failure)


def test_the_cause_is_part_of_the_traceback() -> None:
    def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    trace = describe(caught(fail)).traceback or ""

    assert trace.index("KeyError: 'inner'") < trace.index("direct cause")
    assert trace.index("direct cause") < trace.index("ValueError: outer")


def test_a_chain_of_ten_thousand_causes_comes_to_an_end() -> None:
    error = ValueError("0")
    for number in range(1, 10_000):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer

    assert describe(error).message == "9999"
    assert_storable(describe(error))


def test_a_group_shows_what_is_in_it() -> None:
    group = ExceptionGroup("two went wrong", [ValueError("first"), KeyError("second")])
    failure = describe(raised(group))

    assert failure.error == "ExceptionGroup"
    assert failure.message == "two went wrong (2 sub-exceptions)"
    assert failure.traceback is not None
    assert "ValueError: first" in failure.traceback
    assert "KeyError: 'second'" in failure.traceback


def test_groups_nested_a_thousand_deep_come_to_an_end() -> None:
    error: Exception = ValueError("core")
    for _ in range(1_000):
        error = ExceptionGroup("layer", [error])

    assert_storable(describe(raised(error)))


def test_endless_recursion_leaves_a_small_traceback() -> None:
    def fall() -> None:
        fall()

    failure = describe(caught(fall))

    assert failure.error == "RecursionError"
    assert failure.traceback is not None
    assert "fall" in failure.traceback
    assert_storable(failure)


def test_notes_are_part_of_the_traceback() -> None:
    error = ValueError("no")
    error.add_note("while sending to anna")

    assert "while sending to anna" in (describe(raised(error)).traceback or "")


def test_notes_that_cannot_be_printed_harm_nobody() -> None:
    error = ValueError("no")
    error.__notes__ = [Sticky(), 5, "\ud800"]

    assert_storable(describe(raised(error)))


def test_a_class_with_a_name_of_a_million_letters_is_cut() -> None:
    assert_storable(describe(type("X" * 1_000_000, (Exception,), {})("no")))


@given(texts, texts)
def test_whatever_the_texts_a_failure_is_storable(message: str, note: str) -> None:
    error = ValueError(message)
    error.add_note(note)
    error.__cause__ = KeyError(note, message)

    assert_storable(describe(raised(error)))


@given(st.lists(st.one_of(texts, st.binary(), st.integers(), st.floats(), st.none())))
def test_whatever_the_arguments_an_exception_can_be_described(args: list[Any]) -> None:
    for kind in (Exception, KeyError, OSError, SystemExit):
        assert_storable(describe(raised(kind(*args))))


@given(texts)
def test_whatever_the_text_a_failure_without_exception_is_storable(text: str) -> None:
    """Exit codes are ours, but the evidence of an `Ambiguous` is the handler's."""
    assert_storable(described("Ambiguous", text))


def test_a_failure_without_exception_is_small() -> None:
    assert_storable(described("Ambiguous", "x" * 1_000_000))


def test_a_failure_without_exception_has_no_traceback() -> None:
    failure = described("Crashed", "SIGKILL")

    assert (failure.error, failure.message, failure.traceback) == ("Crashed", "SIGKILL", None)
    assert failure.fingerprint == described("Crashed", "SIGKILL").fingerprint
    assert failure.fingerprint != described("Crashed", "SIGSEGV").fingerprint


# Fingerprints


def find_user(text: str) -> None:
    raise LookupError(text)


def find_order(text: str) -> None:
    raise LookupError(text)


def print_of(function: Callable[[], object]) -> str:
    return describe(caught(function)).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no user 17", "no user 12345678901234567890"),
        ("took 0.25 s", "took 13.5 s"),
        ("<User at 0x7f00ab>", "<User at 0x7FFFCD00>"),
        (f"no job {uuid.UUID(int=1)}", "no job 018f6b1e-9c3d-7abc-9def-0123456789ab"),
        (f"no job {uuid.UUID(int=1).hex}", f"no job {uuid.UUID(int=2**127 + 0xABCDEF).hex}"),
        ("row 1 of table 2", "row 30 of table 40"),
    ],
)
def test_the_same_problem_with_other_numbers_and_ids_has_the_same_fingerprint(
    one: str, other: str
) -> None:
    assert print_of(lambda: find_user(one)) == print_of(lambda: find_user(other))


@given(st.integers(min_value=0), st.integers(min_value=0))
def test_numbers_do_not_matter_for_the_fingerprint(one: int, other: int) -> None:
    assert print_of(lambda: find_user(f"user {one}")) == print_of(
        lambda: find_user(f"user {other}")
    )


@given(st.uuids(), st.uuids())
def test_ids_do_not_matter_for_the_fingerprint(one: uuid.UUID, other: uuid.UUID) -> None:
    assert print_of(lambda: find_user(f"user {one}")) == print_of(
        lambda: find_user(f"user {other}")
    )


def test_quoted_values_do_not_matter_for_the_fingerprint() -> None:
    messages = ["no @ in 'nobody'", "no @ in 'a \"b\" c'", 'no @ in "somebody"', "no @ in ''"]
    assert len({described("ValueError", message).fingerprint for message in messages}) == 1
    assert described("E", "it's 1").fingerprint != described("E", "its 1").fingerprint


def test_another_message_has_another_fingerprint() -> None:
    assert print_of(lambda: find_user("no user")) != print_of(lambda: find_user("no account"))


def test_another_class_has_another_fingerprint() -> None:
    def fail(kind: type[Exception]) -> None:
        raise kind("no")

    assert print_of(lambda: fail(KeyError)) != print_of(lambda: fail(IndexError))


def test_another_function_has_another_fingerprint() -> None:
    assert print_of(lambda: find_user("no")) != print_of(lambda: find_order("no"))


def test_another_line_of_the_same_function_has_the_same_fingerprint() -> None:
    """Deploying a version with one line more above must not make a new problem."""

    def fail(early: bool) -> None:
        if early:
            raise ValueError("no")
        raise ValueError("no")

    assert print_of(lambda: fail(True)) == print_of(lambda: fail(False))


def test_methods_of_the_same_name_in_other_classes_have_other_fingerprints() -> None:
    class Mail:
        def run(self) -> None:
            raise ValueError("no")

    class Report:
        def run(self) -> None:
            raise ValueError("no")

    assert print_of(Mail().run) != print_of(Report().run)


def compiled(source: str, file: str, module: str) -> dict[str, Any]:
    """Run source as if it stood in this file."""
    code: CodeType = compile(source, file, "exec")
    space: dict[str, Any] = {"__name__": module}
    exec(code, space)
    return space


RUN = "def run():\n    raise ValueError('no')\n"


def test_functions_of_the_same_name_in_other_modules_have_other_fingerprints() -> None:
    """Every Django app has its own tasks.py."""
    mail = compiled(RUN, "/srv/shop/mail/tasks.py", "mail.tasks")["run"]
    reports = compiled(RUN, "/srv/shop/reports/tasks.py", "reports.tasks")["run"]

    assert print_of(mail) != print_of(reports)


def test_a_problem_inside_a_library_is_told_by_who_called_the_library() -> None:
    library = os.path.join(sysconfig.get_path("purelib"), "somebody", "client.py")
    run = compiled(RUN, library, "somebody.client")["run"]

    def from_mail() -> None:
        run()

    def from_reports() -> None:
        run()

    assert print_of(from_mail) == print_of(from_mail)
    assert print_of(from_mail) != print_of(from_reports)


def test_an_application_that_is_installed_like_a_library_has_fingerprints_too() -> None:
    """`pip install .` in an image puts all of the application beside its libraries."""
    folder = sysconfig.get_path("purelib")
    runner = compiled("def call(f):\n    f()\n", f"{folder}/fairlead/runtime/runner.py", "runner")
    shop = compiled(RUN + RUN.replace("run", "build"), f"{folder}/shop/tasks.py", "shop.tasks")

    def failed(name: str) -> str:
        error = caught(lambda: runner["call"](shop[name]))
        while error.__traceback__ and error.__traceback__.tb_frame.f_globals is not runner:
            error.__traceback__ = error.__traceback__.tb_next
        return describe(error).fingerprint

    assert failed("run") != failed("build")


@pytest.mark.parametrize("size", [0, 2_000, 3_000, 20_000, 200_000])
def test_no_password_of_a_store_is_written_down(size: int) -> None:
    """Drivers and handlers put the URL into what they raise, and dead letters are shown (T9)."""
    url = f"postgresql://ada:c4n4ry@?#/{'p' * 2_000}@db/shop"
    failure = describe(ValueError(f"{'x' * size} cannot reach {url} {'y' * size}"))
    assert "c4n4ry" not in f"{failure.message}{failure.traceback}"
    assert "ppp" not in f"{failure.message}{failure.traceback}"
