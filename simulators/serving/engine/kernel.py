"""The kernels of this room borrow every array and dissolve in their callers.

A loop over events passes some twenty arrays from function to function. Counting who holds them, and
handing them over at each call, costs ten times the simulation itself (0.28 against 0.026 us per
iteration, measured on a 7B model with 10,000 requests). It protects nothing: the arrays belong to
the caller for the whole run. So references are not counted, and calls are inlined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simulators.core import jit
from simulators.core.jit import Kernel, Signature

A = ParamSpec("A")
R = TypeVar("R")


def kernel(signature: Signature) -> Callable[[Callable[A, R]], Kernel[A, R]]:
    """Compile the decorated function for `signature` when it is first called."""
    return jit.kernel(signature, borrows=True)
