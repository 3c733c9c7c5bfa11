"""What passes through the proxy, read along: where a request is, and where its reply ends."""

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

ENCRYPTION = (80877103, 80877104)  # What a client says to ask for TLS, or for GSS.
LISTENING = re.compile(rb"[PS]?(UN)?SUBSCRIBE", re.IGNORECASE)
NEWS = re.compile(rb"\*\d+\r\n\$\d+\r\n[ps]?(message|(un)?subscribe)\r\n")


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


class RedisReader:
    """Cuts a stream of Redis' into values of RESP 2 or 3, however it arrives in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield each value that is whole now, and where in this piece it ends."""
        known = len(self._rest)
        self._rest += data
        passed = 0
        while end := self._end(passed):
            yield self._rest[passed:end], end - known
            passed = end
        self._rest = self._rest[passed:]

    def _end(self, at: int) -> int:
        """Return where the value ends that begins here, 0 if it is not all there yet."""
        line = self._rest.find(b"\r\n", at) + 2
        if line < 2:
            return 0
        kind, head = self._rest[at : at + 1], self._rest[at + 1 : line - 2]
        if kind in b"$!=":
            end = line + int(head) + 2 if int(head) >= 0 else line
            return end if end <= len(self._rest) else 0
        for _ in range(_parts(kind, head)):
            line = self._end(line)
            if not line:
                return 0
        return line


def _parts(kind: bytes, head: bytes) -> int:
    """Return how many values belong to one: pairs count twice, what has attributes comes after."""
    match kind:
        case b"*" | b"~" | b">":
            return int(head)
        case b"%":
            return 2 * int(head)
        case b"|":
            return 2 * int(head) + 1
    return 0


class RedisTalk:
    """Redis' protocol, version 2 or 3, unencrypted.

    Each command is a request, and what is asked are its words with spaces between
    them. Subscriptions, and the news that they bring, are passed on uncounted.
    """

    def __init__(self) -> None:
        self._count = 0
        self._client, self._server = RedisReader(), RedisReader()
        self._listens = False

    def asked(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        for raw, _ in self._client.feed(data):
            words = _words(raw)
            if LISTENING.match(words):
                self._listens = True
            else:
                yield self._count, words
                self._count += 1

    def answered(self, data: bytes) -> Iterator[int]:
        for raw, end in self._server.feed(data):
            # In version 2, news look like any other list.
            if not raw.startswith(b">") and not (self._listens and NEWS.match(raw)):
                yield end


def _words(raw: bytes) -> bytes:
    """Return the words of a command, which is a list of strings, or a line that a person typed."""
    if not raw.startswith(b"*"):
        return raw.strip()
    words, at = [], raw.index(b"\r\n") + 2
    while at < len(raw):
        line = raw.index(b"\r\n", at)
        end = line + 2 + int(raw[at + 1 : line])
        words.append(raw[line + 2 : end])
        at = end + 2
    return b" ".join(words)
