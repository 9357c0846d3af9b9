"""The logistics: design spaces, samplers, engines, results. It knows nothing of GPUs.

In a notebook the same is at hand without the command line:

    from sweeper import DesignSpace, Sweep, pareto_front

The names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeper.effects import sensitivity as sensitivity
    from sweeper.layers import crowding as crowding
    from sweeper.layers import epsilon_front as epsilon_front
    from sweeper.layers import rank_layers as rank_layers
    from sweeper.neighbours import steps_from as steps_from
    from sweeper.planning import best_per as best_per
    from sweeper.planning import cheapest as cheapest
    from sweeper.planning import replicas_for as replicas_for
    from sweeper.query import knee as knee
    from sweeper.query import pareto_front as pareto_front
    from sweeper.space import DesignSpace as DesignSpace
    from sweeper.store import Store as Store
    from sweeper.sweep import Sweep as Sweep
    from sweeper.uncertainty import probable_front as probable_front
    from sweeper.volume import hypervolume as hypervolume

_HOME = {
    "DesignSpace": "space",
    "Store": "store",
    "Sweep": "sweep",
    "best_per": "planning",
    "cheapest": "planning",
    "crowding": "layers",
    "epsilon_front": "layers",
    "hypervolume": "volume",
    "knee": "query",
    "pareto_front": "query",
    "probable_front": "uncertainty",
    "rank_layers": "layers",
    "replicas_for": "planning",
    "sensitivity": "effects",
    "steps_from": "neighbours",
}
"""Public names, and the module each lives in."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"sweeper.{_HOME[name]}"), name)
    raise AttributeError(f"module 'sweeper' has no attribute '{name}'")
