"""`fairlead enqueue`: a job from the command line."""

import sys

import click

from fairlead.cli.command import AppCommand, Exit, Problem, say
from fairlead.cli.desk import Desk, action, at_app
from fairlead.cli.output import json_option
from fairlead.cli.words import Span, as_json
from fairlead.core.acts import Note
from fairlead.core.codec import TEXT_LIMIT
from fairlead.core.errors import InvalidOption, StoreDenied, StoreError
from fairlead.core.job import JobRecord
from fairlead.core.store import Store
from fairlead.core.text import brief, escaped
from fairlead.producer import BoundTask, found


@click.command(
    cls=AppCommand,
    epilog="""Example: fairlead enqueue shop:app shop.welcome '{"user_id": 42}' --delay 60""",
    short_help="Enqueue a job.",
)
@click.argument("task")
@click.argument("arguments", metavar="[JSON]", required=False, default="{}")
@click.option("--queue", metavar="NAME", help="Another queue than the task's own.")
@click.option("--delay", type=Span(), metavar="SPAN", help="Start it later: 90, 15m, 2h.")
@click.option("--priority", type=int, metavar="SECONDS", help="A head start.")
@click.option("--expires", type=Span(), metavar="SPAN", help="Never start it later than that.")
@click.option("--tag", "tags", multiple=True, help="A tag to find it by; repeat for more.")
@json_option
@at_app
def enqueue(
    desk: Desk,
    task: str,
    arguments: str,
    queue: str | None,
    delay: float | None,
    priority: int | None,
    expires: float | None,
    tags: tuple[str, ...],
    json: bool,
) -> None:
    """Enqueue a job of TASK, and print its id.

    JSON is an object of arguments by name, or an array in order, or `-` to read it
    from stdin. It is checked against the task's signature.
    """
    app = desk.need_app("an enqueue")
    known = app.tasks[task]
    payload = known.signature.read(
        sys.stdin.read(TEXT_LIMIT + 1) if arguments == "-" else arguments
    )
    bound: BoundTask[..., object] = BoundTask(known, app)
    try:
        bound = bound.using(
            queue=queue, delay=delay, priority=priority, expires=expires, tags=tags or None
        )
    except InvalidOption as problem:
        option = "--tag" if problem.option == "tags" else f"--{problem.option}"
        told = f"{option} {problem.wanted}, not {brief(problem.value)}"
        raise Problem(told, Exit.MISUSED) from None
    call = bound.written(payload)

    async def put(store: Store) -> JobRecord:
        await app.aenqueue_many([call])
        try:
            await store.admin.act(Note(1, call.id), action("enqueue", known.name))
        # The job is there: to fail now would have it enqueued a second time.
        except StoreDenied:
            say("enqueued; only what operators do is in the audit log", err=True)
        except StoreError as problem:
            say(escaped(f"Not in the audit log: {problem}"), err=True)
        return await found(store, call.id)

    record = desk.run(put, check=False)
    say(as_json(record) if json else record.id)
