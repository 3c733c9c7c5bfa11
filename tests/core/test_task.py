import datetime as dt
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.core.errors import ConfigError, DuplicateTask, UnknownTask
from fairlead.core.outcome import Policy
from fairlead.core.retry import Retry
from fairlead.core.task import DEFAULT_TIMEOUT, Registry, Task, TaskOptions, default_name

if TYPE_CHECKING:
    from decimal import Decimal


def send(user: int) -> None: ...


def build(report: int) -> None: ...


async def fetch(url: str) -> str:
    return url


class Mailer:
    def send(self, user: int) -> None: ...


def task(name: str = "mail.send", function: Any = send, *, aliases: tuple[str, ...] = ()) -> Task:
    return Task(name, function, TaskOptions(), aliases)


# Registry


def test_a_task_is_found_by_its_name() -> None:
    registry = Registry()
    mail = task()
    registry.add(mail)

    assert registry["mail.send"] is mail
    assert "mail.send" in registry
    assert "mail.other" not in registry


def test_a_task_is_found_by_its_former_names() -> None:
    registry = Registry()
    mail = task(aliases=("post.send", "letters.send"))
    registry.add(mail)

    assert registry["post.send"] is registry["letters.send"] is mail
    assert "letters.send" in registry


def test_a_registry_goes_through_each_task_once() -> None:
    registry = Registry()
    mail, reports = task(aliases=("post.send",)), task("reports.build", build)
    registry.add(mail)
    registry.add(reports)

    assert list(registry) == [mail, reports]


def test_a_name_nobody_registered_leads_nowhere() -> None:
    registry = Registry()
    registry.add(task())

    with pytest.raises(UnknownTask, match=r"'os\.system'; import the module") as caught:
        registry["os.system"]
    assert caught.value.name == "os.system"

    with pytest.raises(LookupError, match=r"did you mean 'mail\.send'"):
        registry["mail.sent"]


def test_two_tasks_of_one_name_are_refused_and_both_places_are_named() -> None:
    registry = Registry()
    registry.add(task())

    with pytest.raises(DuplicateTask) as caught:
        registry.add(task(function=build))

    first, second = send.__code__.co_firstlineno, build.__code__.co_firstlineno
    assert str(caught.value) == (
        f"two functions are registered as task 'mail.send': {__name__}.send ({__file__}:{first}) "
        f"and {__name__}.build ({__file__}:{second}); give one of them another name, as in "
        '@app.task(name="…")'
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (task(aliases=("old",)), task("old", build)),
        (task("old"), task("mail.build", build, aliases=("old",))),
        (task(aliases=("old",)), task("mail.build", build, aliases=("old",))),
    ],
    ids=["name is an alias", "alias is a name", "alias is an alias"],
)
def test_a_former_name_belongs_to_one_task_too(first: Task, second: Task) -> None:
    registry = Registry()
    registry.add(first)

    with pytest.raises(DuplicateTask) as caught:
        registry.add(second)
    assert caught.value.name == "old"


def test_a_refused_task_leaves_nothing_behind() -> None:
    registry = Registry()
    registry.add(task("old"))

    with pytest.raises(DuplicateTask):
        registry.add(task("new", build, aliases=("newer", "old")))

    assert "new" not in registry
    assert "newer" not in registry
    assert [one.name for one in registry] == ["old"]


def test_a_registry_knows_the_version_of_every_name() -> None:
    registry = Registry()
    registry.add(Task("mail.send", send, TaskOptions(version=3), ("post.send",)))
    registry.add(task("reports.build", build))

    assert registry.versions() == {"mail.send": 3, "post.send": 3, "reports.build": 1}


# Tasks


@pytest.mark.parametrize("name", ["", "mail send", "<lambda>", "mail.<locals>.send", "_x"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a task"):
        task(name)
    with pytest.raises(ConfigError, match="cannot name a task"):
        task(aliases=(name,))


def test_a_task_knows_whether_it_is_async() -> None:
    assert task(function=fetch).is_async
    assert not task().is_async


def test_the_place_of_a_decorated_function_is_its_own_line() -> None:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    line = send.__code__.co_firstlineno
    assert task(function=decorate(send)).place == f"{__name__}.send ({__file__}:{line})"


def test_the_place_of_a_builtin_is_its_name() -> None:
    assert task(function=len).place == "builtins.len"


# Options


def test_a_task_has_a_time_limit_and_a_retry_by_default() -> None:
    options = TaskOptions()

    assert (options.queue, options.timeout, options.retry) == ("default", DEFAULT_TIMEOUT, Retry())
    assert DEFAULT_TIMEOUT == 300
    assert isinstance(options, Policy), "what decide() asks about failures"


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 30 * 24 * 3600 + 1])
def test_a_time_limit_lies_between_nothing_and_a_month(timeout: float) -> None:
    with pytest.raises(ConfigError) as caught:
        TaskOptions(timeout=timeout)

    assert str(caught.value) == f"timeout= must be seconds from 0 to 30 days, not {timeout!r}"


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": None},
        {"timeout": "30"},
        {"timeout": dt.timedelta(seconds=30)},
        {"version": "2"},
        {"version": 1.5},
        {"crash_limit": None},
        {"retry": 5},
    ],
    ids=repr,
)
def test_an_option_of_another_type_is_a_mistake_of_the_program(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        TaskOptions(**options)


def test_other_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match='effects= must be "none" or "external", not \'outside\''):
        TaskOptions(effects="outside")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="version= must be a whole number from 1, not 0"):
        TaskOptions(version=0)
    with pytest.raises(ConfigError, match="crash_limit= must be a whole number from 1, not -1"):
        TaskOptions(crash_limit=-1)


# Signatures, read late


def test_a_type_may_be_defined_after_the_task() -> None:
    space: dict[str, Any] = {"__name__": "shop"}
    exec("def send(user: 'User') -> 'list[User]': ...", space)
    mail = task(function=space["send"])
    exec("from dataclasses import dataclass\n@dataclass\nclass User:\n    id: int", space)

    payload = mail.signature.encode((space["User"](7),), {})

    assert mail.signature.decode(payload) == ((), {"user": space["User"](7)})
    assert mail.signature.decode_result('[{"id":7}]') == [space["User"](7)]


def test_a_signature_that_failed_once_is_read_again() -> None:
    space: dict[str, Any] = {"__name__": "shop"}
    exec("def send(user: 'User') -> None: ...", space)
    mail = task(function=space["send"])
    with pytest.raises(ConfigError):
        _ = mail.signature

    space["User"] = int

    assert mail.signature.decode('{"user":7}') == ((), {"user": 7})
    assert mail.signature is mail.signature


def test_a_type_only_type_checkers_see_is_a_mistake_of_the_program() -> None:
    def pay(amount: "Decimal") -> None: ...

    with pytest.raises(ConfigError) as caught:
        _ = task("shop.pay", pay).signature

    assert str(caught.value) == (
        "task 'shop.pay' has an annotation that cannot be resolved: name 'Decimal' is not defined; "
        "import the type at run time, not only under TYPE_CHECKING"
    )


@pytest.mark.parametrize(
    "annotation", ["dt.Missing", "list[", "int[str]", "1 / 0", "dt.date.nothing"]
)
def test_an_annotation_that_fails_in_any_way_is_a_mistake_of_the_program(annotation: str) -> None:
    def pay(amount: Any) -> None: ...

    pay.__annotations__["amount"] = annotation

    with pytest.raises(ConfigError, match=r"task 'shop\.pay' has an annotation"):
        _ = task("shop.pay", pay).signature


def test_a_method_can_be_a_task() -> None:
    mail = task(function=Mailer().send)

    assert mail.signature.decode(mail.signature.encode((7,), {})) == ((), {"user": 7})


@pytest.mark.parametrize(
    "function", [functools.partial(send, user=7), Mailer], ids=["partial", "class"]
)
def test_a_callable_that_is_no_function_is_refused(function: Any) -> None:
    """The types of its parameters stand elsewhere, so they could not be checked."""
    with pytest.raises(ConfigError, match="a task must be a function"):
        Task(default_name(function), function, TaskOptions())


# Names


def test_a_task_is_named_after_its_module_and_function() -> None:
    def inner() -> None: ...

    assert default_name(send) == f"{__name__}.send"
    assert default_name(Mailer.send) == f"{__name__}.Mailer.send"
    assert default_name(inner) == (
        f"{__name__}.test_a_task_is_named_after_its_module_and_function.inner"
    )


SCRIPT = """
from fairlead.core.task import Task, TaskOptions, default_name

def send(): ...

name = Task(default_name(send), send, TaskOptions()).name
"""


def run(folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_script_names_its_tasks_as_the_worker_does_that_imports_it(tmp_path: Path) -> None:
    (tmp_path / "nightly.py").write_text(SCRIPT + "print(name)")

    assert run(tmp_path, "nightly.py") == ["nightly.send"]
    assert run(tmp_path, str(tmp_path / "nightly.py")) == ["nightly.send"]
    assert run(tmp_path, "-c", "import nightly") == ["nightly.send"]


def test_a_module_run_with_dash_m_names_its_tasks_as_when_it_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("jobs.py", "__main__.py"):
        (package / name).write_text(SCRIPT + "print(name)")

    assert run(tmp_path, "-m", "shop.jobs") == ["shop.jobs.send"]
    assert run(tmp_path, "-c", "import shop.jobs") == ["shop.jobs.send"]
    assert run(tmp_path, "-m", "shop") == ["shop.send"]
    assert run(tmp_path, "-c", "import shop.__main__") == ["shop.send"]


def test_a_program_without_a_file_names_its_tasks_main(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", SCRIPT + "print(name)") == ["main.send"]


def test_a_folder_that_is_run_can_name_its_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "nightly"
    folder.mkdir()
    (folder / "__main__.py").write_text(SCRIPT + "print(name)")

    [name] = run(tmp_path, "nightly")

    assert name.endswith(".send")


def test_a_spawned_child_names_the_tasks_of_a_script_as_its_parent_does(tmp_path: Path) -> None:
    """multiprocessing imports the script again in the child, as `__mp_main__`."""
    (tmp_path / "nightly.py").write_text(
        SCRIPT
        + dedent("""
        import multiprocessing

        def tell(pipe):
            pipe.send(name)

        if __name__ == "__main__":
            ours, theirs = multiprocessing.Pipe(duplex=False)
            child = multiprocessing.get_context("spawn").Process(target=tell, args=(theirs,))
            child.start()
            theirs.close()
            try:
                print(name, ours.recv())
            finally:
                child.join()
        """)
    )

    assert run(tmp_path, "nightly.py") == ["nightly.send", "nightly.send"]


def stream() -> Iterator[int]:
    yield 1


async def async_stream() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [stream, async_stream], ids=["plain", "async"])
def test_a_generator_is_no_task(function: Callable[..., Any]) -> None:
    """To call one runs nothing of it: every job would be done at once, with nothing done."""
    told = rf"cannot be a generator like '{function.__name__}'.*return a list instead of yielding"
    with pytest.raises(ConfigError, match=told):
        Task("t", function, TaskOptions())
