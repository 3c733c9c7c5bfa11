"""Where the story plays: a store in a folder, and a real worker beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from fairlead.app import Fairlead
from fairlead.core.admin import Finding
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, State
from fairlead.demo.checks import Unexpected
from fairlead.producer import found

Value = TypeVar("Value")
PROCESSES, SLOTS = 2, 4
PATIENCE = 20.0
"""Seconds after which something that should have happened never will."""
_LOOK_SECONDS = 0.08
_GRACE_SECONDS = 1


def url_of(folder: Path) -> str:
    """Return the URL of the store in a folder."""
    return f"sqlite:///{quote(str(folder))}/jobs.db"


class Stage:
    """A folder with a store and a worker. Whatever happens, `close` leaves no process behind."""

    def __init__(self, folder: Path, app: Fairlead, target: str) -> None:
        self.app = app
        self._folder = folder
        self._log = folder / "worker.log"
        others = {key: value for key, value in os.environ.items() if key[:9] != "FAIRLEAD_"}
        self._environ = others | {"FAIRLEAD_URL": url_of(folder), "FAIRLEAD_APP": target}
        self._worker: subprocess.Popen[bytes] | None = None

    # The worker

    def start(self) -> None:
        """Start the worker, and wait until all its processes are ready."""
        command = self._command("worker", "--processes", str(PROCESSES), "--slots", str(SLOTS))
        command += ["--grace", str(_GRACE_SECONDS), "--log-format", "json"]
        with self._log.open("ab") as log:
            # A group of its own: Ctrl-C reaches us alone, and we decide.
            self._worker = subprocess.Popen(  # noqa: S603 (this interpreter, our own command)
                command,
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self.until(lambda: len(self.processes()) == PROCESSES, "its processes were ready")

    def processes(self) -> list[int]:
        """Return the ids of the worker's processes, as it reported them."""
        return [event["pid"] for event in self._events() if event["event"] == "ProcessStarted"]

    def kill(self, pid: int) -> None:
        """Kill one of the worker's processes, as `kill -9` does."""
        if pid not in self.processes():
            raise Unexpected(f"process {pid} is none of the worker's")
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Stop the worker: politely, then by force."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if worker.poll() is None:
                worker.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                worker.wait(_GRACE_SECONDS + 2)
                return

    def last_words(self, count: int = 12) -> list[str]:
        """Return the last lines of the worker's log."""
        if not self._log.exists():
            return []
        return self._log.read_text("utf-8", "replace").splitlines()[-count:]

    def _events(self) -> list[dict[str, Any]]:
        text = self._log.read_text("utf-8", "replace")
        whole = text[: text.rfind("\n") + 1]
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if "event" in line]

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "fairlead", *words]

    # What a person types

    def type(self, *words: str) -> str:
        """Run `fairlead …` as a person would; returns what it printed."""
        try:
            answer = subprocess.run(  # noqa: S603 (this interpreter, our own command)
                self._command(*words),
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as problem:
            raise Unexpected(f"`fairlead {' '.join(words)}` did not end") from problem
        if answer.returncode:
            raise Unexpected(f"`fairlead {' '.join(words)}` failed: {answer.stdout.strip()}")
        return answer.stdout

    # Looking

    def record(self, job_id: JobId) -> JobRecord:
        """Return a job as it is now."""
        return self.app.bridge.run(found(self.app.store, job_id))

    def records(self, job_ids: Iterable[JobId]) -> list[JobRecord]:
        """Return jobs as they are now."""

        async def look() -> list[JobRecord]:
            return [await found(self.app.store, job_id) for job_id in job_ids]

        return self.app.bridge.run(look())

    def attempts(self, *job_ids: JobId) -> list[Attempt]:
        """Return the lines of the attempt log of these jobs, oldest first."""
        wanted = set(job_ids)
        lines = self.app.bridge.run(self.app.store.admin.recent(since=0))
        return [line for line in reversed(lines) if line.job_id in wanted]

    def counts(self, queues: Sequence[str]) -> dict[str, dict[State, int]]:
        """Count the jobs of these queues by state."""
        counts = self.app.bridge.run(self.app.store.admin.count())
        return {
            queue: {state: counts.get(queue, {}).get(state, 0) for state in State}
            for queue in queues
        }

    def audit(self) -> list[Finding]:
        """Check every mark in the store."""
        return self.app.bridge.run(self.app.store.admin.audit())

    # Waiting

    def until(self, look: Callable[[], Value], what: str) -> Value:
        """Look again and again until there is something to see, and return it."""
        end = time.monotonic() + PATIENCE
        while True:
            value = look()
            if value:
                return value
            if self._worker is None or self._worker.poll() is not None:
                raise Unexpected(f"the worker ended before {what}")
            if time.monotonic() > end:
                raise Unexpected(f"it took more than {PATIENCE:g} s until {what}")
            time.sleep(_LOOK_SECONDS)

    def until_ended(self, *job_ids: JobId) -> None:
        """Wait until these jobs are done or dead."""
        self.until(
            lambda: all(record.state.final for record in self.records(job_ids)),
            f"{len(job_ids)} jobs had ended",
        )
