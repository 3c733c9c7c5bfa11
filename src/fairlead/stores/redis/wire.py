"""Connections: sockets of our own, on an event loop or in a thread that blocks.

A connection on which an answer may still be on its way is never used again.
"""

import asyncio
import os
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions

from fairlead.stores.patience import Patience
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.speech import ENDED, NOTHING, Exchange, Speech
from fairlead.stores.redis.talk import Command

_PIECE = 65_536
_CONNECT_SECONDS = 2.0

_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""The sockets of this process."""


def _tuned(sock: socket.socket, node: Node) -> socket.socket:
    if not node.path:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _open.add(sock)
    return sock


def _unreached(node: Node, problem: OSError) -> exceptions.ConnectionError:
    return exceptions.ConnectionError(f"cannot connect to {node}: {problem.strerror or problem}")


def _whole(answers: list[Any]) -> list[Any]:
    """Return answers, or raise one that says that this server takes no commands now."""
    for each in answers:
        if isinstance(each, exceptions.ConnectionError):
            raise each
    return answers


def _is_replica(answers: list[Any]) -> bool:
    """Say whether this was the primary once, so that it is to be asked anew who is."""
    return any(isinstance(each, exceptions.ReadOnlyError) for each in answers)


class Wire:
    """An async connection to one node, which opens at first use and again after it broke."""

    def __init__(self, address: Address, node: Node) -> None:
        self._address = address
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None
        self.asked = False
        """Whether anything was said in the present conversation."""

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands, an error where there is one."""
        try:
            link = await self._opened()
            self.asked = True
            await link.send(link.speech.said(commands))
            answers = _whole([await link.answer() for _ in commands])
        except BaseException:
            self.close()
            raise
        if _is_replica(answers):
            self.close()
        return answers

    async def _opened(self) -> "_Link":
        link = self._link
        if link is not None and link.has_ended():
            self.close()
            link = None
        if link is None:
            link = self._link = _Link(self._address, self._node)
            await link.open()
        return link

    async def hear(self) -> Any:  # noqa: ANN401 (whatever comes)
        """Return the next thing that is said to a subscriber."""
        assert self._link is not None
        [said] = _whole([await self._link.answer()])
        if isinstance(said, Exception):
            raise said
        return said

    async def say(self, *words: str) -> None:
        """Say something without waiting for the answer, which `hear` returns."""
        link = self._link or await self._opened()
        await link.send(link.speech.said([words]))

    def close(self) -> None:
        """Let go of the connection, from whatever thread, whether or not its loop still runs."""
        link, self._link = self._link, None
        if link is None:
            return
        if self._loop.is_running():
            with suppress(RuntimeError):  # It was closed just now.
                self._loop.call_soon_threadsafe(link.close)
        else:
            link.close()


class _Link:
    """One socket, read whenever something comes."""

    def __init__(self, address: Address, node: Node) -> None:
        self._address = address
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._problem: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.speech = Speech(address, node)

    async def open(self) -> None:
        """Connect."""
        try:
            async with Patience(min(_CONNECT_SECONDS, self._address.timeout)):
                sock = self._sock = await self._connected()
                await self._drive(sock, self.speech.shake_hands())
        except TimeoutError:
            raise
        except OSError as problem:
            raise _unreached(self._node, problem) from problem
        await self._drive(sock, self.speech.greet())
        self._loop.add_reader(sock, self._read)

    async def _connected(self) -> socket.socket:
        problem: OSError | None = None
        for family, place in await self._places():
            sock = _tuned(socket.socket(family, socket.SOCK_STREAM), self._node)
            sock.setblocking(False)
            try:
                await self._loop.sock_connect(sock, place)
            except OSError as why:
                sock.close()
                problem = problem or why
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise problem or OSError("its name leads nowhere")

    async def _places(self) -> list[tuple[int, Any]]:
        node = self._node
        if node.path:
            return [(socket.AF_UNIX, node.path)]
        found = await self._loop.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
        return [(family, place) for family, _, _, _, place in found]

    async def _drive(self, sock: socket.socket, exchange: Exchange) -> None:
        """Send and receive, until both sides have said what begins a connection."""
        came: bytes | None = None
        while True:
            try:
                to_send = next(exchange) if came is None else exchange.send(came)
            except StopIteration:
                return
            await self._loop.sock_sendall(sock, to_send)
            came = await self._loop.sock_recv(sock, _PIECE)

    async def send(self, data: bytes) -> None:
        """Send what is to be said."""
        assert self._sock is not None
        await self._loop.sock_sendall(self._sock, data)

    async def answer(self) -> Any:  # noqa: ANN401 (as it is)
        """Return the next answer."""
        while (answer := self.speech.answer()) is NOTHING:
            if self._problem is not None:
                raise self._problem
            self._waiter = self._loop.create_future()
            await self._waiter
        return answer

    def has_ended(self) -> bool:
        """Say whether the server let go of it: it says nothing that was not asked for."""
        return self._read() or self._problem is not None

    def _read(self) -> bool:
        """Take what came, and say whether something did."""
        assert self._sock is not None
        try:
            data = self._sock.recv(_PIECE)
            if not data:
                raise exceptions.ConnectionError(ENDED)
            self.speech.take(data)
        except BlockingIOError:
            return False
        except (OSError, exceptions.RedisError) as problem:
            self._loop.remove_reader(self._sock)
            self._problem = problem
        self._wake()
        return True

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        """Close the socket; its loop may have ended, and would never come to do it."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(sock)
            self._problem = exceptions.ConnectionError("it was closed")
            self._wake()
        sock.close()


class BlockingWire:
    """A connection to one node, for one caller at a time who waits in a thread."""

    def __init__(self, address: Address, node: Node) -> None:
        self._speech = Speech(address, node)
        try:
            self._sock = _connected(node, min(_CONNECT_SECONDS, address.timeout))
            # A program may enqueue and go, without closing anything.
            weakref.finalize(self, self._sock.close)
            self._drive(self._speech.shake_hands())
        except TimeoutError:
            raise
        except OSError as problem:
            raise _unreached(node, problem) from problem
        self._sock.settimeout(address.timeout)
        self._drive(self._speech.greet())

    def _drive(self, exchange: Exchange) -> None:
        """Send and receive, until both sides have said what begins a connection."""
        came: bytes | None = None
        try:
            while True:
                self._sock.sendall(next(exchange) if came is None else exchange.send(came))
                came = self._sock.recv(_PIECE)
        except StopIteration:
            return
        except BaseException:
            self._sock.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it can be used again."""
        return self._sock.fileno() >= 0

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands, an error where there is one."""
        try:
            self._sock.sendall(self._speech.said(commands))
            answers = _whole([self._answer() for _ in commands])
        except BaseException:
            self.close()  # Nobody knows what is still on its way.
            raise
        if _is_replica(answers):
            self.close()
        return answers

    def _answer(self) -> Any:  # noqa: ANN401 (as it is)
        while (answer := self._speech.answer()) is NOTHING:
            data = self._sock.recv(_PIECE)
            if not data:
                raise exceptions.ConnectionError(ENDED)
            self._speech.take(data)
        return answer

    def close(self) -> None:
        """Let go of it."""
        self._sock.close()


def _connected(node: Node, patience: float) -> socket.socket:
    if not node.path:
        return _tuned(socket.create_connection((node.host, node.port), patience), node)
    sock = _tuned(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), node)
    sock.settimeout(patience)
    try:
        sock.connect(node.path)
    except BaseException:
        sock.close()
        raise
    return sock


def _let_go_after_fork() -> None:
    # A child has the sockets of its parent. What it said there would be the parent's words; and as
    # long as it holds them, the server does not notice that the parent is no more. Its loops are
    # not told: they are copies, but what they watch with is the parent's.
    for sock in list(_open):
        if sock.fileno() >= 0:
            os.close(sock.detach())
    _open.clear()


os.register_at_fork(after_in_child=_let_go_after_fork)
