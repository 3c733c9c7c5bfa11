"""Every store against memory, step by step, on a clock that stands still between steps.

The machine does the same to both and compares every answer and every job after
every step. Settlements and renewals come under current and older fences alike.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairlead.core.acts import FINAL, LIVE, Action
from fairlead.core.admin import ALL, Filter, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.errors import LeaseLost
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, JobRecord, NewJob, State
from fairlead.core.outcome import (
    Cancelled,
    Crashed,
    Done,
    Failed,
    Lost,
    Outcome,
    Policy,
    Returned,
    Snoozed,
    decide,
)
from fairlead.core.queue import Queue
from fairlead.core.retry import Retry, fixed
from fairlead.core.selection import ClaimPlan, select
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds

QUEUES = (
    Queue("mail", weight=3),
    Queue("reports", weight=1),
    Queue("alarm", critical=True, tasks=["t"], reserve=1),
    *(Queue(f"other-{number}", weight=number % 3 + 1) for number in range(12)),
)
BUSY = [queue.name for queue in QUEUES[:3]]
TASKS = ("t", "u", "v")
POLICY = Policy(Retry(attempts=3, backoff=fixed(7, jitter=0)), crash_limit=2)
OUTCOMES: list[Outcome] = [
    Done('"ok"'),
    Done(None),
    Failed(described("Oops", "broke")),
    Failed(described("Bad", "never"), transient=False),
    Snoozed(3),
    Cancelled("called off"),
    Crashed("SIGKILL"),
    Crashed("SIGSEGV", company=True),
    Lost(),
    Returned(),
]

MARK = described("Oops", "broke").fingerprint

spans = st.sampled_from([0, 1, 5, 60])
new_jobs = st.builds(
    dict,
    task=st.sampled_from(TASKS),
    version=st.sampled_from([1, 1, 1, 2]),
    queue=st.sampled_from([*BUSY, *BUSY, *BUSY, *BUSY, *(queue.name for queue in QUEUES[3:])]),
    priority=st.sampled_from([0, 0, 3, -2]),
    delay=spans.map(lambda seconds: seconds * SECOND),
    expires_in=st.sampled_from([None, None, 2 * SECOND, 30 * SECOND]),
    options=st.sampled_from([None, '{"tags":["a"]}', '{"tags":["b","a"]}', '{"timeout":3.0}']),
)
capabilities = st.sampled_from([None, {"t": 1}, {"t": 1, "u": 2}, {"u": 1, "v": 2}, {}])


def by_id(job: JobRecord) -> JobId:
    return job.id


async def _call(store: Store, verb: str, *arguments: Any) -> object:
    """Do what a verb says: one of the line, of people, or of those in `deeds`."""
    if hasattr(deeds, verb):
        return await getattr(deeds, verb)(store, *arguments)
    part = store.admin if hasattr(store.admin, verb) else store
    return await getattr(part, verb)(*arguments)


class StoreMachine(RuleBasedStateMachine):
    """One store and the memory store, doing the same."""

    new_url: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.url = self.new_url()
        self.clock = ManualClock()
        self.latest = 0
        self.reference = store_for("memory://", self.clock)
        self.candidate = store_for(self.url, self.clock)
        self.ids: list[JobId] = []
        self.claimed: list[Job] = []
        self.calls = 0
        self.last = Action("action-0", "me", "nothing", "no jobs")
        self.credits: dict[str, dict[str, float]] = {}
        self.versions: dict[tuple[JobId | None, str], int] = {}

    def both(self, verb: str, *arguments: object) -> object:
        """Do it to both stores, and insist on one answer."""
        expected, got = (
            self.runner.run(_call(store, verb, *arguments))
            for store in (self.reference, self.candidate)
        )
        assert got == expected, f"{verb}: {got!r} is not {expected!r}"
        return got

    @initialize()
    def open(self) -> None:
        self.both("open")

    @rule(batch=st.lists(new_jobs, min_size=1, max_size=6))
    def put(self, batch: list[dict[str, object]]) -> None:
        jobs = []
        for options in batch:
            job_id = JobId(f"job-{len(self.ids):04}")
            self.ids.append(job_id)
            jobs.append(NewJob(id=job_id, payload="{}", **options))  # type: ignore[arg-type]
        self.both("put", jobs)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.ids))
        self.both("put", [NewJob(job_id, "t", "mail", "{}")])

    @rule(
        worker=st.sampled_from(["w1", "w2"]),
        slots=st.integers(1, 6),
        lease=st.sampled_from([1, 10]),
        capable=capabilities,
        running=st.dictionaries(
            st.sampled_from([queue.name for queue in QUEUES]), st.integers(0, 3), max_size=2
        ),
        spare_lost=st.sampled_from([False, False, True]),
    )
    def claim(
        self,
        worker: str,
        slots: int,
        lease: int,
        capable: dict[str, int] | None,
        running: dict[str, int],
        spare_lost: bool,
    ) -> None:
        plan = ClaimPlan(
            worker,
            QUEUES,
            slots,
            lease * SECOND,
            running=running,
            credits=self.credits.get(worker, {}),
            capable=capable,
            spare_lost=spare_lost,
        )
        foreseen = select(self.both("snapshot", plan, 100))  # type: ignore[arg-type]
        answer = self.both("claim", plan)
        claimed = [(job.queue, job.id) for job in answer.jobs]  # type: ignore[attr-defined]
        assert [(queue, head.id) for queue, head in foreseen.chosen] == claimed
        self.credits[worker] = dict(answer.credits)  # type: ignore[attr-defined]
        self.claimed += answer.jobs  # type: ignore[attr-defined]

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Any claim of the past may report; only current fences may have an effect."""
        batch = data.draw(st.lists(st.sampled_from(self.claimed), min_size=1, max_size=4))
        outcomes = [data.draw(st.sampled_from(OUTCOMES)) for _ in batch]
        self.both(
            "settle",
            [
                decide(job, outcome, POLICY, self.clock.now(), lambda: 0.0)
                for job, outcome in zip(batch, outcomes, strict=True)
            ],
        )

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), lease=st.sampled_from([0, 1, 10]))
    def extend(self, data: st.DataObject, lease: int) -> None:
        batch = data.draw(
            st.lists(
                st.sampled_from(self.claimed), min_size=1, max_size=4, unique_by=lambda j: j.id
            )
        )
        self.both("extend", [(job.id, job.fence) for job in batch], lease * SECOND)

    @rule(seconds=st.sampled_from([0.5, 1, 2, 8, 31, -1]))
    def move_the_clock(self, seconds: float) -> None:
        self.latest = max(self.latest, self.clock.now())
        self.clock.advance(seconds)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        states = data.draw(st.sampled_from([LIVE, LIVE, {State.WAITING}, {State.RUNNING}]))
        self.both(
            "cancel",
            [data.draw(st.sampled_from(self.ids))],
            "a person said so",
            self.action("cancel"),
            states,
        )

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), verb=st.sampled_from(["revive", "delete"]))
    def revive_or_delete(self, data: st.DataObject, verb: str) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.ids), min_size=1, max_size=4, unique=True))
        states = data.draw(
            st.sets(st.sampled_from(sorted(set(State) - {State.RUNNING})), min_size=1)
        )
        action = self.action(verb)
        answers = [
            self.runner.run(_call(store, verb, ids, states, action))
            for store in (self.reference, self.candidate)
        ]
        assert sorted(answers[0]) == sorted(answers[1])

    @precondition(lambda self: self.ids)
    @rule(
        data=st.data(),
        was=st.sampled_from(["{}", "{}", '{"n":1}']),
        now=st.sampled_from(["{}", '{"n":1}']),
    )
    def edit(self, data: st.DataObject, was: str, now: str) -> None:
        job_id = data.draw(st.sampled_from(self.ids))
        self.both("edit", job_id, was, now, 2, self.action("edit"))

    @rule(
        which=st.builds(
            Filter,
            queues=st.sampled_from([(), ("mail",), ("mail", "alarm")]),
            tasks=st.sampled_from([(), ("t",), ("u", "v")]),
            states=st.sets(st.sampled_from(list(State))).map(lambda states: tuple(sorted(states))),
            tags=st.sampled_from([(), ("a",), ("a", "b"), ("c",)]),
            since=st.sampled_from([None, 1_700_000_000 * SECOND, 1_700_000_010 * SECOND]),
            error=st.sampled_from([None, "oops", "ROKE", "SIGKILL", "nothing", MARK]),
        ),
        limit=st.integers(1, 8),
    )
    def look(self, which: Filter, limit: int) -> None:
        self.both_jobs(which, limit)
        self.both("count", which)
        self.both("groups", which)

    def both_jobs(self, which: Filter, limit: int) -> None:
        """Page by page both meet each job once; those of one moment in an order of their own."""
        expected, got = (
            self.runner.run(deeds.jobs(store, which, limit))
            for store in (self.reference, self.candidate)
        )
        assert sorted(got, key=by_id) == sorted(expected, key=by_id)
        for state in FINAL:
            ended, others = (
                [job.finished_at for job in jobs if job.state is state] for jobs in (got, expected)
            )
            assert ended == others

    def action(self, verb: str) -> Action:
        """Every third call belongs to the action before, if that does the same; each edit is one."""
        self.calls += 1
        if self.calls % 3 or self.last.verb != verb or verb == "edit":
            self.last = Action(f"action-{self.calls}", "me", verb, "some jobs")
        return self.last

    @rule(queue=st.sampled_from(QUEUES), verb=st.sampled_from(["pause", "resume"]))
    def pause_or_resume(self, queue: Queue, verb: str) -> None:
        self.both(verb, queue.name, self.action(verb))

    @rule(worker=st.sampled_from(["w1", "w2"]), capable=capabilities.filter(bool))
    def announce(self, worker: str, capable: dict[str, int]) -> None:
        self.both("announce", Worker(worker, capable), 5 * SECOND)

    @rule(keep=st.sampled_from([5, 1000]))
    def upkeep(self, keep: int) -> None:
        self.both("upkeep", keep * SECOND)

    @rule(
        data=st.data(),
        keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
        value=st.sampled_from([None, "1", "2"]),
        expect=st.sampled_from([None, None, "seen", 0]),
        lasts=st.sampled_from([None, None, 3]),
    )
    def write_entries(
        self,
        data: st.DataObject,
        keys: list[str],
        value: str | None,
        expect: str | int | None,
        lasts: int | None,
    ) -> None:
        """Of nobody or of a job, under a fence of the past or present or under none."""
        owner = data.draw(st.sampled_from([None, None, *self.ids[-4:]]))
        job = data.draw(st.sampled_from([None, *self.claimed[-4:]]))
        now = self.clock.now()
        changes = [
            Change(
                "kind",
                key,
                value,
                self.versions.get((owner, key), 0) if expect == "seen" else expect,  # type: ignore[arg-type]
                owner,
                due_at=now + len(key) * SECOND,
                expires_at=None if lasts is None else now + lasts * SECOND,
            )
            for key in keys
        ]
        answers = [
            self.runner.run(self.written(store, changes, job and (job.id, job.fence)))
            for store in (self.reference, self.candidate)
        ]
        assert answers[0] == answers[1]
        for key, version in zip(keys, answers[0] or (), strict=False):
            if version is not None:
                self.versions[owner, key] = version

    @staticmethod
    async def written(
        store: Store, changes: list[Change], fence: tuple[JobId, int] | None
    ) -> list[int | None] | None:
        try:
            return await store.entries.write(changes, fence)
        except LeaseLost:
            return None

    @rule()
    def reopen(self) -> None:
        self.runner.run(self.candidate.close())
        self.candidate = store_for(self.url, self.clock)

    def both_workers(self) -> None:
        """Compare who lives; since when is up to the store for one that had fallen silent."""
        expected, got = (
            [msgspec.structs.replace(worker, started_at=0) for worker in found]
            for found in (
                self.runner.run(store.admin.workers()) for store in (self.reference, self.candidate)
            )
        )
        assert got == expected

    def both_audit_log(self, limit: int, job_id: JobId | None = None) -> None:
        """Only a store that has users of its own tells them."""
        lines = [
            [
                msgspec.structs.replace(line, user=None)
                for line in self.runner.run(store.admin.audit_log(limit, job_id))
            ]
            for store in (self.reference, self.candidate)
        ]
        assert lines[0] == lines[1]

    def both_recent(self, since: int, limit: int, queue: str | None = None) -> None:
        """Compare the last lines of the attempt log; those that ended at once come in any order."""
        expected, got = (
            self.runner.run(store.admin.recent(since, limit, queue))
            for store in (self.reference, self.candidate)
        )
        assert [line.finished_at for line in got] == [line.finished_at for line in expected]
        # Of the oldest that still found room, another store may tell others.
        bar = got[-1].finished_at if len(got) == limit else 0
        told = [{line for line in lines if line.finished_at > bar} for lines in (expected, got)]
        assert told[0] == told[1]

    @invariant()
    def every_job_is_the_same_in_both(self) -> None:
        self.both_jobs(ALL, 1_000)
        self.both_recent(0, 10_000)
        for job_id in self.ids[-3:]:
            self.both("find", job_id)
            self.both("attempts", job_id)
        self.both("count")
        self.both("paused")
        self.both_workers()
        # What was promoted stays so on Redis if the clock goes back.
        if self.clock.now() >= self.latest:
            self.both("waiting")
        self.both("unknown")
        self.both("running")
        self.both_audit_log(100)
        self.both_recent(self.clock.now() - 10 * SECOND, 20)
        self.both_recent(self.clock.now() - 10 * SECOND, 5, "mail")

    @invariant()
    def the_entries_are_the_same_in_both(self) -> None:
        now = self.clock.now()
        for owner in (None, *self.ids[-4:]):
            for wanted in (
                Wanted("kind", owner),
                Wanted("kind", owner, after="a", limit=1),
                Wanted("kind", owner, keys=("a", "c")),
                Wanted("kind", owner, due_before=now),
            ):
                answers = [
                    self.runner.run(store.entries.read(wanted))
                    for store in (self.reference, self.candidate)
                ]
                assert answers[0] == answers[1], wanted

    @invariant()
    def the_places_are_the_same_in_both(self) -> None:
        for job_id in self.ids[-4:]:
            self.both("ahead", job_id)
            self.both_audit_log(5, job_id)

    @invariant()
    def both_know_who_holds_what(self) -> None:
        for worker in ("w1", "w2"):
            held = [
                {job.id: job for job in self.runner.run(store.held(worker))}
                for store in (self.reference, self.candidate)
            ]
            assert held[0] == held[1]

    @invariant()
    def the_audit_is_clean(self) -> None:
        assert self.both("audit") == []

    def teardown(self) -> None:
        self.runner.run(self.candidate.close())
        self.runner.close()


def compare(new_url: Callable[[], str], how: settings) -> None:
    machine = type("Machine", (StoreMachine,), {"new_url": staticmethod(new_url)})
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.timeout(400)
def test_every_store_does_what_memory_does(new_url: Callable[[], str]) -> None:
    compare(new_url, settings(max_examples=8, stateful_step_count=40))


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_every_store_does_what_memory_does_for_a_long_time(new_url: Callable[[], str]) -> None:
    """The big sister of the test above, which goes other ways every time."""
    compare(new_url, settings(max_examples=300, stateful_step_count=40, derandomize=False))
