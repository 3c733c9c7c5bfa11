"""Put right what the audit finds, or move it out; say what was done.

A job is put right, or becomes a dead letter, in one call (`repair.lua`), so no worker sees it
half done. A key of another type is moved to a name beside it, where whoever wrote it can find
it. Lines of logs that cannot be read are taken out, and so is all that is written anew soon.
"""

from collections.abc import Callable, Mapping, Sequence

from fairlead.core.admin import NOT_MENDED
from fairlead.core.clock import Clock
from fairlead.core.errors import StoreFull, StoreRefused
from fairlead.core.ids import mark_of
from fairlead.stores.redis.acts import next_number
from fairlead.stores.redis.audit import Damage, Kind, damages, is_line
from fairlead.stores.redis.keys import NOWHERE, Keys
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import MOST_COUNTED, score_of, shown
from fairlead.stores.redis.served import VERSION, note
from fairlead.stores.redis.talk import (
    Conversation,
    Word,
    call,
    moment,
    pieces,
    present,
    spared,
)

_MOST_ROUNDS = 10
_JOBS_AT_ONCE = 100
_WORDS = {
    b"right": "put it right",
    b"dead": "made it a dead letter",
    b"removed": "removed that mark",
}
_WORDS_OF_ENTRIES = {b"right": "put it right", b"removed": "removed it"}


class Repair:
    """Mends what is damaged under the keys of one prefix."""

    def __init__(self, keys: Keys, queues: Queues, clock: Clock | None, level: int) -> None:
        self._keys = keys
        self._queues = queues
        self._clock = clock
        self._level = level
        self.done: list[str] = []
        self._refused: list[str] = []
        self._menders: Mapping[Kind, Callable[[Damage], Conversation[str | None]]] = {
            Kind.KEY: self._move_key,
            Kind.NUMBER: self._count_again,
            Kind.QUEUE: self._strike_queue,
            Kind.STRAY: self._list_stray,
            Kind.WORKER: self._forget_worker,
            Kind.STEP: self._note_step,
            Kind.SETTING: self._reset_setting,
            Kind.BATCH: self._mend_batch,
            Kind.GONE: self._forget_gone,
            Kind.ACT: self._mend_act,
            Kind.ENTRY: self._mend_entry,
            Kind.OWNED: self._mend_owned,
        }

    def all(self) -> Conversation[list[str]]:
        """Mend until nothing is left that can be mended; says what was done, and what could not be.

        `done` has what was done so far, also if this ends with an error.
        """
        before: list[Damage] = []
        for _ in range(_MOST_ROUNDS):
            found = yield from damages(self._keys, self._queues, self._clock, self._level)
            if found in ([], before):
                break
            self._refused.clear()
            yield from self._mend(found)
            before = found
        return [*self.done, *self._refused]

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    def _mend(self, found: Sequence[Damage]) -> Conversation[None]:
        jobs: dict[str, list[Damage]] = {}
        for damage in found:
            if damage.kind is Kind.JOB:
                jobs.setdefault(damage.queue, []).append(damage)
            else:
                yield from self._tried(damage.problem, self._mend_one(damage))
        for queue, several in jobs.items():
            for some in pieces(several, _JOBS_AT_ONCE):
                told = f"{len(some)} damaged jobs of queue {queue}"
                yield from self._tried(told, self._mend_jobs(queue, some))

    def _tried(self, problem: str, mending: Conversation[None]) -> Conversation[None]:
        """Mend something. What the server refuses must not keep us from the rest."""
        try:
            yield from mending
        except (StoreFull, StoreRefused) as refusal:
            self._refused.append(f"{NOT_MENDED} this: {problem}; {refusal.problem}")

    def _mend_one(self, damage: Damage) -> Conversation[None]:
        told = yield from self._menders[damage.kind](damage)
        if told:
            self.done.append(f"{damage.problem}: {told}")

    def _mend_jobs(self, queue: str, some: Sequence[Damage]) -> Conversation[None]:
        while some:
            # An id may be anything by now, so each is a word of its own.
            words = [word for each in some for word in (each.name, each.more, int(each.odd))]
            shared = (self._at(), mark_of(queue), self._level)
            asked = call(self._keys, "repair", queue, *shared, *words)
            [answers] = yield [asked]
            self.done += [
                f"{damage.problem}: {_WORDS.get(said) or f'it is dead letter {said.decode()} now'}"
                for damage, said in zip(some, answers, strict=False)
                if said
            ]
            some = some[len(answers) :]  # Large ones are mended a few at a time.

    def _move_key(self, damage: Damage) -> Conversation[str | None]:
        key = damage.name.decode()
        now = yield from present(self._clock)
        # In the same slot of a cluster, and where the same rights hold.
        aside = f"{key}.unreadable.{now}"
        if not damage.queue:
            aside = f"{self._keys.prefix}:unreadable:{{{key}}}:{now}"
        yield [("RENAMENX", key, aside)]
        if key == self._keys.queues:
            yield from self._queues.register(self._queues.forget())
        if (
            key == self._keys.number
        ):  # Else new lines of the audit log would come before the old ones.
            return f"moved it to {aside}; {yield from self._count_again(damage)}"
        return f"moved it to {aside}"

    def _count_again(self, _damage: Damage) -> Conversation[str | None]:
        names = [*(yield from self._queues.names()), NOWHERE]
        # What stands further on is no number of ours, and gets a new one.
        asked = [
            (
                *("ZREVRANGEBYSCORE", self._keys.key(name, "acts"), MOST_COUNTED, 0),
                *("WITHSCORES", "LIMIT", 0, 1),
            )
            for name in names
        ]
        answers = yield from spared(asked, ())
        greatest = max((score_of(each[1]) for each in answers if each), default=0)
        yield [("SET", self._keys.number, greatest)]
        return f"it is {greatest} now"

    def _strike_queue(self, damage: Damage) -> Conversation[str | None]:
        yield [("SREM", self._keys.queues, damage.name)]
        return "removed it from the list"

    def _list_stray(self, damage: Damage) -> Conversation[str | None]:
        if damage.more:
            yield [("HSET", self._keys.strays, damage.name, damage.more)]
            return f"listed it for queue {shown(damage.more)}"
        yield [("HDEL", self._keys.strays, damage.name)]
        return "removed it from the list"

    def _forget_worker(self, damage: Damage) -> Conversation[str | None]:
        yield [("HDEL", self._keys.workers, damage.name)]
        return "removed it; who lives announces himself again"

    def _note_step(self, damage: Damage) -> Conversation[str | None]:
        now = yield from present(self._clock)
        yield [("HDEL", self._keys.schema, damage.name), *note(self._keys, now)]
        return "wrote it anew" if damage.name == str(VERSION).encode() else "removed it"

    def _reset_setting(self, damage: Damage) -> Conversation[str | None]:
        key = self._keys.key(damage.queue, "settings")
        if damage.name == b"log_start":
            yield [("HDEL", key, damage.name)]  # A full server takes this, but nothing new.
            return "counted the log from its beginning; old lines may not be found by their jobs"
        yield [("HSET", key, damage.name, 1)]
        return "it is 1 now"

    def _mend_batch(self, damage: Damage) -> Conversation[str | None]:
        values = (int(damage.name), damage.more, damage.after)
        [is_done] = yield [call(self._keys, "relog", damage.queue, *values)]
        return "took them out" if is_done else None

    def _forget_gone(self, damage: Damage) -> Conversation[str | None]:
        yield [("HDEL", self._keys.key(damage.queue, "gone"), damage.name)]
        return "removed that; the lines stay"

    def _mend_entry(self, damage: Damage) -> Conversation[str | None]:
        asked = call(self._keys, "mend_loose", damage.queue, damage.more, damage.name)
        [said] = yield [asked]
        return _WORDS_OF_ENTRIES.get(said)

    def _mend_owned(self, damage: Damage) -> Conversation[str | None]:
        [said] = yield [call(self._keys, "mend_owned", damage.queue, damage.name, self._level)]
        return _WORDS_OF_ENTRIES.get(said)

    def _mend_act(self, damage: Damage) -> Conversation[str | None]:
        acts, acted = (self._keys.key(damage.queue, part) for part in ("acts", "acted"))
        [text] = yield [("HGET", acted, damage.name)]
        if is_line(text):
            number = yield from next_number(self._keys, self._clock)
            yield [("ZADD", acts, number, damage.name)]
            return "gave it a number"
        yield [("ZREM", acts, damage.name), ("HDEL", acted, damage.name)]
        return "removed it"
