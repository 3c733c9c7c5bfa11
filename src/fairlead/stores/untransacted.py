"""Stores that have no transaction to share with the application's own data."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from fairlead.core.errors import ConfigError
from fairlead.core.job import NewJob
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store


class Untransacted(Store):
    """Refuses every verb that needs one, and says what to do instead."""

    @abstractmethod
    def no_transactions(self) -> ConfigError:
        """Return the error that says why, and the way out."""

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[bool]:  # noqa: ANN401
        """Refuse: there is no transaction to share."""
        raise self.no_transactions()

    async def aput_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[bool]:  # noqa: ANN401
        """Refuse: there is no transaction to share."""
        raise self.no_transactions()

    def transaction(self) -> AbstractContextManager[Any]:
        """Refuse: there are no transactions."""
        raise self.no_transactions()

    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        """Refuse: there are no transactions."""
        raise self.no_transactions()

    def complete_within(self, connection: Any, settlement: Settlement) -> Settlement | None:  # noqa: ANN401
        """Refuse: there is no transaction to share."""
        raise self.no_transactions()

    async def acomplete_within(self, connection: Any, settlement: Settlement) -> Settlement | None:  # noqa: ANN401
        """Refuse: there is no transaction to share."""
        raise self.no_transactions()
