"""Find the app that `module:app` names."""

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path

from fairlead.app import Fairlead
from fairlead.core.errors import ConfigError, did_you_mean
from fairlead.core.text import brief, listed


def load_app(target: str) -> Fairlead:
    """Import the module and return its app, or say in one sentence what is wrong."""
    if "://" in target:
        raise ConfigError("this is the URL of a store, not an app; give it with --url")
    module_name, _, name = target.partition(":")
    if not module_name or module_name.endswith(".py") or "/" in module_name:
        path = module_name.removesuffix(".py").strip("./")
        suggestion = path.replace("/", ".") or "shop"
        raise ConfigError(
            f"{brief(target)} does not name an app; write module:app, for example {suggestion}:app"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as problem:  # noqa: BLE001 (user code, as it is imported)
        missing = problem.name if isinstance(problem, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"there is no module {brief(missing)} to import, from {here}; "
                "run this where your code is, or install it"
            ) from None
        raise ConfigError(
            f"module {brief(module_name)} cannot be imported: "
            f"{type(problem).__name__}: {problem}{_place(problem)}"
        ) from None
    return _app_in(module, module_name, name)


def _place(problem: Exception) -> str:
    """Say in which line of the user's own code it happened."""
    if isinstance(problem, SyntaxError):
        return ""  # Its message names the line.
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    others = (str(Path(__file__).parent.parent), "<frozen", *libraries)
    trace = traceback.extract_tb(problem.__traceback__)
    frames = [frame for frame in trace if not frame.filename.startswith(others)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _app_in(module: object, module_name: str, name: str) -> Fairlead:
    apps = [key for key, value in vars(module).items() if isinstance(value, Fairlead)]
    found = getattr(module, name or (apps[0] if len(apps) == 1 else "app"), None)
    if isinstance(found, Fairlead):
        return found
    if found is not None:
        raise ConfigError(
            f"{module_name}:{name} is of type {type(found).__name__}, not a Fairlead app"
            + (f"; did you mean {module_name}:{apps[0]}?" if apps else "")
        )
    known = f"; it has {listed(apps)}" if apps else "; make one with app = Fairlead()"
    meant = f"{brief(name or 'app')}{did_you_mean(name, apps)}"
    raise ConfigError(f"module {brief(module_name)} has no app {meant}{known}")
