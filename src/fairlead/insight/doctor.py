"""What is wrong with a set-up, and what to do about it."""

import importlib.metadata
import platform
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec

from fairlead.app import Fairlead
from fairlead.core.admin import Condition, Finding, Worker, missing
from fairlead.core.errors import StoreUnavailable
from fairlead.core.job import State
from fairlead.core.selection import can_run
from fairlead.core.store import Backend

_PACKAGES = ("fairlead", "click", "msgspec", "uvloop", "watchfiles")


class Checkup(msgspec.Struct, frozen=True):
    """What was looked at, and what was found."""

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


async def examine(store: Backend, app: Fairlead | None) -> Checkup:
    """Look at the store, its jobs, its workers and the app."""
    steps = await store.migrations()
    if missing(steps):
        # Not opened: that would bring it up to date behind the operator's back.
        finding = _outdated(len(missing(steps)), len(steps))
        return Checkup({"store": store.url, **versions()}, [finding])
    facts: dict[str, str] = {}

    async def condition() -> Sequence[Finding]:
        found: Condition = await store.condition()
        facts.update(found.facts)
        return found.findings

    findings = [
        *await _looked("the jobs", store.audit),
        *await _looked("the store's set-up", condition),
        *await _looked("queues and workers", lambda: _waiting(store)),
        *(_settings(app) if app else ()),
    ]
    return Checkup({"store": store.url, **facts, **versions()}, findings)


async def _looked(what: str, look: Callable[[], Awaitable[Sequence[Finding]]]) -> Sequence[Finding]:
    """Look at one part; damage that keeps us from it is a finding, and hides no other part."""
    try:
        return await look()
    except StoreUnavailable:
        raise
    except Exception as problem:  # noqa: BLE001 (whatever a damaged store makes our code raise)
        return [Finding(f"{what} cannot be looked at: {problem}", "fairlead doctor --repair")]


def _outdated(lacking: int, steps: int) -> Finding:
    if lacking == steps:
        return Finding(
            "there is no Fairlead schema in it yet", "fairlead migrate up, or enqueue a job"
        )
    return Finding(f"steps of the schema that are missing: {lacking}", "fairlead migrate up")


async def _waiting(store: Backend) -> list[Finding]:
    counts = await store.count()
    workers = await store.workers()
    waiting = {name: n.get(State.WAITING, 0) for name, n in counts.items()}
    due = {name: waiting.get(name, 0) for name in await store.oldest()}
    dead = sum(n.get(State.DEAD, 0) for n in counts.values())
    return [
        *_unserved(due, workers),
        *_paused(waiting, await store.paused()),
        *_unknown(await store.unknown(), workers),
        *([_dead(dead)] if dead else []),
    ]


def _unserved(due: Mapping[str, int], workers: Sequence[Worker]) -> Iterator[Finding]:
    """Tell of queues in which jobs are due that nobody can start."""
    if due and not workers:
        yield Finding(
            f"no worker is live, and jobs wait: {sum(due.values()):,}",
            "fairlead worker MODULE:APP",
        )
        return
    for name, count in due.items():
        if not any(worker.pools_for(name) for worker in workers):
            yield Finding(
                f"no live worker serves queue {name!r}, and jobs wait in it: {count:,}",
                f"start a worker that does: fairlead worker MODULE:APP --queue {name}",
            )


def _paused(waiting: dict[str, int], paused: set[str]) -> Iterator[Finding]:
    for name in sorted(paused):
        yield Finding(
            f"queue {name!r} is paused; jobs that wait in it: {waiting.get(name, 0):,}",
            f"fairlead queues resume {name}",
            grave=False,
        )


def _unknown(parked: Mapping[tuple[str, int], int], workers: Sequence[Worker]) -> Iterator[Finding]:
    for (task, version), count in sorted(parked.items()):
        if not any(can_run(worker.capable, task, version) for worker in workers):
            yield Finding(
                f"{count:,} jobs of task {task!r} in version {version} wait, and no live worker "
                "knows it",
                "start a worker whose app has it, or list its former name in the task's `aliases`",
            )


def _dead(count: int) -> Finding:
    return Finding(
        f"dead letters that wait for a person: {count:,}",
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
