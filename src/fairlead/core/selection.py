"""The selection rule: which jobs start next, and why the others do not.

One pure function over a snapshot. The memory and SQLite stores run it as it
is, inside their atomic step; stores that must do it in one remote statement
implement the same rule and are held to it by differential tests. `insight.explain`
and the simulator ask the same function, so nothing about fairness or gating exists
in only one place.

**Between queues**: weighted round robin with credit. Serving a queue costs it
1/weight of credit; the queue with the most credit is next; credit never rises
above zero, so an empty queue saves nothing up. Only queues with a job that may
start take part, so no slot stays free while the claim sees work for it (see
`LOOK` for how far it sees). A non-empty
queue of weight w among W gets at least one job in any ⌈W/w⌉ + k claimed jobs,
where k is the number of non-empty queues: between two of its turns each other
queue v is served at most v/w + 1 times.

**Critical queues** are asked first. Each owns reserve slots besides the pool's;
beyond them, all critical queues together hold at most half of the shared slots.

**Inside a queue** the order is `order_at`, then id, where `order_at = run_at -
priority`: a priority is a head start, and waiting makes up for any of them.

**Gates** are the entries of `GATES`, asked in this order. A new kind of limit
is a new entry, and nothing else changes.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from fairlead.core.errors import ConfigError
from fairlead.core.ids import JobId
from fairlead.core.job import Gate, Job, size_of
from fairlead.core.queue import Served

LOOK = 1_000
"""How many gated jobs of one queue a claim steps over before it leaves the rest for the next.

Those are jobs of tasks that this worker does not know but another live one does.
The worker's next claim goes on where this one stopped, so its own jobs behind
them are found, and no claim takes long.
"""

MOST_BYTES = 4 * 1024 * 1024
"""How many bytes of payload one claim brings, and the job that reaches it."""

Credits = Mapping[str, float]
"""Credit by queue, zero or less; a queue that is not in it has zero."""


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


def can_run(capable: Mapping[str, int] | None, task: str, version: int) -> bool:
    """Say whether a worker with these capabilities knows the task in this version."""
    return capable is None or capable.get(task, 0) >= version


class ClaimPlan(msgspec.Struct, frozen=True):
    """What one pool of one worker asks the store for.

    `slots` are the pool's shared slots and `running` says how many jobs of each
    queue it runs now; what is free follows. `capable` maps the task names the
    worker knows to the newest payload version it reads; None means any task.
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
    credits: Credits = {}
    capable: Mapping[str, int] | None = None
    spare_lost: bool = False
    asked_at: int | None = None
    most_bytes: int = MOST_BYTES

    def __post_init__(self) -> None:
        """Refuse a queue that stands twice: its jobs would be given out twice."""
        if len({queue.name for queue in self.queues}) < len(self.queues):
            raise ConfigError("a claim names a queue twice; name each once")

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
        return msgspec.structs.replace(self, queues=tuple(queues), slots=self.slots - filled)


LONGEST_TOLD = 4_096
"""How long the options of a parked job may be to be told: one claim may park a thousand jobs."""


class Unknown(msgspec.Struct, frozen=True):
    """A job that a claim parked, because no live worker knows its task, without long options."""

    id: JobId
    task: str
    version: int
    queue: str
    options: str | None


class Claim(msgspec.Struct, frozen=True):
    """What the store gave: jobs in the order they should start, and the credits after them.

    `now` is the time by the store's clock, and `parked` what the claim parked on
    its way. `cut` says that it ended because of `most_bytes`: there may be more.
    """

    jobs: list[Job]
    credits: Credits
    now: int
    parked: list[Unknown] = []
    cut: bool = False

    def joined(self, more: "Claim") -> "Claim":
        """Return this claim and one that came after it, as one."""
        if not self.jobs and not self.parked:
            return more
        return Claim(
            self.jobs + more.jobs,
            more.credits,
            more.now,
            self.parked + more.parked,
            cut=self.cut or more.cut,
        )


class Line(msgspec.Struct, frozen=True):
    """One queue in a snapshot: its waiting jobs in order, and whether it is paused."""

    queue: Served
    heads: Iterable[Head]
    paused: bool = False


class Snapshot(msgspec.Struct, frozen=True):
    """Everything the rule may look at."""

    plan: ClaimPlan
    now: int
    lines: Sequence[Line]


class Selection(msgspec.Struct, frozen=True):
    """The rule's answer: who starts, in order; the credits after; who was held, by which gate.

    `stopped` names the queues that were not looked through, with the last job
    that was looked at: the place where the same worker's next claim goes on. `cut` is as in
    `Claim`.
    """

    chosen: list[tuple[str, Head]]
    credits: Credits
    held: dict[JobId, Gate]
    stopped: dict[str, Head] = {}
    cut: bool = False


def _paused(head: Head, line: Line, snapshot: Snapshot) -> bool:
    return line.paused


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


GATES: dict[Gate, Callable[[Head, Line, Snapshot], bool]] = {
    Gate.PAUSED: _paused,
    Gate.EXPIRED: _expired,
    Gate.NOT_DUE: _not_due,
    Gate.LEASE_SPARED: _spared,
    Gate.NO_CAPABLE_WORKER: _incapable,
}
"""Every gate, with the question whether it is closed before a job."""

_QUESTIONS = tuple(GATES.items())


def gate_of(head: Head, line: Line, snapshot: Snapshot) -> Gate | None:
    """Return the first closed gate before this job, or None if it may start."""
    for gate, closed in _QUESTIONS:
        if closed(head, line, snapshot):
            return gate
    return None


def select(snapshot: Snapshot) -> Selection:
    """Choose the jobs that start now.

    Looks at no more jobs than it must: those it chooses, those it steps over,
    and one more per queue.
    """
    room = Room(snapshot.plan)
    credits = dict(snapshot.plan.credits)
    chosen: list[tuple[str, Head]] = []
    held: dict[JobId, Gate] = {}
    stopped: dict[str, Head] = {}
    for critical in (True, False):
        lines = [line for line in snapshot.lines if line.queue.critical is critical]
        open_lines = [
            _Ready(line, snapshot, held)
            for line in lines
            if not line.paused and room.for_queue(line.queue)
        ]
        passed = _take_turns(open_lines, room, credits, chosen)
        _forgive(credits, passed, [line.queue for line in lines])
        stopped |= {line.queue.name: line.stopped for line in open_lines if line.stopped}
    credits = {name: debt for name, debt in credits.items() if debt}
    return Selection(chosen, credits, held, stopped, cut=room.bytes <= 0)


class Shares(msgspec.Struct, frozen=True):
    """Whose turn it is: the names of queues, one for each job, and the credits after them."""

    turns: list[str]
    credits: Credits


def share(plan: ClaimPlan, ready: Mapping[str, float]) -> Shares:
    """Share the slots between queues of which so many jobs may start, as `select` does.

    For a store in many parts, which asks each for its share and looks at no snapshot.
    """
    room = Room(plan)
    credits = dict(plan.credits)
    turns: list[tuple[str, None]] = []
    for critical in (True, False):
        queues = [queue for queue in plan.queues if queue.critical is critical]
        lines = [_Counted(queue, ready[queue.name]) for queue in queues if ready[queue.name]]
        take = _take_alone if len(lines) == 1 else _take_turns
        passed = take(lines, room, credits, turns)
        _forgive(credits, passed, queues)
    credits = {name: debt for name, debt in credits.items() if debt}
    return Shares([name for name, _ in turns], credits)


def in_turns(plan: ClaimPlan, given: Mapping[str, Sequence[Job]]) -> tuple[list[Job], Credits]:
    """Return what each queue gave in the order it should start, and the credits after it."""
    shared = share(plan, {name: len(jobs) for name, jobs in given.items()})
    left = {name: iter(jobs) for name, jobs in given.items()}
    return [next(left[name]) for name in shared.turns], shared.credits


class Room:
    """The slots that are still free, and for whom.

    `reserve` are those that only one queue may use, `shared` those of all, of which
    critical queues may use `critical_share`. `bytes` are those of payload that may still come.
    """

    def __init__(self, plan: ClaimPlan) -> None:
        running = {queue.name: plan.running.get(queue.name, 0) for queue in plan.queues}
        beyond = sum(max(0, running[q.name] - q.reserved) for q in plan.queues if q.critical)
        ordinary = sum(running[q.name] for q in plan.queues if not q.critical)
        self.reserve = {q.name: max(0, q.reserved - running[q.name]) for q in plan.queues}
        self.shared = max(0, plan.slots - beyond - ordinary)
        self.critical_share = max(0, plan.slots // 2 - beyond)
        self.bytes = plan.most_bytes

    def for_queue(self, queue: Served) -> int:
        """Return how many more jobs of this queue may start."""
        if self.bytes <= 0:
            return 0
        if not queue.critical:
            return self.shared
        return self.reserve[queue.name] + min(self.shared, self.critical_share)

    def take(self, queue: Served, jobs: int = 1) -> None:
        """Fill slots with jobs of this queue, the reserved ones first."""
        if self.reserve[queue.name]:
            reserved = min(jobs, self.reserve[queue.name])
            self.reserve[queue.name] -= reserved
            jobs -= reserved
        self.shared -= jobs
        if queue.critical:
            self.critical_share -= jobs


class _Ready:
    """The jobs of one line that may start, one at a time; notes the gates it steps over."""

    def __init__(self, line: Line, snapshot: Snapshot, held: dict[JobId, Gate]) -> None:
        self.queue = line.queue
        self.stopped: Head | None = None
        self._heads = self._open(line, snapshot, held)
        self.next = next(self._heads, None)

    def pop(self, room: Room) -> Head:
        """Return the next job, which fills some of the room, and move on."""
        head = self.next
        assert head is not None
        room.bytes -= head.size
        self.next = next(self._heads, None)
        return head

    def _open(self, line: Line, snapshot: Snapshot, held: dict[JobId, Gate]) -> Iterator[Head]:
        look = LOOK
        for head in line.heads:
            gate = gate_of(head, line, snapshot)
            if gate is None:
                yield head
                continue
            held[head.id] = gate
            look -= 1
            if not look:
                self.stopped = head
                return


class _Counted:
    """A line of which only the length is known."""

    def __init__(self, queue: Served, length: float) -> None:
        self.queue = queue
        self.left = length
        self.next: bool | None = True

    def pop(self, room: Room) -> None:
        """Count one, and move on; how much it brings is not known."""
        self.left -= 1
        if self.left <= 0:
            self.next = None


def _take_alone(
    lines: "Sequence[_Counted]",
    room: Room,
    credits: dict[str, float],
    chosen: list[tuple[str, None]],
) -> float:
    """Serve the only line there is, all at once: what `_take_turns` comes to then."""
    [line] = lines
    queue = line.queue
    debt, count = -credits.get(queue.name, 0.0), int(min(line.left, room.for_queue(queue)))
    if not count:
        return 0.0
    room.take(queue, count)
    chosen += [(queue.name, None)] * count
    credits[queue.name] = -(debt + count / queue.weight)
    return debt + (count - 1) / queue.weight


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _InTurn(Protocol[T_co]):
    """A line that takes turns with others."""

    @property
    def queue(self) -> Served: ...
    @property
    def next(self) -> object | None: ...
    def pop(self, room: Room) -> T_co: ...


def _take_turns(
    lines: Sequence[_InTurn[T]],
    room: Room,
    credits: dict[str, float],
    chosen: list[tuple[str, T]],
) -> float:
    """Serve the lines by credit until they or the slots run out.

    Returns what the last one served had owed: how far the round has come.
    """
    # A heap of debts: what a line owes is its credit with the sign turned. What it owes before its
    # n-th job is told by a product, not a sum, so that SQL comes to the same number.
    debts = [-credits.get(line.queue.name, 0.0) for line in lines]
    served = [0] * len(lines)
    turns = [(debts[at], at, line) for at, line in enumerate(lines) if line.next is not None]
    heapq.heapify(turns)
    passed = 0.0
    while turns:
        owed, at, line = turns[0]
        queue = line.queue
        if not room.for_queue(queue):
            heapq.heappop(turns)
            continue
        room.take(queue)
        chosen.append((queue.name, line.pop(room)))
        served[at] += 1
        passed, owed = owed, debts[at] + served[at] / queue.weight
        credits[queue.name] = -owed
        if line.next is None:
            heapq.heappop(turns)
        else:
            heapq.heapreplace(turns, (owed, at, line))
    return passed


def _forgive(credits: dict[str, float], passed: float, queues: Sequence[Served]) -> None:
    """Give everybody the credit by which the round has moved on, up to zero.

    An idle queue's debt melts away as fast as the others are served, and no
    faster: a queue cannot win by running empty.
    """
    for queue in queues:
        name = queue.name
        if name in credits:
            credits[name] = min(0.0, credits[name] + passed)
