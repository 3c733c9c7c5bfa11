"""Text as it may be shown to people: what users name their things must not steer a terminal (T9).

Control characters could forge a line or move the cursor, and those that turn the
direction of writing could make a text read as another.
"""

_TURNING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_STEERING = (*range(32), *range(127, 160), 0x2028, 0x2029, *_TURNING)
_ESCAPED = {code: chr(code).encode("unicode_escape").decode() for code in _STEERING}
_ESCAPED_JSON = {code: f"\\u{code:04x}" for code in _STEERING}


def escaped(text: str) -> str:
    """Return the text in one line, with escapes for what is not to be shown as it is."""
    return text.translate(_ESCAPED)


def escaped_json(text: str) -> str:
    """Do the same to one line of JSON, which means the same afterwards."""
    return text.translate(_ESCAPED_JSON)
