"""Suspects in processes of their own, many in each; see `grouping.py` for who shares one.

A process is started for each group, and ends with it. It is told who runs in it, and
tells of each start and each end. When it dies, only its members are touched.

The number of processes is bounded, because each takes 20 MB or more and blocks this loop
for some milliseconds when it is started. With one poison job among a thousand suspects,
nobody waits for another one's end: there are 31 groups, and 33 in the largest that
run alone next. Beyond the bounds suspects wait here until a process ends: if they were
given back, this worker would claim them again at once, and again a second later.
"""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from fairlead.core.outcome import Crashed
from fairlead.runtime.board import PROCESS
from fairlead.runtime.group import CallOff
from fairlead.runtime.grouping import Share, fate, shares
from fairlead.runtime.hand import Hand
from fairlead.runtime.recruit import Recruit
from fairlead.runtime.run import GIVEN_BACK, Run
from fairlead.runtime.sending import KILL_SECONDS, Home, SendingRunner
from fairlead.runtime.solo import Recall, Word

HEED_SECONDS = 0.5
"""What a thread that was called off gets to come to its next checkpoint."""
MOST_PROCESSES = 64
"""How many processes for suspects a worker process has at a time."""
MOST_ALONE = 48
"""How many of them are for single runs. These may take long, and leave the others to groups."""
SPARE_SECONDS = 10.0
"""How long a process that was started ahead waits for its first run."""
_OWN = str(Path(__file__).parent.parent)


class Care(msgspec.Struct, frozen=True):
    """What happens beside the runner when a run is late or a process dies.

    The company of a run past its time limit gets `grace` seconds to finish. `prolong` gets
    the late run and the time until which this runner sees to its end, `tell_overdue` the
    run and its line. `tell_died` gets the process, how it ended, and how many runs had
    started and how many had not.
    """

    grace: float
    prolong: Callable[[Run, float], None]
    tell_overdue: Callable[[Run, str | None], None]
    tell_died: Callable[[int, str, int, int], None]


class _Group:
    """One process and its members, by their places on the board."""

    def __init__(
        self, home: Home, listen: Callable[["_Group"], None], recruit: Recruit | None = None
    ) -> None:
        handles = () if home.board.handle is None else (home.board.handle,)
        self.hand = Hand("group", home.target, home.hire, partial(listen, self), handles, recruit)
        self.members: dict[int, Run] = {}
        self.overdue: dict[int, float] = {}
        """Until when its company may go on, by the place of a run past its time limit."""
        self.over_at = float("inf")
        """When to end it, because all its members have ended or were called off."""
        self.ended_at: float | None = None
        """When it was told to end."""
        self.has_begun = False
        """Whether it has said something: from then on nobody joins."""
        self._share: Share | None = None

    @property
    def alone(self) -> bool:
        """Whether it is for a single run."""
        return self._share is not None and self._share.alone

    def accepts(self, share: Share) -> bool:
        """Say whether these may join: nobody is in it yet, or both run all together."""
        if self._share is None:
            return self.ended_at is None
        both = share.together and self._share.together
        return both and not self.has_begun and self.over_at == float("inf")

    def join(self, share: Share) -> None:
        """Take in members."""
        self._share = self._share or share
        self.over_at = float("inf")
        self.members |= {run.place: run for run in share}

    @property
    def due(self) -> float:
        """When it is to be ended."""
        return min(self.over_at, *self.overdue.values(), float("inf"))

    @property
    def running(self) -> list[Run]:
        """The members whose handlers have started."""
        return [run for run in self.members.values() if run.started_at is not None]

    def has(self, run: Run) -> bool:
        """Say whether a run is a member."""
        return self.members.get(run.place) is run


class GroupRunner(SendingRunner):
    """Runs suspects in as many processes as they must be kept apart in."""

    def __init__(self, home: Home, care: Care, recruit: Recruit | None = None) -> None:
        super().__init__(home)
        self._care = care
        self._groups: list[_Group] = []
        self._pending: dict[Run, float] = {}
        """What waits for a process, and since when."""
        self._deals_soon = False
        self._recalled = False
        if recruit is not None:
            spare = _Group(home, self._listen, recruit)
            spare.over_at = self._loop.time() + SPARE_SECONDS
            self._groups.append(spare)

    def start(self, run: Run) -> None:
        """Begin a run, in a group with all that come with it."""
        self._pending[run] = self._loop.time()
        self._deal_soon()

    def take_back(self, before: float) -> list[Run]:
        """Take out the runs that came before a time, if no process can be started for them."""
        if not self._resting:
            return []
        return self._take_out([run for run, since in self._pending.items() if since < before])

    def _take_out(self, runs: list[Run]) -> list[Run]:
        for run in runs:
            del self._pending[run]
        return runs

    def recall(self) -> None:
        """Have everything given back that has not started, now and later."""
        self._recalled = True
        for run in self._take_out(list(self._pending)):
            self._home.end(run, GIVEN_BACK)
        for group in self._groups:
            group.hand.tell(Recall())

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        for group in list(self._groups):
            self._bury(group)

    # Forming groups

    def _deal_soon(self) -> None:
        """Form groups when all have come that come together."""
        if not self._deals_soon:
            self._deals_soon = True
            self._loop.call_soon(self._deal)

    def _deal(self) -> None:
        self._deals_soon = False
        for share in shares(list(self._pending)):
            if self._closed or self._resting:
                return
            if self._has_room_for(share):
                self._send(share)

    def _has_room_for(self, share: Share) -> bool:
        if share.alone and sum(group.alone for group in self._groups) >= MOST_ALONE:
            return False
        return len(self._groups) < MOST_PROCESSES or self._open_to(share) is not None

    def _open_to(self, share: Share) -> _Group | None:
        return next((group for group in self._groups if group.accepts(share)), None)

    def _send(self, share: Share) -> None:
        """Send runs to a process, a new one if need be; not those that were revoked."""
        since = {run: self._pending.pop(run) for run in share}
        sent = Share(run for run in share if self._mark_sent(run))
        if not sent:
            return
        try:
            group = self._open_to(sent) or self._new_group()
        except OSError:  # The machine has no room for another process now.
            for run in sent:
                self._home.board.take_back(run.place)
                self._pending[run] = since[run]
            self._rest()
            return
        group.join(sent)
        group.hand.tell([self._order(run.place, run) for run in sent])

    def _new_group(self) -> _Group:
        group = _Group(self._home, self._listen)
        self._groups.append(group)
        return group

    # Listening

    def _listen(self, group: _Group) -> None:
        words, ended = group.hand.receive()
        for word in words:
            self._heed(group, word)
        if ended:
            self._bury(group)
        else:
            self._see_whether_all_is_over(group)

    def _heed(self, group: _Group, word: Word) -> None:
        group.has_begun = True
        self._failures = 0
        if word.starts is not None:
            run = group.members[word.starts]
            run.handle = word.thread
            self._home.begin(run, PROCESS, group.hand.pid)
        elif word.ended is not None and word.outcome is not None:
            group.overdue.pop(word.ended, None)
            self._home.end(group.members.pop(word.ended), word.outcome)

    def _see_whether_all_is_over(self, group: _Group) -> None:
        """End a process whose members have ended, or have all been called off."""
        now = self._loop.time()
        if not group.members:
            group.hand.leave()
            group.over_at = min(group.over_at, now + KILL_SECONDS)
        elif all(run.called_off is not None for run in group.members.values()):
            waits = any(run.task.is_async for run in group.members.values())
            group.over_at = min(group.over_at, now + (KILL_SECONDS if waits else HEED_SECONDS))

    def _bury(self, group: _Group) -> None:
        """See a process to its end: who ran has shared its death, or crashed it alone."""
        if group not in self._groups:
            return
        self._groups.remove(group)
        how, words = group.hand.bury()
        for word in words:
            self._heed(group, word)
        on_purpose = group.ended_at is not None or self._closed
        running, members = len(group.running), list(group.members.values())
        if members and not running and not on_purpose and not self._resting:
            self._rest()  # It ran nothing, so the next one may not either.
        if members and not on_purpose:
            self._care.tell_died(group.hand.pid, how, running, len(members) - running)
        group.members.clear()
        for run in members:
            if run.started_at is not None:
                self._home.end(run, fate(run.called_off, how, running, on_purpose=on_purpose))
            elif run.called_off is not None or self._recalled:
                self._home.end(run, run.called_off or GIVEN_BACK)
            else:
                self._home.board.take_back(run.place)
                self.start(run)
        if self._pending:
            self._deal_soon()

    # Ending runs

    def time_out(self, run: Run) -> None:
        """End a run at its time limit: by its cancellation, or with its process.

        Its company may finish first, as long as a worker that stops would wait for it.
        """
        group = next((group for group in self._groups if group.has(run)), None)
        if group is None:
            return
        until = self._loop.time() + self._care.grace
        self._care.prolong(run, until + 2 * KILL_SECONDS)
        group.overdue[run.place] = until
        if run.called_off is None:
            run.called_off = run.timed_out(None)
            group.hand.tell(CallOff(run.place, None))
            self._ask(self._look(group, run))
        self._see_whether_all_is_over(group)

    async def _look(self, group: _Group, run: Run) -> None:
        """Find out at which line a run is; one that heeds its cancellation tells it by itself."""
        lines = await group.hand.lines()
        where = lines.get(run.handle)
        if run.task.is_async:
            blocking = next(reversed(lines.values()), "")  # The main thread is written last.
            where = None if blocking.startswith(_OWN) else blocking
        if group.has(run):
            run.called_off = run.timed_out(where)
            if not run.task.is_async and len(group.members) > 1:
                self._care.tell_overdue(run, where)

    def call_off(self, run: Run) -> None:
        """Have a run end as it was told; if nobody else is in its process, with that."""
        for group in self._groups:
            if group.has(run):
                group.hand.tell(CallOff(run.place, run.called_off))
                self._see_whether_all_is_over(group)
                return
        if self._pending.pop(run, None) is not None:
            self._home.end(run, run.called_off or Crashed("never started"))

    def watch(self) -> None:
        """End processes whose time has come; see to dead ones that nobody noticed."""
        now = self._loop.time()
        for group in list(self._groups):
            if group.hand.dead:
                self._bury(group)
            elif group.ended_at is not None:
                if now >= group.ended_at + KILL_SECONDS:
                    group.hand.signal(signal.SIGKILL)
            elif now >= group.due:
                group.ended_at = now
                group.hand.signal(signal.SIGTERM)
