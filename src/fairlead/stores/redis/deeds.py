"""What people do to the queues: cancel, revive, delete, edit, pause; as conversations."""

from collections.abc import Collection, Sequence

from fairlead.core.acts import Action, Cancel, Deed, Delete, Edit, Note, Pause, Resume, Revive
from fairlead.core.clock import Clock
from fairlead.core.errors import StoreRefused
from fairlead.core.ids import JobId
from fairlead.stores.news import ENDED, WORK
from fairlead.stores.redis.acts import Acts
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import pack
from fairlead.stores.redis.served import Served
from fairlead.stores.redis.talk import (
    Command,
    Conversation,
    Tried,
    Word,
    call,
    moment,
    pieces,
    raise_outage,
)
from fairlead.stores.redis.wake import told_of

_MOST_AT_ONCE = 200
"""How many jobs one call may touch: it keeps everybody else waiting."""


class Deeds:
    """The changes that people make."""

    def __init__(
        self, keys: Keys, queues: Queues, acts: Acts, clock: Clock | None, served: Served
    ) -> None:
        self._keys = keys
        self._queues = queues
        self._acts = acts
        self._clock = clock
        self._served = served

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    def do(self, deed: Deed, by: Action) -> Conversation[list[str]]:
        """Do what a person wants done; returns what it was done to."""
        yield from self._served.ask()
        level = self._served.level()
        match deed:
            case Cancel(ids, reason, states):
                values: tuple[Word, ...] = (level, pack(sorted(states)), reason)
                answers = yield from self._act("cancel", ids, by, values, ENDED)
            case Revive(ids, states):
                values = (level, pack(sorted(states)))
                answers = yield from self._act("revive", ids, by, values, WORK)
            case Delete(ids, states):
                values = (level, pack(sorted(states)))
                answers = yield from self._act("delete", ids, by, values, None)
                for queue, touched in answers:
                    yield from self._queues.strike([each.decode() for each in touched], queue)
            case Edit():
                return (yield from self._edit(deed, by, level))
            case Pause(queue):
                return (yield from self._pause(queue, "1", by, ""))
            case Resume(queue):
                return (yield from self._pause(queue, "0", by, WORK))
            case Note(count, job_id):
                told = yield from self._acts.told(by, [job_id] if job_id else [])
                yield from self._acts.write(told, count)
                return []
        return _in_order(ids, answers)

    def _edit(self, edit: Edit, by: Action, level: int) -> Conversation[list[str]]:
        self._queues.drop([edit.id])
        for queue in (yield from self._queues.where([edit.id])):
            told = yield from self._acts.told(by, [edit.id])
            values = (edit.id, level, edit.was, edit.payload, edit.version, told)
            [is_done] = yield [self._call("edit", queue, *values)]
            return [edit.id] if is_done else []
        return []

    def _act(
        self,
        verb: str,
        job_ids: Collection[JobId],
        by: Action,
        values: tuple[Word, ...],
        word: str | None,
    ) -> Conversation[list[tuple[str, list[bytes]]]]:
        """Do something to jobs; returns queues, some several times, with the ids it was done to.

        A call that has read enough leaves the rest to another. Damage in one queue does not keep
        us from the others.
        """
        told = yield from self._acts.told(by, job_ids)
        where = yield from self._queues.meant(job_ids)
        parts = [
            (queue, some) for queue, ids in where.items() for some in pieces(ids, _MOST_AT_ONCE)
        ]
        if not parts:
            yield from self._acts.write(told, 0)
            return []
        done: list[tuple[str, list[bytes]]] = []
        refused: list[StoreRefused] = []
        while parts:
            answers = yield [
                Tried(self._call(verb, queue, pack(some), *values, told, *self._news(word, queue)))
                for queue, some in parts
            ]
            raise_outage(answers)
            rest = []
            for (queue, some), answer in zip(parts, answers, strict=True):
                if isinstance(answer, StoreRefused):
                    refused.append(answer)
                    continue
                touched, looked = answer
                done.append((queue, touched))
                if looked < len(some):
                    rest.append((queue, some[looked:]))
            parts = rest
        if refused and not done:
            raise refused[0]
        return done

    def _pause(self, queue: str, how: str, by: Action, word: str) -> Conversation[list[str]]:
        yield from self._queues.register([queue])
        told = yield from self._acts.told(by)
        news = self._news(word, queue)
        [is_new] = yield [self._call("pause", queue, how, told, *news)]
        return [queue] if is_new else []

    def _call(self, verb: str, queue: str, *values: Word) -> Command:
        return call(self._keys, verb, queue, self._at(), *values)

    def _news(self, word: str | None, queue: str) -> tuple[Word, ...]:
        """Return the channel and what is told there; nothing for functions that tell nothing."""
        if word is None:
            return ()
        return self._keys.news, told_of(word, queue) if word == WORK else word


def _in_order(
    job_ids: Collection[JobId], answers: Sequence[tuple[str, Sequence[bytes]]]
) -> list[str]:
    """Return those of these ids that were touched, each once."""
    touched = {raw_id.decode() for _, ids in answers for raw_id in ids}
    return [job_id for job_id in dict.fromkeys(job_ids) if job_id in touched]
