"""Every command's --help, its example, its variables; and what is said to who mistypes."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from fairlead.cli.command import Exit
from fairlead.cli.main import main
from tests.cli.shop import FAIRLEAD, Stock, environment, objects, refused, run, told

ID = "01993e7c-5a52-7c43-9f0d-3a3e5f0b9c11"


def contexts(parent: click.Context | None = None) -> Iterator[click.Context]:
    """Walk through all commands, beginning with `fairlead` itself."""
    root = parent or click.Context(main, info_name="fairlead", **main.context_settings)
    yield root
    group = root.command
    if isinstance(group, click.Group):
        for name in group.list_commands(root):
            command = group.get_command(root, name)
            assert command is not None
            yield from contexts(click.Context(command, parent=root, info_name=name))


EVERY = {context.command_path: context for context in contexts()}
LEAVES = [path for path, context in EVERY.items() if not isinstance(context.command, click.Group)]


def example(path: str) -> str:
    context = EVERY[path]
    [line] = re.findall(r"(?m)^  Example: (.*)$", context.command.get_help(context))
    return str(line)


def parsed(arguments: list[str]) -> click.Context:
    """Parse a command line as `fairlead` would, without running it."""
    context = EVERY["fairlead"]
    while isinstance(group := context.command, click.Group):
        command = group.get_command(context, arguments[0])
        assert command is not None, arguments
        name = arguments.pop(0)
        if not isinstance(command, click.Group):
            return command.make_context(name, arguments, parent=context)
        context = click.Context(command, parent=context, info_name=name)
    raise AssertionError("no command")


def words(line: str) -> list[str]:
    """Return the words of an example, but for `fairlead` and where its output goes."""
    line = re.sub(r"\$\(.*\)", ID, line)
    first, *rest = shlex.split(re.split(r" >+ ", line)[0])
    assert first == "fairlead"
    return rest


# Examples


@pytest.mark.parametrize("path", EVERY)
def test_every_help_has_an_example_that_can_be_typed(path: str) -> None:
    context = parsed(words(example(path)))
    assert context.command_path.startswith(path)


def test_every_command_tells_what_it_does() -> None:
    for path, context in EVERY.items():
        assert context.command.help, path
        for option in context.command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{path} {option.name}"


def test_the_list_of_commands_says_the_same_as_each_command() -> None:
    text = main.get_help(EVERY["fairlead"])
    for path in LEAVES:
        command = EVERY[path].command
        if path.count(" ") == 1 and command.short_help:
            assert f"  {command.name} " in text
            assert f"  {command.short_help}\n" in text


def test_help_is_printed_by_the_real_command_at_every_depth(tmp_path: Path) -> None:
    for arguments in (["-h"], ["jobs", "--help"], ["jobs", "list", "-h"]):
        answer = run(tmp_path, *arguments)
        assert answer.returncode == 0
        path = " ".join(["fairlead", *arguments[:-1]])
        assert answer.stdout.startswith(f"Usage: {path} [OPTIONS]")
        assert f"  Example: {example(path)}\n" in answer.stdout


def test_help_loads_neither_a_driver_nor_an_event_loop(tmp_path: Path) -> None:
    """So it answers at once."""
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", FAIRLEAD, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment(),
    )
    loaded = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines()}
    assert "fairlead.cli.main" in loaded
    for heavy in ("sqlite3", "asyncio", "msgspec", "fairlead.app", "fairlead.cli.jobs", "logging"):
        assert heavy not in loaded


def test_exit_codes_are_documented(tmp_path: Path) -> None:
    text = run(tmp_path, "--help").stdout
    [codes] = re.findall(r"Exit codes: ([^.]*)\.", text)
    assert [int(number) for number in re.findall(r"\d", codes)] == list(Exit)


# Variables


OPTIONS = [
    (path, option)
    for path in LEAVES
    for option in EVERY[path].command.params
    if isinstance(option, click.Option)
]


def sample(option: click.Option) -> str:
    """Return a value that the option takes."""
    if option.is_flag:
        return "1"
    if isinstance(option.type, click.Choice):
        return str(option.type.choices[0])
    if isinstance(option.type, click.FloatRange) and option.type.max is not None:
        return str(option.type.max)
    return "." if isinstance(option.type, click.Path) else "5" if option.name != "since" else "5h"


@pytest.mark.parametrize(
    ("path", "option"), OPTIONS, ids=[f"{path} {option.opts[-1]}" for path, option in OPTIONS]
)
def test_every_option_has_a_variable_of_its_name(
    path: str, option: click.Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("FAIRLEAD"):
            monkeypatch.delenv(name)
    variable = f"{path} {option.opts[-1].lstrip('-')}".upper().replace(" ", "_").replace("-", "_")
    monkeypatch.setenv(variable, sample(option))
    context = parsed(plain(words(example(path))))
    assert option.name is not None
    assert context.get_parameter_source(option.name) is click.core.ParameterSource.ENVIRONMENT
    value: Any = context.params[option.name]
    assert value not in (None, (), False)


def plain(arguments: list[str]) -> list[str]:
    """Leave out the options of an example, so that only variables give them."""
    kept: list[str] = []
    for at, word in enumerate(arguments):
        if word.startswith("--") or (at and arguments[at - 1].startswith("--")):
            continue
        kept.append(word)
    return kept


def test_variables_reach_the_real_command(folder: Path, stock: Stock) -> None:
    found = objects(
        folder, "jobs", "list", FAIRLEAD_JOBS_LIST_STATE="dead done", FAIRLEAD_JOBS_LIST_LIMIT="2"
    )
    assert [job["id"] for job in found] == [stock.worse, stock.bad]
    found = objects(folder, "jobs", "list", "--limit", "1", FAIRLEAD_JOBS_LIST_LIMIT="2")
    assert len(found) == 1, "the command line has the last word"
    text = told(
        folder, "jobs", "delete", FAIRLEAD_JOBS_DELETE_ALL="1", FAIRLEAD_JOBS_DELETE_DRY_RUN="1"
    )
    assert text.startswith("would delete 4 jobs:")


def test_a_variable_for_another_purpose_does_no_harm(tmp_path: Path) -> None:
    answer = run(tmp_path, "--version", FAIRLEAD_VERSION="1.2", FAIRLEAD_HELP="x")
    assert re.fullmatch(r"fairlead \d+\.\d+\.\S+\n", answer.stdout), answer.stderr
    assert run(tmp_path, "jobs", "-h", FAIRLEAD_VERSION="1.2").returncode == 0


# Who mistypes


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["jbos"], "there is no command 'jbos' (did you mean 'jobs'?); `fairlead --help` lists"),
        (["jobs", "lst"], "there is no command 'lst' (did you mean 'list'?); `fairlead jobs --h"),
        (["xyzzy"], "there is no command 'xyzzy'; `fairlead --help` lists them"),
        (["jobs", "list", "--limti", "3"], "No such option '--limti'. Did you mean '--limit'?"),
        (["jobs", "list", "--limit", "0"], "Invalid value for '--limit': 0 is not in the range"),
        (["jobs", "list", "--state", "ded"], "Invalid value for '--state': 'ded' is not one of"),
        (["jobs", "list", "shop:app", "more"], "Got unexpected extra argument (more)"),
        (["jobs", "list", "--queue"], "Option '--queue' requires an argument."),
        (["completion", "tcsh"], "Invalid value for '[bash|zsh|fish]': 'tcsh' is not one of"),
        (["tasks", "list", "shpo:app"], "there is no module 'shpo' to import, from "),
    ],
)
def test_what_was_meant_is_suggested(folder: Path, arguments: list[str], problem: str) -> None:
    assert refused(folder, *arguments).startswith(problem)


def test_a_group_alone_prints_its_help(tmp_path: Path) -> None:
    answer = run(tmp_path, "jobs")
    assert answer.returncode == 2
    assert "Usage: fairlead jobs [OPTIONS] COMMAND" in answer.stderr


# Completion


def completed(folder: Path, *typed: str) -> list[str]:
    line = " ".join(["fairlead", *typed])
    answer = run(
        folder,
        _FAIRLEAD_COMPLETE="bash_complete",
        COMP_WORDS=line,
        COMP_CWORD=str(len(typed)),
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    return [line.partition(",")[2] for line in answer.stdout.splitlines()]


def test_the_shell_completes_commands_and_options(tmp_path: Path) -> None:
    assert completed(tmp_path, "jo") == ["jobs"]
    assert completed(tmp_path, "dead", "re") == ["replay"]
    assert completed(tmp_path, "jobs", "list", "shop:app", "--li") == ["--limit"]
    assert completed(tmp_path, "jobs", "list", "--state", "de") == ["dead", "delayed"]
    assert completed(tmp_path, "worker", "shop:app", "--log-f") == ["--log-format"]


def test_the_script_for_bash_is_one_that_bash_takes(tmp_path: Path) -> None:
    answer = subprocess.run(
        ["bash", "-c", 'eval "$(fairlead completion bash)"; complete -p fairlead'],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment(PATH=f"{Path(FAIRLEAD).parent}{os.pathsep}{os.environ['PATH']}"),
    )
    assert answer.stdout == "complete -o nosort -F _fairlead_completion fairlead\n", answer.stderr
    for shell, word in (("zsh", "compdef"), ("fish", "complete --no-files")):
        assert word in run(tmp_path, "completion", shell).stdout
    assert "compdef" in run(tmp_path, "completion", SHELL="/bin/zsh").stdout
    assert refused(tmp_path, "completion", SHELL="/bin/tcsh") == (
        "there is no completion for tcsh; name one of bash, zsh, fish"
    )
