"""Loads schedulers and routers, each a file with a kernel, by their names.

`mine` is `catalog/schedulers/mine.py` or a scheduler of this package; a dotted name is an installed
module. A scheduler's file sets its properties as constants, as in `CHUNKED = True`: they are the
fields of `Scheduler`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import ROUTERS, SCHEDULERS, load_module
from simulators.core.jit import Kernel
from simulators.serving.engine.replica import ROUTE

ROUTED_BY = len(ROUTE.arguments)
"""Number of arguments of a router."""


@dataclass(frozen=True)
class Scheduler:
    """A scheduler: a compiled kernel, and the properties set as constants in its file."""

    schedule: Kernel[..., int]
    chunked: bool = False  # chunked prefill
    prefill_first: bool = False  # whole prompts are processed before any decode
    reserves: bool = False  # memory is reserved for the longest possible sequence
    fraction_of_free: bool = False  # memory_fraction refers to what the weights leave
    caches_prefixes: bool = False  # has a prefix cache
    shared_rank_queue: bool = False  # one queue for all data-parallel ranks, not one for each
    reserves_output: bool = False  # admission allocates the blocks of prompt and output
    overlap_schedule: bool = False  # tokens are sent while the next batch runs
    kv_transfer: bool = False  # can decode requests of separate prefill replicas
    poll_interval: int = 0  # decode iterations between polls of the queue; 0: not configurable
    requires: Mapping[str, int] = field(default_factory=dict)  # fields of a point and their values


def load_scheduler(name: str) -> Scheduler:
    """Return the scheduler of that name, path or dotted module, a file with a kernel `schedule`.

    >>> load_scheduler("sarathi").chunked
    True
    """
    return _scheduler(load_module(SCHEDULERS, name))


def load_router(name: str) -> Kernel[..., int]:
    """Return the kernel `route` of a router by its name, path or dotted module.

    >>> load_router("round_robin").__name__
    'route'
    """
    module = load_module(ROUTERS, name)
    found = _kernel(module, "route")
    takes = found.py_func.__code__.co_varnames[: found.py_func.__code__.co_argcount]
    if len(takes) != ROUTED_BY:
        raise UserError(
            f"{module.__file__}: route takes {', '.join(takes)}; it must take arrivals, waiting, "
            "running, found (thousandths of the prompt in each replica's prefix cache) and draws"
        )
    return found


@functools.lru_cache(maxsize=64)
def _scheduler(module: ModuleType) -> Scheduler:
    stated = {f.name: f.name.upper() for f in fields(Scheduler)}
    said = {name: getattr(module, word) for name, word in stated.items() if hasattr(module, word)}
    return Scheduler(**{**said, "schedule": _kernel(module, "schedule")})


def _kernel(module: ModuleType, name: str) -> Kernel[..., Any]:
    found = getattr(module, name, None)
    if not isinstance(found, Kernel):
        raise UserError(f"{module.__file__} has no kernel named '{name}'")
    return found
