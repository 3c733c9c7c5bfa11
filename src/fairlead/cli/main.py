"""Where the `fairlead` command begins. Each command loads when it is called."""

import os
import warnings

import click

from fairlead.cli.command import Commands

_LAZY = {
    "demo": ("fairlead.cli.demo:demo", "See it work, in about 15 seconds."),
    "worker": ("fairlead.cli.worker:worker", "Run jobs."),
    "dev": ("fairlead.cli.dev:dev", "Run jobs while you write them: reloads when files change."),
    "enqueue": ("fairlead.cli.enqueue:enqueue", "Enqueue a job."),
    "jobs": ("fairlead.cli.jobs:jobs", "Look at jobs, wait for one, cancel, retry, delete."),
    "dead": ("fairlead.cli.dead:dead", "Look at dead letters, mend them, let them run again."),
    "queues": ("fairlead.cli.queues:queues", "See what waits where; pause and resume."),
    "tasks": ("fairlead.cli.tasks:tasks", "See the tasks of an app."),
    "workers": ("fairlead.cli.workers:workers", "See who runs jobs."),
    "explain": ("fairlead.cli.explain:explain", "Say why a job waits, and until when."),
    "audit": ("fairlead.cli.audit:audit", "See what people did by hand."),
    "doctor": ("fairlead.cli.doctor:doctor", "Check the store and the set-up."),
    "migrate": ("fairlead.cli.migrate:migrate", "Bring the store's schema up to date."),
    "bench": ("fairlead.cli.bench:bench", "Measure a store beside its raw engine."),
    "completion": ("fairlead.cli.completion:completion", "Complete commands in your shell."),
}

_EPILOG = """\b
An app is named as the first argument of a command (shop:app), by $FAIRLEAD_APP, or as
`app` under [tool.fairlead] in pyproject.toml. Every option has an environment variable:
--limit of `jobs list` is $FAIRLEAD_JOBS_LIST_LIMIT. $NO_COLOR switches colours off,
$FORCE_COLOR on.

\b
Exit codes: 0 done, 1 failed, 2 wrong use or set-up, 3 not found,
            4 not successful (a dead job, a finding of doctor), 5 time over.

\b
Example: fairlead demo
"""


@click.group(
    cls=Commands,
    lazy=_LAZY,
    epilog=_EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "FAIRLEAD",
        "max_content_width": 100,
    },
)
@click.version_option(
    package_name="fairlead",
    message="fairlead %(version)s",
    allow_from_autoenv=False,  # $FAIRLEAD_VERSION is what people call a version to install.
)
@click.pass_context
def main(context: click.Context) -> None:
    """Fairlead, a job queue in which no accepted job is lost."""
    warnings.formatwarning = _warning
    if os.environ.get("NO_COLOR"):
        context.color = False
    elif os.environ.get("FORCE_COLOR"):
        context.color = True


_format = warnings.formatwarning


def _warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Tell our own warnings as our errors are told, without a place in the code."""
    from fairlead.core.errors import FairleadWarning  # noqa: PLC0415 (not before somebody warns)
    from fairlead.core.text import escaped  # noqa: PLC0415 (as above)

    if not issubclass(category, FairleadWarning):
        return _format(message, category, filename, lineno, line)
    return f"Warning: {escaped(str(message))}\n"
