"""The shape of the code: layers, no cycles, drivers in their place, nothing that must not be there."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fairlead.core.admin import Admin
from fairlead.core.entries import Entries
from fairlead.core.store import Store

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fairlead"
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


@cache
def nodes(name: str) -> list[ast.AST]:
    """All of a module; ten rules look at it, and it is parsed once, when the first of them does."""
    return list(ast.walk(ast.parse(MODULES[name].read_text())))


@cache
def imports(name: str) -> set[str]:
    """Every import of a module, wherever it stands: functions and TYPE_CHECKING included."""
    return set(_imports(name))


def _imports(name: str) -> Iterator[str]:
    for node in nodes(name):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


@cache
def graph() -> dict[str, set[str]]:
    """Which of our modules each of them imports."""
    return {name: imports(name).intersection(MODULES) - {name} for name in MODULES}


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
        for source, targets in graph().items()
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
            for target in sorted(graph()[module]):
                walk(target, (*way, module))
            done.add(module)

    for module in graph():
        walk(module, ())


def test_drivers_stay_in_their_stores_folder() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        for target in imports(name)
        if DRIVERS.get(target.split(".")[0], "") not in path.as_posix()
    ]
    assert wrong == []


def test_the_redis_store_uses_only_public_names_of_its_driver() -> None:
    """What begins with an underscore can change with any release of redis-py, hiredis or asyncio."""
    wrong = []
    for name in (name for name in MODULES if name.startswith("fairlead.stores.redis")):
        for node in nodes(name):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    pass
                case ast.Attribute(attr=attr) if is_private(attr):
                    wrong.append(f"{name} uses {ast.unparse(node)}")
                case ast.Call(
                    func=ast.Name(id="getattr" | "setattr" | "hasattr"),
                    args=[_, ast.Constant(value=str(attr)), *_],
                ) if is_private(attr):
                    wrong.append(f"{name} uses {ast.unparse(node)}")
                case ast.ImportFrom(module=str(module), names=names):
                    parts = [*module.split("."), *(each.name for each in names)]
                    wrong += [f"{name} imports {each}" for each in parts if is_private(each)]
                case ast.Import(names=names):
                    parts = [part for each in names for part in each.name.split(".")]
                    wrong += [f"{name} imports {each}" for each in parts if is_private(each)]
    assert wrong == []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_the_contract_is_small() -> None:
    """Each verb is to be written four times."""
    verbs = [*Store.__abstractmethods__, *Admin.__abstractmethods__, *Entries.__abstractmethods__]
    assert len(verbs) <= 34


def test_drivers_have_upper_bounds() -> None:
    """The next release may change what we rely on."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    needed = [*extras["postgres"], *extras["redis"]]
    assert needed
    assert [each for each in needed if "<" not in each] == []


def test_nothing_unsafe_is_imported_or_called() -> None:
    """Never pickle, never code or imports by a name that came out of the store (T2, T3)."""
    wrong = [
        f"{name} imports {target}"
        for name in MODULES
        for target in imports(name)
        if target.split(".")[0] in NEVER
    ]
    for name, path in MODULES.items():
        for node in nodes(name):
            match node:
                case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__" | "compile" as what)):
                    wrong.append(f"{name} calls {what}")
                case ast.Attribute(attr="import_module") if "cli" not in path.parts:
                    wrong.append(f"{name} imports by name")
    assert wrong == []


def test_the_core_is_pure() -> None:
    wrong = [
        f"{name} imports {target}"
        for name in MODULES
        if part(name) == "core"
        for target in imports(name)
        if target.split(".")[0] in CORE_MAY_NOT
    ]
    assert wrong == []


def test_only_one_module_imports_logging() -> None:
    assert [name for name in MODULES if "logging" in imports(name)] == ["fairlead.log"]


def test_modules_and_functions_stay_small() -> None:
    wrong = [name for name, path in MODULES.items() if path.read_text().count("\n") > 500]
    wrong += [
        f"{name}.{node.name}"
        for name in MODULES
        for node in nodes(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert wrong == []


SQL_FUNCTION = re.compile(
    r"^CREATE (?:OR REPLACE )?FUNCTION (\w+)\(.*?^(?:AS )?\$\$.*?\$\$;$", re.MULTILINE | re.DOTALL
)
LUA_FUNCTION = re.compile(
    r"^(?:local )?(?:function (\S+?)\(|(\w+) = function\().*?^end", re.MULTILINE | re.DOTALL
)


def too_large(suffix: str, function: re.Pattern[str]) -> set[str]:
    """The files over 500 lines, and the functions over 80, of a language that is not Python."""
    files = {path: path.read_text() for path in sorted(SOURCE.rglob(f"*.{suffix}"))}
    assert files
    wrong = {path.name for path, text in files.items() if text.count("\n") > 500}
    found = 0
    for path, text in files.items():
        for each in function.finditer(text):
            found += 1
            if each[0].count("\n") + 1 > 80:
                wrong.add(f"{path.name}: {next(filter(None, each.groups()))}")
    assert found > 50, "the pattern finds them"
    return wrong


def test_sql_stays_small() -> None:
    assert too_large("sql", SQL_FUNCTION) == set()


def test_lua_stays_small() -> None:
    """What stands in no function is the body of a verb: `functions.py` makes one of it."""
    wrong = too_large("lua", LUA_FUNCTION)
    for path in sorted(SOURCE.rglob("*.lua")):
        body = LUA_FUNCTION.sub("", path.read_text()).splitlines()
        if sum(bool(line) and not line.lstrip().startswith("--") for line in body) > 80:
            wrong.add(f"{path.name}: its body")
    assert wrong == set()


def test_every_sql_function_is_measured() -> None:
    """The pattern goes from one function to its own end, and misses none."""
    for path in sorted(SOURCE.rglob("*.sql")):
        text = path.read_text()
        measured = [each[0] for each in SQL_FUNCTION.finditer(text)]
        made = re.findall(r"^CREATE (?:OR REPLACE )?FUNCTION", text, re.MULTILINE)
        assert len(measured) == len(made), path.name
        assert all(each.count("CREATE ") - each.count("'CREATE ") == 1 for each in measured), (
            path.name
        )


def test_no_drawers() -> None:
    drawers = {"utils", "helpers", "common", "base", "manager", "types"}
    assert [name for name in MODULES if name.rsplit(".", maxsplit=1)[-1] in drawers] == []


def test_sql_takes_values_only_as_parameters() -> None:
    """No statement has a hole that text could be put into (T7).

    A filter and a part of a statement are text of ours, and a schema's name is checked before it is quoted.
    """
    rows = {"{live_rows}", "{finished_rows}", "{dead_rows}"}
    ours = {"{chosen}", "{finished}", "{schema}", "{place}", "{ended}", "{which}", *rows}
    files = sorted(SOURCE.rglob("*.sql"))
    assert files
    wrong = {
        path.name: holes
        for path in files
        if (holes := set(re.findall(r"\{\w+\}", path.read_text())) - ours)
    }
    assert wrong == {}


def test_no_sql_is_built_from_values() -> None:
    """An f-string in an execute may only hold constants of its own module."""
    wrong = [
        f"{name}: {text}"
        for name in MODULES
        if "stores" in name
        for node in nodes(name)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("execute")
        and node.args
        and isinstance(node.args[0], ast.JoinedStr)
        and (text := ast.unparse(node.args[0])) != "f'PRAGMA {pragma}'"
    ]
    assert wrong == []


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
