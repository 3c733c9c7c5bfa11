"""Fairlead: a job queue for Python in which no accepted job is lost.

The public names are those of `fairlead.face`. They load when one of them is first
used, so that the command line answers before half of the program is read.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from fairlead.face import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """Load the public names, and return one of them."""
        # Not for what the import machinery asks of every module.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        import fairlead.face  # noqa: PLC0415

        try:
            return getattr(fairlead.face, name)
        except AttributeError:
            raise AttributeError(f"module 'fairlead' has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        """Name what there is, for people at a prompt."""
        import fairlead.face  # noqa: PLC0415

        return sorted([*globals(), *fairlead.face.__all__])
