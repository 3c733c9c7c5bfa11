import inspect
import pickle
import re
from datetime import UTC, datetime

import pytest

from fairlead.core import errors
from fairlead.core.acts import Action
from fairlead.core.clock import SECOND, instant
from fairlead.core.errors import did_you_mean
from fairlead.core.ids import IdMaker
from fairlead.producer import Call
from tests.words import new_job

CALL: Call[None] = Call(new_job())
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and kind.__module__ == errors.__name__
}

# Kinds that only group others: they are caught, and raised with a message of the raiser's own.
GROUPS = {
    errors.FairleadError,
    errors.FairleadWarning,
    errors.ConfigError,
    errors.EnqueueError,
    errors.StoreError,
    errors.Signal,
}

EXAMPLES: list[tuple[Exception, str]] = [
    (
        errors.BadCursor("sqlite.kwHO", "it is damaged, or not whole"),
        (
            "the cursor 'sqlite.kwHO' leads nowhere here: it is damaged, or not whole; begin the "
            "list anew, without a cursor"
        ),
    ),
    (
        errors.UnknownTask("emails.welcom", ["emails.welcome", "reports.build"]),
        (
            "no task is registered as 'emails.welcom' (did you mean 'emails.welcome'?); "
            "import the module that defines it before you ask for it"
        ),
    ),
    (
        errors.DuplicateTask("mail.send", "a.send (a.py:1)", "b.send (b.py:2)"),
        (
            "two functions are registered as task 'mail.send': a.send (a.py:1) and b.send (b.py:2); "
            'give one of them another name, as in @app.task(name="…")'
        ),
    ),
    (
        errors.MissingExtra("postgres", "postgresql://"),
        'postgresql:// needs an extra package: pip install "fairlead[postgres]", or ".[postgres]" '
        "in a clone",
    ),
    (
        errors.UnknownQueue("mial", ["mail", "default"]),
        (
            "no queue is declared as 'mial' (did you mean 'mail'?); "
            "declare it on the app, as in Fairlead(queues=[Queue('mial')])"
        ),
    ),
    (
        errors.InvalidOption("timeout", "must be seconds", "soon"),
        "timeout= must be seconds, not 'soon'",
    ),
    (
        errors.WaitsForItself("jobs.db", "a transaction of this thread", in_coroutine=False),
        (
            "a transaction of this thread has the write lock of jobs.db, so this call would wait for "
            "itself; to be part of that transaction pass its connection, as in "
            "task.using(connection=conn).enqueue(…) or job.commit(conn); or commit it first"
        ),
    ),
    (
        errors.EncodeError("mail.send", "user_id", "expected `int`, got `str`"),
        "argument 'user_id' of task 'mail.send': expected `int`, got `str`",
    ),
    (
        errors.EncodeError("mail.send", None, "missing required argument 'user_id'"),
        "call of task 'mail.send': missing required argument 'user_id'",
    ),
    (
        errors.PayloadTooLarge("mail.send", 300_008, 262_144),
        (
            "the arguments of task 'mail.send' take 300,008 bytes, the limit is 262,144; "
            "put the data where both sides can reach it (a file, a row, a bucket) and pass its name"
        ),
    ),
    (
        errors.TaskNotAllowed("mail.news", "alarms", ["page.doctor", "mail.alarm"]),
        (
            "task 'mail.news' may not use the critical queue 'alarms', which is kept for "
            "mail.alarm, page.doctor; use an ordinary queue, or add the task to the queue's `tasks`"
        ),
    ),
    (
        errors.StoreUnavailable("sqlite:///jobs.db", "database is locked"),
        "sqlite:///jobs.db: database is locked",
    ),
    (
        errors.StoreDenied("postgresql://web@db/shop", "permission denied for table job; …"),
        "postgresql://web@db/shop: permission denied for table job; …",
    ),
    (
        errors.StoreGone("sqlite:///jobs.db", "the file was removed; put it back"),
        "sqlite:///jobs.db: the file was removed; put it back",
    ),
    (
        errors.StoreFull("redis://localhost:6379/0", "the server is at its maxmemory"),
        "redis://localhost:6379/0: the server is at its maxmemory",
    ),
    (
        errors.Unanswered("redis://localhost:6379/0", "no answer within 5 s"),
        "redis://localhost:6379/0: no answer within 5 s",
    ),
    (
        errors.Unanswered("redis://localhost:6379/0", "no answer within 5 s", None, (CALL,)),
        (
            f"redis://localhost:6379/0: no answer within 5 s. Job {CALL.id} may exist all the same. "
            "Repeat app.enqueue_many([error.call]) until it returns: its id is known, so there is one "
            "job"
        ),
    ),
    (
        errors.Unanswered("redis://localhost:6379/0", "no answer within 5 s", None, (CALL,) * 1200),
        (
            "redis://localhost:6379/0: no answer within 5 s. 1,200 jobs may exist all the same. "
            "Repeat app.enqueue_many(error.calls) until it returns: their ids are known, so none is "
            "put twice"
        ),
    ),
    (
        errors.Unanswered(
            "redis://localhost:6379/0",
            "no answer within 5 s",
            action=Action("018f", "ada", "replay", "queue mail"),
        ),
        (
            "redis://localhost:6379/0: no answer within 5 s. It may have been done all the same "
            "(replay queue mail). Do it again to make sure"
        ),
    ),
    (
        errors.Unanswered("redis://h", "is the server running?", action=Action("1", "a", "b", "c")),
        (
            "redis://h: is the server running? It may have been done all the same (b c). Do it again "
            "to make sure"
        ),
    ),
    (
        errors.StoreRefused("sqlite:///jobs.db", "UNIQUE constraint failed: fairlead_dead.id"),
        (
            "sqlite:///jobs.db: UNIQUE constraint failed: fairlead_dead.id; "
            "`fairlead doctor` tells which job is damaged"
        ),
    ),
    (
        errors.SchemaOutdated(found=1, needed=3),
        (
            "the store's schema is version 1, this program needs 3; "
            "call app.open() once, before the transaction begins"
        ),
    ),
    (
        errors.SchemaOutdated(found=4, needed=3),
        "the store's schema is version 4, this program needs 3; upgrade this program",
    ),
    (
        errors.LeaseLost("018f"),
        "job 018f is no longer ours: its lease passed to another worker",
    ),
    (
        errors.JobNotFound("018f"),
        "no job has the id 018f; that is not an id as Fairlead makes them: is it whole, and from this store?",
    ),
    (
        errors.DecodeError("the result of task 'mail.send'", "Expected `int`, got `str`"),
        "the result of task 'mail.send' cannot be read: Expected `int`, got `str`",
    ),
    (
        errors.JobFailed("018f", "mail.send", "dead", "exhausted", "ValueError: no"),
        "job 018f of task 'mail.send' is dead (exhausted): ValueError: no",
    ),
    (
        errors.JobFailed("018f", "mail.send", "cancelled", None, None),
        "job 018f of task 'mail.send' is cancelled",
    ),
    (errors.RetryAfter(0.5), "retry after 0.5 s"),
    (errors.RetryAfter(90, "the bank is closed"), "the bank is closed"),
    (errors.Snooze(60), "snooze for 60 s"),
    (errors.Cancel("the order was withdrawn"), "the order was withdrawn"),
    (errors.Permanent("no such user"), "no such user"),
    (errors.Ambiguous("no answer from the bank"), "no answer from the bank"),
]


@pytest.mark.parametrize(
    ("error", "message"), EXAMPLES, ids=[f"{type(e).__name__}" for e, _ in EXAMPLES]
)
def test_an_error_tells_what_happened_and_what_to_do(error: Exception, message: str) -> None:
    assert str(error) == message


def test_every_error_has_an_example_here() -> None:
    assert set(CLASSES.values()) - GROUPS == {type(error) for error, _ in EXAMPLES}


def test_every_class_says_in_one_line_what_it_means() -> None:
    assert [
        name for name, kind in CLASSES.items() if not kind.__doc__ or "\n" in kind.__doc__
    ] == []


def test_an_error_keeps_its_data() -> None:
    for error, _ in EXAMPLES:
        given = inspect.signature(type(error)).parameters.keys() - {"need"}
        assert given <= vars(error).keys(), type(error).__name__


def test_a_name_unlike_any_other_gets_no_guess() -> None:
    assert did_you_mean("zzz", ["mail", "reports"]) == ""
    assert did_you_mean("mail", []) == ""
    assert did_you_mean("raports", ["mail", "reports"]) == " (did you mean 'reports'?)"


def read_tree(text: str) -> dict[str, tuple[str | None, set[str]]]:
    """Read the tree of the docstring: the parent of every name, and what it also is."""
    tree: dict[str, tuple[str | None, set[str]]] = {}
    path: list[str] = []
    for line in text.splitlines():
        match = re.fullmatch(
            r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:\([a-z]+\))?(  .*)?", line
        )
        if match is None:
            continue
        depth = len(match[1]) // 4
        del path[depth:]
        also = re.search(r"\balso (.*)", match[3] or "")
        names = set(re.findall(r"[A-Z]\w+", also[1])) if also else set()
        tree[match[2]] = (path[-1] if path else None, names)
        path.append(match[2])
    return tree


def test_every_class_is_in_the_tree_of_the_module() -> None:
    assert sorted(read_tree(errors.__doc__ or "")) == sorted(CLASSES)


def test_the_tree_of_the_module_is_true() -> None:
    builtin = {kind.__name__: kind for kind in (LookupError, ImportError, TypeError, ValueError)}
    for name, (parent, also) in read_tree(errors.__doc__ or "").items():
        bases = {base.__name__ for base in CLASSES[name].__bases__}
        if parent is None:
            assert bases <= {"Exception", "UserWarning"}, name
        else:
            assert bases == {parent, *also}, name
        assert all(issubclass(CLASSES[name], {**builtin, **CLASSES}[other]) for other in also)


def test_signals_are_not_errors_of_ours() -> None:
    """`except FairleadError` in task code must not swallow the task's own signals."""
    assert not issubclass(errors.Signal, errors.FairleadError)


def test_errors_survive_the_way_out_of_a_process_pool() -> None:
    """A signal raised in a ProcessPoolExecutor breaks the pool if it cannot be pickled."""
    broken = []
    for error, message in EXAMPLES:
        try:
            back = pickle.loads(pickle.dumps(error))
        except Exception as problem:
            broken.append(f"{type(error).__name__}: {problem}")
            continue
        if str(back) != message or vars(back) != vars(error):
            broken.append(f"{type(error).__name__} came back as {back!r}")

    assert broken == []


MADE = instant(datetime(2026, 11, 10, 9, 30, 5, tzinfo=UTC))
DAY = 24 * 3600 * SECOND


@pytest.mark.parametrize(
    ("age", "says", "says_not"),
    [
        (0, "its transaction may not be committed, somebody may have deleted it", "keep"),
        (6 * DAY, "; or your app's `keep` is shorter than its age", "7 days"),
        (8 * DAY, "ended jobs are forgotten after a time (the app's `keep`, 7 days", "transaction"),
        (-2 * DAY, "a time to come: it is mistyped", "deleted"),
    ],
)
def test_an_unknown_id_is_explained_by_the_time_it_was_made(
    age: int, says: str, says_not: str
) -> None:
    job_id = IdMaker(lambda: MADE * 1_000)()
    told = str(errors.JobNotFound(job_id, MADE + age))
    assert told.startswith(f"no job has the id {job_id}, made on 2026-11-10 at 09:30:05 UTC")
    assert says in told
    assert says_not not in told


def test_an_id_from_before_our_time_is_mistyped() -> None:
    job_id = "00093e7c-5a52-7c43-9f0d-3a3e5f0b9c11"
    assert "before there was Fairlead: it is mistyped" in str(errors.JobNotFound(job_id, MADE))
