"""SQL lives in `.sql` files beside its store: statements by name, migrations by number."""

import re
from importlib.resources.abc import Traversable

from fairlead.core.admin import Migration

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARTS = ("chosen", "live_rows", "finished_rows", "dead_rows")
_SERVES = re.compile(r"^-- serves: (\d+)$", re.MULTILINE)


def named_statements(folder: Traversable) -> dict[str, str]:
    """Return every statement of a folder by its name.

    What a filter asks stands where a statement says `{chosen}`, and the rows of a place where it
    says `{live_rows}`, `{finished_rows}` or `{dead_rows}`. One that says `{finished}` exists
    twice: as it is, on what `finished_all` says, and as NAME_since, which looks only at what ended
    since then.
    """
    found: dict[str, str] = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        _, *parts = _NAME.split(file.read_text())
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            found[name] = text.strip()
    for name, text in list(found.items()):
        whole = text
        for part in _PARTS:
            whole = whole.replace(f"{{{part}}}", found[part])
        found[name] = whole.replace("{finished}", found["finished_all"])
        if "{finished}" in whole:
            found[f"{name}_since"] = whole.replace("{finished}", found["finished_since"])
    return found


def numbered_steps(folder: Traversable) -> list[Migration]:
    """Return the scripts that build a schema, in order."""
    return [_step(file) for file in sorted(folder.iterdir(), key=lambda file: file.name)]


def _step(file: Traversable) -> Migration:
    """Read a step. A line `-- serves: 2` says that programs below that level are served no more."""
    text = file.read_text()
    serves = _SERVES.search(text)
    name = file.name[5:].removesuffix(".sql")
    return Migration(int(file.name[:4]), name, text, serves=int(serves[1]) if serves else 1)
