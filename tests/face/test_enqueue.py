import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead import (
    ConfigError,
    EncodeError,
    EnqueueError,
    Fairlead,
    FairleadError,
    FairleadWarning,
    PayloadTooLarge,
    Pool,
    Queue,
    Retry,
    State,
    TaskNotAllowed,
    UnknownQueue,
    exponential,
    fixed,
)
from fairlead.core.clock import ManualClock
from fairlead.core.events import Enqueued, Event
from fairlead.core.job import LONGEST_LABEL, MOST_LABELS, decode_options
from fairlead.producer import Call
from tests.words import work_off


def test_a_call_becomes_a_waiting_job(any_app: Fairlead) -> None:
    @any_app.task
    def add(a: int, b: int = 2) -> int:
        return a + b

    job = add.enqueue(1, b=3)
    record = job.record()
    assert (record.state, record.arguments, record.queue) == (
        State.WAITING,
        {"a": 1, "b": 3},
        "default",
    )
    assert record.task == "tests.face.test_enqueue.test_a_call_becomes_a_waiting_job.add"
    assert add(1) == 3, "a task is still the function it was"


async def test_aenqueue_does_the_same_from_a_loop(any_app: Fairlead) -> None:
    @any_app.task
    async def add(a: int, b: int) -> int:
        return a + b

    job = await add.aenqueue(1, 2)
    assert await job.astatus() is State.WAITING
    assert await work_off(any_app) == 1
    assert await job.aresult(5) == 3


def test_wrong_arguments_fail_at_enqueue_and_nothing_is_stored(any_app: Fairlead) -> None:
    @any_app.task(name="add")
    def add(a: int) -> int:
        return a

    with pytest.raises(EncodeError, match="argument 'a' of task 'add': expected `int`, got `str`"):
        add.enqueue("one")  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="missing required argument 'a'; it takes"):
        add.enqueue()  # type: ignore[call-arg]
    with pytest.raises(PayloadTooLarge, match="take 262,1.. bytes, the limit is 262,144; put the"):
        any_app.task(name="say")(lambda text: text).enqueue("x" * (256 * 1024))
    assert any_app.bridge.run(any_app.store.admin.count()) == {}


def test_options_travel_with_the_job(any_app: Fairlead) -> None:
    app = any_app

    @app.task
    def report(n: int) -> int:
        return n

    retry = Retry(attempts=9, backoff=exponential(base=2, jitter=0))
    job = report.using(
        priority=30,
        timeout=12,
        retry=retry,
        tags=["a", "b"],
        correlation_id="request-7",
        headers={"traceparent": "00-x"},
    ).enqueue(1)
    record = job.record()
    stored = any_app.bridge.run(any_app.store.admin.find(job.id))
    assert stored is not None
    options = decode_options(stored.options)
    assert record.priority == 30
    assert (record.tags, record.correlation_id) == (("a", "b"), "request-7")
    assert record.headers == {"traceparent": "00-x"}
    assert (options.timeout, options.attempts, options.backoff) == (12, 9, retry.backoff)
    assert (options.tags, options.correlation_id) == (("a", "b"), "request-7")
    assert options.headers == {"traceparent": "00-x"}
    plain = any_app.bridge.run(any_app.store.admin.find(report.enqueue(1).id))
    assert plain is not None
    assert plain.options is None, "using() changes nothing for others"


def test_using_adds_up(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda: None)
    record = task.using(tags=["x"]).using(priority=5).enqueue().record()
    assert (record.priority, record.tags) == (5, ("x",))


def test_delay_run_at_and_expires(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda: None)
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    assert task.using(run_at=moment).enqueue().record().run_at == moment
    record = task.using(delay=timedelta(minutes=1), expires=120).enqueue().record()
    assert record.run_at == record.enqueued_at + timedelta(seconds=60)
    assert record.expires_at == record.enqueued_at + timedelta(seconds=120)
    expires = task.using(expires=moment).enqueue().record().expires_at
    assert expires is not None
    assert expires == moment


def later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("start", "expires"),
    [
        ({"delay": 60}, 30),
        ({"delay": 60}, 60),
        ({"delay": 60}, later(30)),
        ({"run_at": later(36_000)}, 30),
        ({"run_at": later(36_000)}, later(35_000)),
    ],
    ids=["two spans", "at the same time", "until an instant", "at an instant", "two instants"],
)
def test_a_job_that_would_expire_before_it_is_due_is_refused(
    any_app: Fairlead, start: dict[str, Any], expires: Any
) -> None:
    task = any_app.task(name="t")(lambda: None)
    for late in (task.using(**start, expires=expires), task.using(**start).using(expires=expires)):
        for enqueue in (late.enqueue, late.call):
            with pytest.raises(
                EnqueueError, match=r"would never start: it is due in .* expires in"
            ):
                enqueue()
    assert any_app.bridge.run(any_app.store.admin.count()) == {}


@pytest.mark.parametrize("start", [{}, {"delay": 0}, {"run_at": later(-60)}, {"delay": 10}])
def test_a_job_that_can_start_before_it_expires_is_accepted(
    any_app: Fairlead, start: dict[str, Any]
) -> None:
    any_app.task(name="t")(lambda: None).using(**start, expires=30).enqueue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": -1}, "delay= must be seconds or a timedelta from 0 to 100 years"),
        ({"delay": float("nan")}, "delay= must be seconds"),
        ({"delay": 1, "run_at": datetime.now(UTC)}, "give delay= or run_at=, not both"),
        ({"run_at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 (that is the point)
        ({"priority": 86_401}, "head start in whole seconds, at most a day"),
        ({"priority": 1.5}, "head start in whole seconds"),
        ({"timeout": 0}, "timeout= must be seconds from 0 to 30 days"),
        ({"delay": "5"}, "delay= must be seconds or a timedelta"),
        ({"run_at": "tomorrow"}, "run_at= must be a datetime with a time zone"),
        ({"expires": "x"}, "expires= must be seconds or a timedelta"),
        ({"timeout": timedelta(1)}, "timeout= must be seconds"),
        ({"retry": 5}, "retry= takes a Retry"),
        ({"queue": 5}, "no queue is declared as 5"),
        ({"tags": 5}, "tags= takes a list of texts"),
        ({"headers": ["a"]}, "headers= takes a dict of texts"),
        ({"tags": "urgent"}, "tags= takes a list of texts, not 'urgent'"),
        ({"tags": ["𝄞" * 1_024] * 64}, "options of a job have 262,346 bytes, and may have 262,144"),
        ({"tags": ["x" * 2000]}, "at most 1024 characters"),
        ({"tags": ["\ud800"]}, "no valid Unicode"),
        ({"headers": {"a": 1}}, "headers= takes texts"),
        ({"correlation_id": "a\0b"}, "without NUL"),
        ({"retry": Retry(on=(KeyError,))}, "travels with the job"),
        ({"retry": Retry(backoff=lambda _: 1.0)}, "travels with the job"),
    ],
)
def test_bad_options_are_refused_with_a_reason(
    any_app: Fairlead, options: dict[str, object], message: str
) -> None:
    task = any_app.task(name="t")(lambda: None)
    with pytest.raises(EnqueueError, match=message):
        task.using(**options).enqueue()  # type: ignore[arg-type]


def test_unknown_queues_are_an_error_with_a_suggestion() -> None:
    app = Fairlead("memory://", queues=[Queue("reports")])
    with pytest.raises(UnknownQueue, match=r"'report' \(did you mean 'reports'\?\); declare it"):

        @app.task(queue="report")
        def build() -> None: ...

    task = app.task(queue="reports", name="t")(lambda: None)
    with pytest.raises(UnknownQueue, match="did you mean 'reports'"):
        task.using(queue="rports")


def test_a_critical_queue_takes_only_its_tasks() -> None:
    app = Fairlead("memory://", queues=[Queue("alarm", critical=True, tasks=["page"])])
    page = app.task(queue="alarm", name="page")(lambda: None)
    page.enqueue()
    other = app.task(name="other")(lambda: None)
    with pytest.raises(TaskNotAllowed, match="'other' may not use the critical queue 'alarm'"):
        other.using(queue="alarm")
    with pytest.raises(TaskNotAllowed):
        app.task(queue="alarm", name="third")(lambda: None)


@pytest.mark.parametrize("name", ["high", "low", "urgent", "HIGH_PRIORITY", "critical"])
def test_names_of_importance_draw_a_warning_that_says_why(name: str) -> None:
    with pytest.warns(FairleadWarning, match="sooner or later everything is important"):
        Queue(name)


def test_a_wrong_task_setting_is_named() -> None:
    app = Fairlead("memory://")
    with pytest.raises(
        ConfigError, match=r"a task has no runner, the pool of its .*\[\"pdf\"\], run"
    ):
        app.task(queue="pdf", runner="process")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"no setting 'que' \(did you mean 'queue'\?\)"):
        app.task(que="mail")  # type: ignore[call-overload]


def test_queues_and_pools_come_from_toml(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "pyproject.toml"
    path.write_text(
        """
        [tool.fairlead]
        url = "memory://"
        [[tool.fairlead.queues]]
        name = "mail"
        weight = 4
        [[tool.fairlead.queues]]
        name = "alarm"
        critical = true
        tasks = ["page"]
        reserve = 2
        [[tool.fairlead.pools]]
        name = "letters"
        queues = ["mail"]
        slots = 5
        runner = "thread"
        [[tool.fairlead.pools]]
        name = "rest"
        """
    )
    app = Fairlead.from_toml(path)
    assert app.store.url == "memory://"
    assert app.queues["mail"] == Queue("mail", weight=4)
    assert app.queues["alarm"].reserved == 2
    letters, rest = app.pools
    assert letters == Pool("letters", queues=("mail",), slots=5, runner="thread")
    assert rest.queues == ("alarm", "default")

    with pytest.raises(ConfigError, match="cannot read the settings file .*: Is a directory"):
        Fairlead.from_toml(path.parent)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        Fairlead.from_toml(path)
    path.write_text('[tool.fairlead]\nqueues = [{name = "mail", wieght = 4}]')
    with pytest.raises(ConfigError, match="unknown field `wieght`"):
        Fairlead.from_toml(path)
    path.write_text('[tool.fairlead]\nqueues = [{name = "mail", weight = 0}]')
    with pytest.raises(ConfigError, match="weight of queue 'mail' must be a whole number from 1"):
        Fairlead.from_toml(path)


def test_the_url_comes_from_code_then_environment_then_a_local_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    assert Fairlead().store.url == "sqlite:///fairlead.db"
    monkeypatch.setenv("FAIRLEAD_URL", "memory://")
    assert Fairlead().store.url == "memory://"
    assert Fairlead("sqlite:///other.db").store.url == "sqlite:///other.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlight:///x.db", "scheme 'sqlight' \\(did you mean 'sqlite'\\?\\)"),
        ("kafka://user:secret@host", "no store is known for a URL of scheme 'kafka'"),
        ("sqlite://jobs.db", "write sqlite:///jobs.db"),
        ("sqlite:jobs.db", "write sqlite:///jobs.db"),
        ("sqlite:///jo#bs.db", "written with %23"),
        ("sqlite:///x.db?durability=", "durability must be one of durable, fast, not ''"),
        ("sqlite:///x.db?timeout=0", "timeout must be a number of seconds above 0, not 0"),
        ("sqlite:///x.db?timeout=nan", "above 0, not nan"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///x.db?durability=none", "durability must be one of durable, fast"),
        ("sqlite:///x.db?sync=1", "knows no option 'sync'"),
        ("sqlite:///x.db?timeout=long", "not a number of seconds"),
    ],
)
def test_a_wrong_url_says_what_to_write(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Fairlead(url)
    assert "secret" not in str(caught.value)


def test_enqueue_many_is_a_stream_with_progress(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda n: n)
    most = any_app.store.jobs_per_put
    number = 4 * most
    made = seen = 0
    furthest = 0

    def calls() -> object:
        nonlocal made, furthest
        for n in range(number):
            made += 1
            furthest = max(furthest, made - seen)
            yield task.call(n)

    def progress(accepted: int) -> None:
        nonlocal seen
        seen = accepted

    assert any_app.enqueue_many(calls(), progress=progress) == number  # type: ignore[arg-type]
    assert seen == number
    assert furthest <= most, "no more than a batch is held at a time"


def test_enqueue_many_cuts_a_stream_of_large_jobs(any_app: Fairlead) -> None:
    """So that no put keeps others waiting for long, and a stream needs little memory."""

    @any_app.task(name="large")
    def large(text: str) -> None: ...

    counts: list[int] = []
    made = 0

    def calls() -> Iterator[Call[None]]:
        nonlocal made
        for _ in range(45):
            made += 1
            assert made - sum(counts[-1:]) <= 22
            yield large.call("x" * 200_000)

    assert any_app.enqueue_many(calls(), progress=counts.append) == 45
    assert counts == [21, 42, 45]


def test_enqueue_many_can_be_repeated(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda n: n)
    calls = [task.call(n) for n in range(10)]
    assert any_app.enqueue_many(calls) == 10
    assert any_app.enqueue_many(calls) == 0
    assert any_app.job(calls[3].id).status() is State.WAITING


def test_a_broken_stream_says_how_many_were_accepted(any_app: Fairlead) -> None:
    most = any_app.store.jobs_per_put
    task = any_app.task(name="t")(lambda n: n)

    def calls() -> object:
        yield from (task.call(n) for n in range(most + most // 2))
        raise RuntimeError("the file ended")

    with pytest.raises(RuntimeError, match="the file ended") as caught:
        any_app.enqueue_many(calls())  # type: ignore[arg-type]
    assert caught.value.__notes__ == [f"{most:,} jobs were put before this"]
    assert any_app.bridge.run(any_app.store.admin.count())["default"][State.WAITING] == most


def test_a_call_of_another_app_is_refused(any_app: Fairlead) -> None:
    other = Fairlead("memory://", queues=[Queue("elsewhere")])
    call = other.task(name="t", queue="elsewhere")(lambda: None).call()
    with pytest.raises(UnknownQueue, match="'elsewhere'"):
        any_app.enqueue_many([call])


def test_an_option_among_the_arguments_is_pointed_to_using(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda x: x)
    with pytest.raises(EncodeError, match=r"write task\.using\(delay=…\)\.enqueue\(…\)"):
        task.enqueue(1, delay=5)  # type: ignore[call-arg]


def test_what_is_not_a_call_is_refused(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda: None)
    with pytest.raises(EnqueueError, match=r"takes calls, as task\.call\(…\) makes them, not <job"):
        any_app.enqueue_many([task.enqueue()])  # type: ignore[list-item]
    with pytest.raises(EnqueueError, match=r"write \[task\.call\(…\)\]"):
        any_app.enqueue_many(task.call())  # type: ignore[arg-type]


def test_payloads_do_not_show_in_what_programs_print(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda secret: None)
    call = task.call("hunter2")
    any_app.enqueue_many([call])
    job = any_app.job(call.id)
    shown = f"{task!r} {call!r} {call.job!r} {job!r} {job.record()!r}"
    assert "hunter2" not in shown
    assert shown.count(call.id) == 4


def test_tasks_and_handles_do_not_travel(any_app: Fairlead) -> None:
    import copy

    task = any_app.task(name="t")(lambda: None)
    with pytest.raises(TypeError, match="cannot be copied or sent to a process; import it there"):
        copy.deepcopy(task)
    with pytest.raises(TypeError, match=r"send its id, app\.job\(id\)"):
        copy.deepcopy(task.enqueue())


async def test_a_finished_job_stays_for_a_week_unless_the_app_says_otherwise() -> None:
    clock = ManualClock()
    async with Fairlead("memory://", clock=clock) as app:
        job = await app.task(name="t")(lambda: 1).aenqueue()
        assert await work_off(app) == 1
        clock.advance(7 * 24 * 3600)
        await app.workshop().store.upkeep(app.workshop().keep)
        assert await job.aresult(timeout=1) == 1
        clock.advance(1)
        assert (await app.aupkeep()).pruned_jobs == 1


def test_wrong_declarations_say_what_to_write() -> None:
    for queues in (["mail"], "mail", Queue("mail"), 7):
        with pytest.raises(ConfigError, match=r"queues takes a list of Queue\(…\) values, not"):
            Fairlead("memory://", queues=queues)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"pools takes a list of Pool\(…\) values, not 'p'"):
        Fairlead("memory://", pools=["p"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"keep takes a timedelta; write timedelta\(days=7\)"):
        Fairlead("memory://", keep=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the URL is empty"):
        Fairlead("")
    with pytest.raises(ConfigError, match=r"write @app\.task\(queue='mail'\)"):
        Fairlead("memory://").task("mail")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="a lambda has no name of its own; give it one"):
        Fairlead("memory://").task(lambda: None)
    with pytest.raises(ConfigError, match="not by a value of type int"):
        Fairlead(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"write \['old'\]"):
        Fairlead("memory://").task(aliases="old")


async def test_aenqueue_many(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda n: n)
    assert await any_app.aenqueue_many(task.call(n) for n in range(1_200)) == 1_200


async def test_concurrent_callers_share_and_each_gets_its_own_job(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda n: n)
    jobs = await asyncio.gather(*(task.aenqueue(n) for n in range(300)))
    assert [(await job.arecord()).arguments for job in jobs] == [{"n": n} for n in range(300)]


def test_many_threads_enqueue_at_once(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda n: n)
    problems: list[BaseException] = []

    def enqueue_some() -> None:
        try:
            for n in range(50):
                task.enqueue(n)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=enqueue_some) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert any_app.bridge.run(any_app.store.admin.count()) == {"default": {State.WAITING: 800}}


def test_events_come_after_the_store_said_yes_and_once(any_app: Fairlead) -> None:
    heard: list[Event] = []
    any_app.events.subscribe(heard.append, Enqueued)
    task = any_app.task(name="t")(lambda n: n)
    call = task.using(correlation_id="c-1").call(1)
    any_app.enqueue_many([call])
    any_app.enqueue_many([call])
    assert heard == [Enqueued(call.id, "t", "default", "c-1")]


def test_task_retry_defaults_are_the_documented_ones(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda: None).task
    assert (task.options.timeout, task.options.retry.attempts) == (300, 5)
    assert task.options.retry.backoff == exponential(base=1, factor=2, cap=300, jitter=0.3)
    assert any_app.task(name="u", retry=Retry(backoff=fixed(3)))(lambda: None)


# Names without an end


HUGE = "x" * 10_000_000


@pytest.mark.parametrize(
    "options",
    [
        {"queue": HUGE},
        {"tags": [HUGE]},
        {"tags": HUGE},
        {"tags": ["x"] * 1_000_000},
        {"correlation_id": HUGE},
        {"headers": {HUGE: "x"}},
        {"headers": {"x": HUGE}},
        {"headers": {str(number): "x" for number in range(65)}},
        {"priority": 10**5000},
        {"delay": HUGE},
        {"timeout": HUGE},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_name_of_ten_megabytes_is_refused_in_few_words(options: dict[str, Any]) -> None:
    app = Fairlead("memory://")

    @app.task(name="t")
    def task() -> None: ...

    began = time.process_time()
    with pytest.raises(EnqueueError) as problem:
        task.using(**options)
    assert len(str(problem.value)) < 600
    assert time.process_time() - began < 1


def test_nothing_can_be_declared_or_asked_for_by_such_a_name() -> None:
    app = Fairlead("memory://")
    began = time.process_time()
    for attempt in (
        lambda: Queue(HUGE),
        lambda: Queue("q", critical=True, tasks=HUGE),
        lambda: Pool("p", queues=[HUGE]),
        lambda: Pool("p", runner=HUGE),
        lambda: app.task(name=HUGE)(print),
        lambda: app.task(name="t", aliases=[HUGE])(print),
        lambda: app.task(**{HUGE: 1}),
        lambda: app.tasks[HUGE],
        lambda: app.job(HUGE).status(),
        lambda: app.worker(queues=[HUGE]),
        lambda: Fairlead(f"{HUGE}://x"),
    ):
        with pytest.raises(FairleadError) as problem:
            attempt()
        assert len(str(problem.value)) < 600
    assert time.process_time() - began < 4


def test_as_many_headers_as_tags_are_taken() -> None:
    app = Fairlead("memory://")

    @app.task(name="t")
    def task() -> None: ...

    many = {str(number): "x" * LONGEST_LABEL for number in range(MOST_LABELS)}
    task.using(headers=many, tags=list(many)).enqueue()
