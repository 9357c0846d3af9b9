"""What a worker is made of: it must be what the driver is, or its rows would be another program's.

Compared are the versions of packages that decide bits, a digest of all sources and facts of this
package, of the simulator's own files, and of what the space reads.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGES
from sweeper.engines.task import Task
from sweeper.store.keys import define

_HOUSES = ("sweeper", "simulators")
_KINDS = (".py", ".toml", ".json")

Card = Mapping[str, str]
"""What a process is made of: a few names, and for each a version or a digest."""


def card_of(simulator: str) -> Card:
    """Return the card of this process, were it to run a simulator."""
    loaded = load_simulator(simulator)
    versions = {p: _version(p) for p in ("sweeper", "numpy", "numba", "pyarrow", "polars")}
    return {
        "python": platform.python_version(),
        **versions,
        f"simulator {simulator}": f"version {loaded.version}",
        "digest of sources and facts": _digest_of_houses(),
        f"digest of {simulator}": _digest_of_module(type(loaded).__module__),
    }


def difference(theirs: Card, ours: Card) -> str:
    """Return what differs between two cards in words; nothing where they are the same."""
    return ", ".join(
        f"{name} is {theirs.get(name, 'missing')} there and {value} here"
        for name, value in ours.items()
        if theirs.get(name) != value
    )


def check_facts(task: Task) -> None:
    """Raise `UserError` unless the files that a space reads have the same content here."""
    stored, here = task.store.definition.contents, define(task.space).contents
    for name in sorted({*stored, *here}):
        if stored.get(name) != here.get(name):
            raise UserError(f"it reads other files for '{name or 'every point'}'")


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _digest_of_houses() -> str:
    return _digest(
        file
        for house in _HOUSES
        for file in sorted((PACKAGES / house).rglob("*"))
        if file.suffix in _KINDS and "__pycache__" not in file.parts
    )


def _digest_of_module(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    return _digest(sorted(Path(file).parent.glob("*.py"))) if file else ""


def _digest(files: Iterable[Path]) -> str:
    total = hashlib.blake2b(digest_size=6)
    for file in files:
        total.update(f"{file.name}\0".encode() + file.read_bytes())
    return total.hexdigest()
