"""What is wrong with a set-up, and what to do about it."""

import importlib.metadata
import platform
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from shlex import quote

import msgspec
from msgspec.structs import replace

from fairlead.app import Fairlead
from fairlead.core.admin import REPAIR, Condition, Filter, Finding, Part, Waiting, Worker, missing
from fairlead.core.errors import ConfigError, StoreUnavailable
from fairlead.core.job import State
from fairlead.core.queue import Share
from fairlead.core.selection import ClaimPlan, can_run
from fairlead.core.store import Store
from fairlead.core.text import brief, counted
from fairlead.insight.explain import knows, unknown_to_app

MOST_ALIKE = 10
"""How many findings of one kind are told one by one: a damaged store can have a million."""

_MOST = 100
_LOOKED_AT = 200
"""How many due jobs of each queue are looked at for tasks that the app does not have."""
_PACKAGES = ("fairlead", "click", "msgspec", "uvloop", "watchfiles")


class Checkup(msgspec.Struct, frozen=True):
    """What was looked at, and what was found; of findings that are alike, the first few."""

    facts: dict[str, str]
    findings: list[Finding]


def versions() -> dict[str, str]:
    """Return the versions of what is at work here."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


async def examine(store: Store, app: Fairlead | None) -> Checkup:
    """Look at the store, its jobs, its workers and the app."""
    try:
        steps = await store.admin.migrations()
    except ConfigError as problem:  # A schema that a stranger made, say: nothing of it is used.
        return Checkup({"store": store.url, **versions()}, [_unusable(problem)])
    if missing(steps):
        # Not opened: that would bring it up to date behind the operator's back.
        finding = _outdated(len(missing(steps)), len(steps))
        return Checkup({"store": store.url, **versions()}, [finding])
    facts: dict[str, str] = {}

    async def condition() -> Sequence[Finding]:
        found: Condition = await store.admin.condition()
        facts.update(found.facts)
        return found.findings

    findings: list[Finding] = []
    for what, look in (
        ("the jobs", store.admin.audit),
        ("the store's set-up", condition),
        ("queues and workers", lambda: _waiting(store, app)),
    ):
        findings += await _looked(what, look, is_there=bool(findings))
    findings += _settings(app) if app else ()
    return Checkup({"store": store.url, **facts, **versions()}, _few(findings))


def _few(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first findings of each remedy, so that many of one kind hide no other."""
    alike: dict[tuple[bool, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: not finding.grave):
        alike.setdefault((finding.grave, finding.remedy), []).append(finding)
    return first((finding for some in alike.values() for finding in first(some)), _MOST)


def first(findings: Iterable[Finding], most: int = MOST_ALIKE) -> list[Finding]:
    """Return the first of findings that are alike, the last with the number of all others."""
    known = list(findings)
    more = sum(1 + finding.more for finding in known[most:])
    if not more:
        return known
    return [*known[: most - 1], replace(known[most - 1], more=known[most - 1].more + more)]


def _unusable(problem: ConfigError) -> Finding:
    """Make a finding of an error, which says what is wrong and then what to do."""
    what, _, remedy = str(problem).partition("; ")
    return Finding(what, remedy or "put that right, and look again: fairlead doctor")


async def _looked(
    what: str, look: Callable[[], Awaitable[Sequence[Finding]]], *, is_there: bool
) -> Sequence[Finding]:
    """Look at one part; damage that keeps us from it is a finding, and hides no other part.

    `is_there` says that another part told what is wrong: then the store answers, and what looks
    like an outage (a table that is missing, say) must not hide that.
    """
    try:
        return await look()
    except Exception as problem:
        if isinstance(problem, StoreUnavailable) and not is_there:
            raise
        return [Finding(f"{what} cannot be looked at: {problem}", REPAIR)]


def _outdated(lacking: int, steps: int) -> Finding:
    if lacking == steps:
        return Finding(
            "there is no Fairlead schema in it yet", "fairlead migrate up, or enqueue a job"
        )
    told = f"{counted(lacking, 'step')} of the schema {'is' if lacking == 1 else 'are'} missing"
    return Finding(told, "fairlead migrate up")


async def _waiting(store: Store, app: Fairlead | None) -> list[Finding]:
    stats = await store.admin.stats([Part.WAITING, Part.PAUSED, Part.UNKNOWN])
    found = stats.waiting
    workers = await store.admin.workers()
    due = {name: each.due + each.parked for name, each in found.items() if each.due + each.parked}
    waiting = {name: _all(each) for name, each in found.items()}
    counts = await store.admin.count(Filter(states=(State.DEAD,)))
    dead = sum(n.get(State.DEAD, 0) for n in counts.values())
    return [
        *first(_unserved(due, workers)),
        *first(_paused(waiting, stats.paused)),
        *_unknown(stats.unknown, workers),
        *(await _not_in_app(store, app, due, workers) if app else ()),
        *([_dead(dead)] if dead else []),
    ]


def _all(waiting: Waiting) -> int:
    return waiting.due + waiting.delayed + waiting.retrying + waiting.parked


def _unserved(due: Mapping[str, int], workers: Sequence[Worker]) -> Iterator[Finding]:
    """Tell of queues in which jobs are due that nobody can start."""
    if due and not workers:
        yield Finding(
            f"no worker is live, and {_wait(sum(due.values()))}",
            "fairlead worker MODULE:APP",
        )
        return
    for name, count in sorted(due.items(), key=lambda item: -item[1]):
        if not any(worker.pools_for(name) for worker in workers):
            yield Finding(
                f"no live worker serves queue {brief(name)}, and {_wait(count)} in it",
                f"start a worker that does: fairlead worker MODULE:APP --queue {quote(name)}",
            )


def _wait(count: int) -> str:
    return f"{counted(count, 'job')} {'waits' if count == 1 else 'wait'}"


def _paused(waiting: dict[str, int], paused: Collection[str]) -> Iterator[Finding]:
    for name in sorted(paused):
        yield Finding(
            f"queue {brief(name)} is paused, and {_wait(waiting.get(name, 0))} in it",
            f"fairlead queues resume {quote(name)}",
            grave=False,
        )


def _unknown(parked: Mapping[tuple[str, int], int], workers: Sequence[Worker]) -> Iterator[Finding]:
    largest = sorted(parked.items(), key=lambda item: (-item[1], item[0]))
    for (task, version), count in largest:
        if not any(can_run(worker.capable, task, version) for worker in workers):
            yield Finding(
                f"{_wait(count)} for a worker that knows task {brief(task)} in version {version}, "
                "and none is live",
                "start a worker whose app has it, or list its former name in the task's `aliases`",
            )


async def _not_in_app(
    store: Store, app: Fairlead, due: Mapping[str, int], workers: Sequence[Worker]
) -> list[Finding]:
    """Tell of due jobs that a worker of this app could not run either, such as of a renamed task.

    Only while no worker is live: one would have parked them, and then they are told of.
    """
    if workers or not due:
        return []
    plan = ClaimPlan("", tuple(map(Share, due)), 0, 0, capable={})
    tasks = app.tasks.versions()
    view = await store.admin.snapshot(plan, _LOOKED_AT)
    lacking = {
        (head.task, head.version)
        for line in view.lines.values()
        for head in line.heads
        if not knows(tasks, head)
    }
    return [
        Finding(
            f"jobs of task {brief(task)} in version {version} wait, and a worker of this app "
            "could not run them",
            f"it would need {unknown_to_app(task, version, tasks)}",
        )
        for task, version in sorted(lacking)
    ]


def _dead(count: int) -> Finding:
    return Finding(
        f"{counted(count, 'dead letter')} {'waits' if count == 1 else 'wait'} for a person",
        "fairlead dead list --by-error",
        grave=False,
    )


def _settings(app: Fairlead) -> Iterator[Finding]:
    """Tell what in the app itself will hurt."""
    names = {task.name for task in app.tasks}
    if not names:
        yield Finding(
            "the app has no tasks", "import the modules that define them where the app is made"
        )
    for queue in app.queues.values():
        for name in queue.tasks:
            if name not in names:
                yield Finding(
                    f"the critical queue {queue.name!r} is kept for task {name!r}, which the app "
                    "does not have",
                    "mend the name in the queue's `tasks`",
                )
    for task in app.tasks:
        options = task.options
        if options.effects == "external" and not options.idempotent and options.reconcile is None:
            yield Finding(
                f"task {task.name!r} has outside effects and no way to find out about them, so a "
                "run that is cut off becomes a dead letter",
                "give it a `reconcile`, or mark it idempotent=True if repeating does no harm",
                grave=False,
            )
