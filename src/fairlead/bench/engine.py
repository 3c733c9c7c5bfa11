"""What a benchmark needs of a store: empty places, and the raw engine at the same work."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fairlead.core.job import NewJob


class Floor(Protocol):
    """The raw engine on our tables."""

    def put(self, jobs: Sequence[NewJob], batch: int) -> float:
        """Add prepared rows in batches; returns the seconds it took."""
        ...

    def drain(self, jobs: int, processes: int) -> float:
        """Claim and settle that many jobs in batches of 100; returns the seconds it took."""
        ...


class Engine(Protocol):
    """One store on this machine."""

    def place(self) -> AbstractContextManager[str]:
        """Return the URL of a place with nothing in it."""
        ...

    def floor(self) -> AbstractContextManager[Floor]:
        """Return the raw engine, in a place with nothing in it."""
        ...

    def seconds_of_drain(self, url: str, jobs: int) -> float:
        """Return how long a worker took, from first claim to last settlement."""
        ...
