"""What a store has open on its file: the writer, connections for reading, a watch per loop."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TypeVar

from fairlead.core.errors import StoreError
from fairlead.stores.sqlite.connection import Place, WriteLock, patiently
from fairlead.stores.sqlite.line import SqliteLine
from fairlead.stores.sqlite.migrate import migrate
from fairlead.stores.sqlite.own import Own
from fairlead.stores.sqlite.served import Served
from fairlead.stores.sqlite.wake import Watch, watch_file
from fairlead.stores.sqlite.writer import Writer, WriterClosed

Answer = TypeVar("Answer")


class Session:
    """What is open: the writer, connections for reading, and a watch per event loop."""

    def __init__(self, place: Place, line: SqliteLine) -> None:
        self._place = place
        self.served = Served(line)
        with ExitStack() as opened:
            first = opened.enter_context(closing(place.connect()))
            with closing(WriteLock(place)) as lock:
                migrate(first, place, lock, line.moment())
            self.writer = Writer(place, self.served)
            opened.pop_all()
        first.text_factory = _lenient
        self._idle: list[Own] = [first]
        self._reading = 0
        self._closing = False
        self._change = threading.Condition()
        self._watches: dict[asyncio.AbstractEventLoop, Watch] = {}

    def read(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Ask something of the file, on a connection that nobody else reads with meanwhile.

        A long question (an audit, say) holds up no short one.
        """
        self.writer.check_file()
        with self._change:
            if self._closing:
                raise WriterClosed
            self._reading += 1
            connection: Own | None = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = self._reader()
            return self._ask(connection, question)
        finally:
            with self._change:
                self._reading -= 1
                if connection is not None:
                    self._idle.append(connection)
                self._change.notify_all()

    def _ask(self, connection: Own, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        try:
            answer = patiently(self._place, lambda: question(connection))
        except StoreError:
            self.served.explain(connection)
            raise
        self.served.check(connection)
        return answer

    def _reader(self) -> Own:
        """Connect for people: a text that somebody damaged is shown as far as it can be read."""
        connection = self._place.connect()
        connection.text_factory = _lenient
        return connection

    def watch(self) -> Watch:
        """Return the running loop's watch, and drop those of loops that are no more."""
        self.writer.check_file()
        loop = asyncio.get_running_loop()
        with self._change:
            if self._closing:
                raise WriterClosed
            for ended in [other for other in self._watches if other.is_closed()]:
                self._watches.pop(ended).close()
            if loop not in self._watches:
                self._watches[loop] = watch_file(self._place)
            return self._watches[loop]

    def close(self) -> None:
        """Finish what was handed over and let go of everything."""
        with self._change:
            self._closing = True
            self._change.wait_for(lambda: not self._reading)
        for each in self._watches.values():
            each.close()
        self.writer.close()
        for reader in self._idle:
            reader.close()


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")
