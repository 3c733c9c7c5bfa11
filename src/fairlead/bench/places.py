"""Empty places on a server, each under a name of its own."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from fairlead.bench.engine import Floor


class Closable(Floor, Protocol):
    """The raw engine, with a connection of its own."""

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Places:
    """Places on the server of a URL, named by one of its options, and dropped after use."""

    def __init__(
        self,
        url: str,
        option: str,
        floor: Callable[[str], Closable],
        drop: Callable[[str], None],
        seconds_of_drain: Callable[[str, int], float],
    ) -> None:
        self._url = url
        self._option = option
        self._floor = floor
        self._drop = drop
        self._seconds_of_drain = seconds_of_drain
        self._number = count(1)

    @contextmanager
    def place(self) -> Iterator[str]:
        """Name one by its URL."""
        parts = urlsplit(self._url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        options[self._option] = f"fairlead_bench_{os.getpid()}_{next(self._number)}"
        url = parts._replace(query=urlencode(options)).geturl()
        try:
            yield url
        finally:
            self._drop(url)

    @contextmanager
    def floor(self) -> Iterator[Floor]:
        """Let the bare driver work in one."""
        with self.place() as url, closing(self._floor(url)) as floor:
            yield floor

    def seconds_of_drain(self, url: str, jobs: int) -> float:
        """Ask the attempt log in a place."""
        return self._seconds_of_drain(url, jobs)
