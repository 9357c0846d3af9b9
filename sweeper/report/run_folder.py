"""The folder of a run: what was asked and with what, written before anything is answered."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from sweeper.report.tables import write_text
from sweeper.store.store import Store


def begin(store: Store, written: Mapping[str, Any]) -> Path:
    """Write what is asked before it is answered, so that queries find a run that was stopped.

    Return the folder of the run.
    """
    now = dt.datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folder = Path("." if "://" in store.folder else store.folder) / "runs" / now
    while folder.exists():  # another run began within the same second
        folder = folder.with_name(f"{folder.name}-again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.json", json.dumps(written, indent=1, default=str))
        write_text(folder / "versions.json", json.dumps(_versions(), indent=1))
        write_text(folder / "definition.json", store.definition.to_json())
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    return folder


def _versions() -> dict[str, str]:
    packages = ("sweeper", "numpy", "numba", "pyarrow", "polars", "ray", "hydra-core")
    found = {"python": platform.python_version(), "command": " ".join(sys.argv)}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).resolve().parent
        git = subprocess.run(  # noqa: S603 - a fixed command
            ["git", "-C", str(here), "rev-parse", "HEAD"],  # noqa: S607 - git where there is one
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
        found["commit"] = git.stdout.strip()
    return found
