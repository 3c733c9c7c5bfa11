"""What the fuzz knows of a store: its stored fields, and how each can be damaged (F75).

A victim damages one store as its owner, behind the program's back. `tests/fuzz/rounds.py` does
the rest, the same on every store: healthy jobs beside the damage must run, every look must
answer, the audit must find what can never be sound, `doctor` must name what the audit finds, and
`doctor --repair` must mend it. Whatever the audit does not find must harm nobody: many a value is
as good as another.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from random import Random
from typing import NamedTuple

from fairlead.core.ids import JobId


class Damage(NamedTuple):
    """One field of one job, or of the store, and what is written into it."""

    field: str
    kind: str


GREATEST, LEAST = 2**63 - 1, -(2**63)
DEEP = "[" * 3_000 + "]" * 3_000

NUMBERS: dict[str, object] = {
    "greatest": GREATEST,
    "greatest 32": 2**31 - 1,
    "least": LEAST,
    "minus one": -1,
    "zero": 0,
    "past the exact": 2**53 + 1,
    "fraction": 0.5,
    "infinite": float("inf"),
    "text": "soon",
    "digits": "9" * 5_000,
    "nothing": None,
    "bytes": b"\xff\xfe",
}
"""What is written into a number, by the name of the damage."""

TEXTS: dict[str, object] = {
    "empty": "",
    "nothing": None,
    "number": GREATEST,
    "deep": DEEP,
    "deep in a field": f'{{"tags":{DEEP}}}',
    "deep in an unknown field": f'{{"later":{DEEP}}}',
    "deep in a list": f'[{{"later":{DEEP}}}]',
    "no json": '{"a":',
    "other json": '{"a":{"b":[1,null,"x"]}}',
    "list": "[1,2,3]",
    "long": "x" * 1_000_000,
    "nul": "a\0b",
    "control": "a\x1b[2J\n\u202eb",
    "bytes": b"\xff\xfe\x80",
}
"""The same for a text."""


class Victim(ABC):
    """One store, as its owner sees it."""

    at_once = 1
    """How many damages a round begins with."""
    never_sound: Collection[str] = ()
    """Kinds of damage that leave no value as good as another: the audit names them."""
    anything_goes: Collection[str] = ()
    """Fields in which they are, because whatever is there means the same, or is never read."""

    @property
    @abstractmethod
    def damages(self) -> Sequence[Damage]:
        """Every damage that can be tried here: each stored field with each kind that fits it."""

    def close(self) -> None:  # noqa: B027 (most have nothing open)
        """Let go of what it has open; a round calls it at its end."""

    def must_be_named(self, damage: Damage) -> bool:
        """Say whether the audit has to find it."""
        return damage.kind in self.never_sound and damage.field not in self.anything_goes

    def may_remove(self, damages: Collection[Damage]) -> bool:
        """Say whether a job may be gone afterwards, with nobody saying so.

        It is under another id then, or ended so long ago that it is forgotten.
        """
        return any(each.field.endswith(("id", "finished_at", "member")) for each in damages)

    @abstractmethod
    def inflict(self, damage: Damage, job_id: JobId, random: Random) -> str | None:
        """Damage this job, or what belongs to no job; returns what was done, in words.

        None says that the store's own engine refused to hold such a value, or that this job has
        no such field in the state it is in.
        """
