"""The fingerprint of an environment: workers must run the same code on the same facts.

It holds the versions of packages that affect results, and digests of our sources and facts and of
the simulator's own files.
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

_PACKAGES = ("sweeper", "simulators")
_KINDS = (".py", ".toml", ".json")

EnvironmentFingerprint = Mapping[str, str]
"""Versions and digests by name."""


def fingerprint(simulator: str) -> EnvironmentFingerprint:
    """Return the fingerprint of this process for running a simulator."""
    loaded = load_simulator(simulator)
    versions = {p: _version(p) for p in ("sweeper", "numpy", "numba", "pyarrow", "polars")}
    return {
        "python": platform.python_version(),
        **versions,
        f"simulator {simulator}": f"version {loaded.version}",
        "digest of sources and facts": _digest_of_packages(),
        f"digest of {simulator}": _digest_of_module(type(loaded).__module__),
    }


def difference(theirs: EnvironmentFingerprint, ours: EnvironmentFingerprint) -> str:
    """Return the differences between two fingerprints as text; empty if they are equal."""
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
def _digest_of_packages() -> str:
    return _digest(
        file
        for package in _PACKAGES
        for file in sorted((PACKAGES / package).rglob("*"))
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
