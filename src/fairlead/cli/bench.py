"""`fairlead bench`: how fast, compared with the raw engine on this machine."""

import os
import sys
import tempfile
from itertools import chain
from pathlib import Path

import click

from fairlead.cli.command import Command


@click.command(
    cls=Command,
    epilog="Example: fairlead bench --store sqlite --quick",
    short_help="Measure a store beside its raw engine.",
)
@click.option(
    "--store",
    type=click.Choice(["sqlite"]),
    default="sqlite",
    show_default=True,
    help="Which store.",
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
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Where to make the temporary files: the disk that is measured.",
)
def bench(store: str, rounds: int, quick: bool, folder: Path) -> None:
    """Measure a store beside its raw engine, in one run.

    The raw engine writes the same rows by the plainest fast SQL, and takes turns
    with Fairlead, because machines are noisy: what counts is the ratio. Targets
    are those of a quiet machine with two cores; a busy one may miss some.
    """
    from fairlead.bench.row import table  # noqa: PLC0415 (only this command needs it)
    from fairlead.bench.sqlite import Bench, fsync_micros  # noqa: PLC0415
    from fairlead.bench.worker import WorkerBench  # noqa: PLC0415

    if quick:
        rounds = 2
    if not os.access(folder, os.W_OK):
        raise click.UsageError(f"cannot write in {folder.resolve()}; name another --folder")
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-", dir=folder) as name:
        place = Path(name)
        click.echo(
            f"{store}, Python {sys.version.split()[0]}, fdatasync of 8 kB takes "
            f"{fsync_micros(place):.0f} µs here, median of {rounds} rounds"
        )
        scale = 0.1 if quick else 1.0
        rows = chain(Bench(place, rounds, scale).rows(), WorkerBench(place, rounds, scale).rows())
        for line in table(rows):
            click.echo(line)
