"""A server of our own: in its own folder, on the loopback, without rights, never left behind."""

import os
import pwd
import secrets
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from fairlead.bench.servers import family
from fairlead.bench.servers.guard import Guard
from fairlead.core.errors import FairleadError

HOST = "127.0.0.1"
PATIENCE = 30.0


def _unprivileged() -> pwd.struct_passwd | None:
    """Return who runs servers when we are root, for they refuse to be run by root."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def private_folder(place: Path | None = None) -> Path:
    """Make a folder that belongs to who runs servers, in a place of your choice."""
    # Its programs run in it, so a name that is relative to here would lead them nowhere.
    folder = Path(tempfile.mkdtemp(prefix="fairlead-", dir=place and place.resolve()))
    if user := _unprivileged():
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def rights(folder: Path) -> dict[str, Any]:
    """Return how a process of a server is started: by whom, where, and with what environment."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    found: dict[str, Any] = {"cwd": folder, "env": env | {"LC_ALL": "C.UTF-8"}}
    if user := _unprivileged():
        found |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return found


def free_port() -> int:
    """Find a port from below those that clients get, so it stays ours while the server is down."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


class ServerFailed(FairleadError):
    """A server did not start; with what it said."""

    @classmethod
    def because(cls, what: str, said: str, folder: Path) -> Self:
        """Tell why by what was said; who may not enter a folder is told to name another."""
        if "Permission denied" in said:
            return cls(
                f"a server does not run as root, and may not enter {folder.parent}; "
                "name another folder"
            )
        return cls(f"{what}:\n{said}")


class Server(ABC):
    """Started and stopped as often as one likes, on the same port, with the same data.

    Its folder is made in `place`, or where temporary files go.
    """

    signals: ClassVar[dict[str, int]]

    def __init__(self, place: Path | None = None) -> None:
        self._place = place
        self.folder = Path()
        self.port = 0
        self._frozen = False
        self._guard: Guard | None = None
        self._process: subprocess.Popen[bytes] | None = None

    # What each server knows

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the new folder."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return what to run; it names the folder, by which the guard knows the process."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether it takes connections."""

    # Up and down

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number of its first process."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What it said."""
        return (self.folder / "log").read_text("utf-8", "replace")

    def start(self) -> None:
        """Start it, and return when it takes connections. One that runs is left as it is."""
        if self.running:
            return
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def stop(self, mode: str = "fast") -> None:
        """Stop it in order; what it keeps is there when it starts again."""
        if not self.running:
            return
        self.thaw()
        os.kill(self.pid, self.signals[mode])
        assert self._process is not None
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def restart(self, mode: str = "fast") -> None:
        """Stop it, and start it again."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop it for good, and remove what it kept."""
        try:
            self.stop("immediate")
        finally:
            if self._guard is not None:
                self._guard.close()
                self._guard = None

    # What may happen to it

    def kill(self) -> None:
        """End all its processes at once, with no chance to say goodbye."""
        if self.running:
            family.kill(self.pid)
            assert self._process is not None
            self._process.wait(PATIENCE)

    def freeze(self) -> None:
        """Stop the world for it: connections stay, and nobody answers."""
        self._frozen = True
        family.freeze(self.pid)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        if self.running and self._frozen:
            family.thaw(self.pid)
        self._frozen = False

    # How it starts

    def _start(self) -> None:
        if self._guard is None:
            self.folder = private_folder(self._place)
            self._guard = Guard(self.folder)
            self._prepare()
        chosen = self.port
        for _ in range(5):
            self.port = chosen or free_port()
            if self._launch():
                return
            # Somebody may have been quicker to take the port.
            if chosen or "in use" not in self.log:
                break
        what = f"{type(self).__name__} does not start"
        raise ServerFailed.because(what, self.log[-2000:], self.folder)

    def _launch(self) -> bool:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (a program that we looked for)
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **rights(self.folder),
            )
        assert self._guard is not None
        self._guard.mind(self.pid)
        end = time.monotonic() + PATIENCE
        while self.running and time.monotonic() < end:
            if self._ready():
                return True
            time.sleep(0.01)
        self.kill()
        return False
