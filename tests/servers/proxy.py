"""A TCP proxy before a server, which fails as networks do, at the very byte a test names.

One thread carries all connections, and every fault is set in it: when a call
returns, what it says is in force. The thread needs the interpreter, so a client in
the same process must not wait for its server while it holds the interpreter lock.
"""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fairlead.bench.servers.server import HOST
from tests.servers.talk import PostgresTalk, Talk

Value = TypeVar("Value")
Marker = bytes | Callable[[bytes], bool]
TO_SERVER, TO_CLIENT = "to_server", "to_client"
RESET = struct.pack("ii", 1, 0)
PIECE = 65536
PACKET = 1500
RESEND_SECONDS = 0.3
"""How long TCP takes to notice that a packet was lost, and to send it again."""


class Fault:
    """A connection to be reset within the reply to one request, `happened` when it was."""

    def __init__(self, marker: Marker, nth: int, passed: int) -> None:
        self.happened = threading.Event()
        self.passed = passed
        self._marker = marker
        self._left = nth

    def strikes(self, asked: bytes) -> bool:
        """Whether this is the request that was meant; counts it if it is of the kind."""
        found = self._marker(asked) if callable(self._marker) else self._marker in asked
        self._left -= found
        return found and self._left == 0


class Link:
    """One connection: the client's side, the server's side, and what is said."""

    def __init__(self, client: socket.socket, talk: Talk) -> None:
        self.client = client
        self.server = socket.socket()
        self.server.setblocking(False)
        self.talk = talk
        self.fault: Fault | None = None
        self._struck = 0
        self._answered = 0
        self._left = 0

    def hear(self, data: bytes, faults: list[Fault]) -> None:
        """Read along what the client says, until a fault strikes."""
        for number, asked in self.talk.asked(data):
            for fault in faults:
                if self.fault is None and fault.strikes(asked):
                    self.fault, self._struck, self._left = fault, number, fault.passed

    def answer(self, data: bytes) -> bytes:
        """Return what of the server's words may pass."""
        passed, start = b"", 0
        for end in self.talk.answered(data):
            passed += self._let(data[start:end])
            self._answered += 1
            start = end
        return passed + self._let(data[start:])

    def _let(self, data: bytes) -> bytes:
        if self.fault is None or self._answered < self._struck:
            return data
        if self._answered > self._struck:
            return b""
        passed = data[: self._left]
        self._left -= len(passed)
        return passed

    @property
    def over(self) -> bool:
        """Whether the fault struck, and the server has said all of the reply."""
        return self.fault is not None and self._answered > self._struck

    def close(self, *, reset: bool) -> None:
        for side in (self.client, self.server):
            if reset:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            side.close()
        if self.fault:
            self.fault.happened.set()


class Proxy:
    """Stands before the server at a port, and passes on what is said until told otherwise."""

    def __init__(self, server_port: int, talk: Callable[[], Talk] = PostgresTalk) -> None:
        self.server_port = server_port
        self.port = 0
        self.accepted = 0
        self._talk = talk
        self._tasks: dict[asyncio.Task[bool], Link] = {}
        self._faults: list[Fault] = []
        self._problems: list[BaseException] = []
        self._delay = 0.0
        self._rate = 0
        self._loss = 0.0
        self._random = random.Random(0)
        self._ready = threading.Event()

    # Up and down

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._listener = socket.create_server((HOST, 0), backlog=256)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Reset all connections, and listen no more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        if self._problems:
            raise self._problems[0]

    def through(self, url: str) -> str:
        """Return the URL of a server, with the way through us."""
        parts = urlsplit(url)
        who, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{who}{at}{HOST}:{self.port}"))

    @property
    def alive(self) -> int:
        """How many connections are carried now."""
        return len(self._tasks)

    # Faults

    def cut(self) -> int:
        """Reset every connection, on both sides; returns how many. New ones are carried."""
        return self._do(self._cut())

    def drop(self, way: str = "") -> None:
        """Let nothing pass, one way or both, the news of an end included; nobody is told.

        As when packets are lost: what was said meanwhile arrives when it heals.
        """
        self._do(self._set(way, passes=False))

    def heal(self, way: str = "") -> None:
        self._do(self._set(way, passes=True))

    def delay(self, seconds: float) -> None:
        """Let every piece take so long, each way."""
        self._delay = seconds

    def narrow(self, rate: int, loss: float = 0.0) -> None:
        """Let all connections together carry so many bytes a second, and lose some packets.

        What TCP loses it sends again, so who speaks over it finds that it came late.
        """
        self._rate, self._loss = rate, loss

    def lose_reply(self, after: Marker, nth: int = 1) -> Fault:
        """Let the nth such request through, swallow all of its reply, then reset the connection.

        The server has done what it was asked, and the client will never know.
        """
        return self.cut_within(after, 0, nth)

    def cut_within(self, marker: Marker, size: int, nth: int = 1) -> Fault:
        """Let so many bytes of the reply to the nth such request pass, then reset the connection."""
        fault = Fault(marker, nth, size)
        self._do(self._arm(fault))
        return fault

    # In the thread

    def _do(self, action: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(30)

    async def _set(self, way: str, *, passes: bool) -> None:
        for one in [way] if way else [TO_SERVER, TO_CLIENT]:
            self._gates[one].set() if passes else self._gates[one].clear()

    async def _arm(self, fault: Fault) -> None:
        self._faults.append(fault)

    async def _cut(self) -> int:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    def _run(self) -> None:
        with self._listener:
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gates = {TO_SERVER: asyncio.Event(), TO_CLIENT: asyncio.Event()}
        self._closing = asyncio.Event()
        self._link = asyncio.Lock()
        await self._set("", passes=True)
        self._ready.set()
        accepting = asyncio.create_task(self._accept_all())
        await self._closing.wait()
        accepting.cancel()
        await self._cut()

    async def _accept_all(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            self._accept(client)

    def _accept(self, client: socket.socket) -> None:
        link = Link(client, self._talk())
        task = asyncio.create_task(self._carry(link))
        self._tasks[task] = link
        self.accepted += 1
        # Not in the task itself: one that is cancelled before it began would not close anything.
        task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[bool]") -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._problems.append(problem)
        orderly = not task.cancelled() and problem is None and task.result()
        self._tasks.pop(task).close(reset=not orderly)

    async def _carry(self, link: Link) -> bool:
        """Carry a connection to its end; returns whether both sides ended it in order."""
        orderly = False
        try:
            await self._gates[TO_SERVER].wait()
            await self._loop.sock_connect(link.server, (HOST, self.server_port))
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(link, TO_SERVER))
                pumps.create_task(self._pump(link, TO_CLIENT))
            orderly = True
        except* OSError:
            pass
        return orderly

    async def _pump(self, link: Link, way: str) -> None:
        try:
            while await self._pass(link, way):
                pass
        except OSError:
            # Who may not hear anything must not hear of the end either.
            for gate in self._gates.values():
                await gate.wait()
            raise

    async def _pass(self, link: Link, way: str) -> bool:
        """Carry one piece, or the news that there will be no more."""
        source, target = link.client, link.server
        if way == TO_CLIENT:
            source, target = target, source
        data = await self._loop.sock_recv(source, PACKET if self._rate else PIECE)
        await asyncio.sleep(self._delay)
        if rate := self._rate:
            async with self._link:  # Who asked first is carried first: no connection starves.
                await asyncio.sleep(len(data) / rate)
            if self._random.random() < self._loss:
                await asyncio.sleep(RESEND_SECONDS)
        await self._gates[way].wait()
        if not data:
            target.shutdown(socket.SHUT_WR)
            return False
        if way == TO_SERVER:
            link.hear(data, self._faults)
            await self._loop.sock_sendall(target, data)
        else:
            await self._loop.sock_sendall(target, link.answer(data))
            if link.over:
                raise ConnectionResetError
        return True
