"""Simulators whose answers are known beforehand; in a space they go by their dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulators.core.contract import load_simulator, objectives_of
from sweeper.engines import Engine, load_engine
from sweeper.engines.task import UNSTATED, Limits
from sweeper.samplers import Sampler, load_sampler
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.store.keys import define
from sweeper.store.store import Store
from sweeper.sweep import Sweep

QUADRATIC = "tests.toys.quadratic"
READER = "tests.toys.reader"
TROUBLE = "tests.toys.trouble"
COUNTING = "tests.toys.counting"
AIMLESS = "tests.toys.aimless"


def space(simulator: str, axes: Mapping[str, Any], **more: Any) -> DesignSpace:
    """Return a space as a YAML file would describe it."""
    return space_of({"simulator": simulator, "axes": axes, **more})


def store(folder: Path, asked: DesignSpace, name: str = "toy") -> Store:
    """Return where the answers to a space are kept, as the files it reads stand now."""
    return Store(f"{folder}/{name}", define(asked))


def sweep(
    folder: Path,
    asked: DesignSpace,
    *,
    name: str = "toy",
    sampler: Sampler | None = None,
    engine: Engine | None = None,
    limits: Limits = UNSTATED,
) -> Sweep:
    """Return the sweep of a space: of all its points, in this process, unless said otherwise."""
    return Sweep(
        space=asked,
        sampler=sampler or load_sampler("grid"),
        engine=engine or load_engine("inline"),
        store=store(folder, asked, name),
        objectives=objectives_of(load_simulator(asked.simulator)),
        limits=limits,
    )
