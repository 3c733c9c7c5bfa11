"""The server programs that tests need, and how they get there.

`python -m tests.servers.ensure` installs what is missing, if it may; `make tests`
does that first. It makes no database cluster and starts no service: tests start
their own. Who may not install is told what is missing, and which tests are skipped for want of it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.bench.servers.programs import PACKAGES, MissingProgram, missing
from tests.needs import IN_CI

CLUSTERS = Path("/etc/postgresql-common/createcluster.conf")
POLICY = Path("/usr/sbin/policy-rc.d")
DENY = "#!/bin/sh\nexit 101\n"


@contextmanager
def _no_services() -> Iterator[None]:
    """Let no package start its service, nor make a cluster where nobody decided on that yet."""
    if not CLUSTERS.exists():
        CLUSTERS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTERS.write_text("create_main_cluster = false\n")
    if POLICY.exists():
        yield
        return
    POLICY.write_text(DENY)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def install(names: list[str]) -> None:
    """Install the packages of these programs, with nobody to ask."""
    packages = sorted({PACKAGES[name] for name in names})
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    print(f"==> installing {' and '.join(packages)}, once", flush=True)
    with _no_services():
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "--quiet=2", *command],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode:
                print(done.stdout)


def main() -> None:
    names = missing()
    if names and os.geteuid() == 0 and shutil.which("apt-get"):
        install(names)
        names = missing()
    if names and IN_CI:
        sys.exit(str(MissingProgram(names)))
    if names:
        print(f"==> tests with {', '.join(names)} are skipped: {MissingProgram(names)}", flush=True)


if __name__ == "__main__":
    main()
