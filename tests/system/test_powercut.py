"""What is acknowledged is on disk: the power is cut under the file system (P1, F31).

An ext4 file system in a loop file is shut down without flushing its journal,
by the ioctl that exists for this purpose; what was not synced is gone. Needs
root and loop devices, so it has a target of its own: `make powercut`.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.stores import store_for
from tests.needs import without
from tests.system.test_kill import PRODUCER, start, whole_lines

pytestmark = pytest.mark.power

_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Disk:
    """A small ext4 disk whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self.image, self.mount = folder / "disk.img", folder / "disk"
        self.mount.mkdir()
        run("truncate", "-s", "200M", str(self.image))
        run("mkfs.ext4", "-q", str(self.image))
        self.plug_in()

    def plug_in(self) -> None:
        self.device = run("losetup", "--find", "--show", str(self.image))
        run("mount", self.device, str(self.mount))

    def cut(self) -> None:
        handle = os.open(self.mount, os.O_RDONLY)
        fcntl.ioctl(handle, _SHUTDOWN, _NO_LOG_FLUSH)
        os.close(handle)

    def unplug(self) -> None:
        run("umount", str(self.mount))
        run("losetup", "-d", self.device)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or not shutil.which("losetup") or not shutil.which("mkfs.ext4"):
        without("a power cut needs root, losetup and mkfs.ext4 (util-linux, e2fsprogs)")
    disk = Disk(tmp_path)
    yield disk
    disk.unplug()


async def _missing(path: Path, acked: list[str]) -> list[str]:
    store = store_for(f"sqlite:///{path}")
    gone = [job_id for job_id in acked if await store.admin.find(job_id) is None]  # type: ignore[arg-type]
    assert await store.admin.audit() == []
    await store.close()
    return gone


@pytest.mark.parametrize("cut", range(5))
def test_no_acknowledged_job_is_lost_when_the_power_is_cut(
    disk: Disk, tmp_path: Path, cut: int
) -> None:
    path, acks = disk.mount / "jobs.db", tmp_path / "acks"
    acks.touch()
    producer = start(PRODUCER, path, acks)
    deadline = time.monotonic() + 60
    while len(whole_lines(acks)) < 300 + 400 * cut:
        assert time.monotonic() < deadline, "the producer makes no progress"
        time.sleep(0.01)
    disk.cut()
    os.kill(producer.pid, signal.SIGKILL)
    producer.wait()
    acked = whole_lines(acks)
    disk.unplug()
    disk.plug_in()
    assert len(acked) >= 300
    assert asyncio.run(_missing(path, acked)) == []


def test_the_cut_is_real(disk: Disk, tmp_path: Path) -> None:
    """Written without a sync, data is gone after the cut; else the test above proves nothing."""
    path = disk.mount / "careless"
    script = f"open({str(path)!r}, 'w').write('x' * 9000); import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script])
    while not path.exists() or not path.stat().st_size:
        time.sleep(0.01)
    disk.cut()
    process.kill()
    process.wait()
    disk.unplug()
    disk.plug_in()
    assert not path.exists() or path.stat().st_size == 0
