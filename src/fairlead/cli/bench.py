"""`fairlead bench`: how fast, compared with the raw engine on this machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from fairlead.cli.command import Command, say

SERVERS = {"postgres": "postgresql://localhost/", "redis": "redis://localhost/"}
"""Stores that are on a server, each with a URL as they are written."""


@click.command(
    cls=Command,
    epilog="Example: fairlead bench --store postgres --quick",
    short_help="Measure a store beside its raw engine.",
)
@click.option(
    "--store",
    type=click.Choice(["sqlite", "postgres", "redis"]),
    default="sqlite",
    show_default=True,
    help="Which store.",
)
@click.option(
    "--url",
    metavar="URL",
    help="A PostgreSQL database or a Redis to measure in, in schemas or under prefixes of our "
    "own; without it, a server is started for that.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="Rounds per figure; the median counts.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="A tenth of the jobs and two rounds: a glance, not a measurement.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 1),
    default=1.0,
    show_default=True,
    help="The part of the jobs to take.",
)
@click.option(
    "--flat",
    is_flag=True,
    help="See instead whether PostgreSQL keeps its pace: with millions of jobs waiting, or "
    "finished, or under an old snapshot. Takes minutes, and 25 GB.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Where to make the temporary files: the disk that is measured.",
)
def bench(
    store: str,
    url: str | None,
    rounds: int,
    quick: bool,
    scale: float,
    flat: bool,
    folder: Path,
) -> None:
    """Measure a store beside its raw engine, in one run.

    The raw engine writes the same rows by the plainest fast SQL or Lua, and takes turns
    with Fairlead, because machines are noisy: what counts is the ratio. Targets
    are those of a quiet machine with two cores; a busy one may miss some.
    """
    if url is not None and (flat or store not in SERVERS):
        raise click.UsageError("--url goes with --store postgres or redis, without --flat")
    if not os.access(folder, os.W_OK):
        raise click.UsageError(f"cannot write in {folder.resolve()}; name another --folder")
    if quick:
        rounds, scale = 2, 0.1 * scale
    for line in _report("flat" if flat else store, url, rounds, scale, folder):
        say(line)


def _report(what: str, url: str | None, rounds: int, scale: float, folder: Path) -> Iterator[str]:
    # Only this command needs these, and only one of them.
    if what == "sqlite":
        from fairlead.bench import sqlite  # noqa: PLC0415

        return sqlite.report(folder, rounds, scale)
    from fairlead.stores import store_for  # noqa: PLC0415

    # Opens nothing, but says what is wrong with the URL, or not installed.
    store_for(url or SERVERS["postgres" if what == "flat" else what])
    if what == "flat":
        from fairlead.bench import flat  # noqa: PLC0415

        return flat.report(folder, rounds, scale)
    if what == "redis":
        from fairlead.bench import redis  # noqa: PLC0415

        return redis.report(folder, rounds, scale, url)
    from fairlead.bench import postgres  # noqa: PLC0415

    return postgres.report(folder, rounds, scale, url)
