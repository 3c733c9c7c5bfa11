"""How values are told: times and spans for people, JSON for programs."""

import re
from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import msgspec

from fairlead.core.clock import FAR_FUTURE, SECOND, SystemClock, as_datetime, instant
from fairlead.core.codec import too_deep
from fairlead.core.errors import DecodeError
from fairlead.core.job import State, read
from fairlead.core.text import brief, escaped_json

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?")
_COLOURS = {
    State.WAITING: "cyan",
    State.RUNNING: "blue",
    State.DONE: "green",
    State.DEAD: "red",
    State.CANCELLED: "yellow",
}
_TIMES = re.compile(r".*_(at|until)")
_RAW = ("payload", "result", "options", "before")


now = SystemClock().now
"""This machine's time, to tell ages by."""


def lasting(micros: float) -> str:
    """Tell a span shortly: 340 ms, 2.5 s, 4 min, 3 h, 2 d."""
    seconds = micros / SECOND
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, size, limit in (("min", 60, 90), ("h", 3600, 48)):
        if seconds < size * limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def ago(at: int | None) -> str:
    """Tell how long ago something was, or in how long it will be."""
    if at is None:
        return ""
    apart = now() - at
    return f"{lasting(apart)} ago" if apart >= 0 else f"in {lasting(-apart)}"


def moment(at: int | None) -> str:
    """Tell an instant in this machine's time zone, with how long ago it was."""
    if at is None:
        return ""
    local = _shown(at)
    with suppress(OverflowError):  # In some zones the year 9999 ends later than time does.
        local = local.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f" ({ago(at)})"


def _shown(at: int) -> datetime:
    """Return an instant as a datetime; the nearest one, if somebody damaged it."""
    return as_datetime(min(max(at, 0), FAR_FUTURE))


def painted(state: str) -> str:
    """Colour a state; the word says the same without."""
    name = state.strip()
    return click.style(state, fg=_COLOURS[State(name)]) if name in set(State) else state


class Span(click.ParamType[float]):
    """A span: seconds, or a number with a unit."""

    name = "span"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        if isinstance(value, int | float):
            return float(value)
        found = _SPAN.fullmatch(value.strip())
        if found is None:
            self.fail(f"{brief(value)} is no span; write 90, 30s, 15m, 2h or 7d", param, ctx)
        return float(found.group(1)) * _UNITS[found.group(2) or "s"]


class Since(click.ParamType[int]):
    """A span back from now, or an instant."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the instant."""
        if isinstance(value, int):
            return value
        try:
            at = _back_from_now(value.strip())
        except (ValueError, OverflowError):
            self.fail(
                f"{brief(value)} is no time; write a span such as 30s, 15m, 2h, 7d, or an instant "
                "such as 2026-11-16T09:30",
                param,
                ctx,
            )
        return min(max(at, 0), FAR_FUTURE)


def _back_from_now(text: str) -> int:
    span = _SPAN.fullmatch(text)
    if span and span.group(2):
        return now() - round(float(span.group(1)) * _UNITS[span.group(2)] * SECOND)
    given = datetime.fromisoformat(text)
    return instant(given if given.tzinfo else given.astimezone())


def json_line(value: object) -> str:
    """Return a value as one line of JSON, without characters that steer a terminal."""
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:
        line = msgspec.json.encode(_sound(value))
    return escaped_json(line.decode())


def _sound(value: object) -> object:
    """Return a value without lone surrogates, which no JSON can hold."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case msgspec.Struct():
            return _sound(msgspec.structs.asdict(value))
        case dict():
            return {_sound(key): _sound(each) for key, each in value.items()}
        case list() | tuple():
            return [_sound(each) for each in value]
    return value


def as_json(value: msgspec.Struct, **more: object) -> str:
    """Return a value as one line of JSON: instants as text in UTC, stored JSON as it is."""
    return json_line(_plain(value) | more)


def _plain(value: msgspec.Struct) -> dict[str, object]:
    fields = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, int) and _TIMES.fullmatch(name):
            field = instant_text(field)
        elif isinstance(field, str) and name in _RAW:
            field = _raw(field)
        elif isinstance(field, tuple):
            field = [_plain(each) if isinstance(each, msgspec.Struct) else each for each in field]
        fields[name] = field
    return fields


def _raw(text: str) -> object:
    """Return stored JSON to be embedded; what somebody damaged, as a text."""
    try:
        return msgspec.Raw(formatted(text, -1).encode())
    except DecodeError:
        return text


def formatted(text: str, indent: int) -> str:
    """Return stored JSON with this indent; refuse what is none, or nested deeper than we write."""

    def lay_out(text: str) -> str:
        raw = text.encode()
        if too_deep(raw):
            raise RecursionError
        return msgspec.json.format(raw, indent=indent).decode()

    return read(lay_out, "the JSON", text)


def stored_json(text: str | None) -> str:
    """Return stored JSON as one line that is JSON, whatever is stored."""
    return json_line(None if text is None else _raw(text))


def instant_text(at: int) -> str:
    """Return an instant as RFC 3339 text in UTC."""
    return _shown(at).isoformat(timespec="microseconds").replace("+00:00", "Z")
