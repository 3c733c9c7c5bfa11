"""Values over a socket pair: a length, then msgpack. No pickle: only typed values arrive."""

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

Value = TypeVar("Value")
_LENGTH = struct.Struct("!I")
_encode = msgspec.msgpack.Encoder().encode


def frame(value: object) -> bytes:
    """Return a value as it goes over the wire."""
    body = _encode(value)
    return _LENGTH.pack(len(body)) + body


class Frames(Generic[Value]):
    """Takes bytes as they come and gives whole values."""

    def __init__(self, kind: type[Value]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Value]:
        """Add bytes; yields the values that are complete."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, at)
                end = at + _LENGTH.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(self._buffer[at + _LENGTH.size : end])
                at = end
                yield self._decode(body)
        finally:
            del self._buffer[:at]
