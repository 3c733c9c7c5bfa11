"""Which suspects run again in one process, and what becomes of them if that dies too.

Jobs that shared the death of a process start again at once, all together. If that
process dies too, they are divided into about as many groups as each then has
members; the members of a group that dies run alone. So no job is interrupted more
than three times by another one, and the one that kills processes soon runs alone.
"""

from collections.abc import Sequence
from math import isqrt

from fairlead.core.outcome import Crashed, Ending, Outcome, Returned
from fairlead.runtime.run import CUT_OFF, Run


class Share(tuple[Run, ...]):
    """Runs that share a process."""

    __slots__ = ()

    @property
    def together(self) -> bool:
        """Whether all of these have shared one death only; more such runs may join them."""
        return not self.alone and self[0].job.shared_deaths == 1

    @property
    def alone(self) -> bool:
        """Whether this is one run that must have a process to itself."""
        return self[0].job.runs_alone


def shares(runs: Sequence[Run]) -> list[Share]:
    """Divide suspects among processes."""
    alone = [Share((run,)) for run in runs if run.job.runs_alone]
    others = [run for run in runs if not run.job.runs_alone]
    once = [run for run in others if run.job.shared_deaths < 2]
    twice = [run for run in others if run.job.shared_deaths >= 2]
    count = isqrt(len(twice))
    groups = [Share(twice[n::count]) for n in range(count)]
    return ([Share(once)] if once else []) + groups + alone


def fate(called_off: Ending | None, how: str, running: int, *, on_purpose: bool) -> Outcome:
    """Say how a run ended whose process died with so many running in it.

    A run that was called off ends as it was told. If we ended the process on purpose,
    the others were cut off. Else the run crashed, alone or in company.
    """
    if isinstance(called_off, Returned) or (called_off is None and on_purpose):
        return CUT_OFF
    return called_off or Crashed(how, company=running > 1)
