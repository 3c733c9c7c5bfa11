"""What the disk can do."""

import os
import time
from pathlib import Path
from statistics import median


def fsync_micros(folder: Path) -> float:
    """Measure what one durable write of 8 kB costs in this folder."""
    path = folder / "fsync"
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter.
    times = []
    with path.open("wb", buffering=0) as file:
        file.write(b"\0" * 8_192)
        os.fsync(file.fileno())
        for _ in range(100):
            file.seek(0)
            began = time.perf_counter()
            file.write(b"\1" * 8_192)
            sync(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return median(times) * 1e6
