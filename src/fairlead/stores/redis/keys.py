"""The names of keys. What is kept under them is told on top of lua/keys.lua."""

from functools import lru_cache

LINE = (
    *("bodies", "standings", "errors"),
    *("ready", "due", "leases", "lost"),
    *("parked", "expiring"),
    *("done", "cancelled", "dead", "gone"),
    *("log", "paused", "settings"),
)
"""The keys of one queue that its jobs are kept under, in the order in which functions get them."""
JOBS = (*LINE, "entries", "owned")
"""Those, and what belongs to its jobs."""
PARTS = (*JOBS, "acts", "acted")
"""All keys of one queue: those, and what people did there."""
SLOT = ("loose", "listed", "awaited", "passing")
"""The keys of one slot of the entries that belong to nobody."""
HASHES = ("bodies", "standings", "errors", "gone", "paused", "settings", "entries", "acted")
"""Which keys of a queue are hashes. The log is a list, all others are sorted sets."""

NOWHERE = "*"
"""Under the keys of a queue that nobody can have is kept what people did to no queue."""
SLOTS = tuple(f"{NOWHERE}{number}" for number in range(16))
"""Under the keys of such queues are kept the entries that belong to nobody."""


class Keys:
    """The keys that begin with one prefix; in a cluster every queue has a slot of its own."""

    def __init__(self, prefix: str, *, in_cluster: bool = False) -> None:
        self.prefix = prefix
        self.in_cluster = in_cluster
        self.queues = f"{prefix}:queues"
        """SET of the names of all queues that were ever used."""
        self.strays = f"{prefix}:strays"
        """HASH id -> queue, for ids that do not tell their queue."""
        self.workers = f"{prefix}:workers"
        """HASH id -> worker, as it announced itself."""
        self.schema = f"{prefix}:schema"
        """HASH version of all this -> since when it is in use."""
        self.number = f"{prefix}:number"
        """The number of the last action of a person."""
        self.news = f"{prefix}:news"
        """The channel on which changes are told."""
        self.of = lru_cache(maxsize=10_000)(self._of)

    def _of(self, queue: str, parts: tuple[str, ...] = PARTS) -> tuple[str, ...]:
        """Return keys of a queue, which share a slot."""
        return tuple(self.key(queue, part) for part in parts)

    def key(self, queue: str, part: str) -> str:
        """Return one key of a queue."""
        # Braces of its own would end the hash tag early.
        name = queue.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        return f"{self.prefix}:{{{name}}}:{part}"
