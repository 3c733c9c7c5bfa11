"""What every command shares: where it works, how it ends, and what it says when it cannot."""

import re
from difflib import get_close_matches
from enum import IntEnum
from importlib import import_module
from typing import Any

import click

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_APP = "fairlead.app"


class Exit(IntEnum):
    """How a command ends, for scripts."""

    DONE = 0
    FAILED = 1
    MISUSED = 2
    NOT_FOUND = 3
    UNSUCCESSFUL = 4
    TIME_OVER = 5


class Problem(click.ClickException):
    """One sentence about what is wrong and what to do next, and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        # An instance may have its own, whatever the class says.
        self.exit_code = code  # type: ignore[misc]


class Commands(click.Group):
    """A group whose commands load when they are called, and which knows what was meant.

    `lazy` maps names to a place in the code and a line of help.
    """

    def __init__(
        self, *args: Any, lazy: dict[str, tuple[str, str]] | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order they were given."""
        return [*self._lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command, if there is one of this name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was probably meant."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise Problem(
                f"there is no command {name!r}{meant}; `{ctx.command_path} --help` lists them",
                Exit.MISUSED,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with a line each, without loading any."""
        rows = [(name, help_) for name, (_, help_) in self._lazy.items()]
        rows += [(name, each.get_short_help_str(80)) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class AppCommand(click.Command):
    """A command that may name an app as its first argument, as in `jobs list shop:app`."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show that an app may be named."""
        options, *rest = super().collect_usage_pieces(ctx)
        return [options, "[MODULE:APP]", *rest]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the app off the arguments, if the first one is an app."""
        needs_more = any(isinstance(p, click.Argument) and p.required for p in self.params)
        if args and _TARGET.fullmatch(args[0]):
            # A task may have such a name too; it is followed by its arguments, or by nothing.
            follows = args[1][:1] if len(args) > 1 else ""
            if not (needs_more and follows in ("", "{", "[", "-")):
                ctx.meta[_APP] = args.pop(0)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; what Fairlead raises becomes one sentence and an exit code."""
        from fairlead.core.errors import (  # noqa: PLC0415 (not before a command runs)
            ConfigError,
            EnqueueError,
            FairleadError,
            JobNotFound,
        )

        try:
            return super().invoke(ctx)
        except (ConfigError, EnqueueError) as problem:
            raise Problem(str(problem), Exit.MISUSED) from None
        except JobNotFound as problem:
            raise Problem(str(problem), Exit.NOT_FOUND) from None
        except FairleadError as problem:
            raise Problem(str(problem)) from None


def named_app() -> str | None:
    """Return the app that was named as the first argument."""
    target: str | None = click.get_current_context().meta.get(_APP)
    return target
