"""Every value that is stored or crosses a process, letter by letter, as all programs have it.

The values of Python may be renamed and laid out anew at any time; what stands here may not. A new field
is added here, behind the others.
"""

import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from fairlead.core import ids
from fairlead.core.acts import Action, Cancel, Deed, Delete, Edit, Note, Pause, Resume, Revive
from fairlead.core.admin import Filter, PoolShare, Wait, Worker
from fairlead.core.answers import answer_in, mark_of, with_answer
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Entry, Wanted
from fairlead.core.events import LogStyle
from fairlead.core.failure import Failure
from fairlead.core.ids import JobId
from fairlead.core.job import (
    Attempt,
    Job,
    JobOptions,
    NewJob,
    PastAttempt,
    State,
    decode_errors,
    decode_options,
    encode_options,
)
from fairlead.core.outcome import (
    Ambiguous,
    Cancelled,
    Committed,
    Crashed,
    Done,
    Failed,
    Lost,
    Outcome,
    Returned,
    Settlement,
    Snoozed,
)
from fairlead.core.page import Spot, cursor_of, spot_of
from fairlead.core.queue import Share
from fairlead.core.retry import Curve, exponential, fixed, linear
from fairlead.core.selection import Unknown
from fairlead.core.store import Upkeep
from fairlead.runtime import group, messages, solo
from fairlead.runtime.board import THREAD, Board
from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.takeover import Unclear
from fairlead.runtime.workshop import Choice, Terms
from fairlead.stores import store_for
from fairlead.stores.listing import digest_of_filter
from fairlead.stores.news import WORK
from fairlead.stores.postgres import replies
from fairlead.stores.postgres.admin import told_as
from fairlead.stores.postgres.audit import as_told
from fairlead.stores.postgres.line import put_text, settle_text
from fairlead.stores.records import worker_of
from fairlead.stores.redis import layout
from fairlead.stores.redis.wake import told_of
from tests import deeds
from tests.words import claim

CHANGED = """
Programs of other versions read and write this value as it stands in the test (CONTRIBUTING.md, "To
add a field"). A field that is new stands behind the others, with a default: add it to the test. One that
has another name or place in Python keeps its own where it is stored or sent: by
`msgspec.field(name=…)`, by `tag=…` of a class, or by the order of the row.
"""

ID = JobId("0190-a")
FAILURE = Failure(error="Oops", message="it broke", traceback=None, fingerprint="f00d")
FAILED = Failed(failure=FAILURE, transient=False, after=3.0, timed_out=True, unreadable=False)
SHARE = Share(name="mail", weight=2, critical=True, reserved=1)
POOLS = (PoolShare(name="p", slots=3, queues=(SHARE,)),)
IN_POOLS = [
    {
        "name": "p",
        "slots": 3,
        "queues": [{"name": "mail", "weight": 2, "critical": True, "reserved": 1}],
    }
]


def check(found: object, told: object) -> None:
    """Compare what this program writes or reads with what all of them do."""
    assert found == told, f"{CHANGED}\nIt is now:  {found!r}\nIt must be: {told!r}"


def plain(value: object) -> Any:
    """Return a value as it goes over a socket, without our classes."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


# Texts in every store


@pytest.mark.parametrize(
    ("curve", "told"),
    [
        (
            exponential(base=1, factor=2, cap=3, jitter=0.5),
            '{"curve":"exponential","base":1,"factor":2,"cap":3,"jitter":0.5}',
        ),
        (
            linear(base=1, step=2, cap=3, jitter=0.5),
            '{"curve":"linear","base":1,"step":2,"cap":3,"jitter":0.5}',
        ),
        (fixed(seconds=3, jitter=0), '{"curve":"fixed","seconds":3,"jitter":0}'),
    ],
)
def test_the_options_of_a_job(curve: Curve, told: str) -> None:
    options = JobOptions(
        timeout=1.5,
        attempts=2,
        backoff=curve,
        tags=("a",),
        correlation_id="c",
        headers={"h": "v"},
    )
    text = (
        f'{{"timeout":1.5,"attempts":2,"backoff":{told},'
        '"tags":["a"],"correlation_id":"c","headers":{"h":"v"}}'
    )
    written = encode_options(options)
    assert written is not None
    check(msgspec.json.decode(written), msgspec.json.decode(text))
    check(decode_options(text), options)


HISTORY = (
    '[{"attempt":1,"outcome":"failed","worker":"w1","claimed_at":2,"started_at":3,"finished_at":4,'
    '"error":"Oops","message":"it broke","traceback":"at","fingerprint":"f00d"}]'
)


def test_the_history_of_a_job() -> None:
    past = PastAttempt(
        attempt=1,
        outcome="failed",
        worker="w1",
        claimed_at=2,
        started_at=3,
        finished_at=4,
        error="Oops",
        message="it broke",
        traceback="at",
        fingerprint="f00d",
    )
    check(decode_errors(HISTORY), (past,))
    check(msgspec.json.decode(msgspec.json.encode([past])), msgspec.json.decode(HISTORY))


def test_the_answers_to_what_people_did() -> None:
    mark = mark_of("cancel", ["a", "b"], ["waiting"], "no")
    check(mark, "878beb26a9af809c")
    check(with_answer("", mark, ["a", "b", "c"], ["b"]), f";{mark}:0,2.")
    check(answer_in(f";{mark}:0,2.", mark, ["a", "b", "c"]), ["b"])


def test_the_end_of_an_id_and_the_news_of_a_queue() -> None:
    check(ids.mark_of("mail"), "ac48")
    check(told_of(WORK, "mail"), "work mail")


def test_a_cursor() -> None:
    which = Filter(
        queues=("mail",),
        tasks=("t",),
        states=(State.WAITING,),
        tags=("a",),
        since=7,
        error="oops",
        waits=(Wait.DUE,),
        at=8,
        begins="01",
    )
    check(digest_of_filter(which), 3_045_246_422)
    check(digest_of_filter(Filter()), 1_069_182_125)
    told = "sqlite.lM6nIldlpXJlYWR5pG1haWyTpG1haWwFoWFCMACq"
    spot = Spot(order="ready", queue="mail", after=("mail", 5, "a"))
    check(cursor_of("sqlite", 2804045669, spot), told)
    check(spot_of("sqlite", 2804045669, told), spot)


# Rows of a file


async def test_what_a_file_keeps_as_text(tmp_path: Path, clock: ManualClock) -> None:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db", clock)
    now = clock.now()
    worker = Worker(id="w1", capable={"t": 1}, pools=POOLS, processes=2, level=1)
    await store.announce(worker, 20 * SECOND)
    await store.put([NewJob(id=ID, task="t", queue="mail", payload="{}")])
    change = Change(kind="step", key="k", value="1", owner=ID, due_at=5, expires_at=now + SECOND)
    [version] = await store.entries.write([change])
    [job] = await claim(store)
    end = Settlement(
        id=ID, fence=job.fence, state=State.DEAD, outcome="failed", reason="so", failure=FAILURE
    )
    await store.settle([end])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        [(history,)] = raw.execute("SELECT errors FROM fairlead_dead").fetchall()
        workers = "SELECT capable, pools FROM fairlead_worker"
        [(capable, pools)] = raw.execute(workers).fetchall()
        [ended] = await store.entries.read(Wanted("step", ID))
        by = Action(id="a1", who="ada", verb="revive", target="one")
        await deeds.revive(store, [ID, JobId("none")], [State.DEAD], by)
        [again] = await store.entries.read(Wanted("step", ID))
        [(answers,)] = raw.execute("SELECT answers FROM fairlead_audit").fetchall()
    check(
        msgspec.json.decode(history),
        [
            {
                "attempt": 1,
                "outcome": "failed",
                "worker": "w1",
                "claimed_at": now,
                "started_at": None,
                "finished_at": now,
                "error": "Oops",
                "message": "it broke",
                "fingerprint": "f00d",
            }
        ],
    )
    entry = Entry(
        kind="step",
        key="k",
        value="1",
        version=version or 0,
        owner=ID,
        due_at=5,
        expires_at=now + SECOND,
    )
    check([ended, again], [entry, entry])
    check((msgspec.json.decode(capable), msgspec.json.decode(pools)), ({"t": 1}, IN_POOLS))
    check(answers, ";c1fadfe77200b375:1.")
    await store.close()


def test_a_worker_as_both_sql_stores_tell_it() -> None:
    pools = msgspec.json.encode(IN_POOLS).decode()
    worker = Worker(
        id="w1",
        capable={"t": 1},
        pools=POOLS,
        processes=2,
        started_at=3,
        live_until=4,
        level=5,
    )
    check(worker_of(("w1", '{"t":1}', pools, 2, 3, 4, 5)), worker)


# What a supervisor, its processes and theirs say

IN_FAILURE = {"error": "Oops", "message": "it broke", "traceback": None, "fingerprint": "f00d"}
IN_FAILED = {
    "type": "Failed",
    "failure": IN_FAILURE,
    "transient": False,
    "after": 3.0,
    "timed_out": True,
    "unreadable": False,
}
JOB = Job(
    id=ID,
    task="t",
    version=1,
    queue="mail",
    payload="{}",
    options="{}",
    attempt=2,
    crashes=3,
    fence=4,
    run_at=5,
    enqueued_at=6,
    expires_at=7,
    claimed_at=8,
    lease_until=9,
    worker="w1",
    lost=True,
    shared_deaths=10,
)
IN_JOB = {
    "id": ID,
    "task": "t",
    "version": 1,
    "queue": "mail",
    "payload": "{}",
    "options": "{}",
    "attempt": 2,
    "crashes": 3,
    "fence": 4,
    "run_at": 5,
    "enqueued_at": 6,
    "expires_at": 7,
    "claimed_at": 8,
    "lease_until": 9,
    "worker": "w1",
    "lost": True,
    "shared_deaths": 10,
}
OUTCOMES: list[tuple[Outcome, dict[str, Any]]] = [
    (Done(result="1"), {"type": "Done", "result": "1"}),
    (FAILED, IN_FAILED),
    (Snoozed(seconds=1.5), {"type": "Snoozed", "seconds": 1.5}),
    (Cancelled(reason="no"), {"type": "Cancelled", "reason": "no"}),
    (Lost(), {"type": "Lost"}),
    (
        Crashed(how="SIGKILL", company=True),
        {"type": "Crashed", "how": "SIGKILL", "company": True},
    ),
    (Returned(cut_off=True), {"type": "Returned", "cut_off": True}),
    (
        Ambiguous(evidence="who knows", cause=FAILED, known="not_done"),
        {"type": "Ambiguous", "evidence": "who knows", "cause": IN_FAILED, "known": "not_done"},
    ),
    (
        Committed(unless=FAILED, trouble="t"),
        {"type": "Committed", "unless": IN_FAILED, "trouble": "t"},
    ),
]
TERMS = Terms(
    lease=3.0,
    grace=4.0,
    poll=5.0,
    patience=6.0,
    processes=7,
    max_jobs=8,
    max_memory=9,
    drain=True,
    loop="asyncio",
)
IN_TERMS = {
    "lease": 3.0,
    "grace": 4.0,
    "poll": 5.0,
    "patience": 6.0,
    "processes": 7,
    "max_jobs": 8,
    "max_memory": 9,
    "drain": True,
    "loop": "asyncio",
}
TO_PROCESS: list[tuple[messages.ToProcess, dict[str, Any]]] = [
    (
        messages.Begin(
            worker="w/1",
            terms=TERMS,
            choice=Choice(pools=("p",), queues={"mail": 4}, slots=7),
            log=LogStyle(level="debug", format="json", quiet=True, messages=False),
        ),
        {
            "type": "Begin",
            "worker": "w/1",
            "terms": IN_TERMS,
            "choice": {"pools": ["p"], "queues": {"mail": 4}, "slots": 7},
            "log": {"level": "debug", "format": "json", "quiet": True, "messages": False},
        },
    ),
    (messages.Stop(grace=0.5), {"type": "Stop", "grace": 0.5}),
    (messages.Lost(pairs=((ID, 5),)), {"type": "Lost", "pairs": [[ID, 5]]}),
    (messages.Cancel(pairs=((ID, 5),)), {"type": "Cancel", "pairs": [[ID, 5]]}),
    (
        messages.Inherit(run=Unclear(job=JOB, outcome=FAILED, pool="p", started_at=9)),
        {
            "type": "Inherit",
            "run": {"job": IN_JOB, "outcome": IN_FAILED, "pool": "p", "started_at": 9},
        },
    ),
]
TO_SUPERVISOR: list[tuple[messages.ToSupervisor, dict[str, Any]]] = [
    (messages.Ready(), {"type": "Ready"}),
    (messages.Outdated(problem="too old"), {"type": "Outdated", "problem": "too old"}),
    (messages.Leaving(), {"type": "Leaving"}),
    (messages.Hired(pid=7), {"type": "Hired", "pid": 7}),
    (messages.Gone(pid=7), {"type": "Gone", "pid": 7}),
]
ORDER = solo.Order(number=1, job=JOB, pool="p", clocks=(2, 3.0))
TO_GROUP: list[tuple[group.Message, Any]] = [
    ([ORDER], [[1, IN_JOB, "p", [2, 3.0]]]),
    (solo.Recall(), {"type": "Recall"}),
    (
        group.CallOff(number=1, outcome=FAILED),
        {"type": "CallOff", "number": 1, "outcome": IN_FAILED},
    ),
    (group.CallOff(number=1, outcome=None), {"type": "CallOff", "number": 1, "outcome": None}),
]
WORDS = [
    (
        solo.Word(ended=1, outcome=outcome, seconds=0.5, starts=2, recalled=(3,), thread=4),
        [1, told, 0.5, 2, [3], 4],
    )
    for outcome, told in OUTCOMES
]
SAID = [
    *((messages.ToProcess, *each) for each in TO_PROCESS),
    *((messages.ToSupervisor, *each) for each in TO_SUPERVISOR),
    *((group.Message, *each) for each in TO_GROUP),
    *((list[solo.Order] | solo.Recall, *each) for each in TO_GROUP[:2]),
    *((solo.Word, *each) for each in WORDS),
]


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    SAID,
    ids=[f"{type(value).__name__}-{n}" for n, (_, value, _) in enumerate(SAID)],
)
def test_a_message_between_processes(kind: Any, value: object, told: Any) -> None:
    check(plain(value), told)
    body = msgspec.msgpack.encode(told)
    frames: Frames[Any] = Frames(kind)
    check(list(frames.feed(len(body).to_bytes(4, "big") + body)), [value])


def test_every_message_is_among_them() -> None:
    for kind, said in (
        (messages.ToProcess, TO_PROCESS),
        (messages.ToSupervisor, TO_SUPERVISOR),
        (Outcome, OUTCOMES),
    ):
        assert {type(each) for each, _ in said} == set(get_args(kind))
    kinds = {type(each) for each, _ in TO_GROUP} - {list}
    assert kinds == set(get_args(group.Message)) - {list[solo.Order]}


def test_a_message_on_its_way() -> None:
    check(frame(messages.Hired(pid=7)), b"\0\0\0\x11\x82\xa4type\xa5Hired\xa3pid\x07")


def test_the_board() -> None:
    board, handle = Board.shared(2)
    board.beat(1.5, 3)
    board.spare(2.5)
    board.begin_claim(4.0)
    place = board.hold(JobId("j" * 36), 42, 7, 10.0)
    board.start(place, THREAD, 1_700, 15.0, 11.0, thread=99)
    board.hold(JobId("short"), 43, 8, 12.0)
    board.revoke(9.0)
    memory = bytes(board._memory)
    board.close()
    os.close(handle)
    header = (1.5, 2.5, 3, 9.0, 4.0, 1, 1, 53, 88)
    running = (2, 2, 7, 42, 1_700, 15.0, 10.0, 11.0, 99, b"j" * 36)
    held = (1, 0, 8, 43, 0, float("inf"), 12.0, 0.0, 0, b"short")
    check(memory[:53], struct.pack("=ddQddQBHH", *header))
    check(memory[53:141], struct.pack("=BBHqqdddQ36s", *running))
    check(memory[141:], struct.pack("=BBHqqdddQ36s", *held))


# Documents and answers of PostgreSQL

NEW = NewJob(id=ID, task="t", queue="mail", payload="{}", version=2)
SPECIAL = NewJob(
    id=JobId("0190-b"),
    task="t",
    queue="mail",
    payload="{}",
    version=2,
    run_at=3,
    delay=4,
    priority=5,
    expires_at=6,
    expires_in=7,
    options="{}",
    level=8,
)


def test_a_put() -> None:
    told = '{"at":1,"wait":250,"job":["mail","t",2,"0190-a","{}"],"tell":"work"}'
    check(put_text([NEW], 1, "work", 0.5), told)
    terms = '"{}",3,4,5,6,7,8'
    told = f'{{"at":1,"level":2,"job":["mail","t",2,"0190-b","{{}}",{terms}]}}'
    check(put_text([SPECIAL], 1, None, level=2), told)
    kinds = f'[["mail","t",2,["0190-a"],["{{}}"]],["mail","t",2,["0190-b"],["{{}}"],{terms}]]'
    check(put_text([SPECIAL, NEW], 1, None), f'{{"at":1,"count":2,"kinds":{kinds}}}')


def test_a_settle() -> None:
    settlement = Settlement(
        id=ID,
        fence=1,
        state=State.WAITING,
        outcome="failed",
        counts=False,
        crashed=True,
        shared_deaths=2,
        run_at=3,
        result="4",
        reason="so",
        failure=FAILURE,
        started_at=5,
        pool="p",
    )
    kind = '"waiting","failed",false,true,2,"so","p","f00d","Oops","it broke",null'
    told = (
        f'{{"at":6,"level":7,"count":1,"kinds":[[{kind},[["0190-a",1,5,3,"4",0]]]],'
        '"tell":"work","ruled":true,"patient":true}'
    )
    check(settle_text([settlement], 6, "work", level=7, ruled=True, patient=True), told)


DEEDS: list[tuple[Deed, str, dict[str, Any]]] = [
    (
        Cancel(ids=[ID], reason="no", states=[State.WAITING]),
        "act",
        {"verb": "cancel", "ids": [ID], "states": ["waiting"], "tell": "work", "reason": "no"},
    ),
    (
        Revive(ids=[ID], states=[State.DEAD]),
        "act",
        {"verb": "revive", "ids": [ID], "states": ["dead"], "tell": "work"},
    ),
    (
        Delete(ids=[ID], states=[State.DEAD]),
        "act",
        {"verb": "delete", "ids": [ID], "states": ["dead"]},
    ),
    (
        Edit(id=ID, was="{}", payload="[]", version=2),
        "act",
        {"verb": "edit", "ids": [ID], "states": [], "was": "{}", "payload": "[]", "version": 2},
    ),
    (Pause(queue="mail"), "act", {"verb": "pause", "ids": [], "states": [], "queue": "mail"}),
    (
        Resume(queue="mail"),
        "act",
        {"verb": "resume", "ids": [], "states": [], "queue": "mail", "tell": "work"},
    ),
    (Note(count=1, id=ID), "noted", {"count": 1, "ids": [ID]}),
]


@pytest.mark.parametrize(("deed", "verb", "doc"), DEEDS)
def test_an_act(deed: Deed, verb: str, doc: dict[str, Any]) -> None:
    found_verb, found = told_as(deed)
    check((found_verb, msgspec.json.decode(msgspec.json.encode(found))), (verb, doc))


def test_who_acts() -> None:
    by = Action(id="a1", who="ada", verb="cancel", target="one")
    check(as_told(by), ("a1", "ada", "cancel", "one"))


def test_the_line_of_a_leased_job() -> None:
    more = (
        '{"options":"{}","expires_at":7,"crashes":3,"shared_deaths":10,"lost":true,'
        '"worker":"w1","claimed_at":8,"lease_until":9}'
    )
    leased = replies.leased_of(f"[1,2,4,5,11,6,3,6,1,4,{more}]\n0190-atmail{{}}", "w2", 0, 0)
    check((leased.job, leased.place, leased.aside), (JOB, (11, ID), True))


def test_the_line_of_a_run() -> None:
    told = '["0190-a",1,2,"t","mail","p","w1",3,4,5,6,"done","f00d"]'
    run = Attempt(
        job_id=ID,
        fence=1,
        attempt=2,
        task="t",
        queue="mail",
        pool="p",
        worker="w1",
        ready_at=3,
        claimed_at=4,
        started_at=5,
        finished_at=6,
        outcome="done",
        fingerprint="f00d",
    )
    check(replies.attempt_of(told), run)


def test_the_line_of_an_entry() -> None:
    entry = Entry(kind="step", key="k", value="1", version=2, owner=ID, due_at=3, expires_at=4)
    check(replies.entry_of('["step","k","1",2,"0190-a",3,4]'), entry)


def test_what_a_claim_parked_and_what_upkeep_did() -> None:
    saw = replies.saw_of('[1,[["0190-a","t",2,"mail","{}",3]],{},[],[],[],true,4,false]')
    kind = Unknown(id=ID, task="t", version=2, queue="mail", options="{}", jobs=3)
    check([each.kind for each in saw.parked], [kind])
    did = Upkeep(
        promoted=1,
        brought_back=2,
        expired=3,
        pruned_jobs=4,
        pruned_attempts=5,
        pruned_entries=6,
    )
    check(replies.upkeep_of("[1,2,3,4,5,6]"), did)


# Arrays of Redis


def test_the_numbers_of_the_fields_of_every_array() -> None:
    """Only the place of a field counts; its name is that of Python and Lua."""
    check(
        {name: " ".join(fields) for name, fields in layout.LAYOUTS.items()},
        {
            "BODY": "task version priority enqueued_at expires_at level options payload",
            "STANDING": "fence lease_until attempt crashes shared_deaths order_at gate worker"
            " claimed_at cancel lines task version head_start enqueued_at expires_at state"
            " finished_at reason result level attached",
            "PAST": "attempt outcome worker claimed_at started_at finished_at error message"
            " traceback fingerprint",
            "LINE": "job_id fence attempt task pool worker ready_at claimed_at started_at outcome"
            " fingerprint",
            "WORKER": "started_at live_until capable pools processes level",
            "ACT": "done_at who verb target count before job_id answers",
            "ENTRY": "kind key version due_at expires_at value",
            "PUT": "id task payload version run_at delay priority expires_at expires_in options"
            " level",
            "SETTLEMENT": "id fence state outcome counts crashed shared_deaths run_at result reason"
            " failure started_at pool",
            "PAIR": "id fence",
            "CHANGE": "kind key value expect owner due_at expires_at",
            "BY": "id number who verb target job_id",
        },
    )


def test_what_those_arrays_hold_by_name() -> None:
    settlement = Settlement(
        id=ID, fence=1, state=State.DEAD, outcome="failed", failure=FAILURE, started_at=5
    )
    told = [ID, 1, "dead", "failed", True, False, 0, None, None, None, IN_FAILURE, 5, None]
    check(plain(layout.settlement_of(settlement)), told)
    check(plain(POOLS), IN_POOLS)
    kept = msgspec.Raw(msgspec.msgpack.encode(IN_POOLS))
    check(msgspec.msgpack.decode(kept, type=tuple[PoolShare, ...]), POOLS)
