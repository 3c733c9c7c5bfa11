"""From pairs of rates to a verdict. Pure arithmetic: no clock, no chance."""

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

BOUND = 0.97
"""A row fails only if it is surely slower than this share of the base's rate."""
DOUBT = 0.05
EARLY_DOUBT = 0.01
"""For a look before the last pair: whoever looks often, and stops at what he likes, is often wrong."""


class Verdict(StrEnum):
    """What the pairs so far say."""

    FINE = "fine"
    SLOWER = "SLOWER"
    UNDECIDED = "undecided"


class Ratio(NamedTuple):
    """The median of new/base over all pairs, and where the true median lies, in 95 of 100 cases."""

    middle: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Judge by the whole interval."""
        if self.high < BOUND:
            return Verdict.SLOWER
        return Verdict.FINE if self.low > BOUND else Verdict.UNDECIDED


class Pair(NamedTuple):
    """One rate of each build, measured right after each other."""

    base: float
    new: float


def ratio_of(pairs: Sequence[Pair], doubt: float = DOUBT) -> Ratio:
    """Return the median ratio of some pairs with its interval.

    Each ratio is above the true median with a probability of one half, whatever the noise looks
    like, so the binomial distribution says which of the ordered ratios enclose it.
    """
    logs = sorted(math.log(pair.new / pair.base) for pair in pairs)
    rank = _rank(len(logs), doubt)
    low, high = (logs[rank - 1], logs[-rank]) if rank else (-math.inf, math.inf)
    return Ratio(math.exp(median(logs)), math.exp(low), math.exp(high))


def _rank(size: int, doubt: float) -> int:
    """Return how far from either end the interval begins: 1 is at the very end, 0 is too few."""
    rank, below = 0, 0.0
    while (below := below + math.comb(size, rank) / 2**size) <= doubt / 2:
        rank += 1
    return rank


def enough(pairs: Sequence[Pair], least: int, most: int) -> bool:
    """Whether more pairs would change nothing, or are too many."""
    if len(pairs) < least:
        return False
    return len(pairs) >= most or ratio_of(pairs, EARLY_DOUBT).verdict is not Verdict.UNDECIDED


class Change(NamedTuple):
    """A count per job in both builds, several times each, because some depend on timing."""

    base: Sequence[float]
    new: Sequence[float]

    @property
    def grew(self) -> bool:
        """Whether the new build's least is more than the base's most."""
        return min(self.new) > max(self.base)

    @property
    def fell(self) -> bool:
        """The same the other way round."""
        return max(self.new) < min(self.base)
