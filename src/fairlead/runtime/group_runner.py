"""Suspects in processes of their own, many in each; see `grouping.py` for who shares one.

A process is started for each group, and ends with it. It is told who runs in it, and
tells of each start and each end. When it dies, only its members are touched.
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
SPARE_SECONDS = 10.0
"""How long a process that was started before it was needed waits to be."""
_OWN = str(Path(__file__).parent.parent)


class Care(msgspec.Struct, frozen=True):
    """What is due to others when something goes wrong.

    The company of a run past its time limit gets `grace` seconds to finish; `prolong`
    is told until when, and `tell_overdue` of the run and the line that it is at.
    `tell_died` gets the process, how it ended, and how many had started and had not.
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
        """Until when others are waited for, by the place of a run past its time limit."""
        self.over_at = float("inf")
        """When it is ended because nobody is in it who was not called off."""
        self.ended_at: float | None = None
        """When it was told to end."""
        self.together = False
        """Whether its members have shared one death only."""
        self._has_begun = False

    @property
    def open(self) -> bool:
        """Whether more of those that run all together may join."""
        return self.together and not self._has_begun and self.over_at == float("inf")

    @property
    def due(self) -> float:
        """When it is to be ended."""
        return min(self.over_at, *self.overdue.values(), float("inf"))

    def started(self) -> None:
        """Note that it has begun, and nobody joins any more."""
        self._has_begun = True

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
        self._pending: list[tuple[Run, float]] = []
        self._recalled = False
        self._spare: _Group | None = None
        if recruit is not None:
            self._spare = _Group(home, self._listen, recruit)
            self._spare.over_at = self._loop.time() + SPARE_SECONDS
            self._groups.append(self._spare)

    def start(self, run: Run) -> None:
        """Begin a run, in a group with all that come with it."""
        if not self._pending and not self._resting:
            self._loop.call_soon(self._deal)
        self._pending.append((run, self._loop.time()))

    def take_back(self, before: float) -> list[Run]:
        """Take out the runs that came before a time and for which no process could be started."""
        taken = [run for run, since in self._pending if since < before and self._resting]
        self._pending = [entry for entry in self._pending if entry[0] not in taken]
        return taken

    def recall(self) -> None:
        """Have everything given back that has not started, now and later."""
        self._recalled = True
        pending, self._pending = self._pending, []
        for run, _ in pending:
            self._home.end(run, GIVEN_BACK)
        for group in self._groups:
            group.hand.tell(Recall())

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        for group in list(self._groups):
            self._bury(group)

    # Forming groups

    def _deal(self) -> None:
        if self._closed or self._resting:
            return
        pending, self._pending = self._pending, []
        divided = shares([run for run, _ in pending if self._is_sent(run)])
        for at, share in enumerate(divided):
            try:
                self._send(self._group_for(share), share)
            except OSError:  # The machine has no room for another process now.
                left = [run for rest in divided[at:] for run in rest]
                for run in left:
                    self._home.board.take_back(run.place)
                self._pending += [entry for entry in pending if entry[0] in left]
                self._rest()
                return

    def _group_for(self, share: Share) -> _Group:
        """Return a new process; for those that run all together, one that has not begun will do."""
        open_one = next((group for group in self._groups if group.open), None)
        if share.together and open_one is not None:
            return open_one
        group, self._spare = self._spare, None
        if group is not None and group in self._groups and group.ended_at is None:
            group.over_at = float("inf")
        else:
            group = _Group(self._home, self._listen)
            self._groups.append(group)
        group.together = share.together
        return group

    def _send(self, group: _Group, runs: Share) -> None:
        group.members |= {run.place: run for run in runs}
        group.hand.tell([self._order(run.place, run) for run in runs])

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
        group.started()
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
        if any(entry[0] is run for entry in self._pending):
            self._pending = [entry for entry in self._pending if entry[0] is not run]
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
