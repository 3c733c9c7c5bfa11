"""Text as it may be shown to people: what users name their things must not steer a terminal (T9).

Control characters could forge a line or move the cursor. Characters that turn the
direction of writing, or that nobody sees, could make one text look like another. Lone
surrogates cannot be written to a terminal at all.
"""

import re
from collections.abc import Callable, Iterable

from fairlead.core.passwords import beginning, without_passwords

SHOWN = 4_096
"""How much of one text is shown in a line, unless the caller says otherwise."""

QUOTED = 128
"""How much of a value an error quotes; the name of a task or queue is never longer."""

_HIDDEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # ends of lines and paragraphs
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # the direction of writing
    "\u00ad\u034f\u180b-\u180f\u200b-\u200d\u2060-\u2065\ufeff\ufff0-\ufffb"  # without a width
    "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # letters that are blank
    "\ufe00-\ufe0f\U000e0000-\U000e0fff"  # variation selectors and tags
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # format controls of scripts
    "\ud800-\udfff"  # lone surrogates
    "]"
)

_COLOUR = re.compile(r"(\x1b\[(?:[012]|3[1-6])m)")
"""Bold, dim, the plain colours, and the end of each: none of them can hide or move anything."""


def escaped(text: str, most: int = SHOWN) -> str:
    """Return the text in one line, with escapes for what is not to be shown as it is."""
    return _escaped(cut(text, most), _code)


def escaped_json(text: str) -> str:
    """Do the same to one line of JSON, which means the same afterwards."""
    return _escaped(text, _json_code)


def escaped_lines(text: str) -> list[str]:
    """Return the lines of a text, each escaped; nothing but a newline ends one."""
    return [_escaped(line, _code) for line in text.split("\n")]


def steady(text: str) -> str:
    """Return lines about to be printed, escaped but for newlines and the colours we paint with."""
    if not _HIDDEN.search(text):
        return text
    parts = _COLOUR.split(text)
    return "".join(
        part if at % 2 else "\n".join(escaped_lines(part)) for at, part in enumerate(parts)
    )


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning and how much is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def brief(value: object) -> str:
    """Return a value as an error quotes it, whatever it is.

    Of a long text, number or collection only the beginning is read. Any other value writes itself
    out before it is cut; one that cannot is called by its type.
    """
    if isinstance(value, str) and len(value) > QUOTED:
        return f"{beginning(value, QUOTED)!r}…"
    if isinstance(value, bytes) and len(value) > QUOTED:
        return f"{value[:QUOTED]!r}…"
    if isinstance(value, int) and value.bit_length() > QUOTED:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, list | tuple | set | frozenset | dict) and len(value) > QUOTED:
        return f"a {type(value).__name__} of {len(value):,}"
    try:
        told = repr(value)
    except Exception:  # noqa: BLE001 (a huge number inside, a deep nest, a class of the caller's)
        return f"a {type(value).__name__}"
    return without_passwords(told) if len(told) <= 2 * QUOTED else f"{beginning(told, QUOTED)}…"


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Count things: 1 job, 3 jobs, 2 crashes."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def sentence(text: str) -> str:
    """Return a text with an end, so that another sentence can follow it."""
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


def listed(names: Iterable[str], most: int = 20) -> str:
    """Return names in one line; of many, or of long ones, only the beginning."""
    known = list(names)
    more = f" and {len(known) - most:,} more" if len(known) > most else ""
    return ", ".join(cut(name, QUOTED) for name in known[:most]) + more


def _escaped(text: str, code: Callable[[str], str]) -> str:
    # Not one by one: ten million of them would take as many calls.
    hidden = set(_HIDDEN.findall(text))
    return text.translate({ord(char): code(char) for char in hidden}) if hidden else text


def _code(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _json_code(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
