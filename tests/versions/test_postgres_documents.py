"""What the verbs of PostgreSQL are told and answer, letter by letter: test_layouts.py has puts, settlements and acts.

A document is a JSON object, which may get more keys. The lists in it are read by place, so a new field goes behind
the others.
"""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.core.admin import PoolShare, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob
from fairlead.core.queue import Queue, Share
from fairlead.core.selection import ClaimPlan
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres import replies
from fairlead.stores.postgres.lane import Lane
from tests.words import by, done

_VERB = re.compile(r"\.(\w+)\(%s\)")
ID = JobId("0190-a")
T = 1_700_000_000_000_000
LEVEL = {"at": T, "level": 1}


@pytest.fixture
async def store(postgres_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_for(postgres_url, clock)
    yield store
    await store.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Each verb that was called from now on, with its document."""
    calls: list[tuple[str, Any]] = []
    real = Lane.ask

    async def ask(lane: Lane, statement: Any, *parameters: Any) -> Any:
        verb = _VERB.search(str(statement))
        if verb is not None:
            calls.append((verb[1], json.loads(parameters[0])))
        return await real(lane, statement, *parameters)

    monkeypatch.setattr(Lane, "ask", ask)
    return calls


async def test_what_a_worker_tells(store: Store, told: list[tuple[str, Any]]) -> None:
    await store.put([NewJob(JobId(each), "t", "mail", "{}") for each in (ID, "0190-b")])
    told.clear()
    pools = (PoolShare("all", 5, (Share("mail"),)),)
    await store.announce(Worker("w1", {"t": 1}, pools, 2), 20 * SECOND)
    [(verb, doc)] = told
    share = {"name": "mail", "weight": 1, "critical": False, "reserved": 0}
    assert json.loads(doc["worker"].pop(2)) == [{"name": "all", "slots": 5, "queues": [share]}]
    assert (verb, doc) == (
        "announce",
        {**LEVEL, "worker": ["w1", {"t": 1}, 2, 1], "lease": 20 * SECOND, "batch": 1_000},
    )

    told.clear()
    queues = (Queue("mail", weight=2), Queue("late", critical=True, tasks=["t"]))
    plan = ClaimPlan("w1", queues, 1, 20 * SECOND, capable={"t": 1}, asked_at=T)
    [job] = (await store.claim(plan)).jobs
    await store.claim(plan)
    (verb, first), (_, second) = told
    assert verb == "claim"
    assert first == {
        **LEVEL,
        "worker": "w1",
        "lease": 20 * SECOND,
        "capable": {"t": 1},
        "spare": False,
        "asked_at": T,
        "look": True,
        "since": None,
        "steps": 1_000,
        "batch": 1_000,
        "bytes": plan.most_bytes,
        "shared": 1,
        "critical": 0,
        "per_turn": 1,
        "queues": [],
        # Name, weight, turns, reserve, and whether it is critical.
        "rest": [["mail", 2, 0.0, 0, False], ["late", 1, 0.0, 1, True]],
    }
    # Then how many are wanted, and where it goes on.
    assert second["queues"] == [["mail", 2, 0.0, 0, False, 1, T, ""]]
    assert second["rest"] == [["late", 1, 0.0, 1, True]]

    told.clear()
    await store.extend([(job.id, job.fence)], 30 * SECOND)
    await store.held("w1")
    await store.entries.write([Change("step", "k", "1", 0, ID, 5, 6)], fence=(ID, job.fence))
    await store.entries.write([Change("kind", "k", None)])
    for wanted in (
        Wanted("kind", prefix="a"),
        Wanted("kind", keys=("k",)),
        Wanted("kind", due_before=1),
    ):
        await store.entries.read(wanted)
    await store.settle([done(job)])
    await store.upkeep(7 * SECOND)
    found = [(verb, doc) for verb, doc in told if verb != "settle"]
    some = {**LEVEL, "kind": "kind", "owner": "", "limit": 1_000, "prefix": "", "after": ""}
    for _, doc in found:
        doc.pop("wait", None)
    assert found == [
        ("extend", {**LEVEL, "lease": 30 * SECOND, "runs": [[ID, job.fence]]}),
        ("held", {"level": 1, "worker": "w1"}),
        (
            "write_entries",
            {**LEVEL, "changes": [["step", ID, "k", "1", 0, 5, 6]], "fence": [ID, job.fence]},
        ),
        ("write_entries", {**LEVEL, "changes": [["kind", "", "k", None, None, None, None]]}),
        ("read_entries", {**some, "prefix": "a", "past": "b"}),
        ("read_entries", {**some, "keys": ["k"]}),
        ("read_entries", {**some, "due_before": 1}),
        ("upkeep", {**LEVEL, "keep": 7 * SECOND, "batch": 1_000}),
    ]


async def test_what_people_tell(store: Store, told: list[tuple[str, Any]]) -> None:
    await store.admin.audit()
    await store.admin.find(ID)
    await store.admin.attempts(ID)
    await store.admin.workers()
    await store.admin.repair(by("repair"))
    documents = dict(told)
    assert documents["flaws"] == {**LEVEL, "most": documents["flaws"]["most"]}
    assert documents["find"] == {"level": 1, "id": ID}
    assert documents["attempts"] == {"level": 1, "id": ID}
    assert documents["live_workers"] == LEVEL
    assert documents["repair"].keys() >= {"at", "level", "by", "kind", "start"}


ANSWERS: list[tuple[Any, str, dict[str, Any]]] = [
    (replies.fresh_of, '[["a"]]', {"ids": {"a"}}),
    (replies.held_of, '[["a"],["b"],["c"]]', {"ids": ["a"], "asked": {"b"}, "locked": ["c"]}),
    (
        replies.rest_of,
        '[["a"],{"b":"no"},["c"]]',
        {"written": ["a"], "asked": {"b": "no"}, "busy": ["c"]},
    ),
    (replies.brought_back_of, "[3]", {"number": 3}),
    (replies.due_of, "[1,2]", {"next_at": 1, "now": 2}),
    (replies.touched_of, '[["a"]]', {"ids": ["a"]}),
    (replies.versions_of, "[[1,null,0]]", {"versions": [1, None, 0]}),
    (replies.in_use_of, '["limit","key",4]', {"limit": "limit", "key": "key", "number": 4}),
    (replies.flaw_of, '["what","whose",2]', {"what": "what", "whose": "whose", "number": 2}),
    (
        replies.stray_of,
        '["table","job","mallory","SELECT"]',
        {"kind": "table", "name": "job", "who": "mallory", "rights": "SELECT"},
    ),
    (
        replies.announced_of,
        '["w1","{}","[]",2,3,4,5]',
        {
            "id": "w1",
            "capable": "{}",
            "pools": "[]",
            "processes": 2,
            "started_at": 3,
            "live_until": 4,
            "level": 5,
        },
    ),
]


@pytest.mark.parametrize(("read", "text", "fields"), ANSWERS)
def test_what_they_answer(read: Any, text: str, fields: dict[str, Any]) -> None:
    """And what a newer function adds behind it is passed over."""
    for each in (text, text.removesuffix("]") + ',{"later":1}]'):
        reply = read(each)
        assert {name: getattr(reply, name) for name in fields} == fields


def test_what_a_repair_answers() -> None:
    mended = replies.mended_of('[[["what","whose",null],["what","other","why"]],3,"from"]')
    assert [(each.what, each.whose, each.why) for each in mended.met] == [
        ("what", "whose", None),
        ("what", "other", "why"),
    ]
    assert (mended.kind, mended.start) == (3, "from")
