"""The selection rule: which jobs start next, and why the others do not.

One pure function over a snapshot. The memory and SQLite stores run it as it
is, inside their atomic step; stores that must do it in one remote statement
implement the same rule and are held to it by differential tests. `insight.explain`
and the simulator ask the same function, so nothing about fairness or gating exists
in only one place.

**Between queues**: weighted round robin with credit (`core.turns`). A turn of a queue
costs it 1/weight of credit; the queue with the most credit is next; credit never
rises above zero, so an empty queue saves nothing up. A turn is one job, or two where
many queues of the same weight share many slots. Only queues with a job that may
start take part, so no slot stays free while the claim sees work for it (see
`LOOK` for how far it sees). A non-empty queue of weight w among W gets at least one
job in any ⌈W/w⌉ + k jobs that one process claims, where k is the number of queues that
have jobs at any time meanwhile: between two of its turns each other queue v has at most
v/w + 1, and only one if all weights are the same.
Each process has credits of its own. In any n · (⌈W/w⌉ + k - 1) + 1 jobs that n
processes claim, one of them claimed ⌈W/w⌉ + k, and served it. They begin their rounds at
different places, so that four in step come within a third of the bound for one.

**Critical queues** are asked first. Each owns reserve slots besides the pool's;
beyond them, all critical queues together hold at most half of the shared slots.

**Inside a queue** the order is `order_at`, then id, where `order_at = run_at -
priority`: a priority is a head start, and waiting makes up for any of them.

**Gates** are the entries of `GATES`, asked in this order about the job that is to be taken
next. A new kind of gate is a new entry, and its like in the two stores that ask for themselves:
`gate.sql` of PostgreSQL and `orders.lua` of Redis, held to this by the differential tests.

**Limits** are gates that count, the entries of `LIMITS`. They are asked about all jobs that the
claim is about to take, the first in place first, and charged with each that may start: so of two
queues that share a limit, no two jobs have the last of it. Whoever is refused is parked under the
limit and its key, and comes back when that has room; its turn is given back, and the worker
claims again at once. A new kind of limit is a new entry, and one place in each store that says
what of it is in use, and how its parked jobs are marked there. Lists, counts and `explain` go by
these two; the audit and the repair accept whatever gate a job is parked for.

So a job may be parked for a gate that this program does not know, because a newer program parked
it. Only a program that knows the gate brings it back, and people see it under
`Gate.NEWER_PROGRAM`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import msgspec

from fairlead.core.ids import JobId
from fairlead.core.job import LEVEL, Gate, Job, size_of
from fairlead.core.queue import Served
from fairlead.core.turns import Credits, Lineup, Room

T = TypeVar("T")

LOOK = 1_000
"""How many gated jobs of one queue a claim steps over before it leaves the rest for the next.

Those are jobs of tasks that this worker does not know but another live one does, jobs for newer
programs, and jobs that nobody knows, before they are parked. The worker's next claim goes on where
this one stopped, so its own jobs behind n of them are found after ⌈n / LOOK⌉ claims, and no claim
takes long.
"""

MOST_BYTES = 4 * 1024 * 1024
"""How many bytes of payload one claim brings, and the job that reaches it."""


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A waiting job as the rule sees it.

    `lost` says that a run of it was lost. That must be decided on, so the job
    is claimed even if it has expired meanwhile. `size` are the bytes of its payload and options.
    """

    id: JobId
    task: str
    version: int
    order_at: int
    run_at: int
    expires_at: int | None = None
    lost: bool = False
    size: int = 0
    level: int = 1


def can_run(capable: Mapping[str, int] | None, task: str, version: int) -> bool:
    """Say whether a worker with these capabilities knows the task in this version."""
    return capable is None or capable.get(task, 0) >= version


class ClaimPlan(msgspec.Struct, frozen=True):
    """What one pool of one worker asks the store for.

    `slots` are the pool's shared slots and `running` says how many jobs of each
    queue it runs now; what is free follows. `level` is that of the worker's program, and
    `capable` maps the task names it knows to the newest payload version it reads; None means
    any task.
    With `spare_lost`, jobs whose lease has passed are left alone: after a store
    outage their workers may be alive, and get a heartbeat's time to say so. The
    same goes for a plan that took half a lease to arrive since `asked_at`: as
    long as it waited, so did they. A claim ends with the job whose payload makes
    it `most_bytes` or more, so it brings one at least; a store in many parts gives each
    part its share of them.
    """

    worker: str
    queues: tuple[Served, ...]
    slots: int
    lease: int
    running: Mapping[str, int] = {}
    credits: Mapping[str, float] = {}
    capable: Mapping[str, int] | None = None
    spare_lost: bool = False
    asked_at: int | None = None
    most_bytes: int = MOST_BYTES
    level: int = LEVEL

    def __post_init__(self) -> None:
        """Bring queues and credits into the form that costs nothing to use; a pool has them so."""
        if not isinstance(self.queues, Lineup):
            msgspec.structs.force_setattr(self, "queues", Lineup(self.queues))
        credits = self.credits
        if not isinstance(credits, Credits) or credits.lineup is not self.queues:
            msgspec.structs.force_setattr(self, "credits", Credits(self.lineup, credits))

    @property
    def lineup(self) -> Lineup:
        """Its queues, with what of them never changes."""
        assert isinstance(self.queues, Lineup)
        return self.queues

    @property
    def standing(self) -> Credits:
        """Its credits, in the order of the turns."""
        assert isinstance(self.credits, Credits)
        return self.credits

    def room(self) -> Room:
        """Return the slots that are free, and for whom."""
        return Room(self.lineup, self.slots, self.running, self.most_bytes)

    def after(self, claim: "Claim") -> "ClaimPlan":
        """Return what is left to ask for after a claim gave some of it."""
        if not claim.jobs:
            return self
        running = Counter(self.running)
        running.update(job.queue for job in claim.jobs)
        left = max(1, self.most_bytes - sum(map(size_of, claim.jobs)))
        return msgspec.structs.replace(
            self, running=running, credits=claim.credits, most_bytes=left
        )

    def only(self, queues: Sequence[Served]) -> "ClaimPlan":
        """Return the same for some of its queues; shared slots that others fill are not free."""
        if len(queues) == len(self.queues):
            return self
        names = {queue.name for queue in queues}
        filled = sum(
            max(0, self.running.get(queue.name, 0) - queue.reserved)
            for queue in self.queues
            if queue.name not in names
        )
        return msgspec.structs.replace(self, queues=Lineup(queues), slots=self.slots - filled)


LONGEST_TOLD = 4_096
"""How long the options of a parked job may be to be told: one claim may park a thousand kinds."""


class Unknown(msgspec.Struct, frozen=True):
    """The jobs of one task, version and queue that a claim parked: no live worker knows the task.

    `jobs` is their number. `id` is the least of their ids, and `options` are that job's, unless
    they are long.
    """

    id: JobId
    task: str
    version: int
    queue: str
    options: str | None
    jobs: int


class Claim(msgspec.Struct, frozen=True):
    """What the store gave: jobs in the order they should start, and the credits after them.

    `now` is the time by the store's clock, and `parked` what the claim parked on its way: one
    entry for each task, version and queue. `cut` says that it ended before it had seen all it may
    give: because of `most_bytes`, of `LOOK`, or of a limit. Who has room left claims again at once.
    """

    jobs: list[Job]
    credits: Credits
    now: int
    parked: list[Unknown] = []
    cut: bool = False

    def joined(self, more: "Claim") -> "Claim":
        """Return this claim and one that came after it, perhaps of some queues only, as one."""
        return Claim(
            self.jobs + more.jobs,
            self.credits.updated(more.credits),
            more.now,
            self.parked + more.parked,
            cut=self.cut or more.cut,
        )


class Line(msgspec.Struct, frozen=True):
    """One queue in a snapshot: its waiting jobs in order, and whether it is paused."""

    queue: Served
    heads: Iterable[Head]
    paused: bool = False


class Lines(dict[str, Line]):
    """The lines of a plan's queues, each read when its queue is asked."""

    def __init__(self, plan: ClaimPlan, read: Callable[[Served], Line]) -> None:
        super().__init__()
        self._lineup = plan.lineup
        self._read = read

    def __missing__(self, name: str) -> Line:
        """Read a line."""
        line = self[name] = self._read(self._lineup[self._lineup.at[name]])
        return line


class Limit(NamedTuple):
    """A gate that counts: the key under which a job uses it, if it does, and how many may run."""

    uses: Callable[[Head], str | None]
    most: int


Used = Mapping[Gate, Counter[str]]
"""How many jobs run that use a limit, by its keys."""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything the rule may look at: a line for each queue, or `Lines`.

    `among` names the queues that may have a job that waits, where that is known. `used` says how
    much of each limit is in use; a job whose run was lost still uses what it did.
    """

    plan: ClaimPlan
    now: int
    lines: Mapping[str, Line]
    among: Collection[str] | None = None
    used: Used = {}


class Looked(msgspec.Struct, frozen=True):
    """How far a claim came in a queue: the job it looked at last, or None if it saw the end.

    `stepped` says how many jobs it stepped over, `taken` how many it took. `cut` says that
    it stopped because of `LOOK`.
    """

    last: Head | None
    stepped: int
    taken: int
    cut: bool


class Selection(msgspec.Struct, frozen=True):
    """The rule's answer: who starts, in order; the credits after; who was held, by which gate.

    `looked` are the queues that were asked. `cut` is as in `Claim`. `refused` are those whom limits
    held, which the store parks, and `used` is what is in use after the claim.
    """

    chosen: list[tuple[str, Head]]
    credits: Credits
    held: dict[JobId, Gate]
    looked: dict[str, Looked]
    cut: bool = False
    refused: Mapping[Gate, Sequence[Head]] = {}
    used: Used = {}


Question = Callable[[Head, Line, Snapshot], bool]
"""Asks whether a gate is closed before a job."""


def _paused(head: Head, line: Line, snapshot: Snapshot) -> bool:
    return line.paused


def _newer(head: Head, line: Line, snapshot: Snapshot) -> bool:
    return head.level > snapshot.plan.level


def _not_due(head: Head, line: Line, snapshot: Snapshot) -> bool:
    return head.run_at > snapshot.now


def _expired(head: Head, line: Line, snapshot: Snapshot) -> bool:
    return head.expires_at is not None and not head.lost and head.expires_at <= snapshot.now


def _incapable(head: Head, line: Line, snapshot: Snapshot) -> bool:
    return not can_run(snapshot.plan.capable, head.task, head.version)


def _spared(head: Head, line: Line, snapshot: Snapshot) -> bool:
    if not head.lost:
        return False
    plan = snapshot.plan
    late = plan.asked_at is not None and snapshot.now - plan.asked_at >= plan.lease // 2
    return plan.spare_lost or late


GATES: dict[Gate, Question] = {
    Gate.PAUSED: _paused,
    Gate.NEWER_PROGRAM: _newer,
    Gate.EXPIRED: _expired,
    Gate.NOT_DUE: _not_due,
    Gate.LEASE_SPARED: _spared,
    Gate.NO_CAPABLE_WORKER: _incapable,
}
"""Every gate that asks about a job alone, in the order they are asked."""

_QUESTIONS = tuple(GATES.items())

LIMITS: dict[Gate, Limit] = {}
"""Every gate that counts, asked after those."""


def parked_for(name: str) -> Gate:
    """Return the gate that a parked job waits behind, by its name in the store.

    A gate for which this program parks no jobs is that of a newer program.
    """
    known = {gate: gate for gate in (Gate.NOT_DUE, Gate.NO_CAPABLE_WORKER, *LIMITS)}
    return known.get(cast("Gate", name), Gate.NEWER_PROGRAM)


def full(used: Used) -> dict[Gate, list[str]]:
    """Return the keys of each limit that have no room."""
    return {
        gate: [key for key, count in counter.items() if count >= LIMITS[gate].most]
        for gate, counter in used.items()
    }


def gate_of(head: Head, line: Line, snapshot: Snapshot) -> Gate | None:
    """Return the first closed gate before this job, or None if it may start."""
    for gate, is_closed in _QUESTIONS:
        if is_closed(head, line, snapshot):
            return gate
    return None


def limit_of(head: Head, used: Used) -> Gate | None:
    """Return the first limit that has no room for this job; a lost run holds what it uses."""
    if not head.lost:
        for gate, limit in LIMITS.items():
            key = limit.uses(head)
            if key is not None and gate in used and used[gate][key] >= limit.most:
                return gate
    return None


def gates_before(head: Head, line: Line, snapshot: Snapshot) -> dict[Gate, bool]:
    """Say of every gate whether it is closed before this job, in the order they are asked."""
    closed = {gate: is_closed(head, line, snapshot) for gate, is_closed in GATES.items()}
    limit = limit_of(head, snapshot.used)
    return closed | {gate: gate is limit for gate in LIMITS}


def admit(heads: Iterable[Head], used: Used) -> dict[Gate, list[Head]]:
    """Charge jobs to the limits, the first in place first; returns whom each of them refuses."""
    refused: dict[Gate, list[Head]] = {}
    for head in sorted(heads, key=lambda head: (head.order_at, head.id)):
        gate = limit_of(head, used)
        if gate is not None:
            refused.setdefault(gate, []).append(head)
        elif not head.lost:
            for each, counter in used.items():
                key = LIMITS[each].uses(head)
                if key is not None:
                    counter[key] += 1
    return refused


def select(snapshot: Snapshot) -> Selection:
    """Choose the jobs that start now.

    Looks at no more jobs than it must: those it chooses, and those it steps over.
    """
    plan, room, among = snapshot.plan, snapshot.plan.room(), snapshot.among
    held: dict[JobId, Gate] = {}
    asked: dict[str, _Ready] = {}

    def ask(queue: Served) -> Head | None:
        ready = asked.get(queue.name)
        if ready is None:
            if among is not None and queue.name not in among:
                return None
            ready = asked[queue.name] = _Ready(snapshot.lines[queue.name], snapshot, held)
        head = ready.next()
        if head is not None:
            room.bytes -= head.size
        return head

    chosen, credits = plan.standing.serve(room, ask, among)
    looked = {name: ready.looked() for name, ready in asked.items()}
    cut = room.bytes <= 0 or any(each.cut for each in looked.values())
    if not LIMITS:
        return Selection(chosen, credits, held, looked, cut)
    used = {gate: Counter(counter) for gate, counter in snapshot.used.items()}
    refused = admit((head for _, head in chosen), used)
    if refused:
        cut = True
        held |= {head.id: gate for gate, heads in refused.items() for head in heads}
        chosen, credits = _without(held, chosen, plan)
    return Selection(chosen, credits, held, looked, cut, refused, used)


def _without(
    held: Collection[JobId], chosen: Sequence[tuple[str, Head]], plan: ClaimPlan
) -> tuple[list[tuple[str, Head]], Credits]:
    """Return who starts if some of the chosen do not, and the credits after them."""
    left: dict[str, list[Head]] = {}
    for queue, head in reversed(chosen):
        if head.id not in held:
            left.setdefault(queue, []).append(head)

    def ask(queue: Served) -> Head | None:
        heads = left.get(queue.name)
        return heads.pop() if heads else None

    return plan.standing.serve(plan.room(), ask, left)


class _Ready:
    """The jobs of one line that may start, one at a time; notes the gates it steps over."""

    def __init__(self, line: Line, snapshot: Snapshot, held: dict[JobId, Gate]) -> None:
        self._line = line
        self._snapshot = snapshot
        self._held = held
        self._heads = iter(()) if line.paused else iter(line.heads)
        self._last: Head | None = None
        self._taken = self._stepped = 0

    def next(self) -> Head | None:
        """Return the next job that may start."""
        for head in self._heads:
            self._last = head
            gate = gate_of(head, self._line, self._snapshot)
            if gate is None:
                self._taken += 1
                return head
            self._held[head.id] = gate
            self._stepped += 1
            if self._stepped >= LOOK:
                return None
        self._last = None
        return None

    def looked(self) -> Looked:
        """Say how far it came."""
        return Looked(self._last, self._stepped, self._taken, cut=self._stepped >= LOOK)
