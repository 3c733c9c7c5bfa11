"""The store of `memory://`: the line, and what people ask of it."""

from fairlead.core.clock import Clock
from fairlead.stores.memory.admin import MemoryAdmin
from fairlead.stores.memory.line import MemoryLine


class MemoryStore(MemoryLine):
    """Jobs in this process's memory."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.admin = MemoryAdmin(self)
