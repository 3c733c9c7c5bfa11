"""The workers that announced themselves."""

from contextlib import suppress

from fairlead.core.admin import Worker
from fairlead.core.errors import DecodeError
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.records import worker_of
from fairlead.stores.redis.talk import Conversation, spared


def announced(keys: Keys) -> Conversation[list[Worker]]:
    """Return the workers that ever announced themselves and are not forgotten yet."""
    [found] = yield from spared([("HGETALL", keys.workers)], [])
    workers = []
    for name, text in zip(found[::2], found[1::2], strict=True):
        with suppress(DecodeError, UnicodeDecodeError):  # Who was damaged announces himself anew.
            workers.append(worker_of(name.decode(), text))
    return workers


def live(keys: Keys, now: int) -> Conversation[list[Worker]]:
    """Return those that live, by their names."""
    workers = yield from announced(keys)
    return sorted(
        (worker for worker in workers if worker.live_until > now), key=lambda worker: worker.id
    )
