"""How much memory a process takes."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGESIZE")


def resident_bytes(pid: int) -> int:
    """Return the resident size of a process; 0 if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    if Path("/proc/self/statm").exists():
        return 0
    with suppress(OSError, ValueError):
        asked = subprocess.run(  # noqa: S603 (a fixed command and a number)
            ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=False
        )
        return int(asked.stdout) * 1_024
    return 0
