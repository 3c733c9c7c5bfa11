"""How the story is told: the story knows what to say, a teller knows how it looks."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec


class Bar(msgspec.Struct, frozen=True):
    """One line of a moving picture: a name, three parts of a bar, and words beside it."""

    name: str
    done: float
    running: float
    waiting: float
    text: str


class Teller(Protocol):
    """Somebody who tells a story to a person."""

    def scene(self, title: str, watch: str) -> None:
        """Begin a scene: what it is called, and what to look at."""
        ...

    def say(self, text: str) -> None:
        """Tell a sentence or two."""
        ...

    def show(self, *lines: str) -> None:
        """Show lines as they are."""
        ...

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
    ) -> None:
        """Show a table; the columns of the titles in `right` are numbers."""
        ...

    def typed(self, words: Sequence[str], answer: Sequence[str]) -> None:
        """Show a command as a person types it, and what it answered."""
        ...

    def proved(self, text: str) -> None:
        """Tell that a check held."""
        ...

    def draw(self, bars: Sequence[Bar]) -> None:
        """Draw a moving picture in place of the last one, where that is possible."""
        ...
