"""What passes through the proxy, read along: where a request is, and where its reply ends."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

ENCRYPTION = (80877103, 80877104)  # What a client says to ask for TLS, or for GSS.


class Talk(Protocol):
    """One connection, read along. Requests are numbered from 0; their replies come in order."""

    def asked(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take what the client says; yield the number of a request, and what it asks."""
        ...

    def answered(self, data: bytes) -> Iterator[int]:
        """Take what the server says; yield where in it a reply ends."""
        ...


class Turns:
    """Any protocol in which both sides take turns and say little: each piece is all of it."""

    def __init__(self) -> None:
        self._count = 0

    def asked(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        yield self._count, data
        self._count += 1

    def answered(self, data: bytes) -> Iterator[int]:
        yield len(data)


class Message(NamedTuple):
    """One message of PostgreSQL's protocol; the first ones of a client have no kind."""

    kind: bytes
    body: bytes
    end: int


class Reader:
    """Cuts a stream into messages, however it arrives in pieces."""

    def __init__(self) -> None:
        self.kinds = True
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield each message that is whole now, and where in this piece it ends."""
        known = len(self._rest)
        self._rest += data
        passed = 0
        while size := self._size(passed):
            head = 1 if self.kinds else 0
            raw = self._rest[passed : passed + size]
            passed += size
            yield Message(raw[:head], raw[head + 4 :], passed - known)
        self._rest = self._rest[passed:]

    def _size(self, at: int) -> int:
        head = 1 if self.kinds else 0
        if len(self._rest) < at + head + 4:
            return 0
        size = head + int.from_bytes(self._rest[at + head : at + head + 4])
        return size if len(self._rest) >= at + size else 0


class PostgresTalk:
    """PostgreSQL's protocol, version 3, unencrypted.

    A request ends where the server will say that it is ready for the next one; many
    statements may be in it. What is asked is what is executed: a statement that was
    prepared earlier is known by its text, followed by the values it is given.
    """

    def __init__(self) -> None:
        self._count = 0
        self._client, self._server = Reader(), Reader()
        self._client.kinds = False
        self._refusals = 0
        self._ended_by = b""
        self._prepared: dict[bytes, bytes] = {}

    def asked(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        for message in self._client.feed(data):
            if text := self._text(message):
                yield self._count, text
            self._note_end(message)

    def answered(self, data: bytes) -> Iterator[int]:
        # Encryption is refused with one byte, before the first message.
        bare = min(self._refusals, len(data))
        self._refusals -= bare
        for message in self._server.feed(data[bare:]):
            if message.kind == b"Z":
                yield bare + message.end

    def _text(self, message: Message) -> bytes:
        match message.kind:
            case b"P":
                name, text = message.body.split(b"\0")[:2]
                self._prepared[name] = text
            case b"B":
                name = message.body.split(b"\0")[1]
                return self._prepared.get(name, b"") + b"\0" + message.body
            case b"Q" | b"F":
                return message.body
        return b""

    def _note_end(self, message: Message) -> None:
        match message.kind:
            case b"" if int.from_bytes(message.body[:4]) in ENCRYPTION:
                self._refusals += 1
            case b"":
                self._client.kinds = True
                self._count += 1
            case b"Q" | b"F" | b"S":
                self._count += 1
                self._ended_by = message.kind
            case b"c" | b"f" if self._ended_by == b"S":
                # While rows are copied in, the server is deaf for the end that came before them.
                self._count -= 1
