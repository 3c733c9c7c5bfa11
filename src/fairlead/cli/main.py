"""Where the `fairlead` command begins."""

import click

from fairlead.cli.bench import bench
from fairlead.cli.demo import demo
from fairlead.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fairlead", message="fairlead %(version)s")
def main() -> None:
    """Fairlead, a job queue in which no accepted job is lost."""


main.add_command(bench)
main.add_command(demo)
main.add_command(worker)
