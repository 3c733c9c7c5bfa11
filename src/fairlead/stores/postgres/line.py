"""The hot verbs: one JSON text to the server, one statement, and what it answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from fairlead.core.admin import Worker
from fairlead.core.asking import Asking, in_turns
from fairlead.core.clock import Clock
from fairlead.core.errors import StoreError
from fairlead.core.ids import JobId
from fairlead.core.job import LEVEL, Job, NewJob, State
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.selection import LOOK, Claim, ClaimPlan
from fairlead.core.store import BATCH, Extended, Upkeep
from fairlead.stores.postgres.heads import FEW, MARK, Found, Heads, Start
from fairlead.stores.postgres.lane import (
    AsyncConnection,
    BlockingLanes,
    Connection,
    Lane,
    lock_wait,
)
from fairlead.stores.postgres.replies import (
    Leased,
    brought_back_of,
    due_of,
    fresh_of,
    held_of,
    leased_of,
    rest_of,
    saw_of,
    upkeep_of,
)
from fairlead.stores.postgres.statements import statements

_LONGEST_PUT = 4 * 1024 * 1024
"""How many characters one put has at most, if it has several jobs; the database takes 32 MiB."""

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """Return a value as JSON text."""
    return _encode(value).decode()


def put_text(
    jobs: Sequence[NewJob],
    at: int | None,
    tell: str | None,
    patience: float | None = None,
    *,
    level: int = LEVEL,
) -> str:
    """Return the one parameter of a put. Jobs that are alike share what they have in common.

    With a patience it may wait for somebody else's transaction.
    """
    doc: dict[str, object] = {"at": at}
    if level != 1:  # Who tells none has the first.
        doc["level"] = level
    if patience is not None:
        doc["wait"] = lock_wait(patience)
    if len(jobs) == 1:
        [job] = jobs
        doc["job"] = _told(_kind_of(job), job.id, job.payload)
    else:
        doc |= {"count": len(jobs), "kinds": _kinds(jobs)}
    if tell is not None:
        doc["tell"] = tell
    return to_json(doc)


_Kind = tuple[str, str, int, str | None, int | None, int, int, int | None, int | None, int]


def _kind_of(job: NewJob) -> _Kind:
    """Return what jobs can have in common: where they go, and on what terms."""
    return (
        job.queue,
        job.task,
        job.version,
        job.options,
        job.run_at,
        job.delay,
        job.priority,
        job.expires_at,
        job.expires_in,
        job.level,
    )


_NO_TERMS = (None, None, 0, 0, None, None, 1)


def _told(kind: _Kind, what: object, payload: object) -> tuple[object, ...]:
    """Return a job, or jobs of a kind, as a put tells them: most have no terms to tell of."""
    where, terms = kind[:3], kind[3:]
    return (*where, what, payload) if terms == _NO_TERMS else (*where, what, payload, *terms)


def _kinds(jobs: Sequence[NewJob]) -> list[tuple[object, ...]]:
    """Return jobs as a put tells them, in order."""
    kinds: list[tuple[object, ...]] = []
    last: _Kind | None = None
    ids: list[JobId] = []
    payloads: list[str] = []
    for job in _in_order(jobs):
        kind = _kind_of(job)
        if kind != last:
            ids, payloads, last = [], [], kind
            kinds.append(_told(kind, ids, payloads))
        ids.append(job.id)
        payloads.append(job.payload)
    return kinds


def put_parts(
    jobs: Sequence[NewJob],
    at: int | None,
    tell: str | None,
    patience: float | None = None,
    *,
    level: int,
) -> list[tuple[Sequence[NewJob], str]]:
    """Return the puts that a put takes, each with its jobs: one, unless it would be too long."""
    text = put_text(jobs, at, tell, patience, level=level)
    if len(text) <= _LONGEST_PUT or len(jobs) == 1:
        return [(jobs, text)]
    half = len(jobs) // 2
    halves = (jobs[:half], jobs[half:])
    return [part for some in halves for part in put_parts(some, at, tell, patience, level=level)]


def _in_order(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return jobs by id: two that put the same ones wait for each other, and not both at once."""
    return sorted(jobs, key=lambda job: job.id)


def fresh_ones(jobs: Sequence[NewJob], answer: str | None) -> list[bool]:
    """Say for each job of a put whether it is new, by what the server answered."""
    if answer is None:
        return [True] * len(jobs)
    added = fresh_of(answer).ids
    fresh = []
    for job in jobs:
        fresh.append(job.id in added)
        added.discard(job.id)  # An id that stands twice in the batch is new only once.
    return fresh


def settle_text(
    settlements: Sequence[Settlement],
    at: int | None,
    tell: str | None = None,
    *,
    level: int,
    ruled: bool = False,
    patient: bool = False,
) -> str:
    """Return the one parameter of a settle. Runs that ended alike share what they have in common.

    `ruled` says that a person's wish to cancel was taken into account, `patient` that it
    waits for jobs that somebody has locked.
    """
    kinds: dict[tuple[object, ...], list[tuple[object, ...]]] = {}
    for ord_, s in enumerate(settlements):
        told: tuple[object, ...] = (None, None, None, None)
        if s.failure is not None:
            failure = s.failure
            told = (failure.fingerprint, failure.error, failure.message, failure.traceback)
        kind = (s.state, s.outcome, s.counts, s.crashed, s.shared_deaths, s.reason, s.pool, *told)
        run = (s.id, s.fence, s.started_at, s.run_at, s.result, ord_)
        kinds.setdefault(kind, []).append(run)
    doc: dict[str, object] = {"at": at, "level": level, "count": len(settlements)}
    doc["kinds"] = [(*kind, runs) for kind, runs in kinds.items()]
    if tell is not None:
        doc["tell"] = tell
    if ruled:
        doc["ruled"] = True
    if patient:
        doc["patient"] = True
    return to_json(doc)


class PostgresLine:
    """Claim, extend, settle, announce and upkeep, each on the lane it is given."""

    def __init__(self, schema: str, clock: Clock | None, level: Callable[[], int]) -> None:
        self._sql = statements(schema)
        self._clock = clock
        self._level = level
        self.heads = Heads(clock)

    def at(self) -> int | None:
        """Return the instant of a test's clock; None means the server's own."""
        return self._clock.now() if self._clock else None

    def put_parts(
        self, jobs: Sequence[NewJob], tell: str | None, patience: float | None = None
    ) -> list[tuple[Sequence[NewJob], str]]:
        """Return the puts that a put takes, each with its jobs."""
        return put_parts(jobs, self.at(), tell, patience, level=self._level())

    async def put(
        self,
        lane: Lane,
        jobs: Sequence[NewJob],
        tell: str | None,
        patience: float | None = None,
    ) -> list[bool]:
        """Add jobs, all or none. With a patience they may wait so long for others' transactions."""
        parts = self.put_parts(jobs, tell, patience)
        if len(parts) == 1:
            [(answer,)] = await lane.ask(self._sql["put"], parts[0][1])
            return self._added(jobs, fresh_ones(jobs, answer))

        async def all_parts(connection: AsyncConnection) -> list[bool]:
            async with connection.transaction():
                return [
                    fresh
                    for some, text in parts
                    for fresh in fresh_ones(some, await self._put_part(connection, text))
                ]

        return self._added(jobs, await lane.run(all_parts))

    async def _put_part(self, connection: AsyncConnection, text: str) -> str | None:
        row = await (await connection.execute(self._sql["put"], [text])).fetchone()
        return row[0] if row else None

    def put_blocking(
        self,
        lanes: BlockingLanes,
        jobs: Sequence[NewJob],
        tell: str | None,
        patience: float | None = None,
    ) -> list[bool]:
        """Add jobs from synchronous code, all or none."""
        parts = self.put_parts(jobs, tell, patience)

        def put(connection: Connection) -> list[bool]:
            fresh = []
            for some, text in parts:
                row = connection.execute(self._sql["put"], [text]).fetchone()
                fresh += fresh_ones(some, row[0] if row else None)
            return fresh

        def put_all(connection: Connection) -> list[bool]:
            with connection.transaction():
                return put(connection)

        return self._added(jobs, lanes.run(put if len(parts) == 1 else put_all, patience))

    def _added(self, jobs: Sequence[NewJob], fresh: list[bool]) -> list[bool]:
        anew = any(job.priority or job.run_at is not None for job in jobs)
        self.heads.wake({job.queue for job in jobs}, anew=anew)
        return fresh

    async def claim(self, lane: Lane, plan: ClaimPlan) -> Claim:
        """Lease what the selection rule chooses."""
        start = self.heads.start(plan)
        asking: Asking[Job] = Asking(plan, start.awake)
        wanted = asking.wanted() if start.awake or start.awake is None else {}
        few = len(plan.queues) - len(wanted) <= FEW
        rest: list[str] = []
        if few or start.look:
            rest = [name for name in plan.lineup.names if name not in wanted]
            if not few:  # Queues that are awake need not be woken.
                rest = [name for name in rest if name not in start.heads]
        claim = await self._claim(lane, asking, plan, start, wanted, rest)
        if claim.cut or _is_full(plan, claim):
            return claim
        # Nobody may have been asked yet for what is left.
        more = self.heads.rest(plan, {*wanted, *rest})
        if not more:
            return claim
        try:
            left = plan.after(claim)
            start = start._replace(resumed={}, look=True)
            return claim.joined(await self._claim(lane, Asking(left, ()), left, start, {}, more))
        except StoreError:
            if not claim.jobs:
                raise
            return claim  # These are leased; the next claim meets the trouble.

    async def _claim(
        self,
        lane: Lane,
        asking: "Asking[Job]",
        plan: ClaimPlan,
        start: Start,
        wanted: Mapping[str, int],
        rest: Sequence[str],
    ) -> Claim:
        text = self._claim_text(plan, start, wanted, rest)
        told, *texts = [answer for (answer,) in await lane.ask(self._sql["claim"], text)]
        saw = saw_of(told)
        until = saw.now + plan.lease
        leases = [leased_of(each, plan.worker, saw.now, until) for each in texts]
        leases.sort(key=lambda each: each.place)
        given = _by_queue(leases)
        if wanted == {name: len(jobs) for name, jobs in given.items()}:
            for name, jobs in given.items():
                asking.gave(name, jobs, more=True)
            jobs, credits = asking.in_turns()
        else:
            jobs, credits = in_turns(plan, given)
        asked = {*wanted, *saw.ended, *saw.gated, *given}
        covered = saw.looked and len(wanted) + len(rest) == len(plan.queues)
        found = Found(
            now=saw.now,
            asked=asked,
            ended=frozenset(saw.ended),
            others=[*saw.awake, *(name for name in saw.stirred if name not in asked)],
            stirred=saw.stirred,
            gated={name: (gated.number, gated.stopped) for name, gated in saw.gated.items()},
            looked=plan.lineup.names if start.look or covered else (),
            cost=saw.cost,
        )
        more = self.heads.remember(start, leases, found)
        return Claim(jobs, credits, saw.now, [each.kind for each in saw.parked], saw.cut or more)

    def _claim_text(
        self, plan: ClaimPlan, start: Start, wanted: Mapping[str, int], rest: Sequence[str]
    ) -> str:
        room = plan.room()
        lineup, reserve = plan.lineup, room.reserve
        turns = plan.standing.first_turns([*wanted, *rest])

        def told(name: str) -> tuple[object, ...]:
            queue = lineup[lineup.at[name]]
            return (name, queue.weight, turns[name], reserve.get(name, 0), queue.critical)

        def asked(name: str) -> tuple[object, ...]:
            if name in start.resumed:
                return (*told(name), wanted[name], *start.resumed[name], True)
            head = start.heads[name]
            return (*told(name), wanted[name], *(head if head is not MARK else (None, None)))

        return to_json(
            {
                "at": self.at(),
                "level": plan.level,
                "worker": plan.worker,
                "lease": plan.lease,
                "capable": None if plan.capable is None else dict(plan.capable),
                "spare": plan.spare_lost,
                "asked_at": plan.asked_at,
                "look": start.look,
                "since": start.since,
                "steps": LOOK,
                "batch": BATCH,
                "bytes": plan.most_bytes,
                "shared": room.shared,
                "critical": room.critical_share,
                "per_turn": room.per_turn,
                "queues": [asked(name) for name in turns if name in wanted],
                "rest": [told(name) for name in turns if name not in wanted],
            }
        )

    async def extend(
        self, lane: Lane, leases: Sequence[tuple[JobId, int]], lease: int
    ) -> tuple[list[Extended], list[JobId]]:
        """Renew leases under their current fence; returns what is held, and what is locked."""
        text = to_json(
            {"at": self.at(), "level": self._level(), "lease": lease, "runs": list(leases)}
        )
        [(answer,)] = await lane.ask(self._sql["extend"], text)
        self.heads.look()
        held = held_of(answer)
        return [Extended(job_id, job_id in held.asked) for job_id in held.ids], held.locked

    async def extend_late(self, lane: Lane, pair: tuple[JobId, int], lease: int) -> None:
        """Renew one lease as soon as the job is locked no more, before anybody can claim it."""
        doc = {"at": self.at(), "level": self._level(), "lease": lease, "runs": [pair]}
        doc["patient"] = True
        await lane.ask(self._sql["extend"], to_json(doc))

    async def settle(
        self,
        lane: Lane,
        settlements: Sequence[Settlement],
        tell: str | None,
        *,
        patient: bool = False,
    ) -> tuple[dict[JobId, Settlement], list[Settlement]]:
        """Write what became of running jobs; returns what was, and what is locked just now.

        If it is to be patient, it waits for those who have locked it.
        """
        first: dict[tuple[JobId, int], Settlement] = {}
        for settlement in settlements:  # Of two that say the same run ended, the first counts.
            first.setdefault((settlement.id, settlement.fence), settlement)
        given = list(first.values())

        async def write(
            some: list[Settlement], *, ruled: bool = False
        ) -> tuple[dict[JobId, Settlement], dict[JobId, str], list[Settlement]]:
            text = settle_text(
                some, self.at(), tell, level=self._level(), ruled=ruled, patient=patient
            )
            return await self._settle(lane, some, text)

        written, asked, busy = await write(given)
        if asked:
            ruled = [overrule(s, asked[s.id]) for s in given if s.id in asked]
            more, _, locked = await write(ruled, ruled=True)
            written |= more
            busy += locked
        if any(s.state is State.WAITING for s in written.values()):
            self.heads.look(anew=True)
        return written, busy

    async def _settle(
        self, lane: Lane, settlements: list[Settlement], text: str
    ) -> tuple[dict[JobId, Settlement], dict[JobId, str], list[Settlement]]:
        [(answer,)] = await lane.ask(self._sql["settle"], text)
        if answer is None:
            return {s.id: s for s in settlements}, {}, []
        rest = rest_of(answer)
        current = _by_id(settlements)
        written = {job_id: current[job_id] for job_id in rest.written}
        return written, rest.asked, [current[job_id] for job_id in rest.busy]

    def end_text(self, settlement: Settlement) -> str:
        """Return the one parameter of a settle that is the last statement of a transaction."""
        return settle_text([settlement], self.at(), level=self._level(), patient=True)

    async def held(self, lane: Lane, worker: str) -> list[Job]:
        """Return the running jobs that this worker claimed."""
        rows = await lane.ask(
            self._sql["held"], to_json({"level": self._level(), "worker": worker})
        )
        return [leased_of(told, worker, 0, 0).job for (told,) in rows]

    async def announce(self, lane: Lane, worker: Worker, lease: int) -> None:
        """Say that a worker lives, and which tasks it knows."""
        pools = to_json(worker.pools)
        told = (worker.id, dict(worker.capable), pools, worker.processes, worker.level)
        doc = {"at": self.at(), "level": self._level(), "worker": told, "lease": lease}
        doc["batch"] = BATCH
        [(answer,)] = await lane.ask(self._sql["announce"], to_json(doc))
        self.heads.look(anew=bool(brought_back_of(answer).number))

    async def due(self, lane: Lane) -> tuple[int | None, int]:
        """Return when the next parked job falls due, and the present instant."""
        [(answer,)] = await lane.ask(
            self._sql["due"], to_json({"at": self.at(), "level": self._level()})
        )
        due = due_of(answer)
        return due.next_at, due.now

    async def upkeep(self, lane: Lane, keep: int) -> Upkeep:
        """Do one bounded round of housekeeping."""
        doc = {"at": self.at(), "level": self._level(), "keep": keep, "batch": BATCH}
        [(answer,)] = await lane.ask(self._sql["upkeep"], to_json(doc))
        done = upkeep_of(answer)
        self.heads.look(anew=bool(done.promoted or done.brought_back))
        return done


def end_of(settlement: Settlement, answer: str | None) -> Settlement | None:
    """Return what a settle in a transaction came to: written, cancelled, or nothing."""
    if answer is None:
        return settlement
    asked = rest_of(answer).asked
    return overrule(settlement, asked[settlement.id]) if asked else None


def _by_id(settlements: Sequence[Settlement]) -> dict[JobId, Settlement]:
    """Return settlements by job; of two fences of a job only the later can be its own."""
    return {s.id: s for s in sorted(settlements, key=lambda s: s.fence)}


def _by_queue(leases: Iterable[Leased]) -> dict[str, list[Job]]:
    """Return what was claimed, each queue in its own order."""
    given: dict[str, list[Job]] = {}
    for leased in leases:
        given.setdefault(leased.job.queue, []).append(leased.job)
    return given


def _is_full(plan: ClaimPlan, claim: Claim) -> bool:
    """Say whether a claim took all the slots there were, so that there may be more."""
    room = plan.room()
    return len(claim.jobs) >= room.shared > 0
