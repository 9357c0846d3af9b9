"""What was asked, with what, and what came of it: `outputs/<space>/runs/<time>/`."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper import config
from sweeper.commands.summary import Answers
from sweeper.keys import Definition
from sweeper.space import DesignSpace
from sweeper.store import Store


def begin(store: Store, written: Mapping[str, Any]) -> Path:
    """Write what is asked before it is answered, so that queries find a run that was stopped.

    Returns:
        The folder of the run.

    Raises:
        UserError: the folder cannot be written.
    """
    now = dt.datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folder = Path("." if "://" in store.folder else store.folder) / "runs" / now
    while folder.exists():  # another run began within the same second
        folder = folder.with_name(f"{folder.name}-again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(written, indent=1, default=str))
        (folder / "versions.json").write_text(json.dumps(_versions(), indent=1))
        (folder / "definition.json").write_text(store.definition.to_json())
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    return folder


def forget(folder: Path) -> None:
    """Remove what `begin` wrote."""
    shutil.rmtree(folder, ignore_errors=True)


def finish(folder: Path, answers: Answers, *, plot: bool) -> None:
    """Write the summary, the front and its picture.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        (folder / "summary.json").write_text(json.dumps(answers.to_dict(), indent=1, default=str))
        if len(answers.front):
            answers.front.write_parquet(folder / "front.parquet")
            if plot and len(answers.objectives) >= 2:
                with contextlib.suppress(ModuleNotFoundError):
                    from sweeper import plots

                    plots.front(answers, folder / "front.png")
    except OSError as error:
        raise UserError(f"the results are kept, but {folder} cannot be written: {error}") from error


@dataclass(frozen=True)
class Answered:
    """The last run of a space."""

    space: DesignSpace
    store: Store
    objectives: Mapping[str, Direction]
    where: str | None
    folder: Path


def latest(name: str, outputs: str) -> Answered:
    """Return the last run of a space.

    Raises:
        UserError: there was none.
    """
    runs = sorted(Path(outputs, name, "runs").glob("*/definition.json"))
    if not runs:
        known = sorted(p.parent.name for p in Path(outputs).glob("*/runs"))
        raise UserError(
            f"there are no results of '{name}' under {outputs}; "
            f"run  python -m sweeper +space={name}\n"
            f"Results there: {', '.join(known) or 'none'}"
        )
    stored = Definition.from_json(runs[-1].read_text())
    written = json.loads((runs[-1].parent / "config.json").read_text())["space"]
    space = config.completed(stored.space())
    return Answered(
        space=space,
        store=Store(f"{outputs}/{name}", stored),
        objectives=config.objectives(written, space),
        where=config.where(written, space),
        folder=runs[-1].parent,
    )


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
