"""Loads schedulers and routers, each a file with a kernel, by their names.

`mine` is `catalog/schedulers/mine.py` or a scheduler of this room; a dotted name is a module that
is installed. A scheduler may state what it needs (`REQUIRES`), that it cuts prompts in chunks
(`CHUNKED`) or processes them whole before any decode (`WHOLE_FIRST`), that it sets memory aside for
a request's longest possible life (`RESERVES`), that its memory fraction is one of what weights
leave (`OF_REST`), and after how many decode iterations it looks at the queue again unless told
otherwise (`POLL_INTERVAL`), and that it deals requests out to the ranks of data-parallel attention
in every iteration (`DEALS_OUT`), where those of others have queues of their own, that it looks
for what a prompt begins with in a prefix cache (`CACHES_PREFIXES`), that it asks of seats and
blocks only whether enough are left (`ONLY_COMPARES`), so that a limit nobody reaches is none, that
who is let in takes blocks for its whole life (`LIFELONG`), and that it goes on with requests whose
prompts others have read (`TAKES_UP`), and that it hands the tokens of a batch on while the next
one runs (`OVERLAPS`): first tokens that another batch of prompts follows come at its end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """How batches are formed."""

    schedule: Kernel[..., int]
    chunked: bool = False
    whole_first: bool = False  # prompts are processed whole, before any decode
    reserves: bool = False
    of_rest: bool = False
    caches: bool = False  # it looks for what a prompt begins with in a prefix cache
    deals_out: bool = False  # to ranks of data-parallel attention, evenly in every iteration
    only_compares: bool = False  # of seats and blocks it asks only whether enough are left
    lifelong: bool = False  # who is let in takes blocks for prompt and answer
    overlaps: bool = False  # it hands tokens on while the next batch runs
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
    return Scheduler(
        schedule=_kernel(module, "schedule"),
        chunked=bool(getattr(module, "CHUNKED", False)),
        whole_first=bool(getattr(module, "WHOLE_FIRST", False)),
        reserves=bool(getattr(module, "RESERVES", False)),
        of_rest=bool(getattr(module, "OF_REST", False)),
        caches=bool(getattr(module, "CACHES_PREFIXES", False)),
        deals_out=bool(getattr(module, "DEALS_OUT", False)),
        only_compares=bool(getattr(module, "ONLY_COMPARES", False)),
        lifelong=bool(getattr(module, "LIFELONG", False)),
        overlaps=bool(getattr(module, "OVERLAPS", False)),
        takes_up=bool(getattr(module, "TAKES_UP", False)),
        poll_interval=int(getattr(module, "POLL_INTERVAL", 0)),
        requires=dict(getattr(module, "REQUIRES", {})),
    )


def _kernel(module: ModuleType, name: str) -> Kernel[..., Any]:
    found = getattr(module, name, None)
    if not isinstance(found, Kernel):
        raise UserError(f"{module.__file__} has no kernel named '{name}'")
    return found
