"""Values over a socket pair: a length, then msgpack. No pickle: only typed values arrive.

The other process may be of another version. It reads a value as "at least these fields", and passes
over a message whose tag it does not know.
"""

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, get_args

import msgspec

Value = TypeVar("Value")
_LENGTH = struct.Struct("!I")
_encode = msgspec.msgpack.Encoder().encode


def frame(value: object) -> bytes:
    """Return a value as it goes over the wire."""
    body = _encode(value)
    return _LENGTH.pack(len(body)) + body


class _Tagged(msgspec.Struct):
    """A message of any kind, as far as it says of which."""

    type: Any = None


_decode_tag = msgspec.msgpack.Decoder(_Tagged).decode


class Frames(Generic[Value]):
    """Takes bytes as they come and gives whole values, those of the kinds that are known."""

    def __init__(self, kind: type[Value]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._tags = _tags_of(kind)
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
                try:
                    value = self._decode(body)
                except msgspec.ValidationError:
                    if self._is_unknown(body):
                        continue
                    raise
                yield value
        finally:
            del self._buffer[:at]

    def _is_unknown(self, body: bytes) -> bool:
        """Say whether a message is of a kind that only a newer program knows."""
        try:
            tag = _decode_tag(body).type
        except msgspec.ValidationError:  # It has no fields by name, and so no tag.
            return False
        return tag is not None and tag not in self._tags


def _tags_of(kind: object) -> set[object]:
    """Return the tags of a message, or of each of several kinds."""
    configs = (getattr(each, "__struct_config__", None) for each in get_args(kind) or (kind,))
    return {config.tag for config in configs if config is not None}
