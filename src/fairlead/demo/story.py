"""The scenes: what happens, what is shown of it, and what must be true after it.

Every figure that is told comes from the store's attempt log, and every scene
ends with a check. Nothing here prints; a `Teller` does.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from fairlead.core.clock import SECOND, SystemClock
from fairlead.core.failure import short_name
from fairlead.core.figures import began_at, figures_of
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, PastAttempt, Reason, State
from fairlead.demo import checks, shop
from fairlead.demo.checks import Unexpected
from fairlead.demo.stage import PROCESSES, SLOTS, Stage
from fairlead.demo.teller import Bar, Teller
from fairlead.producer import Call

SHORT_JOBS, VIDEOS = 210, 8
WEIGHTED = {name: shop.app.queues[name].weight for name in ("mail", "reports", "thumbnails")}


class Story:
    """What the scenes know of each other: the stage, the teller, and how each job should end."""

    def __init__(self, stage: Stage, teller: Teller) -> None:
        self.stage = stage
        self.tell = teller
        self.expected: dict[JobId, State] = {}
        self.pids: dict[str, int] = {}
        """The process ids of the worker's processes, by the names they have in the store."""

    def play(self) -> None:
        """Tell everything, from the first scene to the last."""
        self.tell.say(
            "A shop on one SQLite file in a temporary folder, and a worker with "
            f"{PROCESSES} processes of {SLOTS} slots."
        )
        self.stage.start()
        for scene in (weights, flaky, bad_input, killed, ambiguous, closing):
            scene(self)

    def put(self, calls: Sequence[Call[Any]], end: State = State.DONE) -> list[JobId]:
        """Enqueue calls, all at once, and remember how they should end."""
        self.stage.app.enqueue_many(calls)
        ids = [call.id for call in calls]
        self.expected |= dict.fromkeys(ids, end)
        return ids

    def type(self, *words: str, most: int = 20) -> None:
        """Run a command as a person types it, and show what it answers first."""
        lines = self.stage.type(*words).rstrip().splitlines()
        end = lines.index("") if "" in lines else len(lines)
        shown = lines[: min(end, most)]
        self.tell.typed(words, [*shown, "…"] if len(shown) < len(lines) else shown)

    def where(self, worker: str | None) -> str:
        """Name a process for people: by its number in the worker."""
        return f"process {(worker or '?').rpartition('/')[2]}"


def weights(story: Story) -> None:
    """Three queues share the slots."""
    total = SHORT_JOBS * len(WEIGHTED)
    story.tell.scene(
        "Queues share the slots by weight",
        f"{total} short jobs wait in three queues. Look at who gets how much, and that nobody "
        "gets nothing.",
    )
    ids = story.put(
        [
            call
            for number in range(SHORT_JOBS)
            for call in (
                shop.newsletter.call(number),
                shop.invoice.call(number),
                shop.thumbnail.call(number),
            )
        ]
    )
    stage = story.stage

    def look() -> bool:
        counts = stage.counts(tuple(WEIGHTED))
        story.tell.draw([_queue_bar(name, counts[name]) for name in WEIGHTED])
        return all(counts[name][State.DONE] >= SHORT_JOBS for name in WEIGHTED)

    stage.until(look, f"{total} short jobs were done")
    story.pids = {
        record.worker: int(record.result)
        for record in stage.records(ids[2::3])
        if record.worker and record.result
    }
    found = checks.shares(stage.attempts(*ids), WEIGHTED)
    story.tell.say("While all three had work, the worker took:")
    story.tell.table(
        ("queue", "weight", "jobs", "share", "fair share", ""),
        [
            (
                *(s.queue, str(s.weight), str(s.claimed)),
                *(f"{100 * s.part:.0f} %", f"{100 * s.fair:.0f} %", "█" * round(40 * s.part)),
            )
            for s in found
        ],
        right=("weight", "jobs", "share", "fair share"),
    )
    story.tell.proved(f"all {total} jobs are done, and the shares follow the weights")


def _queue_bar(name: str, counts: dict[State, int]) -> Bar:
    done, running, waiting = (counts[state] for state in (State.DONE, State.RUNNING, State.WAITING))
    text = f"weight {WEIGHTED[name]}  {done:>3} done  {waiting:>3} waiting"
    return Bar(name, done, running, waiting, text)


def flaky(story: Story) -> None:
    """A job fails, and is tried again later and later."""
    story.tell.scene(
        "A flaky job is tried again, later and later",
        "A service is busy three times before it answers. Look at the pauses: each is twice the "
        "one before.",
    )
    (job_id,) = story.put([shop.exchange_rates.call("today")])
    told: list[Attempt] = []

    def look() -> bool:
        record, lines = story.stage.record(job_id), story.stage.attempts(job_id)
        for line in lines[len(told) :]:
            now = story.stage.record(job_id)  # Not older than its line.
            story.tell.show(_run_in_words(line, told[-1] if told else None, now))
            told.append(line)
        story.tell.draw([] if record.state.final else [_pause_bar(record, lines)])
        return record.state.final

    story.stage.until(look, "the flaky job had ended")
    lines = story.stage.attempts(job_id)
    pauses = checks.growing_pauses(lines, shop.FAILURES)
    story.tell.proved(f"done in attempt {len(lines)}, after {sum(pauses):.1f} s of patience")


def _run_in_words(line: Attempt, before: Attempt | None, record: JobRecord) -> str:
    if before is None:
        told = _error(record.errors[0]) if record.errors else ""
    else:
        pause = (began_at(line) - before.finished_at) / SECOND
        told = f"{pause:.1f} s later  {'█' * round(10 * pause)}"
    return f"attempt {line.attempt}  {line.outcome:6}  {told}"


def _error(past: PastAttempt) -> str:
    return f"{short_name(past.error)}: {past.message}"


def _pause_bar(record: JobRecord, lines: Sequence[Attempt]) -> Bar:
    if not lines or record.state is State.RUNNING:
        return Bar("running", 0, 1, 0, "")
    gone, left = _seconds_since(lines[-1].finished_at), max(0.0, -_seconds_since(record.run_at))
    return Bar("pause", gone, 0, left, f"attempt {len(lines) + 1} in {left:.1f} s")


def bad_input(story: Story) -> None:
    """A job that can never succeed is a dead letter at once, until a person mends it."""
    story.tell.scene(
        "Bad input is not tried again",
        "A charge in a currency that does not exist can never succeed. Look: one attempt, no "
        "retry, and it is kept for a person.",
    )
    (job_id,) = story.put([shop.charge.call(order=1042, cents=1990, currency="EURO")])
    story.stage.until_ended(job_id)
    record, lines = story.stage.record(job_id), story.stage.attempts(job_id)
    checks.dead_at_once(record, lines, Reason.PERMANENT)
    story.tell.show(_run_in_words(lines[0], None, record))
    story.tell.proved("a dead letter after one attempt")
    mended(story, job_id)


def mended(story: Story, job_id: JobId) -> None:
    """A person looks at a dead letter, mends its payload, and lets it run again."""
    story.tell.scene(
        "A dead letter is mended and replayed",
        "Three commands as you would type them. Look: the same job, with its history, is done.",
    )
    story.type("dead", "show", job_id)
    story.type("dead", "edit", job_id, '{"order": 1042, "cents": 1990, "currency": "EUR"}')
    story.type("dead", "replay", job_id)
    story.stage.until_ended(job_id)
    record = story.stage.record(job_id)
    checks.replayed(record, story.stage.attempts(job_id))
    story.tell.proved(f"done: {record.result}")


def killed(story: Story) -> None:
    """A process dies, and its jobs go on elsewhere."""
    story.tell.scene(
        "A killed process loses no job",
        f"{VIDEOS} videos are encoded in {PROCESSES} processes, and one of those is killed. Look "
        "where its videos go on.",
    )
    stage = story.stage
    ids: list[JobId] = []
    victim = _victim(story, ids)
    stage.kill(story.pids[victim])
    story.tell.show(f"$ kill -9 {story.pids[victim]}    # {story.where(victim)}")
    look = partial(_look_at_videos, story, ids)
    stage.until(lambda: all(record.state.final for record in look()), "all videos were encoded")
    found = checks.moved(stage.attempts(*ids), victim)
    numbers = {job_id: number for number, job_id in enumerate(ids, 1)}
    story.tell.table(
        ("video", "first run", "second run"),
        [
            (
                str(numbers[move.job_id]),
                f"{story.where(move.killed.worker)}: killed",
                f"{story.where(move.again.worker)}: {move.again.outcome}",
            )
            for move in sorted(found, key=lambda move: numbers[move.job_id])
        ],
    )
    story.tell.proved(
        f"all {len(ids)} videos are done; the {len(found)} that were cut off lost no attempt"
    )


def _victim(story: Story, ids: list[JobId]) -> str:
    """Start videos, and return the process to kill: one that is in the middle of some."""

    def look() -> list[str | None]:
        records = _look_at_videos(story, ids)
        name = _busiest(records, story.pids)
        return [name] if name or all(record.state.final for record in records) else []

    for _ in range(3):  # A machine that stands still for a second may miss the moment.
        ids.extend(story.put([shop.encode.call(len(ids) + n) for n in range(1, VIDEOS + 1)]))
        (found,) = story.stage.until(look, "the videos were encoded")
        if found:
            return found
    raise Unexpected("no video could be caught in the middle; is this machine very busy?")


def _look_at_videos(story: Story, ids: Sequence[JobId]) -> list[JobRecord]:
    records = story.stage.records(ids)
    story.tell.draw([_video_bar(story, number, job) for number, job in enumerate(records, 1)])
    return records


def _video_bar(story: Story, number: int, record: JobRecord) -> Bar:
    name = f"video {number}"
    again = "again, " if record.errors else ""
    if record.state.final:
        return Bar(name, 1, 0, 0, f"{again}{story.where(record.worker)}: {record.state}")
    if record.claimed_at is None or record.state is State.WAITING:
        return Bar(name, 0, 0, 1, "waiting")
    part = min(0.99, _seconds_since(record.claimed_at) / shop.VIDEO_SECONDS)
    return Bar(name, 0, part, 1 - part, f"{again}{story.where(record.worker)}")


def _busiest(records: Sequence[JobRecord], known: Collection[str]) -> str | None:
    """Return the process that has most videos which are neither just begun nor about to end."""
    early, late = 0.3 * shop.VIDEO_SECONDS, 0.7 * shop.VIDEO_SECONDS
    busy = Counter(
        record.worker
        for record in records
        if record.state is State.RUNNING
        and record.worker in known
        and early < _seconds_since(record.claimed_at or 0) < late
    )
    return busy.most_common(1)[0][0] if busy else None


def _seconds_since(instant: int) -> float:
    return (SystemClock().now() - instant) / SECOND


def ambiguous(story: Story) -> None:
    """An outside effect may have happened; nobody repeats it blindly."""
    story.tell.scene(
        "Nobody knows whether the money moved",
        "A refund was sent and the bank fell silent. Look: it is not sent again, and the evidence "
        "is kept.",
    )
    stage = story.stage
    (job_id,) = story.put([shop.refund.call(order=977, cents=4500)], State.DEAD)
    stage.until_ended(job_id)
    checks.dead_at_once(stage.record(job_id), stage.attempts(job_id), Reason.UNCERTAIN)
    story.type("dead", "show", job_id, most=1)
    story.tell.say(
        "Ask the bank with that key. Did nothing move? `fairlead dead replay`. Did it? `fairlead "
        "dead delete`. A task with a `reconcile` function asks by itself."
    )
    story.tell.proved("a dead letter, uncertain, with its evidence; nothing was sent twice")


def closing(story: Story) -> None:
    """Count everything."""
    stage = story.stage
    stage.close()
    ids = list(story.expected)
    records = stage.records(ids)
    states = {record.id: record.state for record in records}
    checks.all_ended(states, story.expected, stage.audit())
    story.tell.scene("The shop at closing time", "Every figure comes from the attempt log.")
    ended = Counter((record.queue, record.state) for record in records)
    rows = [
        (
            name,
            *(str(n) for n in (ended[name, State.DONE], f.runs - f.jobs, ended[name, State.DEAD])),
            *(f"{micros / 1000:,.0f} ms" for micros in (f.wait_p50, f.wait_p99)),
            f"{f.per_second:,.1f}/s",
        )
        for name, f in figures_of(stage.attempts(*ids)).items()
    ]
    titles = ("queue", "done", "retried", "dead", "wait p50", "wait p99", "throughput")
    story.tell.table(titles, rows, right=titles[1:])
    count = Counter(states.values())
    story.tell.proved(
        f"every job ended as it should: {count[State.DONE]} done, {count[State.DEAD]} kept as a "
        "dead letter, the store's audit is clean"
    )
