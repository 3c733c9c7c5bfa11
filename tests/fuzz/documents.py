"""Values inside values: where they are in a document, and what can be written there instead."""

from collections.abc import Iterator
from typing import Any

from tests.fuzz.victim import NUMBERS, TEXTS

Path = tuple[str | int, ...]
"""The way to a value in a document: a key or a number at each step."""

VALUES: dict[str, object] = {
    **NUMBERS,
    **TEXTS,
    "gone": ...,
    "a list": [[]],
    "an object": {"a": {}},
    "true": True,
}
"""What is written into a document, by the name of the damage."""


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where values are in a document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from places(part, (*path, key))


def changed(document: Any, path: Path, value: object) -> Any:
    """Change one value in a document, and return that."""
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return document
