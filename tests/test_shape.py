"""The shape of the code: layers, no cycles, drivers in their place, nothing that must not be there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "fairlead"
MODULES = {
    ".".join(("fairlead", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(SOURCE.rglob("*.py"))
}

# From the top down; a module may import from its own layer's part and from lower layers only.
# DESIGN.md section 9, with two differences that ARCHITECTURE.md explains.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"http", "integrations", "insight", "testing", "bench", "demo"},
    {"face"},
    {"app"},
    {"producer"},
    {"runtime", "stores", "flow", "config", "log", "metrics", "sync"},
    {"core"},
)
DRIVERS = {"sqlite3": "stores/sqlite", "psycopg": "stores/postgres", "redis": "stores/redis"}
CORE_MAY_NOT = {"asyncio", "threading", "socket", "sqlite3", "subprocess", "logging", "concurrent"}
NEVER = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}


def imports(path: Path) -> Iterator[str]:
    """Every import of a module, wherever it stands: functions and TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


GRAPH = {
    name: {target for target in imports(path) if target in MODULES} - {name}
    for name, path in MODULES.items()
}


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def layer(module: str) -> int:
    return next(n for n, parts in enumerate(LAYERS) if part(module) in parts)


def test_every_module_belongs_to_a_layer() -> None:
    assert [
        name for name in MODULES if part(name) and not any(part(name) in p for p in LAYERS)
    ] == []


def test_imports_point_down() -> None:
    wrong = [
        f"{source} imports {target}"
        for source, targets in GRAPH.items()
        for target in targets
        if part(source)
        and part(target) != part(source)
        and (not part(target) or layer(target) <= layer(source))
    ]
    assert wrong == []


def test_no_module_imports_itself_in_a_circle() -> None:
    done: set[str] = set()

    def walk(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " > ".join((*way, module))
        if module not in done:
            for target in sorted(GRAPH[module]):
                walk(target, (*way, module))
            done.add(module)

    for module in GRAPH:
        walk(module, ())


@pytest.mark.parametrize("name", MODULES)
def test_drivers_stay_in_their_stores_folder(name: str) -> None:
    path = MODULES[name]
    for target in imports(path):
        home = DRIVERS.get(target.split(".")[0])
        assert home is None or home in path.as_posix(), f"{name} imports {target}"


@pytest.mark.parametrize("name", MODULES)
def test_nothing_unsafe_is_imported_or_called(name: str) -> None:
    """Never pickle, never code or imports by a name that came out of the store (T2, T3)."""
    path = MODULES[name]
    assert NEVER.isdisjoint(target.split(".")[0] for target in imports(path))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec", "__import__", "compile"}
        if isinstance(node, ast.Attribute):
            assert node.attr != "import_module" or "cli" in path.parts


@pytest.mark.parametrize("name", [name for name in MODULES if part(name) == "core"])
def test_the_core_is_pure(name: str) -> None:
    assert CORE_MAY_NOT.isdisjoint(target.split(".")[0] for target in imports(MODULES[name]))


def test_only_one_module_imports_logging() -> None:
    assert [n for n, path in MODULES.items() if "logging" in imports(path)] == ["fairlead.log"]


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_functions_stay_small(name: str) -> None:
    text = MODULES[name].read_text()
    assert text.count("\n") <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


@pytest.mark.parametrize("name", MODULES)
def test_no_drawers(name: str) -> None:
    assert name.rsplit(".", maxsplit=1)[-1] not in {
        "utils",
        "helpers",
        "common",
        "base",
        "manager",
        "types",
    }


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.sql")), ids=lambda path: path.name)
def test_sql_takes_values_only_as_parameters(path: Path) -> None:
    """No statement has a hole that text could be put into (T7).

    A filter is text of ours, and a schema's name is checked before it is quoted.
    """
    ours = {"{chosen}", "{finished}", "{schema}"}
    assert set(re.findall(r"\{\w+\}", path.read_text())) <= ours


@pytest.mark.parametrize("name", [name for name in MODULES if "stores" in name])
def test_no_sql_is_built_from_values(name: str) -> None:
    """An f-string in an execute may only hold constants of its own module."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr.startswith("execute")
            and node.args
            and isinstance(node.args[0], ast.JoinedStr)
        ):
            text = ast.unparse(node.args[0])
            assert text == "f'PRAGMA {pragma}'", f"{name}: {text}"


def test_every_command_prints_by_one_way_out() -> None:
    """`say` lets nothing through that steers a terminal; `screen.py` moves the cursor itself."""
    pattern = re.compile(r"\bs?echo\(|\bprint\(|\bstd(out|err)\.write\(")
    found = {
        (path.name, line.strip())
        for path in sorted((SOURCE / "cli").glob("*.py"))
        for line in path.read_text().splitlines()
        if pattern.search(line)
    }
    assert found == {
        ("command.py", "click.echo(steady(text), err=err, nl=nl)"),
        ("screen.py", "click.echo(text, nl=False, color=True)"),
        # A process that handlers run in; it has no use for a command line.
        (
            "roles.py",
            'print(f"fairlead: {escaped(without_passwords(str(problem)))}", file=sys.stderr)',
        ),
        ("roles.py", 'print(f"fairlead: {told}", file=sys.stderr)'),
    }
