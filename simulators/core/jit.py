"""Loops over events are compiled; importing them never compiles.

`kernel(signature)` keeps the stated signature and compiles at the first call. Stating it means that
the compiled loop comes from the cache in the next process, that kernels of one signature can stand
in for each other as typed function pointers, and that compiled and pure Python agree bit for bit.
The Python original stays reachable as `py_func`.

The cache folder is named by a hash of all kernel sources, the numba version and the CPU, because
numba does not notice a changed callee in another file. A read-only installation falls back to a
cache folder of the user's.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.core.folder import PACKAGE

A = ParamSpec("A")
R = TypeVar("R")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def cache_folder() -> Path:
    """Return the folder compiled kernels are kept in, made if need be."""
    digest = hashlib.sha256()
    for source in sorted(PACKAGE.rglob("*.py")):
        text = source.read_bytes()
        if b"kernel(" in text:
            digest.update(source.relative_to(PACKAGE).as_posix().encode())
            digest.update(text)
    name = digest.hexdigest()[:16]
    roots = [
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sweeper" / "kernels",
        Path(tempfile.gettempdir()) / f"sweeper-{os.getuid()}" / "kernels",
    ]
    for root in roots:
        try:
            (root / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(root / name, os.W_OK):
            return root / name
    return roots[-1] / name


# numba reads this once, at import. The driver's choice is inherited by its workers.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder()))

import numba  # noqa: E402 - after the cache folder is known
from numba import types  # noqa: E402
from numba.core.typing import Signature  # noqa: E402
from numba.extending import typeof_impl  # noqa: E402

i8, f8, boolean = types.int64, types.float64, types.boolean


def arrays(kind: Any, count: int) -> tuple[Any, ...]:
    """Return the types of `count` contiguous vectors of `kind`, for use in a signature."""
    return (types.Array(kind, 1, "C"),) * count


def matrix(kind: Any) -> Any:
    """Return the type of a contiguous matrix of `kind`."""
    return types.Array(kind, 2, "C")


def pointer(signature: Signature) -> Any:
    """Return the type of a kernel passed as an argument: any kernel with that signature."""
    return types.FunctionType(signature)


class Kernel(Generic[A, R]):
    """A function compiled for one signature at its first call."""

    def __init__(self, function: Callable[A, R], signature: Signature) -> None:
        self.py_func = function
        self.signature = signature
        self.dispatcher = numba.njit(cache=True, nogil=True)(function)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @property
    def compiled(self) -> Any:
        """The compiled function, to be passed where a `pointer(signature)` is wanted."""
        if not self.dispatcher.signatures:
            self.dispatcher.compile(self.signature)
            self.dispatcher.disable_compile()
        return self.dispatcher

    def __call__(self, *args: A.args, **kwargs: A.kwargs) -> R:
        result: R = self.compiled(*args, **kwargs)
        return result

    def __reduce__(self) -> str:
        return self.__name__


@typeof_impl.register(Kernel)
def _typeof_kernel(value: Kernel[Any, Any], _context: Any) -> Any:
    """Let kernels call kernels: inside one, another is an ordinary compiled function."""
    return types.Dispatcher(value.compiled)


def kernel(signature: Signature) -> Callable[[Callable[A, R]], Kernel[A, R]]:
    """Compile the decorated function for `signature` when it is first called.

    >>> @kernel(f8(f8))
    ... def double(x: float) -> float:
    ...     return 2.0 * x
    >>> double(2.0) == double.py_func(2.0) == 4.0
    True
    """

    def decorate(function: Callable[A, R]) -> Kernel[A, R]:
        return Kernel(function, signature)

    return decorate
