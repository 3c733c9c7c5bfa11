"""A lane that asks several nodes: one that refuses leaves no answer of another one behind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import hiredis
import pytest
from redis import exceptions
from redis.crc import key_slot

from fairlead.core.errors import StoreUnavailable, Unanswered
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.lane import Lane
from fairlead.stores.redis.nodes import Nodes
from fairlead.stores.redis.problems import typed
from fairlead.stores.redis.talk import Conversation

HALF = 8_192
"""Each of two nodes has this many slots."""


@asynccontextmanager
async def node(
    greeting: bytes, slots: Callable[[], bytes], pause: float = 0.0
) -> AsyncIterator[int]:
    """A node that answers each question with the question; yields its port."""

    serving: list[asyncio.Task[None]] = []

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.ensure_future(serve(reader, writer)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = hiredis.Reader()
        while data := await reader.read(1 << 16):
            heard.feed(data)
            while (words := heard.gets()) is not False:
                if words[0] == b"CLIENT":
                    writer.write(greeting)
                elif words[0] == b"CLUSTER":
                    writer.write(slots())
                else:
                    await asyncio.sleep(pause)
                    writer.write(b"$%d\r\n%s\r\n" % (len(words[1]), words[1]))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*serving, return_exceptions=True)


def key(name: str, *, first: bool) -> str:
    """A key in a slot of the first node, or of the second."""
    keys = (f"{name}{number}" for number in range(1_000))
    return next(each for each in keys if (key_slot(each.encode()) < HALF) is first)


def ask(*keys: str) -> Conversation[list[bytes]]:
    return (yield [("GET", each) for each in keys])


@pytest.mark.parametrize(
    "greeting",
    [b"-DENIED Redis is running in protected mode\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    ids=["it refuses", "it is no Redis"],
)
async def test_no_answer_belongs_to_an_earlier_question(greeting: bytes) -> None:
    """F19: the other node still answers what the refused conversation asked it."""
    ports: list[int] = []

    def slots() -> bytes:
        half = b"*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n"
        spans = ((0, HALF - 1, ports[0]), (HALF, 2 * HALF - 1, ports[1]))
        return b"*2\r\n" + b"".join(half % span for span in spans)

    async with AsyncExitStack() as nodes:
        ports.append(await nodes.enter_async_context(node(greeting, slots)))
        ports.append(await nodes.enter_async_context(node(b"+OK\r\n", slots, pause=0.1)))
        address = Address.of(f"redis+cluster://127.0.0.1:{ports[1]}/")
        lane = Lane(address, Nodes(address))
        nodes.callback(lane.close)
        questions = [key(name, first=False) for name in ("one", "two", "three")]
        assert await lane.hold(ask(questions[0])) == [questions[0].encode()]
        with pytest.raises(StoreUnavailable):
            await lane.hold(ask(key("a", first=True), questions[0]))
        for each in questions:
            assert await lane.hold(ask(each)) == [each.encode()]


def test_what_was_answered_with_something_unreadable_may_have_happened() -> None:
    address = Address.of("redis://localhost")
    problem = exceptions.InvalidResponse("Protocol error")
    assert isinstance(typed(problem, address, 1.0, asked=True), Unanswered)
    assert not isinstance(typed(problem, address, 1.0, asked=False), Unanswered)
