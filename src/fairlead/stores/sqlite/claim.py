"""Claims: what the selection rule chooses of what is read, with a lease.

The rule asks a queue when it has its turn. To run a statement for each would cost more than to
read the jobs, so what the claim will come by is read ahead, of all queues with one statement, as
the rule shares the slots between them. What it needs beyond that is read queue by queue.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import msgspec

from fairlead.core.asking import Asking
from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, Gate, Job, NewJob, next_fence
from fairlead.core.queue import Served
from fairlead.core.selection import (
    LONGEST_TOLD,
    Claim,
    ClaimPlan,
    Head,
    Line,
    Lines,
    Snapshot,
    Unknown,
    select,
)
from fairlead.stores.looks import Looks
from fairlead.stores.sqlite.heads import FRONT, After, Row, read_bodies, read_heads, read_many
from fairlead.stores.sqlite.limits import bring_back_limited, in_use, park_refused
from fairlead.stores.sqlite.talk import UNREADABLE, ask, raise_unless_damage, tell, to_json
from fairlead.stores.sqlite.ways import Moment, Parked, kind_key, park

_decode_names = msgspec.json.Decoder(list[str]).decode
_decode_places = msgspec.json.Decoder(dict[str, int]).decode
_decode_kinds = msgspec.json.Decoder(list[tuple[JobId, str, int, str, str, int, list[int]]]).decode

_MOST = 0.75
"""If more of the queues that were asked had no jobs, those that have some are looked for."""
_HANDFUL = 4
"""So few queues are read one by one, when they are asked."""
_FEW = 3
"""So few jobs that are missing are read queue by queue."""
_CHUNK = 250
"""How many jobs of a queue are read at a time, where many are stepped over."""


class Claims:
    """Claims of the workers of one process."""

    def __init__(self) -> None:
        self._looks = Looks()
        # Up to which sequence number the looks have heard of new jobs.
        self._heard = 0
        # Where the looks of a worker along queues ended because of damage.
        self._damaged: dict[str, dict[str, After]] = {}
        # Workers that found most of their queues without jobs the last time.
        self._sparse: set[str] = set()

    def arrived(self, jobs: Sequence[NewJob], now: int) -> None:
        """Take note of new jobs."""
        if self._looks:
            for job in jobs:
                self._looks.arrived(job.queue, (job.due_at(now) - job.priority * SECOND, job.id))

    def look_again(self) -> None:
        """Take note that jobs may have come back to their old places."""
        self._looks.forget()

    def claim(
        self, connection: sqlite3.Connection, plan: ClaimPlan, paused: Collection[str], now: int
    ) -> Claim:
        """Lease what the selection rule chooses."""
        used = in_use(connection)
        if bring_back_limited(connection, used):
            self.look_again()
        if self._looks:
            self._hear(connection)
        damaged = self._damaged.pop(plan.worker, {})
        place = partial(self._looks.place, plan.worker)
        reader = Reader(connection, plan, paused, Moment(now, plan.level), place, damaged)
        among = None
        if len(plan.queues) > _HANDFUL and not damaged:
            among = reader.read_ahead(sparse=plan.worker in self._sparse)
            self._note_sparse(plan, among)
        selection = select(Snapshot(plan, now, Lines(plan, reader.line), among, used))
        cut = selection.cut or reader.stopped
        for name, looked in selection.looked.items():
            if looked.stepped or self._looks:
                cut |= self._looks.end(plan.worker, name, looked)
        if reader.damaged:
            self._damaged[plan.worker] = reader.damaged
        if self._looks:
            self._heard = ask(connection, "last_seq")
        unknown = [
            job_id for job_id, gate in selection.held.items() if gate is Gate.NO_CAPABLE_WORKER
        ]
        parked = _park_unknown(connection, unknown, now) if unknown else []
        park_refused(connection, selection.refused)
        rows = cast("list[tuple[str, Row]]", selection.chosen)
        jobs = _lease(connection, rows, plan, now) if rows else []
        return Claim(jobs, selection.credits, now, parked, cut)

    def _note_sparse(self, plan: ClaimPlan, among: Collection[str] | None) -> None:
        if among is not None and len(among) < len(plan.queues) * (1 - _MOST):
            self._sparse.add(plan.worker)
        else:
            self._sparse.discard(plan.worker)

    def _hear(self, connection: sqlite3.Connection) -> None:
        """Take note of new jobs that others put."""
        try:
            first = _decode_places(ask(connection, "news", heard=self._heard))
        except UNREADABLE as problem:
            raise_unless_damage(problem)
            return self._looks.forget()
        for queue, order_at in first.items():
            self._looks.arrived(queue, (order_at, ""))
        return None


class Reader:
    """Reads the waiting jobs of a plan's queues, in order.

    It begins behind a `place`, or where damage stopped the look before this one; where it
    stopped this one is in `damaged` in the end.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        plan: ClaimPlan,
        paused: Collection[str],
        by: Moment,
        place: Callable[[str], tuple[int, str] | None],
        damaged: dict[str, After],
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._paused = paused
        self._by = by
        self._place = place
        self._room = plan.room()
        self._read: dict[str, list[Row]] = {}
        self._ended: set[str] = set()
        self.damaged = damaged
        self.stopped = False

    def read_ahead(self, *, sparse: bool) -> Collection[str] | None:
        """Read what the claim will come by, as the rule shares the slots.

        Returns the queues that may have jobs, if it had to find that out: at once if they are
        said to be `sparse`, else when most of those that it asked have none.
        """
        among = self._with_jobs() if sparse else None
        asking: Asking[Row] = Asking(self._plan, among)
        for name in self._paused:
            asking.gave(name, (), more=False)
        while wanted := asking.wanted():
            try:
                found = self._read_round(wanted)
            except UNREADABLE as problem:
                raise_unless_damage(problem)
                break  # Queue by queue what is damaged is found, and moved out.
            for name, rows in found.items():
                self._read.setdefault(name, []).extend(rows)
                if len(rows) < wanted[name]:
                    self._ended.add(name)
                asking.gave(name, rows, more=name not in self._ended)
            empty = sum(not self._read[name] for name in wanted)
            if among is None and empty > len(wanted) * _MOST:
                among = self._with_jobs()
                asking.only(among)
            elif asking.missing <= _FEW:
                break
        return among

    def _read_round(self, wanted: Mapping[str, int]) -> dict[str, list[Row]]:
        """Read so many more jobs of each queue; queues that want as many share a statement."""
        alike: defaultdict[int, dict[str, After]] = defaultdict(dict)
        for name, count in wanted.items():
            alike[count][name] = self._after(name)
        found: dict[str, list[Row]] = {}
        for count, places in alike.items():
            found |= read_many(self._connection, places, count, self._by.now)
        return found

    def _after(self, name: str) -> After:
        """Return behind which place a queue is read on."""
        if read := self._read.get(name):
            return After(read[-1].order_at, read[-1].id)
        place = self._place(name)
        return FRONT if place is None else After(*place)

    def _with_jobs(self) -> set[str]:
        """Go from queue to queue along the order, past those without jobs."""
        names, most = self._plan.lineup.names, len(self._plan.lineup)
        try:
            found = _decode_names(ask(self._connection, "queues_with_jobs", most=most))
        except UNREADABLE as problem:
            raise_unless_damage(problem)
            return set(names)  # Somebody damaged the name of one.
        named = {name for name in found if name in self._plan.lineup.at}
        return named if len(found) < most else named.union(n for n in names if n > found[-1])

    def line(self, queue: Served) -> Line:
        """Return a queue's line, with what was read ahead of it."""
        return Line(queue, self._heads(queue), queue.name in self._paused)

    def _heads(self, queue: Served) -> Iterator[Head]:
        name = queue.name
        yield from self._read.get(name, ())
        passed_by = self.damaged.pop(name, None)
        after = passed_by or self._after(name)
        # About its share; more each time, if there are many to step over.
        chunk = self._room.for_queue(queue) * queue.weight // self._plan.lineup.weight + 1
        more = chunk
        while name not in self._ended:
            found, stopped = read_heads(self._connection, name, after, chunk, self._by)
            if passed_by is not None and not found and stopped is None:
                # Nothing is left behind those: begin anew, for there are more to move out.
                after, passed_by = FRONT, None
                continue
            if stopped is not None:
                self.damaged[name], self.stopped = stopped, True
            if len(found) < chunk:
                self._ended.add(name)
            yield from found
            if found:
                after = After(found[-1].order_at, found[-1].id)
            chunk, more = max(chunk, min(more, _CHUNK)), 2 * more


def _lease(
    connection: sqlite3.Connection, rows: list[tuple[str, Row]], plan: ClaimPlan, now: int
) -> list[Job]:
    """Write the leases and return the jobs as they are then, in the order of the rows."""
    until = now + plan.lease
    bodies = read_bodies(connection, rows, Moment(now, plan.level))
    jobs: list[Job] = []
    alike: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for queue, row in rows:
        payload, options = row.payload, row.options
        if payload is None:
            body = bodies.get(row.seq)
            if body is None:
                continue
            payload, options = body
        lost = row.lost
        fence = next_fence(row.fence, now)
        alike[lost, fence].append(row.seq)
        jobs.append(
            Job(
                row.id,
                row.task,
                row.version,
                queue,
                payload,
                options,
                row.attempt if lost else row.attempt + 1,
                row.crashes,
                fence,
                row.run_at,
                row.enqueued_at,
                row.expires_at,
                row.claimed_at or now,
                until,
                row.worker or plan.worker,
                lost,
                row.shared_deaths,
            )
        )
    for (lost, fence), seqs in alike.items():
        values: dict[str, object] = {"fence": fence, "until": until, "seqs": to_json(seqs)}
        values |= {"worker": plan.worker, "now": now}
        tell(connection, "take_over" if lost else "lease", **values)
    return jobs


def _park_unknown(connection: sqlite3.Connection, ids: list[JobId], now: int) -> list[Unknown]:
    """Park those of these jobs that no live worker knows."""
    values = {"ids": to_json(ids), "now": now, "latest": LATEST, "longest": LONGEST_TOLD}
    kinds = _decode_kinds(ask(connection, "unknown_kinds", **values))
    keys = {seq: kind_key(task, version) for _, task, version, *_, seqs in kinds for seq in seqs}
    if keys:
        park(connection, Parked.NO_CAPABLE_WORKER, keys)
    return [
        Unknown(
            id=first,
            task=task,
            version=version,
            queue=queue,
            options=bytes.fromhex(digits).decode(errors="replace") or None,
            jobs=jobs,
        )
        for first, task, version, queue, digits, jobs, _ in sorted(kinds)
    ]
