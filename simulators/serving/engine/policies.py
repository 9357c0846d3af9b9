"""A policy is a file: its name is found in a folder, its kernel stands in for any other.

`mine` is `catalog/schedulers/mine.py` or a scheduler of this room; a dotted name is a module that
is installed. A scheduler may state what it needs (`REQUIRES`), that it cuts prompts in chunks
(`CHUNKED`), that it sets memory aside for a request's longest possible life (`RESERVES`), that its
memory fraction is one of what weights leave (`OF_REST`), and after how many decode iterations it
looks at the queue again unless told otherwise (`POLL_INTERVAL`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE, ROUTERS, SCHEDULERS, Folder
from simulators.core.jit import Kernel


@dataclass(frozen=True)
class Scheduler:
    """How batches are formed."""

    schedule: Kernel[..., int]
    chunked: bool = False
    reserves: bool = False
    of_rest: bool = False
    keeps: bool = False  # it may find again what a preempted request had computed
    poll_interval: int = 0  # decode iterations between looks at the queue; 0: no choice
    requires: Mapping[str, int] = field(default_factory=dict)  # fields of a point and their values


def load_scheduler(name: str) -> Scheduler:
    """Return the scheduler of that name, path or dotted module.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file has no kernel `schedule`.

    >>> load_scheduler("sarathi").chunked
    True
    """
    module, version = _module(SCHEDULERS, name)
    return _scheduler(module, version)


def load_router(name: str) -> Kernel[..., int]:
    """Return the kernel of a router by its name, path or dotted module.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file has no kernel `route`.

    >>> load_router("round_robin").__name__
    'route'
    """
    return _kernel(_module(ROUTERS, name)[0], "route")


def policy_file(folder: Folder, name: str) -> Path | None:
    """Return the user's file behind a policy's name; None for shipped and installed ones.

    What is shipped is the simulator's own code, whose results its version stands for.
    """
    if _is_dotted(name):
        return None
    file = folder.find(name)
    return None if file.is_relative_to(PACKAGE) else file


@functools.lru_cache(maxsize=64)
def _scheduler(module: ModuleType, _version: int) -> Scheduler:
    return Scheduler(
        schedule=_kernel(module, "schedule"),
        chunked=bool(getattr(module, "CHUNKED", False)),
        reserves=bool(getattr(module, "RESERVES", False)),
        of_rest=bool(getattr(module, "OF_REST", False)),
        keeps=bool(getattr(module, "KEEPS_PREFIX", False)),
        poll_interval=int(getattr(module, "POLL_INTERVAL", 0)),
        requires=dict(getattr(module, "REQUIRES", {})),
    )


def _is_dotted(name: str) -> bool:
    return "." in name and not name.endswith(".py")


def _module(folder: Folder, name: str) -> tuple[ModuleType, int]:
    """Return the module behind a name, and a number that changes with its file."""
    if _is_dotted(name):
        try:
            return importlib.import_module(name), 0
        except ModuleNotFoundError as error:
            raise UserError(f"{folder.kind} '{name}': there is no such module") from error
    file = folder.find(name)
    version = file.stat().st_mtime_ns
    return _imported(file, version), version


@functools.lru_cache(maxsize=64)
def _imported(file: Path, _mtime_ns: int) -> ModuleType:
    """Import a policy; those of this room under their own names.

    Others are known by their path, so that another process finds the module of what it loads
    compiled.
    """
    home = file.resolve()
    if home.is_relative_to(PACKAGE):
        dotted = ".".join(home.relative_to(PACKAGE.parent).with_suffix("").parts)
        return importlib.import_module(dotted)
    name = f"policy_{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, home)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


def _kernel(module: ModuleType, name: str) -> Kernel[..., Any]:
    found = getattr(module, name, None)
    if not isinstance(found, Kernel):
        raise UserError(f"{module.__file__} has no kernel named '{name}'")
    return found
