"""What people do: who, what, and the line of the audit log that tells of it.

A deed is a value, so a store has one verb for all of them, `Admin.act`: it recognises a repeat,
writes the log and repeats what got no answer in one place.
"""

from collections.abc import Collection

import msgspec

from fairlead.core.errors import ConfigError
from fairlead.core.ids import JobId
from fairlead.core.job import State

LIVE = frozenset({State.WAITING, State.RUNNING})
FINAL = frozenset(State) - LIVE


class Action(msgspec.Struct, frozen=True):
    """Something a person does: who, what, and to which jobs, in words.

    One action may take many calls; they share its id, and are one line of the
    audit log with one count and the latest time. A call that asks for the same as one
    before it, in the same order, is a repeat. Calls of another action under the
    same id are refused; on Redis, where queues keep lines, they get a line of their own.
    """

    id: str
    who: str
    verb: str
    target: str

    def __post_init__(self) -> None:
        """Refuse what would leave a line of the audit log that tells nothing."""
        for name in ("id", "who", "verb"):
            if not getattr(self, name):
                raise ConfigError(
                    f"an action needs its {name}: say who does what, for the audit log"
                )


def reused(by: Action) -> ConfigError:
    """Return the error for an action whose id another one has in the audit log."""
    return ConfigError(
        f"the audit log has another action with the id {by.id!r}; give each action a new id"
    )


class AuditLine(msgspec.Struct, frozen=True):
    """A line of the audit log. `before` is the payload that an edit replaced.

    `who` is what the program says; `user` is whom the store itself knows it as, where the store
    has users of its own and can tell.
    """

    done_at: int
    who: str
    verb: str
    target: str
    count: int
    before: str | None = None
    user: str | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel those of these jobs that are in one of these states: waiting, running.

    A waiting job is cancelled at once and never starts. A running one is marked; its worker
    learns of it with the next `extend`, and the run is settled as `outcome.overrule` says.
    """

    ids: Collection[JobId]
    reason: str
    states: Collection[State] = LIVE


class Revive(msgspec.Struct, frozen=True, tag="revive"):
    """Let jobs run again, or sooner: those of these that are in one of these states.

    A running one is never among them, nor is a waiting one that is due already: it
    keeps its place and its counts. The others are due now, in their queue's order by
    their head start. Id, payload and history stay; attempts and crashes begin anew,
    and a result or an expiry that has passed is forgotten. A job that crashed runs
    alone the next time.
    """

    ids: Collection[JobId]
    states: Collection[State]


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Forget jobs for good: those of these that are in one of these states, and final.

    Their attempt-log lines stay, as history of the queue.
    """

    ids: Collection[JobId]
    states: Collection[State]


class Edit(msgspec.Struct, frozen=True, tag="edit"):
    """Replace the payload of a dead letter, if it still is `was`; the audit log keeps that."""

    id: JobId
    was: str
    payload: str
    version: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Let no further job of this queue start; running ones go on."""

    queue: str


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Let jobs of this queue start again."""

    queue: str


class Note(msgspec.Struct, frozen=True, tag="note"):
    """Add to the audit log something that was done by other verbs, in a step of its own."""

    count: int
    id: JobId | None = None

    def __post_init__(self) -> None:
        """Refuse a number of jobs that is none."""
        if self.count < 0:
            raise ConfigError(f"an action is done to 0 jobs or more, not to {self.count}")


Deed = Cancel | Revive | Delete | Edit | Pause | Resume | Note
