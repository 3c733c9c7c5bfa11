"""Damage a store behind its back, and insist that nobody but the damaged suffers (F75, I22).

One round: a store with a job in every state and healthy ones beside them; one field, or several,
are damaged. Then a real worker runs, people look at everything, `doctor` names the damage and
mends it. Every healthy job is done, no look raises, nothing vanishes, and the audit is clean
after the repair.

    python -m tests.fuzz --store redis --rounds 2000       every damage once, then several at a time
    python -m tests.fuzz --store redis --seed 41000140     the round that told this seed, again
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple, TypeVar

from fairlead import Fairlead, Permanent, Queue
from fairlead.core.acts import Action
from fairlead.core.admin import ALL, Filter, PoolShare, Worker
from fairlead.core.clock import SECOND
from fairlead.core.entries import Change, Wanted
from fairlead.core.errors import FairleadError
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob, Reason, State
from fairlead.core.queue import Share
from fairlead.core.selection import ClaimPlan
from fairlead.core.store import Store
from fairlead.insight.doctor import examine
from fairlead.insight.explain import explain
from tests import deeds
from tests.fuzz.victim import Damage, Victim
from tests.words import POLICY, claim, done, failed, new_id

PATIENCE = 20.0
"""How many seconds healthy jobs get; a bound for hangs on a loaded machine, not a measurement."""
HEALTHY = 4
STATES = (
    *("waiting", "delayed", "expiring", "running", "lost", "parked", "retrying"),
    *("done", "cancelled", "dead"),
)
"""In which states there is a job to damage."""

Answer = TypeVar("Answer")


class Ground(NamedTuple):
    """Where rounds happen: a URL for the program, and who damages it from outside."""

    url: str
    victim: Victim


class Report(NamedTuple):
    """What one round came to. `problems` is empty if all went well."""

    seed: int
    inflicted: tuple[str, ...]
    tried: tuple[Damage, ...]
    named: bool
    problems: tuple[str, ...]


def plans(
    damages: Sequence[Damage], rounds: int, seed: int, at_once: int = 1
) -> Iterator[tuple[int, tuple[Damage, ...]]]:
    """Yield a seed and the damages of each round: first every one, then a few that may meet."""
    random = Random(seed)
    singles = list(damages)
    random.shuffle(singles)
    for n in range(rounds):
        number = seed * 1_000_000 + n
        if n * at_once < len(singles):
            yield number, tuple(singles[n * at_once : (n + 1) * at_once])
        else:
            yield number, tuple(random.sample(list(damages), k=random.randint(2, 5)))


async def one_round(ground: Ground, damages: Sequence[Damage], seed: int) -> Report:
    """Play one round."""
    random = Random(seed)
    app = _app(ground.url)
    round_ = _Round(app)
    inflicted: list[str] = []
    try:
        victims = await round_.stock()
        await round_.put_healthy()
        for damage in damages:
            state = random.choice(STATES)
            # One that this job has no field for is tried on the others.
            for each in (state, *STATES):
                told = ground.victim.inflict(damage, victims[each], random)
                if told is not None:
                    inflicted.append(f"{told} (was {each})")
                    break
        # Of several, one may undo another.
        alone = len(damages) == len(inflicted) == 1
        await round_.check(
            victims,
            must_be_named=alone and ground.victim.must_be_named(damages[0]),
            may_go=ground.victim.may_remove(damages),
        )
    except Exception as problem:
        round_.problems.append(f"the round broke: {problem!r}")
    finally:
        ground.victim.close()
        with suppress(FairleadError, TimeoutError):
            await asyncio.wait_for(app.aclose(), PATIENCE)
    return Report(seed, tuple(inflicted), tuple(damages), round_.named, tuple(round_.problems))


async def exercise(url: str) -> None:
    """Do everything that a round does, with no damage in it, and what else there is to do."""
    app = _app(url)
    round_ = _Round(app)
    victims = await round_.stock()
    await round_.put_healthy()
    await round_.check(victims)
    assert round_.problems == []
    store: Store = app.store
    jobs = [NewJob(new_id("none"), "t", "none", "{}", priority=n % 2) for n in range(60)]
    await store.put(jobs)
    await deeds.waiting(store)
    await store.extend([(jobs[0].id, 1)], 1)
    await store.entries.write(
        [Change("other", "a", "1", due_at=1), Change("other", "b", "2", owner=jobs[1].id)]
    )
    for wanted in (Wanted("other"), Wanted("other", jobs[1].id), Wanted("other", due_before=2)):
        assert len(await store.entries.read(wanted)) == 1
    await store.upkeep(3600 * SECOND)
    await deeds.note(store, _action("note"), 1, jobs[0].id)
    await deeds.revive(store, [jobs[0].id], [State.DEAD, State.WAITING], _action("revive"))
    await deeds.edit(store, jobs[0].id, "{}", "{}", 1, _action("edit"))
    await deeds.delete(store, [jobs[0].id], [State.DEAD, State.DONE], _action("delete"))
    await deeds.resume(store, "none", _action("resume"))
    many = tuple(Queue(f"empty-{number}") for number in range(40))
    await store.claim(ClaimPlan("fuzz", many, 1, SECOND))
    await app.aclose()


HEALTHY_KEY = "healthy"


def _app(url: str) -> Fairlead:
    app = Fairlead(url, queues=[Queue("mail"), Queue("other"), Queue("stopped")])

    @app.task(name="good", queue="mail")
    async def good(n: int) -> int:
        return n

    @app.task(name="bad", queue="mail")
    async def bad() -> None:
        raise Permanent("no")

    return app


class _Round:
    """The steps of one round, and what goes wrong in them."""

    def __init__(self, app: Fairlead) -> None:
        self._app = app
        self._store: Store = app.store
        self.problems: list[str] = []
        self.named = False
        self._healthy: list[JobId] = []

    async def stock(self) -> dict[str, JobId]:
        """Put a job in every state; returns their ids."""
        store = self._store
        await store.open()
        ids = {state: new_id("mail") for state in STATES}
        await store.announce(
            Worker("ghost", {"good": 1, "bad": 1}, (PoolShare("all", 5, (Share("mail"),)),)),
            60 * SECOND,
        )

        def job(state: str, task: str = "good", **options: int) -> NewJob:
            return NewJob(ids[state], task, "mail", '{"n":1}', options='{"tags":["x"]}', **options)

        now_on = [job(s) for s in ("running", "lost", "retrying", "done", "dead")]
        await store.put(now_on)
        claimed = {each.id: each for each in await claim(store, Queue("mail"), worker="ghost/1")}
        now = next(iter(claimed.values())).claimed_at
        await store.entries.write(
            [Change("step", key, '"v"', owner=ids[s]) for s in ("done", "dead") for key in "ab"]
            + [Change("kind", key, '"v"', due_at=1, expires_at=2**52) for key in "ab"]
        )
        await store.settle(
            [
                done(claimed[ids["done"]], '"ok"'),
                failed(claimed[ids["retrying"]], now),
                failed(claimed[ids["dead"]], now, POLICY),
            ]
        )
        lost = claimed[ids["lost"]]
        await store.extend([(lost.id, lost.fence)], 0)
        await store.entries.write(
            [Change("step", "a", '"v"', owner=ids[s], due_at=1) for s in ("running", "retrying")]
        )
        await store.put([job("parked", "nobody-knows-it")])
        await claim(store, Queue("mail"), worker="ghost/2", capable={"other": 1}, spare_lost=True)
        await store.put([job("cancelled")])
        await deeds.cancel(store, [ids["cancelled"]], "no", by=_action("cancel"))
        await store.put(
            [
                job("waiting"),
                job("delayed", delay=3600 * SECOND),
                job("expiring", expires_in=3600 * SECOND),
            ]
        )
        await deeds.pause(store, "stopped", _action("pause"))
        return ids

    async def put_healthy(self) -> None:
        """Put jobs that have nothing to do with the damage, beside it and elsewhere."""
        jobs = [
            NewJob(new_id(queue), "good", queue, f'{{"n":{n}}}')
            for queue in ("mail", "other")
            for n in range(HEALTHY)
        ]
        await self._store.put(jobs)
        await self._store.entries.write(
            [Change("step", "healthy", '"v"', owner=job.id) for job in jobs]
            + [Change("kind", HEALTHY_KEY, '"v"', due_at=2)]
        )
        self._healthy += [job.id for job in jobs]

    async def check(
        self, victims: dict[str, JobId], *, must_be_named: bool = False, may_go: bool = False
    ) -> None:
        """Run, look, mend, and run again."""
        before = await self._try("audit", self._store.admin.audit) or []
        if must_be_named and not before:
            self.problems.append("the audit does not find it")
        await self._work()
        await self._look(victims.values())
        await self._look_at_entries(victims.values())
        after = await self._try("audit", self._store.admin.audit) or []
        checkup = await self._try("doctor", lambda: examine(self._store, self._app))
        if checkup is not None and after and not checkup.findings:
            self.problems.append("doctor is silent about what the audit finds")
        buried = await self._unreadable(victims.values())
        self.named = bool(before or after or buried)
        mended = (
            await self._try("repair", lambda: self._store.admin.repair(_action("repair"))) or []
        )
        if after and not mended:
            self.problems.append("the repair says nothing of what the audit found")
        left = await self._try("audit", self._store.admin.audit)
        if left:
            self.problems.append(f"the repair left: {[each.problem for each in left[:3]]}")
        told = " ".join([*(each.problem for each in (*before, *after)), *mended])
        for state, job_id in victims.items():
            gone = await self._try(f"find {state}", lambda i=job_id: self._gone(i))
            if gone and job_id not in told and not may_go:
                self.problems.append(f"the {state} job is gone, and nobody said so")
        await self.put_healthy()
        await self._work()
        left = await self._try("audit", self._store.admin.audit)
        if left:
            self.problems.append(f"after the repair: {[each.problem for each in left[:3]]}")

    async def _gone(self, job_id: JobId) -> bool:
        return await self._store.admin.find(job_id) is None

    async def _unreadable(self, victims: Collection[JobId]) -> int:
        records = [await self._try("find", lambda i=i: self._store.admin.find(i)) for i in victims]
        return sum(r is not None and r.reason == Reason.UNREADABLE for r in records)

    async def _work(self) -> None:
        """Let a real worker run until every healthy job is done."""
        async with self._app.worker(lease=4.0):
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while unfinished := await self._unfinished():
                        await asyncio.sleep(0.02)
        if unfinished := await self._unfinished():
            self.problems.append(f"healthy jobs are held up: {len(unfinished)}")

    async def _unfinished(self) -> list[JobId]:
        records = [await self._store.admin.find(job_id) for job_id in self._healthy]
        return [
            job_id
            for job_id, record in zip(self._healthy, records, strict=True)
            if record is None or record.state is not State.DONE
        ]

    async def _look(self, victims: Collection[JobId]) -> None:
        """Ask everything that people ask."""
        store = self._store
        looks: dict[str, Callable[[], Awaitable[object]]] = {
            "jobs": lambda: deeds.jobs(store, ALL, 1000),
            "jobs in small pages": lambda: deeds.jobs(store, ALL, 7),
            "jobs by id": lambda: deeds.jobs(store, Filter(begins="01")),
            "groups": lambda: store.admin.groups(ALL),
            "count": store.admin.count,
            "recent": lambda: store.admin.recent(0),
            "stats": store.admin.stats,
            "workers": store.admin.workers,
            "audit_log": store.admin.audit_log,
            "condition": store.admin.condition,
            "migrations": store.admin.migrations,
            "jobs by tag": lambda: deeds.jobs(store, Filter(tags=("x",))),
            "jobs by error": lambda: deeds.jobs(store, Filter(error="oops")),
            "jobs since": lambda: deeds.jobs(store, Filter(since=1)),
        }
        for state in State:
            looks[f"jobs {state}"] = lambda state=state: deeds.jobs(store, Filter(states=(state,)))
        for name, look in looks.items():
            await self._try(name, look)
        for job_id in victims:
            await self._try("attempts", lambda i=job_id: store.admin.attempts(i))
            await self._try("audit_log of", lambda i=job_id: store.admin.audit_log(job_id=i))
            if await self._try("find", lambda i=job_id: store.admin.find(i)) is not None:
                await self._try("explain", lambda i=job_id: explain(store, i))

    async def _look_at_entries(self, victims: Collection[JobId]) -> None:
        """Read those of every job, and those of nobody; healthy ones must be there."""
        read = self._store.entries.read
        for job_id in victims:
            await self._try("entries of", lambda i=job_id: read(Wanted("step", i)))
        for job_id in self._healthy:
            found = await self._try("entries", lambda i=job_id: read(Wanted("step", i)))
            if [each.key for each in found or ()] != ["healthy"]:
                self.problems.append(f"a healthy job has lost its entries: {found}")
        for wanted in (
            Wanted("kind"),
            Wanted("kind", due_before=3),
            Wanted("kind", keys=(HEALTHY_KEY,)),
        ):
            found = await self._try("entries of nobody", lambda w=wanted: read(w))
            if HEALTHY_KEY not in [each.key for each in found or ()]:
                self.problems.append(f"a healthy entry is not found by {wanted}")

    async def _try(self, what: str, look: Callable[[], Awaitable[Answer]]) -> Answer | None:
        try:
            async with asyncio.timeout(PATIENCE):
                return await look()
        except Exception as problem:
            self.problems.append(f"{what} raised {problem!r:.300}")
            return None


def _action(verb: str) -> Action:
    return Action(str(new_id()), "fuzz", verb, "the fuzz")


def table(reports: Sequence[Report]) -> str:
    """Count what happened, for people."""
    inflicted = sum(bool(report.inflicted) for report in reports)
    named = sum(report.named for report in reports if report.inflicted)
    broken = [report for report in reports if report.problems]
    fields = Counter(damage.field.split(".")[0] for r in reports for damage in r.tried)
    lines = [
        f"rounds {len(reports)}, damage done in {inflicted}, named or set aside in {named}, "
        f"harmless in {inflicted - named}, broken {len(broken)}",
        "tried in " + ", ".join(f"{place} {number}" for place, number in sorted(fields.items())),
    ]
    for report in broken:
        lines.append(f"seed {report.seed}: {'; '.join(report.inflicted) or report.tried}")
        lines += [f"    {problem}" for problem in report.problems]
    return "\n".join(lines)
