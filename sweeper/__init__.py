"""Design spaces, samplers, engines, stores, queries and reports; no knowledge of GPUs.

The public names are the Python interface; `dir(sweeper)` lists them:

    from sweeper import DesignSpace, Sweep, pareto_front

A name is loaded when first used, so that importing the package is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeper.commands.ask.question import ask as ask
    from sweeper.commands.breakdown import Breakdown as Breakdown
    from sweeper.commands.breakdown import explain as explain
    from sweeper.configuration import Configuration as Configuration
    from sweeper.query.analysis import best_per as best_per
    from sweeper.query.analysis import cheapest as cheapest
    from sweeper.query.analysis import replicas_for as replicas_for
    from sweeper.query.analysis import sensitivity as sensitivity
    from sweeper.query.analysis import steps_from as steps_from
    from sweeper.query.fronts import crowding_distance as crowding_distance
    from sweeper.query.fronts import epsilon_front as epsilon_front
    from sweeper.query.fronts import hypervolume as hypervolume
    from sweeper.query.fronts import rank_layers as rank_layers
    from sweeper.query.pareto import knee as knee
    from sweeper.query.pareto import pareto_front as pareto_front
    from sweeper.query.scenarios import across as across
    from sweeper.query.scenarios import repriced as repriced
    from sweeper.query.uncertainty import probable_front as probable_front
    from sweeper.report.answers import Answers as Answers
    from sweeper.report.answers import latest as latest
    from sweeper.report.scatter import plot as plot
    from sweeper.space.design_space import DesignSpace as DesignSpace
    from sweeper.store.store import Store as Store
    from sweeper.sweep import Sweep as Sweep

_MODULES = {
    "commands.ask.question": "ask",
    "commands.breakdown": "Breakdown explain",
    "configuration": "Configuration",
    "query.analysis": "best_per cheapest replicas_for sensitivity steps_from",
    "query.fronts": "crowding_distance epsilon_front hypervolume rank_layers",
    "query.pareto": "knee pareto_front",
    "query.scenarios": "across repriced",
    "query.uncertainty": "probable_front",
    "report.answers": "Answers latest",
    "report.scatter": "plot",
    "space.design_space": "DesignSpace",
    "store.store": "Store",
    "sweep": "Sweep",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
"""Public names, and the module of each."""

__all__ = sorted(_HOME)


def __dir__() -> list[str]:
    """Return the public names, whose modules are loaded on first use."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"sweeper.{_HOME[name]}"), name)
    raise AttributeError(f"module 'sweeper' has no attribute '{name}'")
