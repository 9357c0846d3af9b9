"""What numba is taught: what only kernels call is optimised and translated with its callers.

By itself numba does both for each kernel, with all that it calls: a fifth of the time that the
event loop of serving took to compile. And it imports all that it can translate before it loads what
was translated before, which takes a quarter of a second in each process. Imported with the first
kernel that is called.
"""

from __future__ import annotations

from typing import Any

from numba.core import caching, codegen
from numba.core.runtime import rtsys

INNER = ".inner"
"""What the names of kernels as kernels call them end with."""


class Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """What becomes of a kernel; of an inner one only what is inlined into, or linked to, more."""

    @property
    def is_inner(self) -> bool:
        """Whether only kernels call it."""
        return str(self.name).endswith(INNER)

    def _optimize_final_module(self) -> None:
        if not self.is_inner:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        if not self.is_inner:
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return its address, if it has one."""
        return 0 if self.is_inner else super().get_pointer_to_function(name)

    def serialize_using_object_code(self) -> Any:
        """Return what is kept in the cache."""
        if self.is_inner:
            return self.serialize_using_bitcode()
        return super().serialize_using_object_code()


_SET_ENV = codegen.JITCPUCodegen.set_env


def _set_env_if_there(self: Any, name: str, environment: Any) -> None:
    if self._engine.is_symbol_defined(name):
        _SET_ENV(self, name, environment)


codegen.JITCPUCodegen._library_class = Library
codegen.JITCPUCodegen.set_env = _set_env_if_there


def _load_overload(self: Any, signature: Any, context: Any) -> Any:
    """Load with what compiled code calls, and nothing of what compiles it."""
    rtsys.initialize(context)
    with self._guard_against_spurious_io_errors():
        return self._load_overload(signature, context)


caching.Cache.load_overload = _load_overload
