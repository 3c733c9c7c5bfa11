"""A process that was started, and that nobody listens to yet.

Imports little, because it is the first thing that `cli/process.py` does.
"""

import os
from collections.abc import Sequence

from fairlead.runtime.spawn import Spawned, anonymous_file


class Recruit:
    """A process, the socket to it, and the file in which it tells where it is."""

    def __init__(self, role: str, target: str, handles: Sequence[int] = ()) -> None:
        self.stacks = anonymous_file("fairlead-stacks")
        try:
            self.spawned = Spawned(role, target, (self.stacks, *handles))
        except OSError:
            os.close(self.stacks)
            raise
