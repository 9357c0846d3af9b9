"""Loads the Python file behind a name: a scheduler, a sampler, an engine, a simulator.

`mine` is `catalog/<kind>s/mine.py` or a file of the package, a path is itself, and a dotted name is
a module that is installed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import PACKAGES, Folder


def is_dotted(name: str) -> bool:
    """Say whether a name is that of an installed module.

    >>> is_dotted("mine.schedulers.fair"), is_dotted("fair"), is_dotted("./fair.py")
    (True, False, False)
    """
    parts = name.split(".")
    return len(parts) > 1 and parts[-1] != "py" and all(map(str.isidentifier, parts))


def file_of_user(folder: Folder, name: str) -> Path | None:
    """Return the user's file behind a name or a path; None for a module shipped or installed.

    What is shipped is a simulator's own code, whose results its version stands for.
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


def load_module(folder: Folder, name: str) -> ModuleType:
    """Return the module behind a name; another one once its file has changed.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file cannot be imported.
    """
    if not is_dotted(name):
        return import_file(folder.find(name))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, but what it imports is not
        raise UnknownNameError(folder.kind, name, folder.names()) from error


def import_file(file: Path) -> ModuleType:
    """Return the module of a file; another one once the file has changed."""
    return _imported(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _imported(file: Path, _mtime_ns: int) -> ModuleType:
    """Import a file; those of a package under their own names.

    Others are known by their path, so that another process finds the module of what it loads
    compiled.
    """
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
