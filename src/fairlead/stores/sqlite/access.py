"""Why a file cannot be opened or made, and what to do about it."""

import os
import pwd
from pathlib import Path
from shlex import quote


def obstacle(path: Path) -> str | None:
    """Say what keeps this user from a file, and the way out; None if nothing is in sight."""
    folder = path.parent
    if _is_folder(path):
        return is_folder(path)
    if not _is_folder(folder):
        return _without_folder(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{_user()} may not write in folder {folder}; {_let(folder)}"
    if os.access(path, os.F_OK) and not os.access(path, os.R_OK | os.W_OK):
        return f"{_user()} may not read and write {path}; {_let(path)}"
    return None


def is_folder(path: Path) -> str:
    """Say that the URL names a folder, and what to name instead."""
    return f"{path} is a folder; name a file in it, as in sqlite:///{path}/jobs.db"


def _without_folder(folder: Path) -> str:
    """Say what is wrong with the way to a folder, by the last part of it that can be seen."""
    there = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    if not _is_folder(there):
        return f"{there} is not a folder; name another in the store's URL"
    if not os.access(there, os.X_OK):
        return f"{_user()} may not look into folder {there}; {_let(there)}"
    return (
        f"there is no folder {folder}; make it (mkdir -p {quote(str(folder))}), or name another "
        "in the store's URL"
    )


def _is_folder(path: Path) -> bool:
    """Say whether there is a folder; none that we may not look at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _let(path: Path) -> str:
    return f"let it (chown or chmod {quote(str(path))}), or name another place in the store's URL"


def _user() -> str:
    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user {os.geteuid()}"
