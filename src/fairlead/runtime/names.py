"""Names of workers, and of who uses a program."""

import getpass
import os
import secrets
import socket


def worker_name() -> str:
    """Make the name of a worker: where it runs, and a part that no other has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def user_name() -> str:
    """Return who runs this program, and where."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # A user without a name, as in some containers.
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
