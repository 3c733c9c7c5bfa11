"""Lanes: connections for each kind of work, so that none of it waits for another.

A lane opens its connections when they are first used and again after they broke. A call
that got no answer is `Unanswered`, and not repeated here: whoever made it knows whether that is
safe. If nothing was said to any node, it is only `StoreUnavailable`.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any, TypeVar

from redis import exceptions

from fairlead.core.errors import StoreError, StoreUnavailable
from fairlead.stores.patience import Patience
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.nodes import Asking, Batches, Nodes, Replies
from fairlead.stores.redis.problems import typed
from fairlead.stores.redis.talk import Command, Conversation, Tried, go_on
from fairlead.stores.redis.wire import BlockingWire, Wire

T = TypeVar("T")

MOST_BLOCKING = 8
"""How many connections to one node all threads of a program have together for puts."""


class Lane:
    """A connection to each node, on one event loop, used by one call at a time."""

    def __init__(self, address: Address, nodes: Nodes, patience: float | None = None) -> None:
        self._address = address
        self._nodes = nodes
        self._patience = address.timeout if patience is None else patience
        self._wires: dict[Node, Wire] = {}
        self._turn = asyncio.Lock()

    async def hold(self, talk: Conversation[T], *, together: bool = False) -> T:
        """Hold a conversation; who is cancelled meanwhile stops waiting, it goes on."""
        task = asyncio.ensure_future(self._hold(talk, together=together))
        task.add_done_callback(_heard)
        return await asyncio.shield(task)

    async def _hold(self, talk: Conversation[T], *, together: bool) -> T:
        together = together and not self._address.is_cluster
        try:
            async with Patience(self._patience):
                await self._turn.acquire()
        except TimeoutError as problem:
            raise typed(problem, self._address, self._patience) from problem
        try:
            for wire in self._wires.values():
                wire.asked = False
            heard: list[Any] | StoreError | None = None
            while True:
                try:
                    commands = go_on(talk, heard)
                except StopIteration as end:
                    result: T = end.value
                    return result
                try:
                    heard = await self._answers(commands, together=together)
                except StoreError as problem:
                    heard = problem
        finally:
            self._turn.release()

    async def _answers(self, commands: list[Command], *, together: bool) -> list[Any]:
        try:
            async with Patience(self._patience):
                asking = self._nodes.answered(enclosed(commands, together=together))
                replies = await self._drive(asking)
        except (exceptions.RedisError, OSError) as problem:
            self._nodes.doubt()
            raise typed(problem, self._address, self._patience, asked=self._asked()) from problem
        return checked(commands, replies, self._address, together=together, asked=self._asked())

    def _asked(self) -> bool:
        return any(wire.asked for wire in self._wires.values())

    async def _drive(self, asking: Asking) -> list[Any]:
        replies: Replies | None = None
        while True:
            try:
                wanted = next(asking) if replies is None else asking.send(replies)
            except StopIteration as end:
                answers: list[Any] = end.value
                return answers
            if isinstance(wanted, float):
                await asyncio.sleep(wanted)
                replies = {}
            else:
                replies = await self._ask(wanted)

    async def _ask(self, batches: Batches) -> Replies:
        if len(batches) == 1:
            [(node, commands)] = batches.items()
            return {node: await self._ask_one(node, commands)}
        # None of these raises, so all are waited for: a later answer would be the next question's.
        answers = await asyncio.gather(*(self._ask_one(*each) for each in batches.items()))
        return dict(zip(batches, answers, strict=True))

    async def _ask_one(self, node: Node, commands: list[Command]) -> list[Any]:
        wire = self._wires.get(node)
        if wire is None:
            wire = self._wires[node] = Wire(self._address, node)
        try:
            return await wire.ask(commands)
        except (exceptions.RedisError, OSError) as problem:
            return [problem] * len(commands)

    async def finished(self) -> None:
        """Wait for those whose turn comes before."""
        async with self._turn:
            pass

    def close(self) -> None:
        """Let go of the connections, from whatever thread."""
        for wire in self._wires.values():
            wire.close()


class BlockingLanes:
    """A few connections to each node for synchronous callers, each used by one at a time."""

    def __init__(self, address: Address, nodes: Nodes) -> None:
        self._address = address
        self._nodes = nodes
        # A place for each connection to a node that there may be, with the connection once it is
        # open. To take the last is one step of the interpreter, and needs no lock.
        self._places: dict[Node, deque[BlockingWire | None]] = {}

    def hold(self, talk: Conversation[T], *, together: bool = False) -> T:
        """Hold a conversation, in the calling thread."""
        together = together and not self._address.is_cluster
        heard: list[Any] | StoreError | None = None
        asked: set[Node] = set()
        while True:
            try:
                commands = go_on(talk, heard)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                heard = self._answers(commands, asked, together=together)
            except StoreError as problem:
                heard = problem

    def _answers(self, commands: list[Command], asked: set[Node], *, together: bool) -> list[Any]:
        """Return the answers to commands, and add those to whom something was said."""
        address = self._address
        try:
            asking = self._nodes.answered(enclosed(commands, together=together))
            replies = self._drive(asking, asked)
        except (exceptions.RedisError, OSError) as problem:
            raise typed(problem, address, address.timeout, asked=bool(asked)) from problem
        return checked(commands, replies, address, together=together, asked=bool(asked))

    def _drive(self, asking: Asking, asked: set[Node]) -> list[Any]:
        replies: Replies | None = None
        while True:
            try:
                wanted = next(asking) if replies is None else asking.send(replies)
            except StopIteration as end:
                answers: list[Any] = end.value
                return answers
            if isinstance(wanted, float):
                time.sleep(wanted)
                replies = {}
            else:
                replies = {node: self._ask(node, each, asked) for node, each in wanted.items()}

    def _ask(self, node: Node, commands: list[Command], asked: set[Node]) -> list[Any]:
        places = self._places.get(node)
        if places is None:
            places = self._places.setdefault(node, deque([None] * MOST_BLOCKING))
        wire = self._taken(places)
        try:
            if wire is not None:
                asked.add(node)
                # Puts may be repeated, so that one which was closed meanwhile does no harm.
                with suppress(exceptions.ConnectionError, ConnectionError):
                    return wire.ask(commands)
            wire = BlockingWire(self._address, node)
            asked.add(node)
            return wire.ask(commands)
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as problem:
            return [problem] * len(commands)
        finally:
            places.append(wire if wire is not None and wire.is_open else None)

    def _taken(self, places: deque[BlockingWire | None]) -> BlockingWire | None:
        """Take a place, when one is free; returns the connection that is there, if one is."""
        until = time.monotonic() + self._address.timeout
        while True:
            with suppress(IndexError):
                return places.pop()
            if time.monotonic() > until:
                raise StoreUnavailable(
                    self._address.url,
                    f"all {MOST_BLOCKING} connections of this process were in use for "
                    f"{self._address.timeout:g} s; enqueue in fewer threads at once, or many jobs "
                    "with one enqueue_many",
                )
            time.sleep(0.001)

    def close(self) -> None:
        """Let go of the idle connections."""
        places, self._places = self._places, {}
        for wire in [each for some in places.values() for each in some if each is not None]:
            wire.close()


def enclosed(commands: list[Command], *, together: bool) -> list[Command]:
    """Make one transaction of commands that happen together or not at all."""
    return [("MULTI",), *commands, ("EXEC",)] if together and len(commands) > 1 else commands


def checked(
    commands: list[Command],
    replies: list[Any],
    address: Address,
    *,
    together: bool,
    asked: bool,
) -> list[Any]:
    """Return the answers, or raise the first error among them."""
    answers = replies
    if together and len(commands) > 1:
        problem = next((each for each in replies if isinstance(each, Exception)), None)
        answers = replies[-1] if problem is None else [problem]
    if not any(isinstance(each, Exception) for each in answers):
        return answers
    for command, each in zip(commands, answers, strict=False):
        if isinstance(each, Exception) and not isinstance(command, Tried):
            raise typed(each, address, address.timeout, asked=asked, command=command) from each
    return [
        typed(each, address, address.timeout, asked=asked, command=command)
        if isinstance(each, Exception)
        else each
        for command, each in zip(commands, answers, strict=False)
    ]


def _heard(task: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody may wait for any more."""
    if not task.cancelled():
        task.exception()
