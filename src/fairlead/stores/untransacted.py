"""Stores that have no transaction to share with the application's own data."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from fairlead.core.errors import ConfigError
from fairlead.core.job import NewJob
from fairlead.core.outcome import Settlement
from fairlead.core.store import Accepted, Store, Within


class Untransacted(Store):
    """Refuses every verb that needs one, and says what to do instead."""

    @abstractmethod
    def no_transactions(self) -> ConfigError:
        """Return the error that says why, and the way out."""

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> Within[list[Accepted]]:  # noqa: ANN401
        """Refuse: there is no transaction to share."""
        raise self.no_transactions()

    def transaction(self) -> AbstractContextManager[Any]:
        """Refuse: there are no transactions."""
        raise self.no_transactions()

    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        """Refuse: there are no transactions."""
        raise self.no_transactions()

    def complete_within(
        self,
        connection: Any,  # noqa: ANN401
        settlement: Settlement,
    ) -> Within[Settlement | None]:
        """Refuse: there is no transaction to share."""
        raise self.no_transactions()
