"""The logistics: design spaces, samplers, engines, results. It knows nothing of GPUs.

In a notebook the same is at hand without the command line:

    from sweeper.space.design_space import DesignSpace
    from sweeper.sweep import Sweep
    from sweeper.query.pareto import pareto_front

The names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeper.query.hypervolume import hypervolume as hypervolume
    from sweeper.query.neighbours import steps_from as steps_from
    from sweeper.query.pareto import knee as knee
    from sweeper.query.pareto import pareto_front as pareto_front
    from sweeper.query.planning import best_per as best_per
    from sweeper.query.planning import cheapest as cheapest
    from sweeper.query.planning import replicas_for as replicas_for
    from sweeper.query.ranks import crowding as crowding
    from sweeper.query.ranks import epsilon_front as epsilon_front
    from sweeper.query.ranks import rank_layers as rank_layers
    from sweeper.query.sensitivity import sensitivity as sensitivity
    from sweeper.query.uncertainty import probable_front as probable_front
    from sweeper.space.design_space import DesignSpace as DesignSpace
    from sweeper.store.store import Store as Store
    from sweeper.sweep import Sweep as Sweep

_HOME = {
    "DesignSpace": "space.design_space",
    "Store": "store.store",
    "Sweep": "sweep",
    "best_per": "query.planning",
    "cheapest": "query.planning",
    "crowding": "query.ranks",
    "epsilon_front": "query.ranks",
    "hypervolume": "query.hypervolume",
    "knee": "query.pareto",
    "pareto_front": "query.pareto",
    "probable_front": "query.uncertainty",
    "rank_layers": "query.ranks",
    "replicas_for": "query.planning",
    "sensitivity": "query.sensitivity",
    "steps_from": "query.neighbours",
}
"""Public names, and the module each lives in."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"sweeper.{_HOME[name]}"), name)
    raise AttributeError(f"module 'sweeper' has no attribute '{name}'")
