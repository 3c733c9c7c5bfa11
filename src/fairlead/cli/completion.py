"""`fairlead completion`: let the shell complete commands and options."""

import os
import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from fairlead.cli.command import Command, say

_ADVICE = {
    "bash": "echo 'eval \"$(fairlead completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(fairlead completion zsh)\"' >> ~/.zshrc",
    "fish": "fairlead completion fish > ~/.config/fish/completions/fairlead.fish",
}


@click.command(
    cls=Command,
    epilog="Example: fairlead completion bash >> ~/.bashrc",
    short_help="Complete commands in your shell.",
)
@click.argument("shell", type=click.Choice(list(_ADVICE)), required=False)
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print a script with which your shell completes commands and options.

    Without a name it is the script of the shell you use.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell) if shell in _ADVICE else None
    if kind is None:
        raise click.UsageError(
            f"there is no completion for {shell or 'this shell'}; name one of {', '.join(_ADVICE)}"
        )
    say(kind(context.find_root().command, {}, "fairlead", "_FAIRLEAD_COMPLETE").source())
    if sys.stdout.isatty():
        say(f"to have it in every shell: {_ADVICE[shell]}", err=True)
