"""The store's housekeeping, as a service: what fell due, expired or is too old to keep."""

from fairlead.runtime.service import SHORTEST_SECONDS, Service
from fairlead.runtime.workshop import Workshop

UPKEEP_SECONDS = 10.0


def upkeep(workshop: Workshop) -> Service:
    """Return the service. A round is bounded: while there is more to do, the next comes at once."""

    async def step() -> float:
        if (await workshop.store.upkeep(workshop.keep)).more:
            return SHORTEST_SECONDS
        # Many workers do it, so not in step.
        return UPKEEP_SECONDS * workshop.random.uniform(0.5, 1.5)

    return Service("do the store's housekeeping", step, in_drain=True)
