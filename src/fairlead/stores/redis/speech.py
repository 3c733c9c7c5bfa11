"""What is said and heard on a connection: the protocol, TLS around it, and how a connection begins.

It knows no socket: bytes go in and come out. So connections of both kinds, those that wait on
an event loop and those that block, share all of it.
"""

import ssl
from collections.abc import Generator, Sequence
from typing import Any

import hiredis
from redis import exceptions

from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.talk import Command

NOTHING = object()
"""What is heard as long as an answer is not whole."""
Exchange = Generator[bytes, bytes, None]
"""Yields what to send, and is sent what came."""

_KINDS: dict[str, type[exceptions.RedisError]] = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "CROSSSLOT": exceptions.ClusterCrossSlotError,
    "ERR": exceptions.ResponseError,
    "EXECABORT": exceptions.ExecAbortError,
    "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.MasterDownError,
    "MOVED": exceptions.MovedError,
    "NOAUTH": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
    "TRYAGAIN": exceptions.TryAgainError,
    "WRONGPASS": exceptions.AuthenticationError,
}
"""What an error is, by its first word, which is left out of what it tells."""
ENDED = "the server closed the connection"
_NO_ROOM = "max number of clients reached"
_NO_PASSWORD = "AUTH <password> called without any password"  # noqa: S105 (what a server says)
_PIECE = 65_536


def error_of(text: str) -> exceptions.RedisError:
    """Return the error that a server tells."""
    word, _, rest = text.partition(" ")
    if rest.startswith(_NO_ROOM):
        return exceptions.ConnectionError(rest)
    if rest.startswith(_NO_PASSWORD):
        return exceptions.AuthenticationError(rest)
    kind = _KINDS.get(word)
    return exceptions.ResponseError(text) if kind is None else kind(rest)


class Speech:
    """Both sides of what is said on one connection."""

    def __init__(self, address: Address, node: Node) -> None:
        self._address = address
        self._reader = hiredis.Reader(
            protocolError=exceptions.InvalidResponse, replyError=error_of, notEnoughData=NOTHING
        )
        self._tls = _Tls(address, node) if address.tls else None

    def said(self, commands: Sequence[Command]) -> bytes:
        """Return what to send for commands."""
        packed = b"".join(map(hiredis.pack_command, commands))
        return packed if self._tls is None else self._tls.closed(packed)

    def take(self, data: bytes) -> None:
        """Take what came."""
        self._reader.feed(data if self._tls is None else self._tls.opened(data))

    def answer(self) -> Any:  # noqa: ANN401 (as it is)
        """Return the next answer, an error if it is one, or NOTHING as long as it is not whole."""
        return self._reader.gets()

    def shake_hands(self) -> Exchange:
        """Begin with TLS, if there is to be any."""
        if self._tls is not None:
            yield from self._tls.shake_hands()

    def greet(self) -> Exchange:
        """Say who we are, and with which database we work; raises what the server says to that."""
        greetings = [*self._login(), ("CLIENT", "SETNAME", "fairlead")]
        if self._address.database:
            greetings.append(("SELECT", self._address.database))
        to_send = self.said(greetings)
        for _ in greetings:
            while (answer := self.answer()) is NOTHING:
                came = yield to_send
                if not came:
                    raise exceptions.ConnectionError(ENDED)
                self.take(came)
                to_send = b""
            if isinstance(answer, Exception):
                raise answer

    def _login(self) -> list[Command]:
        options = self._address.options
        if "username" in options:
            return [("AUTH", options["username"], options.get("password", ""))]
        return [("AUTH", options["password"])] if "password" in options else []


class _Tls:
    """The TLS of one connection; every certificate is checked, and whom it names."""

    def __init__(self, address: Address, node: Node) -> None:
        options = address.options
        context = ssl.create_default_context()
        if "ssl_ca_certs" in options:
            context.load_verify_locations(options["ssl_ca_certs"])
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._both = context.wrap_bio(self._coming, self._going, server_hostname=node.host)

    def shake_hands(self) -> Exchange:
        """Agree on keys; yields what to send, and is sent what came."""
        while True:
            try:
                self._both.do_handshake()
                return
            except ssl.SSLWantReadError:
                came = yield self._going.read()
            if came:
                self._coming.write(came)
            else:
                self._coming.write_eof()

    def closed(self, data: bytes) -> bytes:
        """Return what to send, so that only the server can read it."""
        self._both.write(data)
        return self._going.read()

    def opened(self, data: bytes) -> bytes:
        """Return what the server said."""
        self._coming.write(data)
        pieces = []
        try:
            while piece := self._both.read(_PIECE):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass  # The rest has not come yet.
        return b"".join(pieces)
