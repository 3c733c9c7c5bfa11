"""Many queues on PostgreSQL: whom a claim asks, what it reads, and how a wrong belief is put right."""

import asyncio
import json
from typing import Any

import psycopg
import pytest

from fairlead.core.clock import SECOND
from fairlead.core.queue import Queue
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.heads import FEW, Found, Heads, Start
from fairlead.stores.postgres.lane import Lane
from fairlead.stores.postgres.wake import named
from tests.words import new_job, plan

SLOTS = 20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What claims say to the server, one text each."""
    texts: list[str] = []
    ask = Lane.ask

    async def spy(lane: Lane, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if ".claim(" in statement:
            texts.append(values[0])
        return await ask(lane, statement, *values)

    monkeypatch.setattr(Lane, "ask", spy)
    return texts


def queues(number: int) -> tuple[Queue, ...]:
    return tuple(Queue(f"q{at:04}") for at in range(number))


async def claims(store: Store, served: tuple[Queue, ...], number: int) -> list[Claim]:
    answers: list[Claim] = []
    for _ in range(number):
        credits = answers[-1].credits if answers else {}
        answers.append(await store.claim(plan(*served, slots=SLOTS, credits=credits)))
    return answers


def buffers(owner: psycopg.Connection, text: str) -> int:
    """Count the pages that this claim touches, without doing it."""
    for _ in range(2):  # The first time the session reads the catalogue, too.
        owner.execute("BEGIN")
        row = owner.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM claim(%s)", [text]
        ).fetchone()
        owner.execute("ROLLBACK")
    assert row is not None
    told = row[0][0]["Plan"]
    return int(told["Shared Hit Blocks"]) + int(told["Shared Read Blocks"])


@pytest.mark.parametrize("every", [1, 10])
async def test_what_a_claim_costs_does_not_follow_from_the_number_of_queues(
    shop: Store, owner: psycopg.Connection, asked: list[str], every: int
) -> None:
    """F78: it asks the queues whose turn it is, each for its share, and says nothing of others."""
    reads, lengths = [], []
    for number in (300, 900):
        served = queues(number)
        await shop.put([new_job(queue=q.name) for _ in range(3) for q in served[::every]])
        await claims(shop, served, 1)
        asked.clear()
        [answer] = await claims(shop, served, 1)
        assert len(answer.jobs) == SLOTS
        [text] = asked
        told = json.loads(text)
        assert len(told["queues"]) <= SLOTS
        assert told["rest"] == []
        assert sum(line[5] for line in told["queues"]) == SLOTS
        reads.append(buffers(owner, text))
        lengths.append(len(text))
        while any(answer.jobs for answer in await claims(shop, served, 5)):
            pass
    assert reads[1] < 1.3 * reads[0] < 20 * SLOTS
    assert lengths[1] < 1.3 * lengths[0]


async def test_what_some_queues_leave_goes_to_all_others_in_the_same_call(
    shop: Store, asked: list[str]
) -> None:
    """One queue runs dry, and those that were not asked fill the slots, by their turns."""
    served = queues(FEW)
    await shop.put([new_job(queue=q.name) for q in served])
    await claims(shop, served, 1)
    await shop.put([new_job(queue=served[0].name) for _ in range(SLOTS - 5)])
    asked.clear()
    [answer] = await claims(shop, served[:2], 1)
    assert len(answer.jobs) == SLOTS - 5
    [answer] = await claims(shop, served, 1)
    assert [job.queue for job in answer.jobs] == [q.name for q in served[SLOTS : 2 * SLOTS]]
    assert len(asked) == 2


async def test_a_put_elsewhere_wakes_its_queue_and_no_other(
    shop: Store, fresh_url: str, asked: list[str]
) -> None:
    served = queues(3 * FEW)
    mark = await shop.wait(0, for_work=True)
    [nothing] = await claims(shop, served, 1)
    assert nothing.jobs == []
    other = store_for(fresh_url)
    asked.clear()
    await other.put([new_job(queue=served[-1].name)])
    async with asyncio.timeout(20):
        await shop.wait(20, mark, for_work=True)
    [found] = await claims(shop, served, 1)
    assert [job.queue for job in found.jobs] == [served[-1].name]
    assert [line[0] for line in json.loads(asked[0])["queues"]] == [served[-1].name]
    await other.close()


# What a process believes, without a server.


class Believer:
    """A process that claims from many queues, at instants that the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10 * SECOND
        monkeypatch.setattr("time.monotonic_ns", lambda: self.now * 1_000)
        self.heads = Heads(None)
        self.plan: ClaimPlan = plan(*queues(3 * FEW))

    def start(self) -> Start:
        return self.heads.start(self.plan)

    def saw(self, start: Start, cost: int = 0, **found: Any) -> None:
        nothing: dict[str, Any] = dict.fromkeys(("asked", "ended", "others", "stirred"), ())
        nothing |= {"now": 0, "gated": {}, "looked": self.plan.lineup.names, "cost": cost}
        self.heads.remember(start, [], Found(**nothing | found))

    def looked(self, cost: int) -> None:
        """Look at all queues, and find nothing."""
        self.saw(self.start(), cost)

    def awake(self) -> set[str]:
        awake = self.start().awake
        return set(self.plan.lineup.names if awake is None else awake)


@pytest.fixture
def believer(monkeypatch: pytest.MonkeyPatch) -> Believer:
    return Believer(monkeypatch)


def test_looks_at_many_queues_take_a_twentieth_of_the_time(believer: Believer) -> None:
    """Also if no claim fills its slots; and whoever waits is woken when the next one may be."""
    believer.looked(cost=10_000)
    believer.now += 199_999
    assert not believer.start().look
    assert believer.heads.rest(believer.plan, ()) == []
    assert believer.heads.patience() == pytest.approx(0.000_001)
    believer.now += 1
    assert len(believer.heads.rest(believer.plan, ())) == 3 * FEW
    assert believer.start().look


def test_news_that_name_no_queue_call_for_a_look_soon(believer: Believer) -> None:
    believer.looked(cost=10_000)
    believer.heads.hear(5, [])
    believer.now += 49_999
    assert not believer.start().look
    believer.now += 1
    assert believer.start().look


def test_news_that_name_a_queue_wake_it_at_once(believer: Believer) -> None:
    believer.looked(cost=10_000)
    believer.heads.hear(5, ["q0007", "somebody-elses"])
    assert believer.awake() == {"q0007"}
    assert not believer.start().look


def test_what_is_told_during_a_claim_is_not_unlearnt_by_it(believer: Believer) -> None:
    """The claim found the queue empty before the job was put, and says so after."""
    believer.looked(cost=10_000)
    believer.heads.wake(["q0001"])
    start = believer.start()
    believer.heads.wake(["q0001"])
    believer.saw(start, asked=["q0001"], ended=["q0001"], looked=())
    assert believer.awake() == {"q0001"}
    believer.saw(believer.start(), asked=["q0001"], ended=["q0001"], looked=())
    assert believer.awake() == set()


def test_many_awake_queues_are_begun_anew_in_turn(believer: Believer) -> None:
    names = believer.plan.lineup.names
    believer.looked(cost=0)
    begun: list[str] = []
    for _ in range(3):
        believer.heads.wake(names)
        heads = believer.heads._awake
        heads |= dict.fromkeys(names, (1, "x"))
        believer.now += SECOND
        assert believer.start().look
        begun += [name for name in names if heads[name] == (0, "")]
    assert sorted(begun) == sorted(names)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["mail"], "work/mail"),
        (["a b"], "work"),
        (["a/b"], "work"),
        ([f"q{at}" for at in range(100)], "work"),
    ],
)
def test_news_name_queues_if_they_can(names: list[str], told: str) -> None:
    assert named("work", names) == told
