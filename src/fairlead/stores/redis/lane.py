"""Connections of our own: one for each kind of work, so that none of it waits for another.

A lane opens its connections when they are first used and again after they broke. A call
that got no answer is `Unanswered`, and not repeated here: whoever made it knows whether that is
safe. If nothing was said to any node, it is only `StoreUnavailable`. A connection on which an
answer may still be on its way is never used again.
"""

import asyncio
import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import hiredis
from redis import connection as blocking
from redis import exceptions
from redis.asyncio import connection as nonblocking

from fairlead.core.errors import StoreError, StoreUnavailable
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.nodes import Asking, Batches, Nodes, Replies
from fairlead.stores.redis.problems import typed
from fairlead.stores.redis.talk import Command, Conversation, Tried, go_on

T = TypeVar("T")

MOST_BLOCKING = 8
"""How many connections to one node all threads of a program have together for puts."""


def settings(address: Address, node: Node) -> dict[str, Any]:
    """Return what the driver needs to connect to a node."""
    place = {"path": node.path} if node.path else {"host": node.host, "port": node.port}
    keepalive = {} if node.path else {"socket_keepalive": True}
    trust = {"ssl_cert_reqs": "required", "ssl_check_hostname": True} if address.tls else {}
    return {
        **place,
        **keepalive,
        **trust,
        **address.options,
        "db": address.database,
        "socket_connect_timeout": min(2.0, address.timeout),
        "protocol": 2,
        "client_name": "fairlead",
        "driver_info": None,
    }


class Wire:
    """An async connection to one node."""

    def __init__(self, address: Address, node: Node) -> None:
        self._settings = settings(address, node)
        kinds: dict[bool, type[nonblocking.AbstractConnection]]
        kinds = {False: nonblocking.Connection, True: nonblocking.SSLConnection}
        self._kind = nonblocking.UnixDomainSocketConnection if node.path else kinds[address.tls]
        self._connection: nonblocking.AbstractConnection | None = None
        self._loop = asyncio.get_running_loop()
        self.asked = False
        """Whether anything was said in the present conversation."""

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands, an error where there is one."""
        try:
            connection = await self._opened()
            self.asked = True
            await connection.send_packed_command(
                b"".join(map(hiredis.pack_command, commands)), check_health=False
            )
            answers = [await _answer(connection) for _ in commands]
        except BaseException:
            self.close()
            raise
        if any(isinstance(each, exceptions.ReadOnlyError) for each in answers):
            self.close()  # It was the primary once; ask anew who is.
        return answers

    async def _opened(self) -> nonblocking.AbstractConnection:
        connection = self._connection
        if connection is not None and (not connection.is_connected or await connection.can_read()):
            self.close()  # What arrived unasked is its end.
            connection = None
        if connection is None:
            connection = self._kind(**self._settings, socket_timeout=None)
            self._connection = connection
            await connection.connect()  # type: ignore[no-untyped-call]
            _open.add(connection)
        return connection

    async def hear(self) -> Any:  # noqa: ANN401 (whatever comes)
        """Return the next thing that is said to a subscriber."""
        assert self._connection is not None
        return await self._connection.read_response(timeout=float("inf"))

    async def say(self, *words: str) -> None:
        """Say something without waiting for the answer, which `hear` returns."""
        connection = self._connection or await self._opened()
        await connection.send_command(*words, check_health=False)

    def close(self) -> None:
        """Let go of the connection, from whatever thread."""
        connection, self._connection = self._connection, None
        if connection is not None:
            drop(connection, self._loop)


async def _answer(connection: nonblocking.AbstractConnection) -> Any:  # noqa: ANN401 (as it is)
    try:
        return await connection.read_response(disconnect_on_error=False)
    except exceptions.ResponseError as problem:
        return problem


def drop(connection: nonblocking.AbstractConnection, loop: asyncio.AbstractEventLoop) -> None:
    """Close a connection at once, from whatever thread, whether or not its loop still runs."""
    _open.discard(connection)
    writer = connection._writer  # noqa: SLF001 (the driver closes only from within its loop)
    connection._reader = connection._writer = None  # noqa: SLF001
    if writer is None:
        return
    if loop.is_running():
        with suppress(RuntimeError):  # It was closed just now.
            loop.call_soon_threadsafe(_abort, writer)
    else:
        _abandon(writer.transport, loop)


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def _abandon(transport: Any, loop: asyncio.AbstractEventLoop) -> None:  # noqa: ANN401 (each loop has its own)
    """Close a socket whose loop runs no more, and so would never come to close it."""
    plain = transport._ssl_protocol._transport if hasattr(transport, "_ssl_protocol") else transport  # noqa: SLF001
    sock = getattr(plain, "_sock", None)  # uvloop closes its sockets itself.
    if sock is None:
        return
    if not loop.is_closed():
        loop._remove_reader(sock.fileno())  # type: ignore[attr-defined]  # noqa: SLF001
    plain._closing = transport._closing = True  # noqa: SLF001
    plain._sock = None  # noqa: SLF001
    sock.close()


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
            async with asyncio.timeout(self._patience):
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
            async with asyncio.timeout(self._patience):
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
        answers = await asyncio.gather(*(self._ask_one(*each) for each in batches.items()))
        return dict(zip(batches, answers, strict=True))

    async def _ask_one(self, node: Node, commands: list[Command]) -> list[Any]:
        wire = self._wires.get(node)
        if wire is None:
            wire = self._wires[node] = Wire(self._address, node)
        try:
            return await wire.ask(commands)
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as problem:
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
        self._places: dict[Node, deque[Any]] = {}
        self._tcp = blocking.SSLConnection if address.tls else blocking.Connection

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
        packed = b"".join(map(hiredis.pack_command, commands))
        connection = self._taken(places)
        try:
            if connection is not None:
                asked.add(node)
                # Puts may be repeated, so that one which was closed meanwhile does no harm.
                with suppress(exceptions.ConnectionError):
                    return _said(connection, packed, len(commands))
            connection = self._opened(node)
            asked.add(node)
            return _said(connection, packed, len(commands))
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as problem:
            return [problem] * len(commands)
        finally:
            of_use = connection is not None and connection.is_connected
            places.append(connection if of_use else None)

    def _taken(self, places: deque[Any]) -> Any:  # noqa: ANN401 (as below)
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

    def _opened(self, node: Node) -> Any:  # noqa: ANN401 (the driver's own, which has no types)
        kind: Any = blocking.UnixDomainSocketConnection if node.path else self._tcp
        connection = kind(**settings(self._address, node), socket_timeout=self._address.timeout)
        connection.connect()
        _open_blocking.add(connection)
        return connection

    def close(self) -> None:
        """Let go of the idle connections."""
        places, self._places = self._places, {}
        for connection in [each for some in places.values() for each in some if each is not None]:
            connection.disconnect()


def _said(connection: Any, packed: bytes, count: int) -> list[Any]:  # noqa: ANN401 (as above)
    """Say commands on a connection, which is of no use if it does not answer them all."""
    try:
        connection.send_packed_command([packed], check_health=False)
        answers = [_blocking_answer(connection) for _ in range(count)]
    except BaseException:
        connection.disconnect()  # Nobody knows what is still on its way.
        raise
    if any(isinstance(each, exceptions.ReadOnlyError) for each in answers):
        connection.disconnect()  # It was the primary once; ask anew who is.
    return answers


def _blocking_answer(connection: Any) -> Any:  # noqa: ANN401 (as it is)
    try:
        return connection.read_response(disconnect_on_error=False)
    except exceptions.ResponseError as problem:
        return problem


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


_open: weakref.WeakSet[nonblocking.AbstractConnection] = weakref.WeakSet()
_open_blocking: weakref.WeakSet[Any] = weakref.WeakSet()
_left_behind: list[Any] = []


def _let_go_after_fork() -> None:
    # A child has the sockets of its parent. What it said there would be the parent's words; and as
    # long as it holds them, the server does not notice that the parent is no more.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in list(_open):
        writer = connection._writer  # noqa: SLF001 (there is no other way to its socket)
        if writer is not None:
            os.dup2(nowhere, writer.get_extra_info("socket").fileno())
    for each in list(_open_blocking):
        sock = each._sock  # noqa: SLF001
        if sock is not None:
            os.dup2(nowhere, sock.fileno())
    os.close(nowhere)
    # To close them would reach into the parent's event loop, so they are kept for good.
    _left_behind.extend((*_open, *_open_blocking))
    _open.clear()
    _open_blocking.clear()


os.register_at_fork(after_in_child=_let_go_after_fork)
