"""Names of workers."""

import os
import secrets
import socket


def worker_name() -> str:
    """Make the name of a worker: where it runs, and a part that no other has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
