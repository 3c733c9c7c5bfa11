"""What every command shares: where it works, how it ends, and what it says when it cannot."""

import re
from enum import IntEnum
from importlib import import_module
from typing import Any

import click

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_APP = "fairlead.app"
_ADVISED = re.compile(
    r"\bfairlead ((jobs|dead|queues|tasks|workers|audit|migrate) [a-z]+|explain|doctor|enqueue)\b"
)


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
        super().__init__(hinted(shown(message)))
        # An instance may have its own, whatever the class says.
        self.exit_code = code  # type: ignore[misc]


def shown(message: str) -> str:
    """Return what an error says as it may be shown, whatever it quotes."""
    from fairlead.core.passwords import without_passwords  # noqa: PLC0415 (not before one fails)
    from fairlead.core.text import escaped  # noqa: PLC0415 (as above)

    return escaped(without_passwords(message))


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines: the one way out of every command.

    Whoever puts a line together escapes what came from elsewhere. Should one of them forget it,
    nothing but our own colours passes here.
    """
    from fairlead.core.text import steady  # noqa: PLC0415 (not before something is said)

    click.echo(steady(text), err=err, nl=nl)


class _Quoting(click.Command):
    """A command of which errors in the arguments are told without what is not to be shown."""

    def make_context(self, *args: Any, **named: Any) -> click.Context:
        """Read the arguments."""
        try:
            return super().make_context(*args, **named)
        except click.UsageError as problem:
            # Click made it, and hands it out as it is; only its words are replaced.
            problem.message = shown(problem.message)  # type: ignore[misc]
            raise


class Commands(_Quoting, click.Group):
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
            from fairlead.core.errors import did_you_mean  # noqa: PLC0415 (not before one errs)
            from fairlead.core.text import brief  # noqa: PLC0415 (as above)

            meant = did_you_mean(name, self.list_commands(ctx))
            raise Problem(
                f"there is no command {brief(name)}{meant}; `{ctx.command_path} --help` lists them",
                Exit.MISUSED,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with a line each, without loading any."""
        rows = [(name, help_) for name, (_, help_) in self._lazy.items()]
        rows += [(name, each.get_short_help_str(80)) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Command(_Quoting):
    """A command; what Fairlead raises in it becomes one sentence and an exit code."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the example in one line, however long, so that it can be copied."""
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(f"  {self.epilog}\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; each option also by a variable of its own name, as it is typed."""
        for param in self.params:
            if isinstance(param, click.Option):
                _add_variable(param, ctx.auto_envvar_prefix)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        from fairlead.core.errors import (  # noqa: PLC0415 (not before a command runs)
            BadCursor,
            ConfigError,
            DecodeError,
            EnqueueError,
            FairleadError,
            JobNotFound,
            Unanswered,
            UnknownTask,
            did_you_mean,
        )
        from fairlead.core.text import brief, sentence  # noqa: PLC0415 (as above)

        try:
            return super().invoke(ctx)
        except UnknownTask as problem:
            meant = did_you_mean(problem.name, problem.known)
            told = f"the app has no task {brief(problem.name)}{meant}"
            raise Problem(f"{told}; `fairlead tasks list` lists them", Exit.MISUSED) from None
        except (BadCursor, ConfigError, EnqueueError) as problem:
            raise Problem(str(problem), Exit.MISUSED) from None
        except JobNotFound as problem:
            raise Problem(str(problem), Exit.NOT_FOUND) from None
        except DecodeError as problem:
            raise Problem(f"{problem}; `fairlead doctor` says what else is damaged") from None
        except Unanswered as problem:
            told = f"{problem.url}: {problem.problem}"
            raise Problem(f"{sentence(told)} {_made_sure(problem.call)}") from None
        except FairleadError as problem:
            raise Problem(str(problem)) from None


def _made_sure(call: Any) -> str:
    """Say how to find out what became of a command that got no answer."""
    if call is not None:
        return f"Job {call.id} may exist all the same: `fairlead jobs show {call.id}` tells"
    return "It may have been done all the same. Run the command again: it finds what is left"


def _add_variable(option: click.Option, prefix: str | None) -> None:
    """Let --dry-run of `jobs delete` be given by $FAIRLEAD_JOBS_DELETE_DRY_RUN."""
    own = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    name = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
    option.envvar = list(dict.fromkeys([*own, f"{prefix}_{name}"]))
    option.allow_from_autoenv = False  # That one goes by the name of our own variable.


class AppCommand(Command):
    """A command that may name an app as its first argument, as in `jobs list shop:app`."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show that an app may be named."""
        options, *rest = super().collect_usage_pieces(ctx)
        return [options, "[MODULE:APP]", *rest]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the app off the arguments, if the first one beside the options is an app."""
        words = self._words(ctx, args)
        if words and self._names_app(words):
            ctx.meta[_APP] = words[0]
            # The same text may be the value of an option before; that one must stay.
            places = [at for at, arg in enumerate(args) if arg == words[0]]
            rests = [args[:at] + args[at + 1 :] for at in places]
            args = next(rest for rest in rests if self._words(ctx, rest) == words[1:])
        return super().parse_args(ctx, args)

    def _words(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments without options and their values."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        parser = click.Command(self.name, params=[*options], add_help_option=False)
        _, words, _ = parser.make_parser(ctx).parse_args(list(args))
        return words

    def _names_app(self, words: list[str]) -> bool:
        takes = [param for param in self.params if isinstance(param, click.Argument)]
        if not takes:
            return True  # It can be nothing else; if it is wrong, the loader says how.
        if not _TARGET.fullmatch(words[0]):
            return False
        # A task may have such a name too; it is followed by its arguments, or by nothing.
        follows = words[1][:1] if len(words) > 1 else ""
        return takes[0].name != "task" or follows not in ("", "{", "[", "-")


def named_app() -> str | None:
    """Return the app that was named as the first argument."""
    context = click.get_current_context(silent=True)
    return context.meta.get(_APP) if context else None


def hinted(text: str) -> str:
    """Name the app in every command that a text advises, as the caller had to."""
    target = named_app()
    if target is None:
        return text
    from fairlead.core.text import escaped  # noqa: PLC0415 (not before something is advised)

    name = escaped(target)
    return _ADVISED.sub(lambda found: f"{found[0]} {name}", text.replace("MODULE:APP", name))
