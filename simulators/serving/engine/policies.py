"""Loads schedulers and routers, each a file with a kernel, by their names.

`mine` is `catalog/schedulers/mine.py` or a scheduler of this room; a dotted name is a module that
is installed. What a scheduler is besides its kernel it states in capital letters, as in
`CHUNKED = True`: the fields of `Scheduler` say what it may state.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import ROUTERS, SCHEDULERS
from simulators.core.jit import Kernel
from simulators.core.modules import load_module
from simulators.serving.engine.replica import ROUTE

ROUTED_BY = len(ROUTE.arguments)
"""What a router is told."""


@dataclass(frozen=True)
class Scheduler:
    """How batches are formed: a kernel, and what its file states in capital letters."""

    schedule: Kernel[..., int]
    chunked: bool = False  # it cuts prompts in chunks
    whole_first: bool = False  # prompts are processed whole, before any decode
    reserves: bool = False  # it sets memory aside for a request's longest possible life
    of_rest: bool = False  # its memory fraction is one of what weights leave
    caches_prefixes: bool = False  # it looks for what a prompt begins with in a prefix cache
    deals_out: bool = False  # to ranks of data-parallel attention, evenly in every iteration; where
    # it does not, those have queues of their own
    lifelong: bool = False  # who is let in takes blocks for prompt and answer
    overlaps: bool = (
        False  # it hands tokens on while the next batch runs: first tokens that another
    )
    # batch of prompts follows come at its end
    takes_up: bool = False  # it goes on with requests whose prompts others have read
    poll_interval: int = 0  # decode iterations between looks at the queue; 0: no choice
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
