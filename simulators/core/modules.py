"""Loads the Python file behind a name: a scheduler, a sampler, an engine, a simulator.

`mine` is `catalog/<kind>s/mine.py` or a file of the package, a path is itself, and a dotted name is
an installed module.

A space, a configuration or results from elsewhere may name any file. So code runs only from trusted
folders: the package, installed packages, `$SWEEPER_HOME`, absolute folders of `$PYTHONPATH`, those
of `$SWEEPER_TRUST`, and those that `python -m sweeper trust FOLDER` recorded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import shlex
import site
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import FORMATS, PACKAGES, Folder, folder_of_user, is_ours

TRUST = "SWEEPER_TRUST"
"""The environment's variable of folders whose code may run, apart as in `$PATH`."""


def trusted() -> tuple[Path, ...]:
    """Return the folders whose code may run."""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    installed += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    named = [os.environ.get("SWEEPER_HOME", ""), *os.environ.get(TRUST, "").split(os.pathsep)]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [path for path in paths if Path(path).is_absolute()]  # others follow the folder
    file = trust_file()
    ours = is_ours(file.resolve())  # it may be a link, as those who keep such files elsewhere do
    written = file.read_text(encoding="utf-8").splitlines() if ours else []
    words = filter(None, (*installed, *named, *absolute, *written))
    return (PACKAGES, *dict.fromkeys(Path(word).resolve() for word in words))


def trust_file() -> Path:
    """Return the file of trusted folders, a folder per line; the file may be missing."""
    return folder_of_user("XDG_CONFIG_HOME", "~/.config") / "sweeper" / "trusted"


def is_trusted(place: Path) -> bool:
    """Return whether code of a file or folder may run; links are followed first."""
    home = place.resolve()
    return any(home.is_relative_to(folder) for folder in trusted())


def runnable(folder: Folder) -> tuple[str, ...]:
    """Return the names of a folder whose code may run."""
    return tuple(name for name in folder.names() if is_trusted(folder.find(name)))


def check_trust(file: Path) -> None:
    """Raise `UserError` for code in a folder that the user has not trusted."""
    if is_trusted(file):
        return
    here, home = Path.cwd().resolve(), file.resolve()
    folder = here if home.is_relative_to(here) else home.parent
    raise UserError(
        f"{file} is code from a folder that you have not trusted, so it was not run. Read it; if "
        f"it may do all that you may: python -m sweeper trust {shlex.quote(str(folder))}\n"
        f"or, for one command, {TRUST}={shlex.quote(str(folder))} before it"
    )


def is_dotted(name: str) -> bool:
    """Say whether a name is that of an installed module.

    >>> is_dotted("mine.schedulers.fair"), is_dotted("fair"), is_dotted("./fair.py")
    (True, False, False)
    """
    parts = name.split(".")
    return len(parts) > 1 and parts[-1] != "py" and all(map(str.isidentifier, parts))


def file_of_user(folder: Folder, name: str) -> Path | None:
    """Return the user's file behind a name or a path; None for a module shipped or installed.

    Shipped modules are part of a simulator, whose version identifies the results.
    """
    file = None if is_dotted(name) else folder.find(name)
    return None if file is None or file.is_relative_to(folder.shipped) else file


def load_from(folder: Folder, name: str, attribute: str) -> Any:
    """Return what the module behind a name defines as `attribute`.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file cannot be imported, or defines no such thing.
    """
    module = load_module(folder, name)
    if not hasattr(module, attribute):
        raise UserError(f"{module.__file__}: a {folder.kind} defines `{attribute}`")
    return getattr(module, attribute)


def reader(format_: str, what: str) -> Callable[..., Any]:
    """Return the function `what` by which a file of another tool's format is read."""
    found: Callable[..., Any] = load_from(FORMATS, format_, what)
    return found


def load_module(folder: Folder, name: str) -> ModuleType:
    """Return the module behind a name; another one once its file has changed.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file cannot be imported, or is not trusted.
    """
    if not is_dotted(name):
        return import_file(folder.find(name))
    if name not in sys.modules:
        _check_module(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, but what it imports is not
        raise UnknownNameError(folder.kind, name, folder.names()) from error


def _check_module(name: str) -> None:
    """Raise `UserError` for a module of the folder one stands in, unless that is trusted."""
    first, here = name.partition(".")[0], Path.cwd().resolve()
    places: list[str | None] = [first, f"{first}.py"]
    with contextlib.suppress(ValueError):  # `__main__` has none
        if spec := importlib.util.find_spec(first):  # of a first word, nothing is imported
            places = [spec.origin, *(spec.submodule_search_locations or ())]
    for place in map(Path, filter(None, places)):
        if place.exists() and place.resolve().is_relative_to(here):
            check_trust(place)


def import_file(file: Path) -> ModuleType:
    """Return the module of a file; another one once the file has changed."""
    return _imported(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _imported(file: Path, _mtime_ns: int) -> ModuleType:
    """Import a file; those of a package under their own names.

    Others are known by their path, so that another process finds the module of what it loads
    compiled.
    """
    check_trust(file)
    home = file.resolve()
    if home.is_relative_to(PACKAGES):
        parts = home.relative_to(PACKAGES).with_suffix("").parts
        if (PACKAGES / parts[0] / "__init__.py").is_file():
            return importlib.import_module(".".join(parts))
    name = f"file_{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, home)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module while they are made
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
