"""Why a job waits: the gates of the selection rule, in order, and what would open each.

The rule itself is asked, with a plan for every process of each live worker that
serves the job's queue, one after the other, on snapshots of what their next claims
would see. So what is
said here is what the next claim does, with two things the store does not know: the
credits by which a worker takes turns between queues, which are taken for even, and
how many jobs it claims ahead of its slots when they are very quick, taken for none.
"""

from collections.abc import Mapping, Sequence
from shlex import quote

import msgspec
from msgspec.structs import replace

from fairlead.core.admin import Part, PoolShare, Worker, by_process
from fairlead.core.clock import SECOND
from fairlead.core.errors import did_you_mean
from fairlead.core.figures import began_at
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Gate, JobRecord, State
from fairlead.core.queue import Share
from fairlead.core.selection import (
    LIMITS,
    LOOK,
    ClaimPlan,
    Head,
    Line,
    Snapshot,
    can_run,
    gates_before,
    select,
)
from fairlead.core.store import Store
from fairlead.core.text import QUOTED, brief, counted, cut
from fairlead.producer import found

WINDOW = 600 * SECOND
"""How far back the pace of a queue is looked at."""

_MOST_PROCESSES, _MOST_SLOTS = 100, 10_000
"""As far as what a worker says of itself is believed: nobody looks at more jobs than that."""


class Barrier(msgspec.Struct, frozen=True):
    """One gate before a job: whether it is closed, and what would open it."""

    gate: Gate
    closed: bool
    opens: str | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is where it is.

    `gate` is the first closed one; None for a waiting job says that the next claim
    takes it. `starts_at` is a guess, and `basis` says what it rests on. `damaged` says
    that claims cannot read the job, though it stands where they look.
    """

    job: JobRecord
    now: int = 0
    gate: Gate | None = None
    gates: tuple[Barrier, ...] = ()
    ahead: int = 0
    starts_at: int | None = None
    basis: str = ""
    damaged: bool = False


def suspicion(job: JobRecord) -> str | None:
    """Say why a live job runs apart from others, and with whom; None if it does not."""
    if job.state.final:
        return None
    if job.crashes:
        return f"alone, because a process died while it ran there alone{_last_crash(job)}"
    match job.shared_deaths:
        case 0:
            return None
        case 1:
            return "in a process of their own, with those that ran beside it when theirs died"
        case 2:
            return "in a small group, because two processes died while it ran there with others"
    told = f"because {job.shared_deaths:,} processes died while it ran there with others"
    return f"alone, {told}"


def _last_crash(job: JobRecord) -> str:
    """Say how the process died, and which crash of how many it was."""
    told = [error.message for error in job.errors if error.outcome == "crashed" and error.message]
    return f" ({cut(told[-1], QUOTED)})" if told else ""


async def explain(
    store: Store, job_id: JobId, tasks: Mapping[str, int] | None = None
) -> Explanation:
    """Ask the store what it takes, and judge.

    `tasks` are those of the app, with their versions, if there is one at hand: to start a worker
    of it would not help a job whose task it does not have.
    """
    job = await found(store, job_id)
    if job.state.final:
        return Explanation(job)
    views = await _views(store, job)
    # Again, and not older than the views: a job that was claimed meanwhile needs no slot.
    job = await found(store, job_id)
    now = views[0].snapshot.now
    if not may_be_claimed(job, now):
        return Explanation(job, now)
    lines = await store.admin.recent(now - WINDOW, queue=job.queue)
    return judge(job, views, await store.admin.ahead(job_id), lines, tasks)


class View(msgspec.Struct, frozen=True):
    """What a pool of a worker would see, and what each of its processes would ask for."""

    snapshot: Snapshot
    plans: tuple[ClaimPlan, ...]


async def _views(store: Store, job: JobRecord) -> list[View]:
    """Return the view of each pool that serves the job's queue; never none."""
    running = by_process((await store.admin.stats([Part.RUNNING])).running)
    served = [
        plans_of(worker, pool, running)
        for worker in await store.admin.workers()
        for pool in worker.pools_for(job.queue)
    ]
    if not served:
        served = [(ClaimPlan("", (Share(job.queue),), 0, 0, capable={}),)]
    limit = min(sum(_room(plan) for plans in served for plan in plans), _MOST_SLOTS) + LOOK
    # Workers of one program ask for the same, and so see the same: a thousand of them look once.
    seen: dict[object, Snapshot] = {}
    for plans in served:
        if sight(plans[0]) not in seen:
            seen[sight(plans[0])] = await store.admin.snapshot(plans[0], limit)
    return [View(seen[sight(plans[0])], plans) for plans in served]


def sight(plan: ClaimPlan) -> object:
    """Return what decides on what a plan sees: which queues, which tasks, of which level."""
    capable = None if plan.capable is None else frozenset(plan.capable.items())
    return tuple(plan.queues), capable, plan.level


def plans_of(
    worker: Worker, pool: PoolShare, running: Mapping[str, Mapping[str, int]]
) -> tuple[ClaimPlan, ...]:
    """Return what the processes of a worker would ask for next for one of their pools; never none.

    Numbers that no worker announces were damaged, and are brought to what one would.
    """
    busy = {process: counts for process, counts in running.items() if worker.owns(process)}
    processes = max(1, min(worker.processes, _MOST_PROCESSES))
    idle = [f"{worker.id}/new-{n}" for n in range(processes - len(busy))]
    queues = tuple(
        replace(q, weight=max(1, q.weight), reserved=min(max(0, q.reserved), _MOST_SLOTS))
        for q in pool.queues
    )
    return tuple(
        ClaimPlan(
            process,
            queues,
            min(max(0, pool.slots), _MOST_SLOTS),
            0,
            running={q.name: busy.get(process, {}).get(q.name, 0) for q in queues},
            capable=worker.capable,
            level=worker.level,
        )
        for process in (*sorted(busy), *idle)
    )


def _room(plan: ClaimPlan) -> int:
    return plan.slots + sum(queue.reserved for queue in plan.queues)


def starting(views: Sequence[View]) -> set[JobId]:
    """Return the jobs that the next claims take, one claim after the other."""
    taken: set[JobId] = set()
    used = dict(views[0].snapshot.used) if views else {}
    for view in views:
        for plan in view.plans:
            left = {
                name: replace(line, heads=[head for head in line.heads if head.id not in taken])
                for name, line in view.snapshot.lines.items()
            }
            selection = select(replace(view.snapshot, plan=plan, lines=left, used=used))
            taken |= {head.id for _, head in selection.chosen}
            used = dict(selection.used)
    return taken


def may_be_claimed(job: JobRecord, now: int) -> bool:
    """Say whether a job waits, or was lost by its worker."""
    lost = job.lease_until is not None and job.lease_until <= now
    return job.state is State.WAITING or (job.state is State.RUNNING and lost)


def judge(
    job: JobRecord,
    views: Sequence[View],
    ahead: int,
    lines: Sequence[Attempt],
    tasks: Mapping[str, int] | None = None,
) -> Explanation:
    """Ask the rule in every view, and tell of the one that lets the job come furthest."""
    head = Head(
        job.id,
        job.task,
        job.version,
        job.run_at - job.priority * SECOND,
        job.run_at,
        job.expires_at,
        lost=job.lease_until is not None,
        level=job.level,
    )
    starts = job.id in starting(views)
    snapshots = [view.snapshot for view in views]
    closed, view = max(
        ((_before(job, head, each), each) for each in snapshots),
        key=_how_far,
    )
    gate = next((each for each in closed if closed[each]), None)
    if gate is None and not starts:
        gate = Gate.NO_SLOT
    closed[Gate.NO_SLOT] = gate is Gate.NO_SLOT
    gates = tuple(
        Barrier(each, closed[each], _opens(each, job, view, tasks) if closed[each] else None)
        for each in closed
    )
    if gate is Gate.NO_SLOT and _is_unseen(job, ahead, snapshots):
        return Explanation(job, view.now, gate, gates, ahead, None, _DAMAGED, damaged=True)
    first = next((each for each in (Gate.PAUSED, Gate.NO_CAPABLE_WORKER) if closed[each]), gate)
    starts_at, basis = _start(first, job, ahead, lines, view.now)
    return Explanation(job, view.now, gate, gates, ahead, starts_at, basis)


_DAMAGED = "no claim can start it as it is; fairlead doctor names what is wrong"


def _is_unseen(job: JobRecord, ahead: int, snapshots: Sequence[Snapshot]) -> bool:
    """Say whether a job is missing where a claim looks, with too few before it to hide it."""
    heads = (head for each in snapshots for head in _line(each, job.queue).heads)
    return ahead < LOOK and all(head.id != job.id for head in heads)


def _before(job: JobRecord, head: Head, view: Snapshot) -> dict[Gate, bool]:
    """Say of every gate whether it is closed; a gate that this program does not know is."""
    closed = gates_before(head, _line(view, job.queue), view)
    is_held = job.gate is Gate.NEWER_PROGRAM
    return closed | {Gate.NEWER_PROGRAM: is_held or closed[Gate.NEWER_PROGRAM]}


def _how_far(judged: tuple[dict[Gate, bool], Snapshot]) -> int:
    """Return how many gates a job gets through before one that is closed."""
    closed = list(judged[0].values())
    return closed.index(True) if True in closed else len(closed)


def _line(view: Snapshot, queue: str) -> Line:
    return view.lines[queue]


def _opens(gate: Gate, job: JobRecord, view: Snapshot, tasks: Mapping[str, int] | None) -> str:
    """Say what would open a closed gate."""
    match gate:
        case Gate.PAUSED:
            return f"fairlead queues resume {quote(job.queue)}"
        case Gate.NEWER_PROGRAM:
            return _newer(job)
        case Gate.EXPIRED:
            return "nothing: it is cancelled with the next look, because it should have started"
        case Gate.NOT_DUE:
            return f"its time, or now: fairlead jobs retry {quote(job.id)}"
        case Gate.LEASE_SPARED:
            return "a heartbeat's time, in which its worker may still say that it lives"
        case Gate.NO_CAPABLE_WORKER if tasks is not None and not knows(tasks, job):
            return unknown_to_app(job.task, job.version, tasks)
        case Gate.NO_CAPABLE_WORKER if not view.plan.worker:
            return f"a worker that serves queue {brief(job.queue)}: fairlead worker MODULE:APP"
        case Gate.NO_CAPABLE_WORKER:
            return (
                f"a worker whose app has task {brief(job.task)} in version {job.version}; if it "
                "was renamed, its old name in the task's `aliases`"
            )
    if gate in LIMITS:
        return "the end of a job that the same limit counts"
    return "the end of a running job; or more slots: fairlead worker --slots, --processes"


def _newer(job: JobRecord) -> str:
    """Say which program a job waits for."""
    if job.gate is Gate.NEWER_PROGRAM:
        return "a worker of the newer Fairlead that parked it, and knows what the job waits for"
    return f"a worker of a newer Fairlead: one of level {job.level} or more"


def knows(tasks: Mapping[str, int], job: JobRecord | Head) -> bool:
    """Say whether an app has the task of a job, in its version."""
    return can_run(tasks, job.task, job.version)


def unknown_to_app(task: str, version: int, tasks: Mapping[str, int]) -> str:
    """Say what an app must have before a worker of it can run jobs of this task."""
    if task in tasks:
        return (
            f"version {version} of task {brief(task)}: the app has version {tasks[task]}; start a "
            "worker of the newer code"
        )
    meant = did_you_mean(task, tasks)
    return (
        f"task {brief(task)}, which the app does not have{meant}; if it was renamed, list its old "
        f"name where it is now, as in @app.task(aliases=[{brief(task)}]), then start a worker"
    )


def _start(
    gate: Gate | None, job: JobRecord, ahead: int, lines: Sequence[Attempt], now: int
) -> tuple[int | None, str]:
    """Guess when the job starts, and say by what."""
    match gate:
        case None:
            return now, "a slot is free for it: the next claim takes it"
        case Gate.NOT_DUE:
            behind = f"; {counted(ahead, 'due job is', 'due jobs are')} before it" if ahead else ""
            return job.run_at, f"its due time, if a slot is free then{behind}"
        case Gate.NO_SLOT:
            return _by_pace(ahead, lines, now)
    return None, "not before what is closed opens"


def _by_pace(ahead: int, lines: Sequence[Attempt], now: int) -> tuple[int | None, str]:
    starts = [began_at(line) for line in lines if line.outcome != "returned"]
    if not starts:
        minutes = WINDOW // SECOND // 60
        return None, f"no job of this queue has ended in the last {minutes} minutes to go by"
    span = max(now - min(starts), SECOND // 1000)
    guess = now + (ahead + 1) * span // len(starts)
    told = f"in the last {span / SECOND:,.0f} s, jobs of this queue that started: {len(starts):,}"
    return guess, f"{told}; before it: {ahead:,}"
