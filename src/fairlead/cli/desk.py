"""Where a command works: an app, or only a store."""

import asyncio
import functools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from fairlead.app import Fairlead
from fairlead.cli.command import Problem, named_app
from fairlead.cli.load import load_app
from fairlead.config import DEFAULT_URL, choose_url, load_here
from fairlead.core.acts import Action
from fairlead.core.admin import VERBS, missing
from fairlead.core.errors import ConfigError
from fairlead.core.ids import IdMaker, JobId
from fairlead.core.job import LONGEST_LABEL
from fairlead.core.store import Store
from fairlead.core.text import SHOWN, cut
from fairlead.runtime.names import user_name
from fairlead.stores import store_for

Value = TypeVar("Value")
Command = Callable[..., Any]


class Desk:
    """What a command may use: the store, and the app if there is one.

    The app is the one named first, $FAIRLEAD_APP, or that of pyproject.toml. Without
    one, or with --url, there is only a store.
    """

    def __init__(self, target: str | None, url: str | None) -> None:
        if target and url:
            raise ConfigError("name an app or give --url, not both: an app knows its own store")
        settings = load_here()
        self._settings = settings
        self._url = url
        if url is None:
            target = target or os.environ.get("FAIRLEAD_APP") or settings.app
        self.target = target

    @cached_property
    def app(self) -> Fairlead | None:
        """The app, if one is named."""
        return load_app(self.target) if self.target else None

    def need_app(self, why: str) -> Fairlead:
        """Return the app, or say how to name one."""
        if self.app is None:
            raise ConfigError(
                f"{why} needs your app: name it first, as in `shop:app`, or set $FAIRLEAD_APP, or "
                "`app` under [tool.fairlead] in pyproject.toml"
            )
        return self.app

    @cached_property
    def store(self) -> Store:
        """The store of the app, or of the URL."""
        store = self.app.store if self.app else store_for(self._choose_url())
        if store.url == "memory://":
            raise ConfigError(
                "memory:// lives in one program, so nothing outside of it can see or add jobs; use "
                "a sqlite:/// URL"
            )
        return store

    def _choose_url(self) -> str:
        url = choose_url(self._url, self._settings)
        if url == DEFAULT_URL and not Path(DEFAULT_URL.removeprefix("sqlite:///")).exists():
            raise ConfigError(
                "no app is named: write it first, as in `fairlead jobs list shop:app`, or set "
                "$FAIRLEAD_APP, or `app` under [tool.fairlead] in pyproject.toml; or give --url"
            )
        return url

    def run(self, work: Callable[[Store], Awaitable[Value]], *, check: bool = True) -> Value:
        """Do something with the store, which must be there and of this program's version.

        Without the check it may be neither.
        """

        async def use() -> Value:
            if check:
                await self._check()
            try:
                return await work(self.store)
            finally:
                await self.store.close()

        return asyncio.run(use())

    async def _check(self) -> None:
        """Refuse to make or change a schema on the way: looking is only looking."""
        steps = await self.store.admin.migrations()
        lacking = missing(steps)
        if len(lacking) == len(steps):
            raise Problem(
                f"{self.store.url}, from {Path.cwd()}, holds no jobs yet: enqueue one, or run "
                "`fairlead migrate up`"
            )
        if lacking and lacking[0].name == VERBS:
            raise Problem(
                f"the functions in {self.store.url} are not those of this program; run `fairlead "
                "migrate up`"
            )
        if lacking:
            needed = max(step.number for step in steps if step.name != VERBS)
            raise Problem(
                f"the schema of {self.store.url} is version {lacking[0].number - 1}, this program "
                f"needs {needed}; run `fairlead migrate up`"
            )


def at_desk(command: Command) -> Command:
    """Give a command its desk, and the option --url."""

    @click.option(
        "--url",
        metavar="URL",
        help="The store, to work without an app.  [default: the app's; $FAIRLEAD_URL]",
    )
    @functools.wraps(command)
    def with_desk(*args: Any, url: str | None, **named: Any) -> Any:
        return command(*args, desk=Desk(named_app(), url), **named)

    return with_desk


def at_app(command: Command) -> Command:
    """Give a command that needs an app its desk; a store alone would not do."""

    @functools.wraps(command)
    def with_desk(*args: Any, **named: Any) -> Any:
        return command(*args, desk=Desk(named_app(), None), **named)

    return with_desk


@contextmanager
def on_ctrl_c(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Answer Ctrl-C with this, while a person is asked.

    The event loop would only note it, and act on it when the person has answered.
    """
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def action(verb: str, target: str) -> Action:
    """Say who does something now; $FAIRLEAD_WHO names somebody else than this user."""
    # An environment may hold bytes that are no text.
    who = (os.environ.get("FAIRLEAD_WHO") or user_name()).encode(errors="replace").decode()
    return Action(str(_new_id()), cut(who, LONGEST_LABEL), verb, cut(target, SHOWN))


_new_id: Callable[[], JobId] = IdMaker()
